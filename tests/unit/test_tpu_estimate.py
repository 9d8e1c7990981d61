"""What a program takes by the TPU compiler's estimates."""

from castoff.tpu.estimate import BYTES_A_CYCLE, estimate

HLO = """\
HloModule m

%inside (p: f32[2048]) -> f32[2048] {
  %p = f32[2048]{0} parameter(0)
  ROOT %n = f32[2048]{0} negate(%p)
}

%body (at: (s32[], f32[2048])) -> (s32[], f32[2048]) {
  %at = (s32[], f32[2048]{0}) parameter(0)
  %i = s32[] get-tuple-element(%at), index=0
  %x = f32[2048]{0} get-tuple-element(%at), index=1
  %step = s32[] constant(STEP)
  %y = f32[2048]{0} fusion(%x), kind=kLoop, calls=%inside, backend_config={"estimated_cycles":"100"}
  %next = s32[] add(%i, %step)
  ROOT %both = (s32[], f32[2048]{0}) tuple(%next, %y)
}

%test (at.1: (s32[], f32[2048])) -> pred[] {
  %at.1 = (s32[], f32[2048]{0}) parameter(0)
  %i.1 = s32[] get-tuple-element(%at.1), index=0
  %last = s32[] constant(LAST)
  ROOT %c = pred[] compare(COMPARED), direction=DIRECTION
}

ENTRY %main (a: f32[2048], w: bf16[4,1024,1024]) -> f32[2048] {
  %a = f32[2048]{0} parameter(0)
  %w = bf16[4,1024,1024]{2,1,0} parameter(1)
  %first = s32[] constant(FIRST)
  %copied = s32[] copy(%first)
  %b = f32[2048]{0} fusion(%a), kind=kLoop, calls=%inside, backend_config={"estimated_cycles":"9223372036854775807"}
  %start = (f32[2048]{0:S(1)}, f32[2048]{0}, u32[]) copy-start(%a)
  %done = f32[2048]{0:S(1)} copy-done(%start)
  %slice = ((bf16[4,1024,1024]{2,1,0}), bf16[1,1024,1024]{2,1,0:S(1)}, s32[]) slice-start(%w), slice={[0:1]}
  %part = bf16[1,1024,1024]{2,1,0:S(1)} slice-done(%slice)
  %same = bf16[1,1024,1024]{2,1,0:S(1)} custom-call(%part), custom_call_target="ConcatBitcast"
  %own = bf16[1024]{0} custom-call(%same), custom_call_target="tpu_custom_call"
  %small = f32[] negate(%copied)
  %sorted = f32[2048]{0} sort(%done), dimensions={0}, to_apply=%inside
  %init = (s32[], f32[2048]{0}) tuple(%copied, %sorted)
  %loop = (s32[], f32[2048]{0}) while(%init), condition=%test, body=%body
  ROOT %r = f32[2048]{0} get-tuple-element(%loop), index=1
}
"""


def made(first: str = "0", last: str = "8", direction: str = "LT", step: str = "1", *, swapped: bool = False) -> str:
    compared = "%last, %i.1" if swapped else "%i.1, %last"
    text = HLO.replace("FIRST", first).replace("LAST", last).replace("COMPARED", compared).replace("STEP", step)
    return text.replace("direction=DIRECTION", f"direction={direction}")


def test_a_loop_counts_as_often_as_it_runs() -> None:
    assert estimate(made()).compute == 800
    assert estimate(made("2", "10")).compute == 800
    assert estimate(made(direction="LE")).compute == 900
    assert estimate(made(direction="NE")).compute == 800
    assert estimate(made(direction="GT", swapped=True)).compute == 800
    assert estimate(made("8", "0", "GT", "-1")).compute == 800
    assert estimate(made("8", "1", "GE", "-1")).compute == 800
    assert estimate(made("8", "0")).compute == 0


def test_a_loop_whose_trips_are_not_known_counts_once_and_is_named() -> None:
    for text in (
        made(step="3"),
        made(direction="EQ"),
        made().replace("%last = s32[] constant(8)", "%last = s32[] copy(%i.1)"),
    ):
        assert estimate(text).compute == 100
        assert "1 while whose trips are not known" in estimate(text).gaps()


def test_what_has_no_estimate_is_named() -> None:
    found = estimate(made())
    assert dict(found.without) == {"custom-call": 1, "fusion": 1, "sort": 1}
    assert found.gaps() == "1 custom-call, 1 fusion, 1 sort"


def test_moved_bytes_are_a_lower_limit() -> None:
    found = estimate(made())
    own = 2 * 1024 * 1024 + 2 * 1024  # a kernel reads and writes; ConcatBitcast moves nothing
    assert found.moved == 4 * 2048 + 2 * 1024 * 1024 + own
    assert found.cycles("v5e:2x2") == round(found.moved / BYTES_A_CYCLE["v5e"]) > found.compute
    assert found.cycles("v99:1x1") == found.compute
    assert estimate(made(last="100000")).cycles("v5e:2x2") == 10_000_000


def test_a_copy_that_nothing_runs_beside_takes_what_its_bytes_take() -> None:
    copy = "%sorted = f32[2048]{0:T(1024)} copy(%done)"
    near = copy.replace("T(1024)", "T(1024)S(1)")
    far = copy.replace("%done", "%a")
    sort = "%sorted = f32[2048]{0} sort(%done), dimensions={0}, to_apply=%inside"
    assert sort in made()
    for text, size in ((copy, 2048 * 4), (near, 0), (far, 2 * 2048 * 4)):
        found = estimate(made(last="100000").replace(sort, text))
        assert found.copied == size
        assert found.without["copy"] == (size == 0)
        assert found.cycles("v5e:2x2") == 10_000_000 + round(size / BYTES_A_CYCLE["v5e"])
    known = copy + ', backend_config={"estimated_cycles":"9"}'
    assert estimate(made().replace(sort, known)).copied == 0


CHOICE = """\
HloModule m

%inside (p: f32[2048]) -> f32[2048] {
  %p = f32[2048]{0} parameter(0)
  ROOT %n = f32[2048]{0} negate(%p)
}

%usual (x: f32[2048]) -> f32[2048] {
  %x = f32[2048]{0} parameter(0)
  ROOT %y = f32[2048]{0} fusion(%x), kind=kLoop, calls=%inside, backend_config={"estimated_cycles":"100"}
}

%rare (z: f32[2048]) -> f32[2048] {
  %z = f32[2048]{0} parameter(0)
  %one = f32[2048]{0} fusion(%z), kind=kLoop, calls=%inside, backend_config={"estimated_cycles":"70"}
  ROOT %two = f32[2048]{0} fusion(%one), kind=kLoop, calls=%inside, backend_config={"estimated_cycles":"90"}
}

ENTRY %main (flag: pred[], a: f32[2048]) -> f32[2048] {
  %flag = pred[] parameter(0)
  %a = f32[2048]{0} parameter(1)
  ROOT %r = f32[2048]{0} conditional(%flag, %a, %a), true_computation=%usual, false_computation=%rare
}
"""


def test_one_branch_of_a_choice_counts() -> None:
    assert estimate(CHOICE).compute == 160
    assert estimate(CHOICE, branch=min).compute == 100


OF_64_BITS = """\
  %high = u32[] get-tuple-element(%at.1), index=1
  %none = u32[] constant(0)
  %equal = pred[] compare(%high, %none), direction=EQ
  %fewer = pred[] compare(%i.1, %last), direction=LT
  %both.1 = pred[] and(%equal, %fewer)
  %sign = s32[] bitcast-convert(%high)
  %zero = s32[] constant(0)
  %below = pred[] compare(%sign, %zero), direction=LT
  ROOT %c = pred[] or(%below, %both.1)
"""


def test_a_loop_whose_counter_has_64_bits_begins_with_0() -> None:
    text = made().replace("  ROOT %c = pred[] compare(%i.1, %last), direction=LT\n", OF_64_BITS)
    assert estimate(text).compute == 800
    for other in (
        ("direction=EQ", "direction=NE"),
        ("and(", "or("),
        ("constant(0)\n  %below", "constant(1)\n  %below"),
    ):
        assert "1 while whose trips are not known" in estimate(text.replace(*other)).gaps()

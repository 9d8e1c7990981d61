import pytest

from castoff.formats.xla_text import parse_hlo
from castoff.tpu.normalize import normalize

FUSED = """\
HloModule jit, is_scheduled=true, entry_computation_layout={(bf16[8,16]{1,0:T(8,128)(2,1)})->f32[8,8]{1,0}}

%bitcast_fusion (input: bf16[16,8]) -> bf16[16,8] {
  %input = bf16[16,8]{1,0:T(8,128)(2,1)S(1)} parameter(0)
  ROOT %bitcast = bf16[16,8]{1,0:T(8,128)(2,1)} bitcast(%input)
}

%fused (p0: f32[8,8], p1: bf16[8,16], p2: bf16[16,8]) -> f32[8,8] {
  %p0 = f32[8,8]{1,0:T(8,128)} parameter(0)
  %p1 = bf16[8,16]{1,0:T(8,128)(2,1)} parameter(1)
  %p2 = bf16[16,8]{1,0:T(8,128)(2,1)} parameter(2)
  %inner = bf16[16,8]{1,0:T(8,128)(2,1)} fusion(%p2), kind=kLoop, calls=%bitcast_fusion
  %product = bf16[8,8]{1,0:T(8,128)(2,1)} convolution(%p1, %inner), dim_labels=bf_io->bf
  %convert = f32[8,8]{1,0:T(8,128)} convert(%product)
  ROOT %sum = f32[8,8]{1,0:T(8,128)} add(%p0, %convert)
}

ENTRY %main (a: bf16[8,16], b: bf16[16,8], c: f32[8,8]) -> f32[8,8] {
  %b = bf16[16,8]{1,0:T(8,128)(2,1)} parameter(1)
  %copy-start = (bf16[16,8]{1,0:S(1)}, bf16[16,8]{1,0}, u32[]{:S(2)}) copy-start(%b), cross_program_prefetch_index=0
  %c = f32[8,8]{1,0:T(8,128)} parameter(2)
  %a = bf16[8,16]{1,0:T(8,128)(2,1)} parameter(0)
  %copy-done = bf16[16,8]{1,0:T(8,128)(2,1)S(1)} copy-done(%copy-start)
  ROOT %fusion = f32[8,8]{1,0} fusion(%c, %a, %copy-done), kind=kOutput, calls=%fused, backend_config={"x":"(%a"}
}
"""


def test_a_fusion_is_a_block_and_what_moves_data_is_left_out() -> None:
    assert (
        normalize(FUSED)
        == """\
%0 = bf16[16,8] parameter(1)
%1 = f32[8,8] parameter(2)
%2 = bf16[8,16] parameter(0)
fusion:
| %3 = bf16[8,8] convolution(%2, %0)
| %4 = f32[8,8] convert(%3)
| %5 = f32[8,8] add(%1, %4)
return %5
"""
    )


def test_names_layouts_and_an_unused_schedule_do_not_matter() -> None:
    other = FUSED.replace("%product", "%convolution.17").replace(":T(8,128)(2,1)", "").replace("S(1)", "")
    other = other.replace("%bitcast_fusion", "%wrapped.3")
    assert normalize(other) == normalize(FUSED)


def test_a_dtype_a_shape_or_a_fusion_does_matter() -> None:
    for old, new in (
        ("%product = bf16[8,8]", "%product = f32[8,8]"),
        ("f32[8,8]{1,0:T(8,128)} convert", "f32[8,9]{1,0} convert"),
        ("add(%p0, %convert)", "add(%convert, %p0)"),
        ("add(%p0", "subtract(%p0"),
    ):
        assert old in FUSED
        assert normalize(FUSED.replace(old, new)) != normalize(FUSED)


def test_what_is_asked_of_a_module() -> None:
    module = parse_hlo(FUSED)
    assert module.entry == "main"
    assert module.converts() == [("bf16", "f32")]
    assert [(i.op, i.dtype, i.operands) for i in module.find("convolution")] == [
        ("convolution", "bf16", ("p1", "inner"))
    ]


REST = """\
%add (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %s = f32[] add(%x, %y)
}

%two (p: f32[4]) -> (f32[4], bf16[4]) {
  %p = f32[4]{0} parameter(0)
  %e = f32[4]{0} exponential(%p)
  %n = bf16[4]{0} convert(%p)
  ROOT %t = (f32[4]{0}, bf16[4]{0}) tuple(%e, %n)
}

%body (p: (s32[], f32[4])) -> (s32[], f32[4]) {
  %p = (s32[], f32[4]{0}) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %v = f32[4]{0} get-tuple-element(%p), index=1
  %d = f32[4]{0} add(%v, %v)
  ROOT %t = (s32[], f32[4]{0}) tuple(%i, %d)
}

%condition (p: (s32[], f32[4])) -> pred[] {
  %p = (s32[], f32[4]{0}) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %ten = s32[] constant(10)
  ROOT %less = pred[] compare(%i, %ten), direction=LT
}

ENTRY %main (a: f32[4]) -> (f32[], bf16[4], f32[4]) {
  %a = f32[4]{0} parameter(0), sharding={devices=[2]0,1}
  %f = (f32[4]{0}, bf16[4]{0}) fusion(%a), kind=kLoop, calls=%two
  %first = f32[4]{0} get-tuple-element(%f), index=0
  %second = bf16[4]{0} get-tuple-element(%f), index=1
  %zero = f32[] constant(0)
  %all = f32[4]{0} all-reduce(%first), channel_id=1, replica_groups={{0,1},{2,3}}, to_apply=%add
  %total = f32[] reduce(%all, %zero), dimensions={0}, to_apply=%add
  %start = (s32[], f32[4]{0}) tuple(%zero, %all)
  %loop = (s32[], /*index=1*/f32[4]{0}) while(%start), condition=%condition, body=%body
  %last = f32[4]{0} get-tuple-element(%loop), index=1
  ROOT %out = (f32[], bf16[4]{0}, f32[4]{0}) tuple(%total, %second, %last)
}
"""


def test_collectives_reductions_loops_and_fusions_with_two_results() -> None:
    assert (
        normalize(REST)
        == """\
%0 = f32[4] parameter(0)
fusion:
| %1 = f32[4] exponential(%0)
| %2 = bf16[4] convert(%0)
%3 = f32[4] all-reduce[add f32](%1), groups={{0,1},{2,3}}
%4 = f32[] constant(0)
%5 = f32[] reduce[add f32](%3, %4)
%6 = (s32[], f32[4]) while(%4, %3)
  condition:
    %7 = (s32[], f32[4]) parameter(0)
    %8 = s32[] get-tuple-element(%7), index=0
    %9 = s32[] constant(10)
    %10 = pred[] compare(%8, %9)
    return %10
  body:
    %11 = (s32[], f32[4]) parameter(0)
    %12 = s32[] get-tuple-element(%11), index=0
    %13 = f32[4] get-tuple-element(%11), index=1
    %14 = f32[4] add(%13, %13)
    return %12, %14
%15 = f32[4] get-tuple-element(%6), index=1
return %5, %2, %15
"""
    )


@pytest.mark.parametrize("text", ["", "HloModule x\n", "%a (x: f32[]) -> f32[] {\n  ROOT %x = f32[] parameter(0)\n}\n"])
def test_text_without_an_entry_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected HLO with an ENTRY"):
        parse_hlo(text)

import pytest

from castoff.audit.dtypes import is_exact, is_float, size_of


@pytest.mark.parametrize(
    ("source", "target"),
    [
        *(("bf16", "f32"), ("f16", "f32"), ("f16", "f64"), ("f32", "f64"), ("f8e5m2", "f16"), ("f8e4m3fn", "bf16")),
        *(
            ("pred", "s32"),
            ("s8", "bf16"),
            ("u8", "s16"),
            ("s16", "f32"),
            ("s32", "f64"),
            ("s32", "s64"),
            ("u8", "u16"),
        ),
        *(("f32", "c64"), ("c64", "c128"), ("bf16", "bf16")),
    ],
)
def test_a_type_that_holds_the_other(source: str, target: str) -> None:
    assert is_exact(source, target)
    assert source == target or not is_exact(target, source)


@pytest.mark.parametrize(
    ("source", "target"),
    [("bf16", "f16"), ("f16", "bf16"), ("s32", "f32"), ("s16", "bf16"), ("s8", "u8"), ("u8", "s8"), ("f32", "s64")],
)
def test_types_that_do_not_hold_each_other(source: str, target: str) -> None:
    assert not is_exact(source, target)


def test_sizes() -> None:
    assert [size_of(name) for name in ("pred", "bf16", "f32", "s64", "c64", "f8e4m3fn", "s4")] == [1, 2, 4, 8, 8, 1, 1]
    with pytest.raises(ValueError, match="found 'tuple'"):
        size_of("tuple")


def test_floats() -> None:
    assert [is_float(name) for name in ("bf16", "c64", "f8e4m3b11fnuz", "s32", "pred")] == [True] * 3 + [False] * 2

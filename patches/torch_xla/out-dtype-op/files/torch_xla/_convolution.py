"""Convolutions with ``preferred_element_type``: castoff::convolution and castoff::convolution_weight_grad.

Each is one HLO convolution that accumulates in, and returns, the dtype that is asked for, of operands
that stay as they are; they may differ in dtype from one another. What ``castoff::dot_general`` is to
matrix products, these are to convolutions: the gradient of either in either operand is one of the two.

Argument lists are those of ``aten::convolution``; stride, padding, dilation and output_padding hold one
number, or one for each spatial dimension.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import torch

from . import _castoff
from ._hlo_module import Operand, computation, message, run

__all__ = ["install"]

_SCHEMAS = (
    "convolution(Tensor input, Tensor weight, int[] stride, int[] padding, int[] dilation, bool transposed, "
    "int[] output_padding, int groups, ScalarType preferred_element_type) -> Tensor",
    "convolution_weight_grad(Tensor grad, Tensor input, int[] weight_size, int[] stride, int[] padding, "
    "int[] dilation, bool transposed, int groups, ScalarType preferred_element_type) -> Tensor",
)

_registrations: list[torch.library.Library] = []


class Window(NamedTuple):
    """What one spatial dimension of the kernel does: a ``WindowDimension``."""

    size: int
    stride: int
    padding_low: int
    padding_high: int
    window_dilation: int = 1
    base_dilation: int = 1
    reversal: bool = False


class DimensionNumbers(NamedTuple):
    """Which of the first two dimensions is which. The spatial ones are 2, 3, … everywhere."""

    input_batch: int
    input_feature: int
    kernel_input_feature: int
    kernel_output_feature: int
    output_batch: int
    output_feature: int


def _encode_window(dimensions: tuple[Window, ...]) -> bytes:
    return message(*((1, message(*enumerate(dimension, start=1))) for dimension in dimensions))


def _encode_numbers(numbers: DimensionNumbers, spatial_rank: int) -> bytes:
    spatial = range(2, 2 + spatial_rank)
    return message(
        (7, numbers.input_batch),
        (8, numbers.input_feature),
        (11, spatial),
        (3, numbers.kernel_input_feature),
        (4, numbers.kernel_output_feature),
        (6, spatial),
        (9, numbers.output_batch),
        (10, numbers.output_feature),
        (12, spatial),
    )


@functools.lru_cache(maxsize=4096)
def _computation(
    lhs: Operand,
    rhs: Operand,
    result: Operand,
    window: tuple[Window, ...],
    numbers: DimensionNumbers,
    feature_groups: int,
    batch_groups: int,
    precision: str,
):
    attributes = message(
        (15, _encode_window(window)),
        (16, _encode_numbers(numbers, len(window))),
        (50, feature_groups),
        (58, batch_groups),
    )
    return computation("convolution", lhs, rhs, result, attributes, precision)


def _run(lhs, rhs, dtype, sizes, window, numbers, feature_groups=1, batch_groups=1) -> torch.Tensor:
    """The HLO convolution of ``lhs`` with the kernel ``rhs``, of a result of ``dtype`` and ``sizes``."""
    result = Operand(dtype, tuple(sizes))
    groups = feature_groups, batch_groups
    precision = _castoff.matmul_precision()
    made = _computation(Operand.of(lhs), Operand.of(rhs), result, window, numbers, *groups, precision)
    return run("convolution", made, lhs, rhs)


def _expect(condition: bool, expected: str, found: object) -> None:
    if not condition:
        raise RuntimeError(f"convolution: expected {expected}, but found {found}")


def _per_dimension(name: str, values: Sequence[int], rank: int, least: int) -> list[int]:
    expanded = list(values) * (rank if len(values) == 1 else 1)
    _expect(len(expanded) == rank, f"1 or {rank} numbers as {name}", list(values))
    _expect(all(value >= least for value in expanded), f"{name} of at least {least}", list(values))
    return expanded


class _Geometry:
    """The arguments of one aten::convolution, checked, a number for each spatial dimension."""

    def __init__(self, input, weight_size, stride, padding, dilation, transposed, output_padding, groups):
        rank = input.dim() - 2
        _expect(rank >= 1, "an input of (batch, channels, at least one spatial dimension)", list(input.shape))
        _expect(len(weight_size) == rank + 2, f"a weight of {rank + 2} dimensions like the input's", list(weight_size))
        _expect(groups >= 1, "groups of at least 1", groups)
        self.stride = _per_dimension("stride", stride, rank, 1)
        self.padding = _per_dimension("padding", padding, rank, 0)
        self.dilation = _per_dimension("dilation", dilation, rank, 1)
        self.output_padding = _per_dimension("output_padding", output_padding, rank, 0)
        self.kernel = list(weight_size[2:])
        self.transposed, self.groups = transposed, groups
        batch, channels, *spatial = input.shape
        outer, inner = weight_size[:2]
        _expect(outer % groups == 0, f"{groups} groups to divide the weight's first dimension", outer)
        expected = outer if transposed else inner * groups
        _expect(channels == expected, f"an input with {expected} channels, as the weight has", channels)
        self.output = [batch, inner * groups if transposed else outer, *map(self._extent, range(rank), spatial)]

    def _extent(self, i: int, size: int) -> int:
        reach = self.dilation[i] * (self.kernel[i] - 1)
        if self.transposed:
            return (size - 1) * self.stride[i] - 2 * self.padding[i] + reach + self.output_padding[i] + 1
        return (size + 2 * self.padding[i] - reach - 1) // self.stride[i] + 1

    def output_of_convolution(self) -> list[int]:
        _expect(min(self.output[2:]) >= 1, "a kernel that fits into the padded input", f"an output of {self.output}")
        return self.output

    def windows(self) -> tuple[Window, ...]:
        return tuple(map(self._transposed_window if self.transposed else self._window, range(len(self.kernel))))

    def _window(self, i: int) -> Window:
        return Window(self.kernel[i], self.stride[i], self.padding[i], self.padding[i], self.dilation[i])

    def _transposed_window(self, i: int) -> Window:
        low = self.dilation[i] * (self.kernel[i] - 1) - self.padding[i]
        high = low + self.output_padding[i]
        return Window(self.kernel[i], 1, low, high, self.dilation[i], base_dilation=self.stride[i], reversal=True)

    def weight_grad_windows(self, moved: Sequence[int], fixed: Sequence[int]) -> tuple[Window, ...]:
        """Windows of the kernel ``moved`` over ``fixed`` (spatial sizes): stride and dilation swap roles."""
        return tuple(
            Window(
                size,
                stride=self.dilation[i],
                padding_low=self.padding[i],
                padding_high=self.dilation[i] * (self.kernel[i] - 1)
                + self.stride[i] * (size - 1)
                + 1
                - fixed[i]
                - self.padding[i],
                window_dilation=self.stride[i],
            )
            for i, size in enumerate(moved)
        )


def _groups_to_outputs(weight: torch.Tensor, groups: int) -> torch.Tensor:
    """(groups · in, out, …) to (in, groups · out, …), the form in which XLA takes the kernel's groups."""
    if groups == 1:
        return weight
    return weight.unflatten(0, (groups, -1)).transpose(0, 1).flatten(1, 2)


@_castoff.untraced
def _convolution(input, weight, stride, padding, dilation, transposed, output_padding, groups, preferred_element_type):
    geometry = _Geometry(input, weight.shape, stride, padding, dilation, transposed, output_padding, groups)
    if transposed:
        weight = _groups_to_outputs(weight, groups)
    kernel_in, kernel_out = (0, 1) if transposed else (1, 0)
    return _run(
        input,
        weight,
        preferred_element_type,
        geometry.output_of_convolution(),
        geometry.windows(),
        DimensionNumbers(0, 1, kernel_in, kernel_out, 0, 1),
        feature_groups=groups,
    )


def _check_grad(grad, input, weight_size, stride, padding, dilation, transposed, groups) -> _Geometry:
    """The geometry of the convolution whose output gradient ``grad`` is; it may have had any output_padding."""
    geometry = _Geometry(input, weight_size, stride, padding, dilation, transposed, [0], groups)
    found = list(grad.shape)
    fits = (
        len(found) == len(geometry.output)
        and found[:2] == geometry.output[:2]
        and (
            all(a >= b for a, b in zip(found[2:], geometry.output[2:], strict=True))
            if transposed
            else found == geometry.output
        )
    )
    _expect(fits, f"a gradient of the size {geometry.output} of the output", found)
    return geometry


@_castoff.untraced
def _convolution_weight_grad(
    grad, input, weight_size, stride, padding, dilation, transposed, groups, preferred_element_type
):
    geometry = _check_grad(grad, input, weight_size, stride, padding, dilation, transposed, groups)
    # A transposed convolution is the gradient of one whose input is its output.
    moved, fixed = (input, grad) if transposed else (grad, input)
    return _run(
        fixed,
        moved,
        preferred_element_type,
        weight_size,
        geometry.weight_grad_windows(moved.shape[2:], fixed.shape[2:]),
        DimensionNumbers(1, 0, 0, 1, 1, 0),
        batch_groups=groups,
    )


def _convolution_meta(
    input, weight, stride, padding, dilation, transposed, output_padding, groups, preferred_element_type
):
    geometry = _Geometry(input, weight.shape, stride, padding, dilation, transposed, output_padding, groups)
    return input.new_empty(geometry.output_of_convolution(), dtype=preferred_element_type)


def _convolution_weight_grad_meta(
    grad, input, weight_size, stride, padding, dilation, transposed, groups, preferred_element_type
):
    _check_grad(grad, input, weight_size, stride, padding, dilation, transposed, groups)
    return input.new_empty(weight_size, dtype=preferred_element_type)


def _output_padding(ctx, input, weight, output_size) -> list[int]:
    """With which a transposed convolution of ``input`` has the spatial sizes of ``output_size``."""
    stride, padding, dilation, _, groups = ctx.arguments
    bare = _Geometry(input, weight.shape, stride, padding, dilation, True, [0], groups).output
    return [size - reached for size, reached in zip(output_size[2:], bare[2:], strict=True)]


def _input_grad(ctx, grad, weight, input_size) -> torch.Tensor:
    """What ``castoff::convolution`` with ``weight`` and ctx's arguments sends back to its input: its transpose."""
    stride, padding, dilation, transposed, groups = ctx.arguments
    output_padding = [0] if transposed else _output_padding(ctx, grad, weight, input_size)
    result = torch.ops.castoff.convolution(
        grad, weight, stride, padding, dilation, not transposed, output_padding, groups, grad.dtype
    )
    for dimension, size in enumerate(input_size):  # output_padding of stride and more: windows beyond the input
        if result.shape[dimension] > size:
            result = result.narrow(dimension, 0, size)
    return result


def _save_convolution(ctx, inputs, output) -> None:
    input, weight, stride, padding, dilation, transposed, _, groups, _ = inputs
    ctx.arguments = stride, padding, dilation, transposed, groups
    ctx.sizes = list(input.shape), list(weight.shape)
    ctx.save_for_backward(input if ctx.needs_input_grad[1] else None, weight if ctx.needs_input_grad[0] else None)


def _convolution_backward(ctx, grad):
    """Gradients in the output gradient's dtype, of convolutions of mixed dtypes: see dot_general's."""
    input, weight = ctx.saved_tensors
    input_size, weight_size = ctx.sizes
    input_grad = weight_grad = None
    if weight is not None:
        input_grad = _input_grad(ctx, grad, weight, input_size)
    if input is not None:
        weight_grad = torch.ops.castoff.convolution_weight_grad(grad, input, weight_size, *ctx.arguments, grad.dtype)
    return input_grad, weight_grad, *[None] * 7


def _save_weight_grad(ctx, inputs, output) -> None:
    grad, input, _, *arguments, _ = inputs
    ctx.arguments = tuple(arguments)
    ctx.sizes = list(grad.shape), list(input.shape)
    ctx.save_for_backward(grad if ctx.needs_input_grad[1] else None, input if ctx.needs_input_grad[0] else None)


def _weight_grad_backward(ctx, weight):
    """The convolution is linear in its weight: ``weight``, the gradient of the weight's gradient, takes its place."""
    grad, input = ctx.saved_tensors
    stride, padding, dilation, transposed, groups = ctx.arguments
    grad_size, input_size = ctx.sizes
    of_grad = of_input = None
    if input is not None:
        output_padding = _output_padding(ctx, input, weight, grad_size) if transposed else [0]
        of_grad = torch.ops.castoff.convolution(
            input, weight, stride, padding, dilation, transposed, output_padding, groups, weight.dtype
        )
    if grad is not None:
        of_input = _input_grad(ctx, grad, weight, input_size)
    return of_grad, of_input, *[None] * 7


def install() -> None:
    """Define the operators and their kernels, once."""
    if _registrations:
        return
    library = torch.library.Library("castoff", "FRAGMENT")
    for schema in _SCHEMAS:
        library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    library.impl("convolution", _convolution, "XLA")
    library.impl("convolution", _convolution_meta, "Meta")
    library.impl("convolution_weight_grad", _convolution_weight_grad, "XLA")
    library.impl("convolution_weight_grad", _convolution_weight_grad_meta, "Meta")
    for name, backward, save in (
        ("convolution", _convolution_backward, _save_convolution),
        ("convolution_weight_grad", _weight_grad_backward, _save_weight_grad),
    ):
        torch.library.register_autograd(f"castoff::{name}", backward, setup_context=save, lib=library)
    _registrations.append(library)

"""cross_entropy of classes as one node of the graph, and its gradient as another.

torch composes it of log_softmax and nll_loss. torch_xla's nll_loss multiplies one-hot matrices of all scores and sums
them once more to count the targets. Here the score of the target is taken from the scores, and counts and weights have
the size of the targets. Neither the logarithms of probabilities nor a one-hot matrix is an array of the graph.
"""

import functools
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor
from torch.autograd import forward_ad

__all__ = ["install"]

_NONE, _MEAN, _SUM = range(3)  # at::Reduction
_FLOATING = {torch.float32: "F32", torch.float64: "F64", torch.bfloat16: "BF16", torch.float16: "F16"}
"""With the names of their types in xla_builder."""
_PLAIN = (Tensor, torch.nn.Parameter)
_CLASSES = 1
"""The dimension of the classes in the scores."""

_CHOICES = "int reduction, bool weighted, int ignored, float smoothing"
"""The choices of a form, as an operator has them."""

_library: Any = None


class _Form(NamedTuple):
    """What a computation depends on."""

    dtype: torch.dtype
    sizes: tuple[int, ...]  # of the scores: N, C, …
    reduction: int
    weighted: bool
    ignored: int
    smoothing: float  # the part of a target's weight that all classes share

    @property
    def shared(self) -> float:
        """The weight that smoothing gives to each class."""
        return self.smoothing / self.sizes[_CLASSES]

    @property
    def of_targets(self) -> tuple[int, ...]:
        return self.sizes[:_CLASSES] + self.sizes[_CLASSES + 1 :]


class _Builder:
    """Operations on arrays of a form: scores, and one number for each target."""

    def __init__(self, name: str, form: _Form) -> None:
        from torch_xla.core.xla_builder import Op, Type, create_builder

        self._op, self._parameters, self._form = Op, 0, form
        self.builder = create_builder(name)
        self.narrow = getattr(Type, _FLOATING[form.dtype])
        self.wide = Type.F64 if form.dtype == torch.float64 else Type.F32
        self.int32, self.int64 = Type.S32, Type.S64

    def parameter(self, dtype: str, sizes: Sequence[int]):
        from torch_xla.core.xla_builder import mkparam, mkshape

        self._parameters += 1
        return mkparam(self.builder, self._parameters - 1, mkshape(dtype, sizes))

    def number(self, value: float, dtype: str):
        return self._op.scalar(self.builder, value, dtype)

    def zeros(self, sizes: Sequence[int]):
        return self.number(0, self.wide).broadcast(sizes)

    def times(self, of_targets, factor: float):
        return of_targets * self.number(factor, self.wide).broadcast(self._form.of_targets)

    def for_classes(self, of_targets):
        """A number of each target, beside each of its scores."""
        dims = [d for d in range(len(self._form.sizes)) if d != _CLASSES]
        return of_targets.broadcast_in_dim(self._form.sizes, dims)

    def targets(self, target):
        """Which targets count, and which of the scores is that of a target that does.

        A target that there is not counts as one that is ignored, as in torch_xla's nll_loss.
        """
        from torch_xla.core.xla_builder import mkshape

        form = self._form
        in_range = (target >= target.zeros_like()) & (target < target.scalar_like(form.sizes[_CLASSES]))
        counts = in_range & (target != target.scalar_like(form.ignored))
        place = counts.select(target, target.scalar_like(-1)).cast(self.int32)
        classes = self._op.iota(self.builder, mkshape(self.int32, form.sizes), _CLASSES)
        return counts, classes == self.for_classes(place)

    def joined(self, arrays: Iterable[Any]):
        return self._op.concat_in_dim(list(arrays), 0)

    def over_classes(self, scores):
        return self.total(scores, [_CLASSES])

    def total(self, x, dims: Sequence[int]):
        return x.reduce(self.number(0, self.wide), lambda a, b: a + b, dims) if dims else x

    def build(self, name: str, *results: Any):
        return self._op.tuple(results, builder=self.builder).build(name)


@functools.lru_cache(maxsize=256)
def _forward(form: _Form) -> Any:
    """The loss, and for the backward pass the scores and, of each target, three numbers.

    Parameters: scores, targets and, if weighted, the weights of classes.
    """
    name = "cross_entropy"
    b, dims = _Builder(name, form), list(range(len(form.of_targets)))
    given = b.parameter(b.narrow, form.sizes)
    target = b.parameter(b.int64, form.of_targets)
    scores = given.cast(b.wide)
    counts, is_target = b.targets(target)
    largest = scores.reduce(b.number(float("-inf"), b.wide), lambda a, c: a.max(c), [_CLASSES])
    total = b.over_classes((scores - b.for_classes(largest)).exp())
    mine = b.over_classes(is_target.select(scores, b.zeros(form.sizes)))
    scale = counts.cast(b.wide)
    if form.weighted:
        weight = b.parameter(b.narrow, form.sizes[_CLASSES : _CLASSES + 1]).cast(b.wide)
        weight = weight.broadcast_in_dim(form.sizes, [_CLASSES])
        scale = b.over_classes(is_target.select(weight, b.zeros(form.sizes)))
    above = largest - mine
    if form.smoothing:
        above_all = b.over_classes(b.for_classes(largest) - scores)
        above = b.times(above, 1 - form.smoothing) + b.times(above_all, form.shared)
    losses = total.log() + above
    if form.weighted:
        losses = losses * scale
    loss = counts.select(losses, b.zeros(form.of_targets))
    if form.reduction != _NONE:
        loss = b.total(loss, dims)
    if form.reduction == _MEAN:
        count = b.total(scale, dims)
        loss, scale = loss / count, scale / count.broadcast(form.of_targets)
    saved = (x.reshape((1, *form.of_targets)) for x in (largest, scale, scale / total))
    return b.build(name, loss.cast(b.narrow), given, b.joined(saved))


@functools.lru_cache(maxsize=256)
def _backward(form: _Form) -> Any:
    """The gradient of the scores. Parameters: that of the loss, and what the forward pass saved."""
    name = "cross_entropy_backward"
    b, sizes = _Builder(name, form), form.of_targets
    grad = b.parameter(b.narrow, sizes if form.reduction == _NONE else ()).cast(b.wide)
    scores = b.parameter(b.narrow, form.sizes).cast(b.wide)
    counts, is_target = b.targets(b.parameter(b.int64, sizes))
    saved = b.parameter(b.wide, (3, *sizes))
    largest, scale, over_total = (saved.slice_in_dim(i, i + 1, 0).reshape(sizes) for i in range(3))
    if form.reduction != _NONE:
        grad = grad.broadcast(sizes)
    ones, shares = (counts.select(grad * of, b.zeros(sizes)) for of in (scale, over_total))
    probabilities = (scores - b.for_classes(largest)).exp() * b.for_classes(shares)
    others = b.zeros(form.sizes)
    if form.smoothing:
        others = b.for_classes(b.times(ones, form.shared))
        ones = b.times(ones, 1 - form.smoothing + form.shared)
    found = probabilities - is_target.select(b.for_classes(ones), others)
    return b.build(name, found.cast(b.narrow))


_MAKE = {"cross_entropy": _forward, "cross_entropy_backward": _backward}


def _run(name: str, form: _Form, operands: list[Tensor]) -> list[Tensor]:
    if torch._C._len_torch_dispatch_stack() > 0:  # an operator, for a dispatch mode to see
        return getattr(torch.ops.castoff, name)(operands, *form[2:])
    return _computed(name, form, operands)


def _computed(name: str, form: _Form, operands: Sequence[Tensor]) -> list[Tensor]:
    from torch_xla import _XLAC

    return _XLAC._xla_user_computation(f"xla::{name}", operands, _MAKE[name](form))


def _kernel(name: str) -> Any:
    """The kernel of an operator. The scores are the first operand of the loss, and the second of its gradient."""
    place = list(_MAKE).index(name)

    def kernel(operands: list[Tensor], *choices: Any) -> list[Tensor]:
        scores = operands[place]
        return _computed(name, _Form(scores.dtype, tuple(scores.shape), *choices), operands)

    return kernel


class _CrossEntropy(torch.autograd.Function):
    """The loss and the scores. Another operator may write to the scores: what is saved is this result."""

    @staticmethod
    def forward(ctx, form: _Form, scores: Tensor, target: Tensor, weight: Optional[Tensor]):  # type: ignore[override]
        operands = [scores, target] if weight is None else [scores, target, weight]
        loss, kept, saved = _run("cross_entropy", form, operands)
        ctx.form = form
        ctx.save_for_backward(kept, target, saved, weight)
        ctx.set_materialize_grads(False)
        return loss, kept

    @staticmethod
    def backward(ctx, grad: Optional[Tensor], of_kept: Optional[Tensor]):  # type: ignore[override]
        scores, target, saved, weight = ctx.saved_tensors
        if grad is None:
            return None, of_kept, None, None
        if torch.is_grad_enabled():  # for a second derivative
            form = ctx.form
            loss = _by_torch(scores, target, weight, form.reduction, form.ignored, form.smoothing)
            (found,) = torch.autograd.grad(loss, scores, grad, create_graph=True)
        else:
            (found,) = _run("cross_entropy_backward", ctx.form, [grad, scores, target, saved])
        return None, found if of_kept is None else found + of_kept, None, None


def _by_torch(*arguments: Any) -> Tensor:
    operator = torch.ops.aten.cross_entropy_loss.default
    return operator._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, *arguments)


def _is_for_us(scores: Tensor, target: Tensor, weight: Optional[Tensor]) -> bool:
    """Classes as targets, all as torch documents it; torch has what remains, and the errors."""
    sizes = scores.shape
    return (
        type(scores) in _PLAIN
        and scores.dtype in _FLOATING
        and type(target) in _PLAIN
        and target.dtype == torch.int64
        and target.is_xla
        and len(sizes) > 1
        and target.shape == sizes[:_CLASSES] + sizes[_CLASSES + 1 :]
        and scores.numel() > 0
        and (weight is None or _is_weight(weight, scores))
        and not _is_transformed()
    )


def _is_weight(weight: Tensor, scores: Tensor) -> bool:
    sizes = (scores.shape[_CLASSES],)
    is_like_scores = type(weight) in _PLAIN and weight.is_xla and weight.dtype == scores.dtype
    return is_like_scores and weight.shape == sizes and not weight.requires_grad


def _is_transformed() -> bool:
    """Whether torch.func, forward-mode derivatives or a tracer see the operators of this call."""
    return (
        torch._C._functorch.peek_interpreter_stack() is not None
        or forward_ad._current_level >= 0
        or torch._C._get_tracing_state() is not None
    )


def _cross_entropy(
    scores: Tensor,
    target: Tensor,
    weight: Optional[Tensor] = None,
    reduction: int = _MEAN,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Tensor:
    smoothing = max(label_smoothing, 0.0)  # as in torch, where less than 0 is none
    is_unusual = smoothing > 1 or (smoothing > 0 and weight is not None) or reduction not in (_NONE, _MEAN, _SUM)
    if is_unusual or not _is_for_us(scores, target, weight):
        return _by_torch(scores, target, weight, reduction, ignore_index, label_smoothing)
    form = _Form(scores.dtype, tuple(scores.shape), reduction, weight is not None, ignore_index, smoothing)
    return _CrossEntropy.apply(form, scores, target, weight)[0]


def install() -> None:
    """Register the kernel for XLA. Called once, by ``_castoff``."""
    global _library
    from . import _castoff

    _library = [torch._C._dispatch_library("IMPL", "aten", "", __file__, 1)]
    _library[0].impl("cross_entropy_loss", "AutogradXLA", _castoff.untraced(_cross_entropy))
    own = torch.library.Library("castoff", "FRAGMENT")
    for name in _MAKE:
        own.define(f"{name}(Tensor[] operands, {_CHOICES}) -> Tensor[]")
        own.impl(name, _kernel(name), "XLA")
    _library.append(own)

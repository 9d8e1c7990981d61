"""Why operators differ on XLA from torch's CPU kernels: the reasons that docs/operators.md groups them by."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Reason:
    """A reason, and which differences have it: those that match all that is given.

    detail: a pattern in what the sweep found, such as the text of an error. dtypes, kinds and phases: words, any of
    which will do. operators: a pattern of whole names.
    """

    key: str
    title: str
    text: str
    operators: str = ".*"
    detail: str = ""
    dtypes: str = ""
    kinds: str = ""
    phases: str = ""

    def has(self, row: dict[str, Any]) -> bool:
        return (
            re.fullmatch(self.operators, row["op"]) is not None
            and re.search(self.detail, row["detail"]) is not None
            and (not self.dtypes or row["dtype"] in self.dtypes.split())
            and (not self.kinds or row["kind"] in self.kinds.split(", "))
            and (not self.phases or row["phase"] in self.phases.split())
        )


REASONS = (
    Reason(
        "library",
        "linalg, fft and sparse",
        "Layouts that XLA does not have, and operators that torch_xla hands to the CPU with what it does not know of. "
        "The vectors of a decomposition may have another sign, which is no error.",
        operators=r"(linalg|fft|sparse)\..*|to_sparse|cholesky.*|geqrf|lu|lu_.*|ormqr|svd.*|pca_lowrank|pinverse|qr|"
        r"triangular_solve|stft|istft|.*sparse.*",
    ),
    Reason(
        "alias",
        "Views that are copies, or of other elements",
        "A tensor on XLA has no strides: `as_strided` of a view takes the elements of the view, where torch takes "
        "those of the memory behind it. The parts of `unsafe_split` and `unsafe_chunk` are copies: torch asks that "
        "nobody looks at the whole once a part is written to, and LSTM cells write to them.",
        kinds="alias",
    ),
    Reason(
        "result dtype",
        "Results in the dtype of the operand",
        "torch_xla's kernel gives the result in another dtype than torch's rules of promotion.",
        kinds="dtype",
    ),
    Reason(
        "ties",
        "Another one of equal elements",
        "The values are right, and the index is that of another one of several equal elements.",
        operators="cummax|cummin|kthvalue|topk|sort|msort|argsort|mode|median|nanmedian|argmax|argmin|aminmax|"
        r"(max|min)\.reduction_with_dim|(max|min)_reduction_with_dim|.*quantile|unique.*",
        kinds="value",
        dtypes="f16 bf16 i64 i32 i8 u8 bool",
    ),
    Reason(
        "complex halves",
        "Complex numbers of float16",
        "XLA has complex numbers of float32 and float64 alone.",
        operators="chalf|complex|view_as_complex",
        kinds="raises",
    ),
    Reason(
        "NaN",
        "Gradients at NaN",
        "A gradient is shared by the elements that equal the result, and NaN equals nothing.",
        operators=r"masked\.(a?(max|min)|prod)",
        kinds="value",
        dtypes="f32 bf16 f16",
    ),
    Reason(
        "tail",
        "The tail of ndtr, where torch has lost its digits",
        "torch computes 1 + erf(x), of which nothing is left far below 0, in float64 neither. castoff's erfc(-x) has "
        "all digits: `ndtr(-8)` is 6.22e-16, and torch's is 0 in float32.",
        operators=r"special\.ndtr",
        kinds="value",
        phases="forward",
    ),
    Reason(
        "zero",
        "Gradients that are zero",
        "In exact arithmetic the gradient is zero, as that of the normalisation of one element is. Terms that cancel "
        "leave the rounding of the steps, which are others on XLA.",
        detail=r"off by \d[.\d]*e\+(0[6-9]|[1-3]\d) units",
        phases="gradient",
        kinds="value",
        operators=r"corrcoef|nn\.functional\.(cosine_similarity|layer_norm|normalize|rms_norm)|native_layer_norm|"
        r"masked\.normalize",
    ),
    Reason(
        "exponential units",
        "Gradients of elu, celu and selu",
        "The kernel of the gradient takes the input for the output, so that the gradient of a negative input is wrong.",
        operators=r"nn\.functional\.(elu|celu|selu)",
        phases="gradient",
        kinds="value",
    ),
    Reason(
        "norms",
        "Norms of order infinity, and nuclear norms",
        "torch_xla's kernel sums powers and takes the root whatever the order is: `x.norm(float('inf'))` is 1.",
        operators=r"norm\.(inf|nuc)|pdist|cdist",
        kinds="value",
    ),
    Reason(
        "chunks",
        "`_chunk_cat`",
        "Its values are wrong in every dtype; nobody has found out why. torch's FSDP2 calls it.",
        operators="_chunk_cat",
    ),
    Reason(
        "interpolation",
        "Interpolation",
        "The kernels of upsampling compute the scale from the sizes, where torch takes the one that was given, and "
        "some positions are rounded in another way.",
        operators=r"nn\.functional\.(interpolate|upsample).*|_upsample.*|upsample.*",
        kinds="value, shape",
    ),
    Reason(
        "convolution",
        "Convolutions of float16",
        "Their error on CPU-XLA is larger than that of torch's CPU kernels, which add up in float32.",
        operators=r"nn\.functional\.conv.*",
        dtypes="f16 bf16",
        kinds="value",
    ),
    Reason(
        "narrow",
        "Steps in bfloat16 and float16",
        "torch computes the operator, or the gradient, in float32 and rounds once; torch_xla rounds each of the steps "
        "that it makes of it. Most of these are sums of a gradient over the dimensions that were broadcast, which lose "
        "on CPU-XLA alone: of a sum in bfloat16 the compilers for v5e, v5p and v6e make the program that they make of "
        "one in float32 that is rounded. The others are the bias of a linear, added to the rounded product; gradients "
        "that torch composes of several operators; and divisions by numbers below float32's normal ones, which "
        "CPU-XLA takes for 0.",
        dtypes="bf16 f16",
        kinds="value",
    ),
    Reason(
        "rounding",
        "Rounding in float32",
        "XLA approximates the function, or orders the steps of its gradient, in another way; the error is a few times "
        "that of torch's kernel.",
        operators=r"tanh|erfinv|kron|nn\.functional\.(logsigmoid|gelu|group_norm|conv.*)|sigmoid|logit|polygamma.*|"
        r"special.*|matrix_exp|cov|corrcoef",
        dtypes="f32",
        kinds="value",
    ),
    Reason(
        "dies",
        "The process ends",
        "An integer division by zero inside torch_xla, of a tensor with a dimension of size zero.",
        kinds="dies",
    ),
    Reason(
        "no kernel",
        "No kernel on XLA",
        "The operator has no kernel for XLA and none that torch_xla may hand to the CPU. It raises at the call.",
        kinds="raises",
        detail="NotImplementedError|not implemented|not supported|Could not run",
    ),
    Reason(
        "refused late",
        "Refused by the compiler",
        "The call is accepted, and XLA refuses the graph when it runs: all of the pending graph is lost.",
        kinds="raises late",
    ),
    Reason(
        "refused",
        "Refused at the call",
        "torch_xla refuses arguments that torch takes, such as operands of another rank, negative padding or an empty "
        "dimension.",
        kinds="raises",
    ),
    Reason("other", "Not looked into", "Nobody has found out why."),
)
"""The first that matches is taken."""


SPECIAL = (
    Reason(
        "casts",
        "Floats that an integer dtype has not",
        "C++ leaves open what an infinity, NaN or a number out of range becomes. torch on x86 makes the smallest "
        "number of it; XLA gives the nearest one, and 0 for NaN.",
        operators=r"int|long|short|byte|char|masked\.logsumexp",
        kinds="value",
    ),
    Reason(
        "NaN",
        "The gradient of a maximum that is NaN",
        "It is shared by the elements that equal the result: none, for NaN. torch multiplies infinity by False, which "
        "is NaN; XLA's simplifier makes a selection of it, and 0.",
        operators=r"(masked\.)?am(ax|in)",
    ),
    Reason(
        "booleans",
        "Infinity or NaN times False",
        "XLA's simplifier makes a selection of a product with a boolean, which has 0 where torch has NaN.",
        operators="__rdiv__",
        dtypes="bool",
    ),
    Reason(
        "complex halves",
        "Complex numbers of float16",
        "XLA has complex numbers of float32 and float64 alone.",
        operators="chalf|complex",
        kinds="raises",
    ),
    Reason(
        "overflow",
        "Steps that overflow",
        "The operator is made of steps of which one leaves the dtype's range, such as the square in a standard "
        "deviation, or a product in another order.",
        operators=r"std.*|nanmean|(masked\.)?prod|special\.erfcx",
    ),
    Reason(
        "poles",
        "Poles of the gamma function's derivatives",
        "At 0 and negative integers castoff gives infinity, and torch a large number that the rounding of sin(πx) "
        "leaves, or an infinity of another sign.",
        operators=r"digamma|mvlgamma.*|(special\.)?polygamma.*",
    ),
    Reason(
        "below normal",
        "Numbers below the smallest normal one",
        "CPU-XLA and TPUs take them for 0: an operand, a result, or a step, such as the square or the reciprocal of a "
        "very small or very large number.",
        operators=r"__rdiv__|atan2|copysign|div\..*|exp2|hypot|ldexp|log2|logit|true_divide|xlogy|"
        r"special\.(scaled_)?modified_bessel_k[01]",
        kinds="value",
    ),
    Reason(
        "zeta",
        "Hurwitz' zeta function of very large numbers",
        "It is 0 where every term is, of an infinite q or of a large s and q > 1. There torch's loop comes to infinity "
        "times 0.",
        operators=r"special\.zeta",
        kinds="value",
    ),
    Reason(
        "angles",
        "Waves far from 0",
        "The angle of the Airy function's wave has a rounding error of its own size, and torch's has another.",
        operators=r"special\.airy_ai",
        kinds="value",
    ),
    Reason(
        "empty",
        "`masked.logsumexp` of no elements",
        "It raises at the call.",
        operators=r"masked\.logsumexp",
        kinds="raises",
    ),
    Reason(
        "rounding",
        "Rounding",
        "XLA approximates the function, or orders the steps of its gradient, in another way; the error is a few times "
        "that of torch's kernel.",
        kinds="value",
        phases="gradient",
        operators=r"sigmoid|tanh|special\.ndtri|nn\.functional\.mish",
    ),
    Reason("other", "Not looked into", "Nobody has found out why."),
)
"""Of special values."""


OTHER = (
    Reason(
        "library",
        "linalg",
        "torch computes in its own way with what is empty, and has no kernel for bfloat16.",
        operators=r"linalg\..*",
    ),
    Reason(
        "ties",
        "Another one of equal elements",
        "The values are right, and the index is that of another one of several equal elements.",
        operators="kthvalue|topk",
        dtypes="bool",
    ),
    Reason(
        "steps",
        "Steps in bfloat16 and float16",
        "One of the operator's steps is of the bfloat16 tensor alone, and rounded.",
        dtypes="bf16",
        kinds="value, dtype",
    ),
    Reason(
        "rounding",
        "Rounding",
        "The steps of the gradient are in another order, or XLA approximates a function in another way.",
        kinds="value",
        phases="gradient",
    ),
    Reason(
        "composed",
        "Composed of operators that take integers and bools",
        "torch_xla composes the operator of others, of which each takes the dtype; torch's kernel does not.",
        kinds="unrefused",
    ),
    Reason(
        "complex",
        "Complex numbers",
        "torch computes with their real parts, or in another dtype.",
        dtypes="c64",
    ),
    Reason("other", "Not looked into", "Nobody has found out why."),
)
"""Of samples with a tensor in another dtype."""


def reason_of(row: dict[str, Any], table: tuple[Reason, ...] = REASONS) -> str:
    """The key of a difference's reason."""
    return next(reason.key for reason in table if reason.has(row))

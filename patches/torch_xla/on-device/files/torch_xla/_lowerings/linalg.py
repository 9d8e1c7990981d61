"""Linear algebra: factorizations and what follows from them, of float32 and float64."""

import math
import os
from typing import Optional

import torch
import torch_xla
from torch import Tensor
from torch_xla import runtime
from torch_xla._hlo_module import Operand

from . import loops, ranks, reflectors, symmetric
from .common import only, prepared
from .instructions import exact_matmul, instruction

_DTYPES = (torch.float32, torch.float64)

LARGEST_ON_CPU = 32
MOST_ON_CPU = 2**14
"""Rows and elements: LAPACK takes larger matrices sooner than the loops of XLA's CPU, and is not far away there."""

LOOPS_ON_CPU = os.environ.get("CASTOFF_TRACE_FOR") != "TPU"
"""XLA's CPU compiles them sooner than its own instructions: Cholesky's of 32 rows in a tenth of the time."""


def _is_here(*matrices: Tensor) -> bool:
    """Whether these are for the functions of this module."""
    limited = runtime.device_type() == "CPU"
    return all(_fits(m, matrices[0].dtype, limited) for m in matrices)


def _fits(x: Tensor, dtype: torch.dtype, limited: bool) -> bool:
    if x.dtype not in _DTYPES or x.dtype != dtype or x.dim() < 2:
        return False
    return not limited or (max(x.shape[-2:]) <= LARGEST_ON_CPU and x.numel() <= MOST_ON_CPU)


def _is_square(x: Tensor) -> bool:
    return x.dim() >= 2 and x.shape[-1] == x.shape[-2] and _is_here(x)


def _by_a_loop(x: Tensor) -> bool:
    """Whether to use a loop in place of XLA's own instruction, which gathers matrices that are sharded by the batch."""
    is_sooner = LOOPS_ON_CPU and runtime.device_type() == "CPU"
    return (is_sooner or runtime.is_spmd()) and x.shape[-1] <= loops.BLOCK


def _computed(name: str, made: object, *operands: Tensor) -> list[Tensor]:
    return torch_xla._XLAC._xla_user_computation(f"xla::{name}", list(operands), made)


def _flat(x: Tensor) -> Tensor:
    return x.reshape(-1, *x.shape[-2:])


def _check(info: Tensor, name: str, x: Tensor) -> None:
    torch.ops.aten._linalg_check_errors(info, name, is_matrix=x.dim() == 2)


# ---- triangular matrices


def _solved(a: Tensor, b: Tensor, upper: bool, left: bool = True, unit: bool = False) -> Tensor:
    """The x of a x = b, or of x a = b: a triangular, the batches broadcast."""
    if not left:
        return _solved(a.mT, b.mT, not upper, unit=unit).mT
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    if not math.prod((*batch, *b.shape[-2:])):
        return b.new_zeros(*batch, *b.shape[-2:])
    a, b = (_flat(t.expand(*batch, *t.shape[-2:])) for t in (a, b))
    if a.shape[-1] <= loops.BLOCK:
        made = loops.substitution(Operand.of(a), Operand.of(b), upper, unit)
        found = _computed("substitution", made, a, b)[0]
    else:
        found = torch.ops.aten.triangular_solve(b, a, upper, False, unit)[0]
    return found.reshape(*batch, *b.shape[-2:])


@only(lambda a, b, *_, **__: _is_here(a, b))
def solve_triangular(a: Tensor, b: Tensor, upper: bool, left: bool, unitriangular: bool) -> Tensor:
    return _solved(a, b, upper, left, unitriangular)


@only(lambda b, a, upper: _is_here(a, b))
def cholesky_solve(b: Tensor, a: Tensor, upper: bool) -> Tensor:
    lower = a.mT if upper else a
    return _solved(lower.mT, _solved(lower, b, False), True)


def _of_nonzero_diagonal(a: Tensor, upper: bool) -> tuple[Tensor, bool]:
    """The arguments of cholesky_inverse; raises torch.linalg.LinAlgError where LAPACK does."""
    if a.numel():
        is_zero = a.diagonal(0, -2, -1) == 0
        info = torch.where(is_zero.any(-1), is_zero.to(torch.int32).argmax(-1) + 1, 0).to(torch.int32)
        _check(info, "cholesky_inverse", a)
    return a, upper


@only(lambda a, upper: _is_square(a))
@prepared(_of_nonzero_diagonal)
def cholesky_inverse(a: Tensor, upper: bool) -> Tensor:
    return cholesky_solve(_identity(a), a, upper)


def _identity(x: Tensor) -> Tensor:
    return torch.eye(x.shape[-1], dtype=x.dtype, device=x.device).expand(x.shape)


@only(lambda x, upper, check_errors: _is_square(x))
def cholesky_ex(x: Tensor, upper: bool, check_errors: bool) -> tuple[Tensor, Tensor]:
    """As torch's; a matrix that is not positive-definite gives NaN."""
    if not x.numel():
        return x.clone(), torch.zeros(x.shape[:-2], dtype=torch.int32, device=x.device)
    lower = (x.mT if upper else x).tril()
    found, info = _cholesky(lower, _flat(lower + lower.tril(-1).mT))
    info = info.reshape(x.shape[:-2])
    if check_errors:
        _check(info, "torch.linalg.cholesky_ex", x)
    found = found.reshape(x.shape)
    return found.mT if upper else found, info


def _cholesky(lower: Tensor, whole: Tensor) -> tuple[Tensor, Tensor]:
    """L [B, n, n] of the matrices of which both hold the lower triangles, and the number of the first bad minor."""
    if _by_a_loop(lower):
        return tuple(_computed("cholesky", loops.cholesky(Operand.of(whole)), whole))
    found = _flat(torch.ops.aten.cholesky(lower, False))
    # A pivot of 0 that is the last one leaves no NaN.
    fails = (~(found.diagonal(0, -2, -1) > 0)).any(-1).to(torch.int32)
    return found, _computed("minors", loops.first_minor_not_positive(Operand.of(whole)), whole, fails)[0]


# ---- LU


def _lu(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """LU, the pivots from 1, and the order of the rows."""
    *batch, rows, columns = x.shape
    count = min(rows, columns)
    if not x.numel():
        order = torch.arange(rows, dtype=torch.int32, device=x.device).expand(*batch, rows)
        return x.clone(), order.new_zeros(*batch, count), order
    padding = [0, 0] if count <= loops.BLOCK else [-n % loops.BLOCK for n in (columns, rows)]
    flat = torch.constant_pad_nd(_flat(x), [0, padding[0], 0, padding[1]]) if any(padding) else _flat(x)
    found, pivots, order = _computed("lu", loops.lu(Operand.of(flat), count), flat)
    found = found[:, :rows, :columns].reshape(x.shape)
    return found, pivots.reshape(*batch, count), order[:, :rows].reshape(*batch, rows)


def _zero_pivot(lu: Tensor) -> Tensor:
    """The number of the first pivot that is zero, and 0 if none is."""
    diagonal = lu.diagonal(0, -2, -1)
    number = torch.arange(1, diagonal.shape[-1] + 1, dtype=torch.int32, device=lu.device)
    none = diagonal.shape[-1] + 1
    if none == 1:
        return torch.zeros(lu.shape[:-2], dtype=torch.int32, device=lu.device)
    first = torch.where(diagonal == 0, number, torch.full_like(number, none)).amin(-1)
    return torch.where(first == none, torch.zeros_like(first), first)


@only(lambda x, pivot, check_errors: pivot and _is_here(x))
def lu_factor_ex(x: Tensor, pivot: bool, check_errors: bool) -> tuple[Tensor, Tensor, Tensor]:
    found, pivots, _ = _lu(x)
    info = _zero_pivot(found)
    if check_errors:
        _check(info, "torch.linalg.lu_factor_ex", x)
    return found, pivots, info


@only(lambda x, pivot: pivot and _is_here(x))
def lu(x: Tensor, pivot: bool) -> tuple[Tensor, Tensor, Tensor]:
    found, _, order = _lu(x)
    return _permutation(order, x), *_halves(found)


def _halves(lu: Tensor) -> tuple[Tensor, Tensor]:
    rows, columns = lu.shape[-2:]
    count = min(rows, columns)
    ones = torch.eye(rows, count, dtype=lu.dtype, device=lu.device)
    return lu[..., :count].tril(-1) + ones, lu[..., :count, :].triu()


def _permutation(order: Tensor, like: Tensor) -> Tensor:
    """P with A = P L U."""
    number = torch.arange(order.shape[-1], dtype=order.dtype, device=order.device)
    return (number.unsqueeze(-1) == order.unsqueeze(-2)).to(like.dtype)


def _order(pivots: Tensor, rows: int) -> Tensor:
    if not pivots.numel():
        return torch.arange(rows, dtype=torch.int32, device=pivots.device).expand(*pivots.shape[:-1], rows)
    flat = pivots.reshape(-1, pivots.shape[-1])
    found = _computed("order", loops.order_of(flat.shape[0], flat.shape[1], rows), flat)[0]
    return found.reshape(*pivots.shape[:-1], rows)


@only(lambda x, pivots, unpack_data, unpack_pivots: _is_here(x) and (pivots.dtype == torch.int32))
def lu_unpack(x: Tensor, pivots: Tensor, unpack_data: bool, unpack_pivots: bool) -> tuple[Tensor, Tensor, Tensor]:
    nothing = x.new_zeros(0)
    permutation = _permutation(_order(pivots, x.shape[-2]), x) if unpack_pivots else nothing
    return permutation, *(_halves(x) if unpack_data else (nothing, nothing.clone()))


def _reordered(x: Tensor, order: Tensor) -> Tensor:
    """The rows of x [..., M, N] in that order [..., M], the batches broadcast."""
    batch = torch.broadcast_shapes(x.shape[:-2], order.shape[:-1])
    if not math.prod((*batch, *x.shape[-2:])):
        return x.expand(*batch, *x.shape[-2:])
    flat = _flat(x.expand(*batch, *x.shape[-2:]))
    order = order.expand(*batch, order.shape[-1]).reshape(flat.shape[:2]).to(torch.int32)
    return _computed("reordered", loops.reordered(Operand.of(flat)), flat, order)[0].reshape(*batch, *x.shape[-2:])


def _inverse(order: Tensor) -> Tensor:
    number = torch.arange(order.shape[-1], dtype=torch.int32, device=order.device)
    return torch.where(order.unsqueeze(-1) == number, number.unsqueeze(-1), 0).sum(-2, dtype=torch.int32)


def _lu_solved(lu: Tensor, order: Tensor, b: Tensor, transposed: bool = False) -> Tensor:
    if transposed:
        found = _solved(lu.mT, _solved(lu.mT, b, False), True, unit=True)
        return _reordered(found, _inverse(order))
    return _solved(lu, _solved(lu, _reordered(b, order), False, unit=True), True)


@only(lambda lu, pivots, b, left, adjoint: _is_here(lu, b) and pivots.dtype == torch.int32)
def lu_solve(lu: Tensor, pivots: Tensor, b: Tensor, left: bool, adjoint: bool) -> Tensor:
    order = _order(pivots, lu.shape[-2])
    return _lu_solved(lu, order, b, adjoint) if left else _lu_solved(lu, order, b.mT, not adjoint).mT


def is_not_contiguous(x: Tensor, *_) -> bool:
    return not x.is_contiguous() and _is_square(x)


# The gradients of the next three take LU for that of the transposed matrix, where the matrix is contiguous. Within a
# kernel all are, so that autograd must see contiguous ones as well.


def _of_contiguous(operator: object):
    return only(is_not_contiguous)(lambda x, *rest: operator(x.contiguous(), *rest))


contiguous_det = _of_contiguous(torch.ops.aten._linalg_det.default)
contiguous_slogdet = _of_contiguous(torch.ops.aten._linalg_slogdet.default)


@only(is_not_contiguous)
def contiguous_solve_ex(a: Tensor, b: Tensor, left: bool, check_errors: bool):
    return torch.ops.aten._linalg_solve_ex(a.contiguous(), b, left=left, check_errors=check_errors)


def _sign(pivots: Tensor) -> Tensor:
    """Of the permutation: -1 or 1."""
    number = torch.arange(1, pivots.shape[-1] + 1, dtype=pivots.dtype, device=pivots.device)
    return 1 - 2 * torch.remainder((pivots != number).sum(-1), 2)


@only(_is_square)
def det(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    found, pivots, _ = _lu(x.mT)
    return found.diagonal(0, -2, -1).prod(-1) * _sign(pivots), found, pivots


@only(_is_square)
def slogdet(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    found, pivots, _ = _lu(x.mT)
    diagonal = found.diagonal(0, -2, -1)
    sign = diagonal.sgn().prod(-1) * _sign(pivots)
    return sign, diagonal.abs().log().sum(-1), found, pivots


@only(lambda a, b, left, check_errors: _is_square(a) and a.dtype == b.dtype)
def solve_ex(a: Tensor, b: Tensor, left: bool, check_errors: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    vector = _is_vector(a, b)
    right = b.unsqueeze(-1) if vector else b
    found, pivots, order = _lu(a.mT)
    info = _zero_pivot(found)
    if check_errors:
        _check(info, "torch.linalg.solve_ex", a)
    solution = _lu_solved(found, order, right, True) if left else _lu_solved(found, order, right.mT).mT
    return solution.squeeze(-1) if vector else solution, found, pivots, info


@only(lambda x, check_errors: _is_square(x))
def inv_ex(x: Tensor, check_errors: bool) -> tuple[Tensor, Tensor]:
    found, _, order = _lu(x)
    info = _zero_pivot(found)
    if check_errors:
        _check(info, "torch.linalg.inv_ex", x)
    return _lu_solved(found, order, _identity(x)), info


# ---- symmetric matrices


@only(lambda x, hermitian, check_errors: _is_square(x))
def ldl_factor_ex(x: Tensor, hermitian: bool, check_errors: bool) -> tuple[Tensor, Tensor, Tensor]:
    if not x.numel():
        return x.clone(), *(torch.zeros(n, dtype=torch.int32, device=x.device) for n in (x.shape[:-1], x.shape[:-2]))
    lower = x.tril()
    whole = _flat(lower + lower.tril(-1).mT)
    found, pivots, info = _computed("ldl", symmetric.factorization(Operand.of(whole)), whole)
    info = info.reshape(x.shape[:-2])
    if check_errors:
        _check(info, "torch.linalg.ldl_factor_ex", x)
    return found.reshape(x.shape), pivots.reshape(x.shape[:-1]), info


def _block_diagonal_solved(diagonal: Tensor, off: Tensor, blocks: tuple[Tensor, Tensor], y: Tensor) -> Tensor:
    """The z of D z = y: ``blocks`` are the masks of the first and of the second rows of blocks of two."""
    first, second = blocks

    def partners(x: Tensor, dim: int, is_first: Tensor) -> Tensor:
        return torch.where(is_first, x.roll(-1, dim), x.roll(1, dim))

    off = torch.where(first, off, torch.where(second, off.roll(1, -1), 1.0))
    own, other = diagonal / off, partners(diagonal, -1, first) / off
    of_two = (other.unsqueeze(-1) * y - partners(y, -2, first.unsqueeze(-1))) / (off * (own * other - 1)).unsqueeze(-1)
    return torch.where((first | second).unsqueeze(-1), of_two, y / diagonal.unsqueeze(-1))


@only(lambda ld, pivots, b, hermitian: _is_square(ld) and _is_here(ld, b) and pivots.dtype == torch.int32)
def ldl_solve(ld: Tensor, pivots: Tensor, b: Tensor, hermitian: bool) -> Tensor:
    if not ld.numel() or b.shape[-2] != ld.shape[-1] or pivots.shape != ld.shape[:-1]:
        return NotImplemented
    places = torch.arange(ld.shape[-1], dtype=torch.int32, device=ld.device)
    of_two = pivots < 0
    second = of_two & (torch.remainder(of_two.cumsum(-1), 2) == 0)
    first = of_two & ~second
    off = torch.constant_pad_nd(ld.diagonal(-1, -2, -1), [0, 1])
    lower = ld.tril(-1) - torch.where(first, off, 0.0).unsqueeze(-2) * (places.unsqueeze(-1) == places + 1)
    others = torch.where(first, places, pivots.abs() - 1)
    given = [_flat(lower), *(t.to(torch.int32).reshape(-1, ld.shape[-1]) for t in (others, places - second.int()))]
    lower, order = _computed("interchanged", symmetric.interchanged(Operand.of(given[0])), *given)
    lower, order = lower.reshape(ld.shape), order.reshape(pivots.shape)
    found = _solved(lower, _reordered(b, order), False, unit=True)
    found = _block_diagonal_solved(ld.diagonal(0, -2, -1), off, (first, second), found)
    return _reordered(_solved(lower.mT, found, True, unit=True), _inverse(order))


# ---- QR


def _geqrf(x: Tensor) -> tuple[Tensor, Tensor]:
    taus = Operand(x.dtype, (*x.shape[:-2], min(x.shape[-2:])))
    if not x.numel():
        return x.clone(), x.new_zeros(taus.sizes)
    if _by_a_loop(x):
        flat = _flat(x.mT)
        packed, tau = _computed("geqrf", reflectors.qr(Operand.of(flat)), flat)
        return packed.mT.reshape(x.shape), tau.reshape(taus.sizes)
    return tuple(instruction("qr", "custom-call", [x], [Operand.of(x), taus], (28, "Qr")))


@only(_is_here)
def geqrf(x: Tensor) -> tuple[Tensor, Tensor]:
    return _geqrf(x)


@only(lambda x, tau: _is_here(x) and tau.dtype == x.dtype)
def householder_product(x: Tensor, tau: Tensor) -> Tensor:
    if not tau.numel():
        return torch.eye(*x.shape[-2:], dtype=x.dtype, device=x.device).expand(x.shape).clone()
    if _by_a_loop(x):
        given = [_flat(x.mT), tau.reshape(-1, tau.shape[-1])]
        made = reflectors.product(Operand.of(given[0]), tau.shape[-1])
        return _computed("householder_product", made, *given)[0].mT.reshape(x.shape)
    name = (28, "ProductOfElementaryHouseholderReflectors")
    return instruction("householder_product", "custom-call", [x, tau], [Operand.of(x)], name)[0]


def _whole_q(x: Tensor, tau: Tensor) -> Tensor:
    """Q [..., M, M] of reflectors in x [..., M, k]."""
    rows, count = x.shape[-2:]
    if count < rows:
        x = torch.constant_pad_nd(x, [0, rows - count])
    return householder_product(x[..., :rows], tau)


@only(lambda x, tau, other, left, transpose: _is_here(x, other) and tau.dtype == x.dtype)
def ormqr(x: Tensor, tau: Tensor, other: Tensor, left: bool, transpose: bool) -> Tensor:
    q = _whole_q(x, tau)
    q = q.mT if transpose else q
    return exact_matmul(q, other) if left else exact_matmul(other, q)


@only(lambda x, mode: _is_here(x) and mode in ("reduced", "complete", "r"))
def qr(x: Tensor, mode: str) -> tuple[Tensor, Tensor]:
    rows, columns = x.shape[-2:]
    count = min(rows, columns)
    packed, tau = _geqrf(x)
    if mode == "r":
        return x.new_zeros(0), packed[..., :count, :].triu()
    if mode == "complete":
        return _whole_q(packed, tau), packed.triu()
    return householder_product(packed[..., :count], tau), packed[..., :count, :].triu()


def _is_vector(a: Tensor, b: Tensor) -> bool:
    """Whether b is a vector for each matrix, as torch decides."""
    return b.dim() == 1 or (b.dim() == a.dim() - 1 and b.shape == a.shape[:-1])


def _is_least_squares(a: Tensor, b: Tensor, rcond: Optional[float], driver: Optional[str]) -> bool:
    """The drivers gelsd and gelss give residuals whose shape depends on the rank."""
    if driver not in (None, "gels", "gelsy") or b.dtype != a.dtype or not _is_here(a) or not (a.numel() and b.numel()):
        return False
    right = b.shape if _is_vector(a, b) else b.shape[:-1]
    return b.dim() > 0 and right == a.shape[:-1]


@only(_is_least_squares)
def lstsq(a: Tensor, b: Tensor, rcond: Optional[float], driver: Optional[str]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    vector = _is_vector(a, b)
    right = b.unsqueeze(-1) if vector else b
    solution, residuals, rank = (_of_full_rank if driver == "gels" else _of_any_rank)(a, right, rcond)
    return solution.squeeze(-1) if vector else solution, residuals, rank, a.new_zeros(0)


def _of_full_rank(a: Tensor, b: Tensor, _: Optional[float]) -> tuple[Tensor, Tensor, Tensor]:
    rows, columns = a.shape[-2:]
    q, r = qr(a if rows >= columns else a.mT, "reduced")
    nothing = a.new_zeros(0)
    if rows < columns:
        return exact_matmul(q, _solved(r.mT, b, False)), nothing, nothing.long()
    along = exact_matmul(q.mT, b)
    residuals = (b - exact_matmul(q, along)).square().sum(-2) if rows > columns else nothing
    return _solved(r, along, True), residuals, nothing.long()


def _of_any_rank(a: Tensor, b: Tensor, rcond: Optional[float]) -> tuple[Tensor, Tensor, Tensor]:
    """The solution of the smallest norm: of so many rows of R as the rank is, by another QR, of Rᵀ."""
    rows, columns = a.shape[-2:]
    rcond = torch.finfo(a.dtype).eps * max(rows, columns) if rcond is None else rcond
    given = [_flat(a.mT), _flat(b.mT)]
    made = ranks.factorization(*map(Operand.of, given), rcond)
    packed, along, order, rank = _computed("ranks", made, *given)
    count = min(rows, columns)
    is_taken = torch.arange(count, dtype=torch.int32, device=a.device) < rank.unsqueeze(-1)
    q, r = qr(torch.where(is_taken.unsqueeze(-2), packed.tril()[..., :count], 0.0), "reduced")
    r = torch.where(is_taken.unsqueeze(-2), r, _identity(r))
    along = torch.where(is_taken.unsqueeze(-1), along.mT[:, :count], 0.0)
    solution = _reordered(exact_matmul(q, _solved(r.mT, along, False)), _inverse(order))
    # LAPACK refuses a matrix that is not finite; it has no rank.
    solution = torch.where(given[0].isfinite().all((-2, -1)).reshape(-1, 1, 1), solution, math.nan)
    return solution.reshape(*a.shape[:-2], columns, -1), a.new_zeros(0), rank.reshape(a.shape[:-2]).long()


# ---- the matrix exponential

_DEGREE, _POWERS = 18, 4
_LARGEST_NORM = {torch.float32: 3.01, torch.float64: 1.09}
"""The 1-norm up to which the rest of the Taylor series after that degree is below the last place."""


def _taylor(x: Tensor) -> Tensor:
    """The sum of x^k / k! up to the degree, as a polynomial of x^4 with polynomials of x as its coefficients."""
    powers = [_identity(x), x]
    for _ in range(_POWERS - 1):
        powers.append(exact_matmul(powers[-1], x))
    found = None
    for first in range(_DEGREE // _POWERS * _POWERS, -1, -_POWERS):
        degrees = range(first, min(first + _POWERS, _DEGREE + 1))
        part = sum(powers[k - first] * (1 / math.factorial(k)) for k in degrees)
        found = part if found is None else part + exact_matmul(found, powers[_POWERS])
    return found


@only(lambda x: _is_square(x) or (x.dtype in (torch.bfloat16, torch.float16) and _is_square(x.float())))
def matrix_exp(x: Tensor) -> Tensor:
    if not x.numel():
        return x.clone()
    norm = x.abs().sum(-2).amax(-1)
    scalings = torch.ceil(torch.log2((norm / _LARGEST_NORM[x.dtype]).clamp(min=1)))
    # What is not finite is squared not at all, and stays so.
    scalings = torch.where(torch.isfinite(scalings), scalings, torch.zeros_like(scalings))
    found = _taylor(x * torch.exp2(-scalings).unsqueeze(-1).unsqueeze(-1))
    flat = _flat(found)
    counts = scalings.to(torch.int32).reshape(-1)
    return _computed("squares", loops.repeated_squares(Operand.of(flat)), flat, counts)[0].reshape(x.shape)

"""Householder's reflectors, as loops of HLO: XLA's own instructions gather matrices that are sharded by the batch.

The matrices are held transposed [B, columns, rows]: a reflector acts along the last dimension, and columns are rows.
"""

import functools

from torch_xla._hlo_module import Operand
from torch_xla.core.xla_builder import Op, create_computation, mkop, mkshape

from .loops import integer, iota, like, loop, reduced, row, shape_of


def total(x: Op) -> Op:
    """Over the last dimension."""
    return reduced(x, len(x.shape().sizes) - 1, 0, lambda a, b: a + b)


def root(x: Op) -> Op:
    return mkop("Sqrt", (x.op,))


def _below_one(k: Op, x: Op, rest: Op) -> Op:
    """[B, M]: 0 before place k of x, 1 there, and ``rest`` beyond it."""
    place, here = iota(x, 1), like(k, x)
    return (place > here).select(rest, (place == here).select(x.ones_like(), x.zeros_like()))


def reflector(k: Op, x: Op) -> tuple[Op, Op]:
    """v [B, M] and tau [B] of the reflector that takes what is beyond place k of x [B, M] to 0."""
    alpha = row(x, k)
    rest = total((iota(x, 1) > like(k, x)).select(x * x, x.zeros_like()))
    beta = root(alpha * alpha + rest)
    beta = (alpha < alpha.zeros_like()).select(beta, beta.zeros_like() - beta)
    is_none = rest == rest.zeros_like()
    divisor, whole = (is_none.select(rest.ones_like(), y) for y in (alpha - beta, beta))
    tau = is_none.select(rest.zeros_like(), (beta - alpha) / whole)
    return _below_one(k, x, x / like(divisor, x, (0,))), tau


def reflected(x: Op, v: Op, tau: Op) -> Op:
    """x [B, N, M] with the reflector applied to each row."""
    along = like(v, x, (0, 2))
    factor = total(x * along)
    return x - like(factor * like(tau, factor, (0,)), x, (0, 1)) * along


@functools.lru_cache(maxsize=256)
def qr(matrix: Operand):
    """R and the reflectors below it, as LAPACK packs them, and tau [B, K]; of and as transposed matrices."""
    batch, width, height = matrix.sizes
    count = min(width, height)

    def step(k: Op, a: Op, taus: Op) -> list[Op]:
        v, tau = reflector(k, row(a, k))
        number, here, below = iota(a, 1), like(k, a), iota(a, 2) > like(k, a)
        made = ((number == here) & below).select(like(v, a, (0, 2)), reflected(a, v, tau))
        return [(number >= here).select(made, a), (iota(taus, 1) == like(k, taus)).select(like(tau, taus, (0,)), taus)]

    def whole(a: Op) -> Op:
        taus = a.slice_in_dim(0, count, 1).slice_in_dim(0, 1, 2).reshape((batch, count)).zeros_like()
        return Op.tuple(loop(integer(a, count), [a, taus], step))

    return create_computation("qr", whole, [shape_of(matrix)])


@functools.lru_cache(maxsize=256)
def product(matrix: Operand, count: int):
    """The first columns of Q, as many as the packed matrix has, from so many reflectors: transposed, too."""
    batch = matrix.sizes[0]

    def step(i: Op, q: Op, a: Op, taus: Op) -> list[Op]:
        k = integer(i, count - 1) - i
        column = row(a, k)
        return [reflected(q, _below_one(k, column, column), row(taus, k)), a, taus]

    def whole(a: Op, taus: Op) -> Op:
        identity = (iota(a, 1) == iota(a, 2)).select(a.ones_like(), a.zeros_like())
        return loop(integer(a, count), [identity, a, taus], step)[0]

    return create_computation("product", whole, [shape_of(matrix), mkshape(shape_of(matrix).dtype, (batch, count))])

"""QR with exchanges of columns, which finds the rank out, as LAPACK's gelsy does."""

import functools

from torch_xla._hlo_module import Operand
from torch_xla.core.xla_builder import Op, create_computation, mkop

from .loops import exchanged, integer, iota, like, loop, reduced, row, shape_of
from .reflectors import reflected, reflector, root, total


def _size(x: Op) -> Op:
    return mkop("Abs", (x.op,))


def _first_largest(x: Op) -> Op:
    """The mask [B, N] of the first of the largest elements; of the last where there is NaN."""
    place, last = iota(x, 1), x.shape().sizes[1] - 1
    is_largest = x == like(reduced(x, 1, -1, lambda a, b: a.max(b)), x, (0,))
    first = reduced(is_largest.select(place, like(integer(x, last), x)), 1, last, lambda a, b: a.min(b))
    return place == like(first, x, (0,))


def _larger_singular(old: Op, along: Op, corner: Op) -> tuple[Op, Op, Op]:
    """The larger singular value [B] of [[old, along], [0, corner]], and its left vector."""
    scale = old.max(_size(along)).max(_size(corner))
    scale = (scale == scale.zeros_like()).select(scale.ones_like(), scale)
    s, a, c = old / scale, along / scale, corner / scale
    first, second, mixed = s * s + a * a, c * c, a * c
    difference, two, half = first - second, s.scalar_like(2), s.scalar_like(0.5)
    value = half * (first + second + root(difference * difference + two * two * mixed * mixed))
    is_first = first >= second
    x = is_first.select(value - second, mixed)
    y = is_first.select(mixed, value - first)
    norm = root(x * x + y * y)
    is_none = norm == norm.zeros_like()
    norm = is_none.select(norm.ones_like(), norm)
    return root(value) * scale, is_none.select(x.ones_like(), x / norm), y / norm


def _estimated(k: Op, column: Op, corner: Op, state: tuple[Op, ...]) -> tuple[Op, ...]:
    """The largest and the smallest singular value of one column more, with their left vectors [B, K].

    That is LAPACK's incremental estimate: those of two rows, of the old one and of the new column.
    """
    largest, smallest, of_largest, of_smallest = state
    is_first, is_here = like(k, corner) == like(integer(k, 0), corner), iota(column, 1) == like(k, column)

    def extended(vector: Op, x: Op, y: Op) -> Op:
        return is_here.select(like(y, vector, (0,)), vector * like(x, vector, (0,)))

    size, x, y = _larger_singular(largest, total(of_largest * column), corner)
    found = [is_first.select(_size(corner), size), extended(of_largest, x, is_first.select(y.ones_like(), y))]
    size, x, y = _larger_singular(smallest, total(of_smallest * column), corner)
    divisor = (size == size.zeros_like()).select(size.ones_like(), size)
    small = is_first.select(_size(corner), smallest * _size(corner) / divisor)
    vector = extended(of_smallest, y.zeros_like() - y, is_first.select(x.ones_like(), x))
    return found[0], small, found[1], vector


@functools.lru_cache(maxsize=256)
def factorization(matrix: Operand, right: Operand, rcond: float):
    """Of matrices [B, N, M] and right sides [B, P, M], all transposed: R, Qᵀ of the right sides, the order of the
    columns [B, N], and the ranks [B]."""
    _, width, height = matrix.sizes
    count = min(width, height)

    def step(k: Op, a: Op, b: Op, order: Op, rank: Op, *estimates: Op) -> list[Op]:
        below = iota(a, 2) >= like(k, a)
        norms = total(below.select(a * a, a.zeros_like()))
        norms = (iota(norms, 1) >= like(k, norms)).select(norms, norms.scalar_like(-1))
        mask = _first_largest(norms)
        a, order = exchanged(a, k, mask), exchanged(order, k, mask)
        v, tau = reflector(k, row(a, k))
        a, b = reflected(a, v, tau), reflected(b, v, tau)
        column = row(a, k).slice_in_dim(0, count, 1)
        corner = row(column, k)
        above = (iota(column, 1) < like(k, column)).select(column, column.zeros_like())
        estimates = _estimated(k, above, corner, estimates)
        largest, smallest = estimates[:2]
        is_more = (largest * largest.scalar_like(rcond) <= smallest) & (largest > largest.zeros_like())
        is_next = rank == like(k, rank)
        return [a, b, order, (is_more & is_next).select(rank + rank.scalar_like(1), rank), *estimates]

    def whole(a: Op, b: Op) -> Op:
        nothing = reduced(reduced(a, 2, 0, lambda x, y: x), 1, 0, lambda x, y: x).zeros_like()
        rank = iota(a, 0, 1).zeros_like()
        vector = nothing.broadcast((count,)).transpose((1, 0))
        state = [a, b, iota(a, 1, 2), rank, nothing, nothing, vector, vector]
        return Op.tuple(loop(integer(a, count), state, step)[:4])

    return create_computation("ranks", whole, [shape_of(matrix), shape_of(right)])

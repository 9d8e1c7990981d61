"""Loops of HLO for symmetric matrices: L D Lᵀ with D of blocks of one or two rows, by Bunch and Kaufman.

The form is that of LAPACK's sytrf. Masks choose the rows, which differ from matrix to matrix.
"""

import functools
import math

from torch_xla._hlo_module import Operand
from torch_xla.core.xla_builder import Op, create_computation, mkop, mkshape

from .loops import chosen, exchanged, integer, iota, like, loop, reduced, row, shape_of


def _size(x: Op) -> Op:
    return mkop("Abs", (x.op,))


def _of(mask: Op, x: Op) -> Op:
    """The element [B] of x [B, n] at the one place of the mask, and 0 without one."""
    return reduced(mask.select(x, x.zeros_like()), 1, 0, lambda a, b: a + b)


def _largest(x: Op, mask: Op) -> tuple[Op, Op]:
    """The largest size [B] of x [B, n] where the mask is, -1 without a place; and the first such place as a mask."""
    size, place = mask.select(_size(x), x.scalar_like(-1)), iota(x, 1)
    largest = reduced(size, 1, -1, lambda a, b: a.max(b))
    end = x.shape().sizes[1]
    places = (mask & (size == like(largest, size, (0,)))).select(place, place.scalar_like(end))
    return largest, place == like(reduced(places, 1, end, lambda a, b: a.min(b)), place, (0,))


def _pivot(a: Op, is_k: Op, later: Op) -> tuple[Op, Op, Op]:
    """Of matrices [B, n, n], symmetric from row k on: the mask [B, n] of the row that comes to the next block of D,
    whether [B] that has two rows, and whether its column is zero or not a number."""
    column = chosen(is_k, a)
    size = _size(_of(is_k, column))
    largest, is_largest = _largest(column, later)
    other = chosen(is_largest, a)
    beside = _largest(other, (later | is_k) & is_largest.__not__())[0]
    alpha = size.scalar_like((1 + math.sqrt(17)) / 8)
    nothing = (size.max(largest) == size.zeros_like()) | (size != size)
    stays = nothing | (largest != largest) | (size >= alpha * largest)
    stays = stays | (size >= alpha * largest * (largest / beside))
    one = stays | (_size(_of(is_largest, other)) >= alpha * beside)
    return like(stays, is_k, (0,)).select(is_k, is_largest), one.__not__(), nothing


def _in_each_others_place(a: Op, first: Op, second: Op) -> Op:
    """Symmetric matrices with the rows and columns that two masks choose exchanged."""
    for _ in "rows", "columns":
        one, two = (like(chosen(mask, a), a, (0, 2)) for mask in (first, second))
        at = [like(mask, a, (0, 1)) for mask in (first, second)]
        a = at[0].select(two, at[1].select(one, a)).transpose((0, 2, 1))
    return a


def _factors(column: Op, beside: Op, is_k: Op, is_next: Op, two: Op, nothing: Op) -> tuple[Op, Op]:
    """The columns of L below a block of D, of the matrix' columns there."""

    def spread(x: Op) -> Op:
        return like(x, column, (0,))

    corner = spread(_of(is_k, column))
    single = spread(nothing).select(column, column / corner)
    off, next_corner = spread(_of(is_next, column)), spread(_of(is_next, beside))
    d11, d22, one = next_corner / off, corner / off, column.ones_like()
    scale = one / (d11 * d22 - one) / off
    pair = spread(two)
    return pair.select(scale * (d11 * column - beside), single), pair.select(
        scale * (d22 * beside - column), column.zeros_like()
    )


def _step(_: Op, k: Op, a: Op, found: Op, pivots: Op, info: Op) -> list[Op]:
    """The next block of each matrix, which begins at row k [B] of its own."""
    place = iota(pivots, 1)
    number = like(k, place, (0,))
    is_k, later = place == number, place > number
    is_next = place == number + number.ones_like()
    exchange, two, nothing = _pivot(a, is_k, later)
    pair = like(two, place, (0,))
    a = _in_each_others_place(a, pair.select(is_next, is_k), exchange)
    column = chosen(is_k, a)
    beside = like(two, column, (0,)).select(chosen(is_next, a), column.zeros_like())
    first, second = _factors(column, beside, is_k, is_next, two, nothing)
    below = later & (pair & is_next).__not__()
    update = _product(column, first, a) + _product(beside, second, a)
    inside = like(below & like(nothing, place, (0,)).__not__(), a, (0, 1)) & like(below, a, (0, 2))
    found = _with_column(found, is_k, below.select(first, (later | is_k).select(column, column.zeros_like())))
    found = _with_column(found, pair & is_next, below.select(second, later.select(beside, column.zeros_like())))
    row_number = _of(exchange, place + place.ones_like())
    signed = two.select(row_number.zeros_like() - row_number, row_number)
    pivots = (is_k | (pair & is_next)).select(like(signed, place, (0,)), pivots)
    one = k.ones_like()
    fails = nothing & (info == info.zeros_like()) & (k < k.scalar_like(place.shape().sizes[1]))
    info = fails.select(k + one, info)
    return [k + two.select(one + one, one), inside.select(a - update, a), found, pivots, info]


def _product(x: Op, y: Op, like_a: Op) -> Op:
    """x yᵀ below the diagonal, and its mirror image above it."""
    rows, columns = ([like(v, like_a, (0, d)) for v in (x, y)] for d in (1, 2))
    lower = iota(like_a, 1) >= iota(like_a, 2)
    return lower.select(rows[0] * columns[1], rows[1] * columns[0])


def _with_column(a: Op, mask: Op, column: Op) -> Op:
    return like(mask, a, (0, 2)).select(like(column, a, (0, 1)), a)


@functools.lru_cache(maxsize=256)
def factorization(matrix: Operand):
    """L and D in one matrix, the pivots, and the number of the first block that is zero, of matrices [B, n, n]."""
    batch, size, _ = matrix.sizes

    def whole(a: Op) -> Op:
        zeros = iota(a, 0, 2).zeros_like()
        start = zeros.slice_in_dim(0, 1, 1).reshape((batch,))
        return Op.tuple(loop(integer(a, size), [start, a, a.zeros_like(), zeros, start], _step)[2:])

    return create_computation("ldl", whole, [shape_of(matrix)])


@functools.lru_cache(maxsize=256)
def interchanged(matrix: Operand):
    """Matrices [B, n, n] with row k and that of number ``others[:, k]`` exchanged in the columns before ``ends[:, k]``,
    for one k after the other; and the order of the rows that this leads to."""

    def step(k: Op, a: Op, order: Op, others: Op, ends: Op) -> list[Op]:
        mask = iota(order, 1) == like(row(others, k), order, (0,))
        earlier = iota(a, 2) < like(row(ends, k), a, (0,))
        return [earlier.select(exchanged(a, k, mask), a), exchanged(order, k, mask), others, ends]

    def whole(a: Op, others: Op, ends: Op) -> Op:
        return Op.tuple(loop(integer(a, matrix.sizes[1]), [a, iota(a, 1, 2), others, ends], step)[:2])

    places = mkshape("s32", matrix.sizes[:2])
    return create_computation("interchanged", whole, [shape_of(matrix), places, places])

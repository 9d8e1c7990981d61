"""Loops of HLO that the functions of the table need: factorizations and recurrences.

Each function gives an XlaComputation, which is made once for its shapes. Matrices are [B, rows, columns].
"""

import functools
import math
from collections.abc import Callable, Sequence

from torch_xla._hlo_module import Operand
from torch_xla.core.xla_builder import _XLA_PT_TYPE_MAP, Op, create_computation, mkop, mkshape

from .instructions import exact_dot

_TYPES = {dtype: name for name, dtype in _XLA_PT_TYPE_MAP.items()}

BLOCK = 64
"""So many columns are eliminated one by one, before a product of matrices takes them to those that are left."""


def integer(x: Op, value: int) -> Op:
    return Op.scalar(x.builder(), value, dtype="s32")


def iota(x: Op, dimension: int, rank: int = 0) -> Op:
    """The place along a dimension, for each element of x or of its first ``rank`` dimensions."""
    sizes = tuple(x.shape().sizes)
    return Op.iota(x.builder(), mkshape("s32", sizes[: rank or len(sizes)]), dimension)


def like(value: Op, x: Op, dimensions: Sequence[int] = ()) -> Op:
    """``value``, whose dimensions are the named ones of x, spread over all of x."""
    return value.broadcast_in_dim(x.shape().sizes, tuple(dimensions))


def reduced(x: Op, dimension: int, start: float, function: Callable) -> Op:
    return x.reduce(Op.scalar(x.builder(), start, x.shape().dtype), function, (dimension,))


def chosen(mask: Op, x: Op) -> Op:
    """x [B, M, …] at the one row of each that the mask [B, M] chooses: [B, …]. Sums of -0 leave a value what it is."""
    nothing = x.scalar_like(0 if x.shape().dtype == "s32" else -0.0)
    start = 0 if x.shape().dtype == "s32" else -0.0
    return reduced(like(mask, x, (0, 1)).select(x, nothing), 1, start, lambda a, b: a + b)


def _at(x: Op, starts: Sequence[Op], sizes: Sequence[int]) -> Op:
    """A slice of x, without its dimensions of size 1 after the first."""
    kept = [sizes[0], *(n for n in sizes[1:] if n > 1)]
    return x.dynamic_slice(list(starts), tuple(sizes)).reshape(tuple(kept))


def loop(count: Op, state: Sequence[Op], body: Callable) -> list[Op]:
    """The state after ``body(i, *state)`` for each i below the count."""

    def step(i: Op, limit: Op, *rest: Op) -> tuple:
        return (i + integer(i, 1), limit, *body(i, *rest))

    found = Op.mkwhile([integer(count, 0), count, *state], lambda i, limit, *_: i < limit, step)
    return [found.get_tuple_element(i + 2) for i in range(len(state))]


def row(x: Op, k: Op) -> Op:
    """x[:, k] of x [B, M, …]."""
    batch, _, *rest = x.shape().sizes
    starts = [integer(x, 0), k, *(integer(x, 0) for _ in rest)]
    return x.dynamic_slice(starts, (batch, 1, *rest)).reshape((batch, *rest))


def exchanged(x: Op, k: Op, mask: Op) -> Op:
    """x [B, M, …] with row k and the one that the mask chooses in each other's place."""
    others = [0, *range(2, len(x.shape().sizes))]
    is_k = iota(x, 1) == like(k, x)
    return is_k.select(like(chosen(mask, x), x, others), like(mask, x, (0, 1)).select(like(row(x, k), x, others), x))


def _in_order(x: Op, index: Op) -> Op:
    """x [B, M, …] with its rows in the order of ``index`` [B, M]."""
    batch, height, *rest = x.shape().sizes
    # Places of two numbers, the first of them the batch's: XLA sees that it may be sharded.
    places = index.reshape((batch, height, 1))
    places = Op.concat_in_dim([iota(places, 0), places], 2)
    return mkop(
        "Gather",
        (x.op, places.op),
        offset_dims=tuple(range(2, 2 + len(rest))),
        collapsed_slice_dims=(0, 1),
        start_index_map=(0, 1),
        index_vector_dim=2,
        indices_are_sorted=False,
        slice_sizes=(1, 1, *rest),
    )


def _largest_below(column: Op, k: Op) -> Op:
    """The first row from k on with the largest element of the columns [B, M]; k itself among NaN."""
    place = iota(column, 1)
    size = (place >= like(k, place)).select(mkop("Abs", (column.op,)), column.scalar_like(-1))
    largest = reduced(size, 1, -1, lambda a, b: a.max(b))
    height = column.shape().sizes[1]
    places = (size == like(largest, size, (0,))).select(place, place.scalar_like(height))
    first = reduced(places, 1, height, lambda a, b: a.min(b))
    return (first == first.scalar_like(height)).select(like(k, first), first)


def _exchange_step(c: Op, k: Op, panel: Op, pivots: Op, order: Op) -> tuple[Op, Op, Op]:
    """Panel, pivots and order with the pivot of column c, which is the matrix' column k, in row k."""
    batch, height, _ = panel.shape().sizes
    column = _at(panel, [integer(c, 0), integer(c, 0), c], (batch, height, 1)).reshape((batch, height))
    pivot = _largest_below(column, k)
    mask = iota(order, 1) == like(pivot, order, (0,))
    numbers = (pivot + pivot.scalar_like(1)).reshape((batch, 1))
    pivots = pivots.dynamic_update_slice(numbers, [integer(c, 0), k])
    return exchanged(panel, k, mask), pivots, exchanged(order, k, mask)


def _eliminated(c: Op, k: Op, panel: Op) -> Op:
    """The panel with column c divided by the pivot, and its multiples taken from the columns after it."""
    batch, height, _ = panel.shape().sizes
    top = row(panel, k)
    pivot = top.dynamic_slice([integer(c, 0), c], (batch, 1)).reshape((batch,))
    column = panel.dynamic_slice([integer(c, 0), integer(c, 0), c], (batch, height, 1)).reshape((batch, height))
    pivot = like(pivot, column, (0,))
    factor = like((pivot != pivot.zeros_like()).select(column / pivot, column), panel, (0, 1))
    below = iota(panel, 1) > like(k, panel)
    number, here = iota(panel, 2), like(c, panel)
    rest = (below & (number > here)).select(panel - factor * like(top, panel, (0, 2)), panel)
    return (below & (number == here)).select(factor, rest)


@functools.lru_cache(maxsize=256)
def lu(matrix: Operand, pivots: int):
    """LU [B, M, N], pivots [B, K] and the order of the rows [B, M].

    Where K is above the block M and N are multiples of it; the rows and columns beyond the matrix are zero.
    """
    batch, height, width = matrix.sizes
    block = min(pivots, BLOCK)
    dot = exact_dot(Operand(matrix.dtype, (batch, height, block)), Operand(matrix.dtype, (batch, block, width)))

    def step(c: Op, start: Op, panel: Op, numbers: Op, order: Op) -> list[Op]:
        k = start + c
        panel, numbers, order = _exchange_step(c, k, panel, numbers, order)
        return [start, _eliminated(c, k, panel), numbers, order]

    def eliminate_block(j: Op, a: Op, numbers: Op, order: Op) -> list[Op]:
        zero = integer(j, 0)
        start = j * integer(j, block)
        count = (integer(j, pivots) - start).min(integer(j, block))
        panel = a.dynamic_slice([zero, zero, start], (batch, height, block))
        _, panel, numbers, moved = loop(count, [start, panel, numbers, iota(order, 1)], step)
        a = _in_order(a, moved).dynamic_update_slice(panel, [zero, zero, start])
        if width > block:
            corner = panel.dynamic_slice([zero, start, zero], (batch, block, block))
            rows = a.dynamic_slice([zero, start, zero], (batch, block, width))
            solved = corner.triangualr_solve(rows, left_side=True, lower=True, unit_diagonal=True, transpose_a=False)
            end = start + integer(j, block)
            rows = (iota(rows, 2) >= like(end, rows)).select(solved, rows)
            a = a.dynamic_update_slice(rows, [zero, start, zero])
            rest = (iota(a, 1) >= like(end, a)) & (iota(a, 2) >= like(end, a))
            a = rest.select(a - Op.call(dot, [panel, rows]), a)
        return [a, numbers, _in_order(order, moved)]

    def whole(a: Op) -> Op:
        numbers = iota(a, 0, 1).zeros_like().broadcast((pivots,)).transpose((1, 0))
        blocks = integer(a, -(-pivots // block))
        return Op.tuple(loop(blocks, [a, numbers, iota(a, 1, 2)], eliminate_block))

    return create_computation("lu", whole, [shape_of(matrix)])


def shape_of(array: Operand):
    return mkshape(_TYPES[array.dtype], array.sizes)


@functools.lru_cache(maxsize=256)
def substitution(triangle: Operand, right: Operand, upper: bool, unit: bool):
    """The x [B, n, m] of a x = b, with a [B, n, n] triangular and b [B, n, m]: one row after the other.

    That is as accurate as LAPACK. XLA's own instruction multiplies by inverses of blocks, which is not.
    """
    batch, size, _ = triangle.sizes

    def step(i: Op, a: Op, x: Op) -> list[Op]:
        k = integer(i, size - 1) - i if upper else i
        zero = integer(i, 0)
        column = a.dynamic_slice([zero, zero, k], (batch, size, 1)).reshape((batch, size))
        top = row(x, k)
        if not unit:
            pivot = column.dynamic_slice([zero, k], (batch, 1)).reshape((batch,))
            top = top / like(pivot, top, (0,))
        number, here, tops = iota(x, 1), like(k, x), like(top, x, (0, 2))
        rest = (number < here if upper else number > here).select(x - like(column, x, (0, 1)) * tops, x)
        return [a, (number == here).select(tops, rest)]

    def whole(a: Op, b: Op) -> Op:
        return loop(integer(a, size), [a, b], step)[1]

    return create_computation("substitution", whole, [shape_of(triangle), shape_of(right)])


@functools.lru_cache(maxsize=256)
def order_of(batch: int, pivots: int, rows: int):
    """The order [B, rows] of the rows after the exchanges that ``pivots`` [B, K] name, from 1."""

    def exchange(k: Op, numbers: Op, order: Op) -> list[Op]:
        pivot = row(numbers, k)
        mask = iota(order, 1) == like(pivot - pivot.scalar_like(1), order, (0,))
        return [numbers, exchanged(order, k, mask)]

    def whole(numbers: Op) -> Op:
        order = Op.iota(numbers.builder(), mkshape("s32", (batch, rows)), 1)
        return loop(integer(numbers, pivots), [numbers, order], exchange)[1]

    return create_computation("order", whole, [mkshape("s32", (batch, pivots))])


@functools.lru_cache(maxsize=256)
def reordered(matrix: Operand):
    """The rows of matrices [B, M, N] in the order [B, M]. A gather by torch's is not sharded by the batch."""
    order = mkshape("s32", matrix.sizes[:2])
    return create_computation("reordered", lambda a, index: _in_order(a, index), [shape_of(matrix), order])


@functools.lru_cache(maxsize=256)
def cholesky(matrix: Operand):
    """L of symmetric matrices [B, n, n], and the order [B] of the first leading minor that is not positive, or 0.

    L is NaN from that minor's pivot on, which may be 0.
    """
    batch, size, _ = matrix.sizes

    def step(k: Op, a: Op, found: Op, info: Op) -> list[Op]:
        column = row(a, k)
        pivot = column.dynamic_slice([integer(k, 0), k], (batch, 1)).reshape((batch,))
        is_positive = pivot > pivot.zeros_like()
        fails = is_positive.select(info.zeros_like(), like(k, info) + info.scalar_like(1))
        info = (info == info.zeros_like()).select(fails, info)
        root = mkop("Sqrt", (pivot.op,))
        divisor = like(is_positive.select(root, root.scalar_like(math.nan)), column, (0,))
        place, here = iota(column, 1), like(k, column)
        lower = (place > here).select(column / divisor, column.zeros_like())
        lower = (place == here).select(like(root, column, (0,)), lower)
        rows, columns = like(lower, a, (0, 1)), like(lower, a, (0, 2))
        return [a - rows * columns, (iota(a, 2) == like(k, a)).select(rows, found), info]

    def whole(a: Op) -> Op:
        return Op.tuple(loop(integer(a, size), [a, a.zeros_like(), iota(a, 0, 1).zeros_like()], step)[1:])

    return create_computation("cholesky", whole, [shape_of(matrix)])


@functools.lru_cache(maxsize=256)
def first_minor_not_positive(matrix: Operand):
    """Of symmetric matrices [B, n, n] the order of the first leading minor that is not positive, and 0 if all are.

    It is only looked for where the flags [B] are not all zero.
    """
    batch, size, _ = matrix.sizes

    def eliminate(k: Op, a: Op, found: Op) -> list[Op]:
        pivot = row(a, k).dynamic_slice([integer(k, 0), k], (batch, 1)).reshape((batch,))
        fails = (pivot > pivot.zeros_like()).select(found.zeros_like(), like(k, found) + found.scalar_like(1))
        return [_eliminated(k, k, a), (found == found.zeros_like()).select(fails, found)]

    def whole(a: Op, flags: Op) -> Op:
        some = reduced(flags, 0, 0, lambda x, y: x.max(y))
        count = (some > integer(a, 0)).select(integer(a, size), integer(a, 0))
        return loop(count, [a, flags.zeros_like()], eliminate)[1]

    return create_computation("minors", whole, [shape_of(matrix), mkshape("s32", (batch,))])


@functools.lru_cache(maxsize=256)
def repeated_squares(matrix: Operand):
    """Matrices [B, n, n] squared so many times as the counts [B] say."""
    batch = matrix.sizes[0]
    dot = exact_dot(matrix, matrix)

    def square(i: Op, a: Op, counts: Op) -> list[Op]:
        more = like(i, counts) < counts
        return [like(more, a, (0,)).select(Op.call(dot, [a, a]), a), counts]

    def whole(a: Op, counts: Op) -> Op:
        return loop(reduced(counts, 0, 0, lambda x, y: x.max(y)), [a, counts], square)[0]

    return create_computation("squares", whole, [shape_of(matrix), mkshape("s32", (batch,))])


@functools.lru_cache(maxsize=256)
def greatest_divisor(numbers: Operand):
    """Euclid's algorithm of two arrays of integers that are not negative."""

    def some_left(x: Op, y: Op) -> Op:
        left = (y != y.zeros_like()).select(iota(y, 0).zeros_like() + integer(y, 1), iota(y, 0).zeros_like())
        return left.reduce_all(integer(y, 0), lambda a, b: a.max(b)) > integer(y, 0)

    def step(x: Op, y: Op) -> tuple[Op, Op]:
        done = y == y.zeros_like()
        return done.select(x, y), done.select(y, x % done.select(y.ones_like(), y))

    def whole(x: Op, y: Op) -> Op:
        return Op.mkwhile([x, y], some_left, step).get_tuple_element(0)

    return create_computation("gcd", whole, [shape_of(numbers)] * 2)


@functools.lru_cache(maxsize=256)
def gamma_terms(numbers: Operand, steps: int):
    """Of arrays a and x > 0 what the incomplete gamma functions are made of, after so many steps.

    The sums of x^n / ((a + 1) … (a + n)) for n ≥ 0 and of (-x)^n / (n! (a + n)) for n > 0, and Legendre's continued
    fraction 1 / (x + 1 - a - 1 (1 - a) / (x + 3 - a - …)), from its end on.
    """

    def step(i: Op, a: Op, x: Op, rising: Op, power: Op, series: Op, alternating: Op, fraction: Op) -> list[Op]:
        n = like((i + integer(i, 1)).cast(a.shape().dtype), a)
        m = a.scalar_like(steps) - n + a.scalar_like(1)
        rising = rising * (x / (a + n))
        power = power * (a.zeros_like() - x / n)
        fraction = m * (m - a) / (x + (m + m + a.scalar_like(1)) - a - fraction)
        return [a, x, rising, power, series + rising, alternating + power / (a + n), fraction]

    def whole(a: Op, x: Op) -> Op:
        one, nothing = a.ones_like(), a.zeros_like()
        *_, series, alternating, fraction = loop(integer(a, steps), [a, x, one, one, one, nothing, nothing], step)
        return Op.tuple([series, alternating, one / (x + one - a - fraction)])

    return create_computation("gamma_terms", whole, [shape_of(numbers)] * 2)


_AT_ONCE = 8
"""A step of a loop takes XLA's CPU a microsecond, whatever is in it."""


@functools.lru_cache(maxsize=256)
def inverted(numbers: Operand, steps: int):
    """How many values of a distribution on 0, 1, … lie below a uniform variate, of arrays u, p, a and b.

    ``steps`` is a multiple of 8: so many of them are found.

    The first probability is p, that of n + 1 is that of n times (a - b n) / (n + 1). What is too improbable for a
    variate of float32 does not count, so that rounding errors in the sum do no harm.
    """

    def step(n: Op, u: Op, p: Op, a: Op, b: Op, total: Op, count: Op) -> list[Op]:
        total = total + p
        more = (u > total) & (p > p.scalar_like(1e-8))
        count = count + more.select(n.ones_like(), n.zeros_like())
        return [u, p * (a - b * n) / (n + n.scalar_like(1)), a, b, total, count]

    def steps_at_once(i: Op, *state: Op) -> list[Op]:
        first = like((i * integer(i, _AT_ONCE)).cast(state[0].shape().dtype), state[0])
        for k in range(_AT_ONCE):
            state = step(first + first.scalar_like(k), *state)
        return list(state)

    def whole(u: Op, p: Op, a: Op, b: Op) -> Op:
        return loop(integer(u, steps // _AT_ONCE), [u, p, a, b, u.zeros_like(), u.zeros_like()], steps_at_once)[5]

    return create_computation("inverted", whole, [shape_of(numbers)] * 4)


def _unsigned(x: Op, value: int) -> Op:
    """A u32: 2.6's builder makes a signed number of it, and the process ends."""
    signed = value - 2**32 if value >= 2**31 else value
    return Op.scalar(x.builder(), signed, "s32").bitcast("u32")


def _mixed(x: Op) -> Op:
    """A permutation of the u32, of which each bit depends on each."""
    for shift, factor in ((17, 0xED5AD4BB), (11, 0xAC4C1B51), (15, 0x31848BAB)):
        x = (x ^ _shifted_right(x, shift)) * _unsigned(x, factor)
    return x ^ _shifted_right(x, 14)


def _shifted_right(x: Op, count: int) -> Op:
    """Bits of u32: the builder's own shift is not to be had, and XLA makes one of the quotient."""
    return x / _unsigned(x, 2**count)


def _places(key: Op, sizes: tuple[int, ...]) -> Op:
    """The number of each element of an array, as u32."""
    found = _unsigned(key, 0).broadcast(sizes)
    for dimension in range(len(sizes)):
        place = Op.iota(key.builder(), mkshape("u32", sizes), dimension)
        found = found + place * _unsigned(place, math.prod(sizes[dimension + 1 :]))
    return found


@functools.lru_cache(maxsize=256)
def numbers(sizes: tuple[int, ...], count: int, wide: bool):
    """So many uniform numbers between 0 and 1 for each element of an array [count, …] of four that are drawn.

    XLA's CPU draws one in the time in which it makes twenty of them.
    """

    def whole(x: Op) -> Op:
        parts = [(x * x.scalar_like(2.0**23)).cast("u32").slice_in_dim(i, i + 1, 0).reshape(()) for i in range(4)]
        first, second = (low ^ high * _unsigned(high, 2**9) for low, high in zip(parts[::2], parts[1::2], strict=True))
        key = _mixed(_places(x, sizes) + first) ^ second
        number = Op.iota(x.builder(), mkshape("u32", (count, *sizes)), 0)
        spread = key.broadcast((count,))

        def bits(begin: int) -> Op:
            return _mixed(spread + (number + _unsigned(number, begin)) * _unsigned(number, 0x9E3779B9))

        if not wide:
            half = _shifted_right(bits(1), 9).cast("f32")
            return (half + half.scalar_like(0.5)) * half.scalar_like(2.0**-23)
        high, low = (_shifted_right(bits(b), 6).cast("f64") for b in (1, count + 1))
        return (high * high.scalar_like(2.0**26) + low + high.scalar_like(0.5)) * high.scalar_like(2.0**-52)

    return create_computation("numbers", whole, [mkshape("f32", (4,))])


def _bits_of_double(x: Op) -> Op:
    """The bits of a float32 as a double, as u64: TPUs have no doubles whose bits could be had."""
    bits = x.bitcast("u32").cast("u64")
    sign = bits / bits.scalar_like(2**31)
    rest = bits - sign * bits.scalar_like(2**31)
    moved = rest * bits.scalar_like(2**29)
    # A float32 that is smaller than normal ones is a whole number of the smallest.
    small = rest.cast("f32").bitcast("u32").cast("u64") * bits.scalar_like(2**29)
    found = moved + bits.scalar_like(896 * 2**52)
    found = (rest < bits.scalar_like(2**23)).select(small + bits.scalar_like(747 * 2**52), found)
    found = (rest == bits.zeros_like()).select(bits.zeros_like(), found)
    found = (rest >= bits.scalar_like(255 * 2**23)).select(moved + bits.scalar_like(1792 * 2**52), found)
    return found + sign * bits.scalar_like(2**63)


@functools.lru_cache(maxsize=256)
def exclusive_or(numbers: Operand, dims: tuple[int, ...]):
    """Of the bits of numbers as doubles or int64, as u64."""

    def whole(x: Op) -> Op:
        dtype = x.shape().dtype
        wide = x if dtype == "f64" else x.cast("s64")
        bits = _bits_of_double(x) if dtype == "f32" else wide.bitcast("u64")
        return bits.reduce(Op.scalar(x.builder(), 0, "u64"), lambda a, b: a ^ b, dims)

    return create_computation("exclusive_or", whole, [shape_of(numbers)])


def _shifted(x: Op, step: int) -> Op:
    """x [B, L] moved by so many places, to the right if it is positive; -inf comes in."""
    batch, length = x.shape().sizes
    size = min(abs(step), length)
    gap = Op.scalar(x.builder(), -math.inf, x.shape().dtype).broadcast((batch, size))
    kept = x.slice_in_dim(0, length - size, 1) if step > 0 else x.slice_in_dim(size, length, 1)
    return Op.concat_in_dim([gap, kept] if step > 0 else [kept, gap], 1)


def _log_of_sum(*parts: Op) -> Op:
    largest = functools.reduce(lambda a, b: a.max(b), parts)
    base = (largest == largest.scalar_like(-math.inf)).select(largest.zeros_like(), largest)
    terms = [(part - base).exp() for part in parts]
    return functools.reduce(lambda a, b: a + b, terms).log() + base


@functools.lru_cache(maxsize=256)
def alignments(scores: Operand, backward: bool):
    """Of scores [T, B, L] the logarithms [T, B, L] of the sums over all paths that come to each place in each step.

    A path stays, or goes one place on, or two where ``skips`` [B, L] is 1. The paths of row b begin in step
    ``first`` [B], with the scores of that step where ``begins`` [B, L] is 1. Backward they come from the end.
    """
    steps, batch, length = scores.sizes
    sign = -1 if backward else 1

    def step(i: Op, e: Op, skips: Op, begins: Op, first: Op, last: Op, found: Op) -> list[Op]:
        t = integer(i, steps - 1) - i if backward else i
        here = _row_of_steps(e, t)
        none = last.scalar_like(-math.inf)
        reached = skips == skips.ones_like()
        two = reached.select(_shifted(last, 2), none) if not backward else _shifted(reached.select(last, none), -2)
        onward = _log_of_sum(last, _shifted(last, sign), two) + here
        start = (begins == begins.ones_like()).select(here, none)
        is_first = like(like(t, first) == first, last, (0,))
        last = is_first.select(start, onward)
        place = [t, integer(i, 0), integer(i, 0)]
        found = found.dynamic_update_slice(last.reshape((1, batch, length)), place)
        return [e, skips, begins, first, last, found]

    def whole(e: Op, skips: Op, begins: Op, first: Op) -> Op:
        nothing = e.scalar_like(-math.inf)
        last = Op.scalar(e.builder(), -math.inf, e.shape().dtype).broadcast((batch, length))
        return loop(integer(e, steps), [e, skips, begins, first, last, nothing], step)[5]

    flags = mkshape("s32", (batch, length))
    return create_computation("alignments", whole, [shape_of(scores), flags, flags, mkshape("s32", (batch,))])


def _row_of_steps(x: Op, t: Op) -> Op:
    _, batch, length = x.shape().sizes
    return x.dynamic_slice([t, integer(t, 0), integer(t, 0)], (1, batch, length)).reshape((batch, length))

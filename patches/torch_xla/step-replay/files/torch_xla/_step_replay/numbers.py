"""Python numbers that a step computes from an optimizer's hyperparameters and step counts.

While a step is traced, `param_groups` and the step counts on the CPU give numbers of the class below. They are floats,
and remember what they were computed from: so a number that the graph takes is computed again before each replay.
"""

import operator
from collections.abc import Callable, Hashable
from typing import Any, Optional

__all__ = ["Book", "Number", "evaluate"]

#: A source is ("source", key); any other term is (operator, operand…), of terms and numbers.
Term = tuple

_OPERATORS: dict[str, Callable[..., Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "truediv": operator.truediv,
    "pow": operator.pow,
    "neg": operator.neg,
    "abs": operator.abs,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "eq": operator.eq,
    "ne": operator.ne,
}


def evaluate(term: Any, sources: dict[Hashable, float]) -> Any:
    """The value of a term; of a number, that number."""
    if type(term) is not tuple:
        return term
    if term[0] == "source":
        return sources[term[1]]
    return _OPERATORS[term[0]](*[evaluate(operand, sources) for operand in term[1:]])


class Book:
    """What was computed from numbers of one trace: values by term, and outcomes of comparisons."""

    def __init__(self) -> None:
        self.values: dict[Term, float] = {}
        self.outcomes: dict[Term, bool] = {}

    def number(self, term: Term, value: float) -> "Number":
        self.values[term] = value
        made = Number(value)
        made.term, made.book = term, self
        return made

    def source(self, key: Hashable, value: float) -> "Number":
        return self.number(("source", key), value)

    def sources(self) -> dict[Hashable, float]:
        return {term[1]: value for term, value in self.values.items() if term[0] == "source"}


class Number(float):
    """A float that remembers how it was computed."""

    __slots__ = ("book", "term")
    term: Term
    book: Book

    def __reduce_ex__(self, protocol: Any) -> tuple:
        return (float, (float(self),))  # a copy that outlives the step is a number as any other

    __hash__ = float.__hash__

    def __bool__(self) -> bool:
        return bool(_compared("ne", self, 0.0))


def _operand(value: float) -> Any:
    return value.term if isinstance(value, Number) else value


def _book(*operands: Any) -> Book:
    return next(operand.book for operand in operands if isinstance(operand, Number))


def _plain(value: Any) -> Any:
    return float(value) if isinstance(value, Number) else value


def _computed(name: str, *operands: Any) -> Any:
    value = _OPERATORS[name](
        *[float.__float__(operand) if isinstance(operand, Number) else operand for operand in operands]
    )
    if type(value) is not float:
        return value
    return _book(*operands).number((name, *map(_operand, operands)), value)


def _compared(name: str, *operands: Any) -> bool:
    outcome = _OPERATORS[name](
        *[float.__float__(operand) if isinstance(operand, Number) else operand for operand in operands]
    )
    _book(*operands).outcomes[(name, *map(_operand, operands))] = outcome
    return outcome


def _add_methods() -> None:
    for name in ("add", "sub", "mul", "truediv", "pow"):
        setattr(Number, f"__{name}__", _binary(name, reflected=False))
        setattr(Number, f"__r{name}__", _binary(name, reflected=True))
    for name in ("neg", "abs"):
        setattr(Number, f"__{name}__", lambda self, name=name: _computed(name, self))
    for name in ("lt", "le", "gt", "ge", "eq", "ne"):
        setattr(Number, f"__{name}__", _comparison(name))


def _binary(name: str, reflected: bool) -> Callable[[Number, Any], Any]:
    def method(self: Number, other: Any, modulus: Optional[Any] = None) -> Any:
        if modulus is not None or not isinstance(other, (int, float)):
            return NotImplemented
        return _computed(name, other, self) if reflected else _computed(name, self, other)

    return method


def _comparison(name: str) -> Callable[[Number, Any], Any]:
    def method(self: Number, other: Any) -> Any:
        return _compared(name, self, other) if isinstance(other, (int, float)) else NotImplemented

    return method


_add_methods()

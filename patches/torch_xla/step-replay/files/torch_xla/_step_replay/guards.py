"""Python values that a step may read: where they are, what they were, and whether they still are that."""

import collections
import functools
import itertools
import operator
import pickle
import random
import sys
import types
import warnings
from collections.abc import Callable
from typing import Any, Optional

import torch

from .tensors import ObjectGuards

__all__ = ["Places", "is_scalar"]

_SCALARS = (int, float, bool, str, bytes, complex, type(None), torch.dtype, torch.device, torch.layout)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_TENSOR_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")
_CONTENTS = ("_parameters", "_buffers", "_modules")
_PRIVATE = frozenset({*_CONTENTS, *_HOOKS})
#: What each module has, in hundreds of which nothing is.
_MODULE = frozenset(vars(torch.nn.Module()))
_MISSING = object()
_DICTS = (dict, collections.OrderedDict, collections.defaultdict)  # their get() is dict's own
_DEEP = 8  # functions that call functions
_LONG = 64  # lists that are compared by value
#: What torch writes down about a step by itself.
_NOTES = frozenset({"_opt_called", "_step_count", "_zero_grad_profile_name"})


def is_scalar(value: Any) -> bool:
    if isinstance(value, (tuple, frozenset)):
        return all(map(is_scalar, value))
    return isinstance(value, _SCALARS)


def _is_short(value: Any) -> bool:
    if isinstance(value, dict):
        return len(value) <= _LONG and all(map(is_scalar, value.values()))
    return isinstance(value, (list, set, collections.deque)) and len(value) <= _LONG and all(map(is_scalar, value))


class Places:
    """What functions, objects and modules hold, as it was when they were added."""

    def __init__(self) -> None:
        self.same: list[tuple[dict, Any, Any, str]] = []  # of a dict: key, value, whose it is
        self.cells: list[tuple[Any, Any, str]] = []
        self.copies: list[tuple[Any, Any, str]] = []  # short lists and dicts, and what was in them
        self.sizes: list[tuple[Any, int, str]] = []
        self.contents: list[tuple[dict, int, str]] = []  # dicts of modules, and their sizes
        self.lists: list[tuple[Any, tuple]] = []  # lists of objects, and what was in them
        self.states: list[tuple[Any, Any]] = []  # generators, iterators and other objects, and their state
        self.modules: list[torch.nn.Module] = []
        self.of_optimizers: set[int] = set()  # the dicts and lists of optimizers
        self._seen: set[tuple] = set()
        self._kept: list[Any] = []  # what has an id in _seen
        self._quick: Optional[_Quick] = None  # made when all is there

    def _is_new(self, thing: Any, *part: Any) -> bool:
        key = (id(thing), *part)
        if key in self._seen:
            return False
        self._seen.add(key)
        self._kept.append(thing)
        return True

    def replaced(self, place: Any, key: Any, value: Any) -> None:
        """Expect another value from here on, which a replay has put there."""
        for i, (mapping, name, _, whose) in enumerate(self.same):
            if mapping is place and name == key:
                self.same[i] = (mapping, name, value, whose)
                if self._quick is not None and type(mapping) in _DICTS:
                    self._quick.replaced(i, value)
                else:
                    self._quick = None
        for i, (cell, _, whose) in enumerate(self.cells):
            if cell is place:
                self.cells[i] = (cell, value, whose)

    def add_call(self, function: Any, arguments: list[Any]) -> None:
        """What a function reads when it is called with these arguments."""
        self.add_function(function)
        names = _names_of(function)
        for argument in arguments:
            self._add_object(argument, names, 1)

    def add_function(self, function: Any, depth: int = 0) -> None:
        """What a function reads from its closure, its module and its object."""
        names = _names_of(function)
        while isinstance(function, functools.partial):
            for value in (*function.args, *function.keywords.values()):
                self._add_object(value, names, depth)
            function = function.func
        if isinstance(function, types.MethodType):
            self._add_object(function.__self__, names, depth)
            function = function.__func__
        function = getattr(function, "__wrapped__", function)
        code = getattr(function, "__code__", None)
        if code is None:
            return self._add_instance(function, names, depth)
        if depth > _DEEP or not self._is_new(function) or _is_of_torch(function.__module__):
            return None
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            value = getattr(cell, "cell_contents", _MISSING)
            self.cells.append((cell, value, f"{name}, which {function.__qualname__} reads"))
            self._add_value(name, value, names, depth)
        self._add_globals(function, names, depth)
        for default in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            self._add_value(f"a default of {function.__qualname__}", default, names, depth)
        return None

    def _add_globals(self, function: types.FunctionType, names: frozenset[str], depth: int) -> None:
        for name in sorted(names & function.__globals__.keys()):
            value = function.__globals__[name]
            self._add_place(function.__globals__, name, value, f"the global {name}", names, depth)
            if isinstance(value, types.ModuleType) and not _is_of_torch(value.__name__):
                whole = value.__name__.split(".")[0] not in sys.stdlib_module_names
                for attribute in sorted(names & vars(value).keys()):
                    found = vars(value)[attribute]
                    if whole or is_scalar(found):
                        self._add_place(vars(value), attribute, found, f"{name}.{attribute}", names, depth + 1)

    def _add_place(self, mapping: Any, key: Any, value: Any, whose: str, names: frozenset[str], depth: int) -> None:
        self.same.append((mapping, key, value, whose))
        self._add_value(whose, value, names, depth)

    def _add_value(self, whose: str, value: Any, names: frozenset[str], depth: int) -> None:
        if _is_short(value):
            if self._is_new(value):
                self.copies.append((value, value.copy(), whose))
        else:
            self._add_object(value, names, depth)

    def _add_object(self, value: Any, names: frozenset[str], depth: int) -> None:
        if isinstance(value, (types.FunctionType, types.MethodType, functools.partial)):
            if getattr(value, "__dict__", None):
                self._add_instance(value, names, depth)
            self.add_function(value, depth + 1)
        elif isinstance(value, type):
            self._add_class(value, names, depth)
        elif isinstance(value, (list, tuple)) and len(value) <= _LONG:
            if isinstance(value, list) and self._is_new(value):
                self.lists.append((value, tuple(value)))
            for item in value:
                self._add_object(item, names, depth + 1)
        elif type(value) is dict and len(value) <= _LONG and depth <= _DEEP:
            if self._is_new(value):
                for key, item in value.items():
                    self._add_place(value, key, item, f"the entry {key!r} of a dict", names, depth + 1)
        else:
            self._add_instance(value, names, depth)

    def _add_instance(self, value: Any, names: frozenset[str], depth: int) -> None:
        """The attributes and methods of an object that a function with these names reads."""
        if isinstance(value, torch.nn.Module):
            for module in value.modules():
                self.add_module(module)
            return
        if isinstance(value, (torch.optim.Optimizer, torch.Tensor, type, types.ModuleType)) or depth > _DEEP:
            return
        self._add_state(value)
        kind, attributes = type(value), getattr(value, "__dict__", None)
        if not isinstance(attributes, dict):
            return
        name = value.__name__ if isinstance(value, types.FunctionType) else kind.__name__
        if "get_last_lr" in names:
            names |= {"_last_lr"}
        for key in sorted(names | {"__call__"}):
            if not self._is_new(value, key):
                continue
            if key in attributes:
                self._add_place(attributes, key, attributes[key], f"{name}.{key}", names, depth + 1)
            elif not _is_of_torch(kind.__module__):
                self._add_of_class(value, key, names, depth)

    def _add_state(self, value: Any) -> None:
        state = _state(value)
        if state is not None and self._is_new(value, "state"):
            self.states.append((value, state))

    def _add_class(self, value: type, names: frozenset[str], depth: int) -> None:
        """The attributes and methods of a class that a function with these names reads."""
        for base in value.__mro__:
            if _is_of_torch(base.__module__) or depth > _DEEP:
                continue
            for key in sorted(names & vars(base).keys()):
                found = vars(base)[key]
                function = getattr(found, "__func__", found)  # of a class method, or a static one
                if not self._is_new(base, key):
                    continue
                if isinstance(function, types.FunctionType):
                    self.add_function(function, depth + 1)
                    self._add_class(value, names | _names_of(function), depth + 1)
                elif is_scalar(found) or _is_short(found):
                    self._add_place(vars(base), key, found, f"{base.__name__}.{key}", names, depth)

    def _add_of_class(self, value: Any, key: str, names: frozenset[str], depth: int) -> None:
        """A method, a property or a number that an object has from its class."""
        owner = next((base for base in type(value).__mro__ if key in vars(base)), None)
        found = None if owner is None else vars(owner)[key]
        if isinstance(found, property):
            found = found.fget
        found = getattr(found, "__func__", found)  # of a class method, or a static one
        if isinstance(found, types.FunctionType):
            self.add_function(found, depth + 1)
            self._add_instance(value, names | _names_of(found), depth + 1)
        elif owner is not None and (is_scalar(found) or _is_short(found)):
            self._add_place(vars(owner), key, found, f"{owner.__name__}.{key}", names, depth)

    def add_attributes(self, attributes: dict[str, Any], kind: str) -> None:
        """The numbers that an object has, and those in its short lists and dicts."""
        for key, value in attributes.items():
            if key in _NOTES:
                continue
            if is_scalar(value):
                self.same.append((attributes, key, value, f"{kind}.{key}"))
            elif _is_short(value):
                self.copies.append((value, value.copy(), f"{kind}.{key}"))

    def add_module(self, module: torch.nn.Module, is_known: Optional[Callable[[Any], bool]] = None) -> None:
        """A module, without those in it, and of its tensors those that are known.

        While torch.func.functional_call calls a module, it has other parameters than before and after that.
        """
        if not self._is_new(module):
            return
        self.modules.append(module)
        kind, attributes = type(module).__name__, vars(module)
        for key, value in list(attributes.items()):
            if key not in _PRIVATE:
                self.same.append((attributes, key, value, f"{kind}.{key}"))
                if key in _MODULE:
                    continue
                if _is_short(value):
                    self.copies.append((value, value.copy(), f"{kind}.{key}"))
                else:
                    self._add_state(value)
        dicts = (attributes, *[attributes[part] for part in _CONTENTS])
        self.contents += [(part, len(part), kind) for part in dicts]
        for part in _CONTENTS:
            for key, value in attributes[part].items():
                if value is None or is_known is None or part == "_modules" or is_known(value):
                    self.same.append((attributes[part], key, value, f"{kind}.{key}"))
        self._add_hooks(attributes, kind)

    def _add_hooks(self, attributes: dict[str, Any], kind: str) -> None:
        parts = [(part, attributes.get(part)) for part in _HOOKS]
        for tensor in attributes["_parameters"].values():
            parts += [(part, getattr(tensor, part, None)) for part in _TENSOR_HOOKS]
        for part, hooks in parts:
            if hooks is not None:
                self.sizes.append((hooks, len(hooks), f"{kind}.{part}"))
                for hook in hooks.values():
                    self.add_function(hook, 1)

    def holds(self) -> bool:
        """Whether all is as it was."""
        if self._quick is None:
            self._quick = _Quick(self)
        same, sizes = self._quick.others, []
        if not self._quick.objects.hold():  # what is not the same object may be an equal number
            same, sizes = self.same, self.sizes + self.contents
        for mapping, key, value, _ in same:
            found = mapping.get(key, _MISSING)
            if found is not value and not _equal(found, value):
                return False
        for cell, value, _ in self.cells:
            found = getattr(cell, "cell_contents", _MISSING)
            if found is not value and not _equal(found, value):
                return False
        if self._quick.containers != self._quick.copies:
            return False
        if any(len(held) != len(found) or not all(map(operator.is_, held, found)) for found, held in self.lists):
            return False
        return all(len(container) == size for container, size, _ in sizes)

    def settle(self) -> None:
        """Expect no sizes that the step itself has changed, as by an attribute that it makes."""
        self.contents = [entry for entry in self.contents if len(entry[0]) == entry[1]]

    def changes(self) -> list[tuple[Any, Any, Any, Any, str]]:
        """What is not as it was: where (a dict or a cell, and the key), what it was, what it is, whose it is."""
        changed = []
        for mapping, key, value, whose in self.same:
            found = mapping.get(key, _MISSING)
            if found is not value and not _equal(found, value) and key not in _NOTES:
                changed.append((mapping, key, value, found, whose))
        for cell, value, whose in self.cells:
            found = getattr(cell, "cell_contents", _MISSING)
            if found is not value and not _equal(found, value):
                changed.append((cell, None, value, found, whose))
        for container, copied, whose in self.copies:
            if container != copied:
                changed.append((None, None, copied, container, whose))
        for container, size, whose in self.sizes:
            if len(container) != size:
                changed.append((None, None, size, container, whose))
        return changed

    def changed_object(self) -> Optional[str]:
        """The type of a generator, an iterator or another object that has another state than before."""
        return next((type(value).__name__ for value, state in self.states if _state(value) != state), None)

    def is_stale(self) -> bool:
        """Whether a tensor or an object has another one in its place, which does not come back."""
        return any(not is_scalar(value) for _, _, value, _, _ in self.changes())


class _Quick:
    """Parts of places by themselves: what C++ looks at, and lists that are compared at once."""

    def __init__(self, places: Places) -> None:
        plain = [i for i, entry in enumerate(places.same) if type(entry[0]) in _DICTS]
        self._number_of = {i: number for number, i in enumerate(plain)}
        self.others = [entry for entry in places.same if type(entry[0]) not in _DICTS]
        sizes = [(container, size) for container, size, _ in places.sizes + places.contents]
        self.objects = ObjectGuards([places.same[i][:3] for i in plain], sizes)
        self.containers = [container for container, _, _ in places.copies]
        self.copies = [copied for _, copied, _ in places.copies]

    def replaced(self, i: int, value: Any) -> None:
        """Expect another value of the i-th place, one of a dict."""
        self.objects.replaced(self._number_of[i], value)


def _equal(found: Any, value: Any) -> bool:
    return type(found) is type(value) and is_scalar(value) and (found == value or (found != found and value != value))


def _state(value: Any) -> Any:
    """What tells whether the code that reads an object has changed it; None: it is looked at elsewhere, or not at all.

    That is where a generator of random numbers or an iterator stands, how long a container is, the values of a short
    array, and what an object has in slots.
    """
    kind = type(value)
    if isinstance(value, torch.Generator):
        return value.get_state().numpy().tobytes() if value.device.type == "cpu" else None
    if isinstance(value, (list, set, dict, collections.deque)):
        return len(value)
    if isinstance(value, (itertools.count, itertools.cycle, types.GeneratorType)) or hasattr(kind, "__length_hint__"):
        return _place(value)
    if isinstance(value, random.Random) or kind.__module__.startswith("numpy.random"):
        try:
            return pickle.dumps(value)
        except NotImplementedError:  # of random.SystemRandom
            return None
    if kind.__module__ == "numpy":
        short = kind.__name__ == "ndarray" and value.size <= _LONG and not value.dtype.hasobject
        return value.tobytes() if short else None
    slots = [name for base in kind.__mro__ for name in _slots(base)]
    return {name: held for name in slots if is_scalar(held := getattr(value, name, _MISSING))} or None


def _place(value: Any) -> Any:
    """Where an iterator stands."""
    if isinstance(value, itertools.count):
        return repr(value)
    if isinstance(value, itertools.cycle):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            _, (rest,), (saved, _) = value.__reduce__()
        return operator.length_hint(rest, -1), len(saved)
    if not isinstance(value, types.GeneratorType):
        return operator.length_hint(value, -1)
    frame = value.gi_frame
    if frame is None:
        return "ended"
    return frame.f_lasti, {name: held for name, held in frame.f_locals.items() if is_scalar(held)}


def _slots(kind: type) -> tuple[str, ...]:
    slots = () if _is_of_torch(kind.__module__) else vars(kind).get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _names_of(function: Any) -> frozenset[str]:
    """The names that a function reads: of variables, attributes and methods."""
    while isinstance(function, functools.partial):
        function = function.func
    function = getattr(function, "__func__", function)
    code = getattr(getattr(function, "__wrapped__", function), "__code__", None)
    return frozenset(() if code is None else _names(code))


def _names(code: types.CodeType) -> list[str]:
    """The names that code reads, and the functions within it."""
    inner = [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return [*code.co_names, *[name for part in inner for name in _names(part)]]


def _is_of_torch(module: Optional[str]) -> bool:
    return (module or "").split(".")[0] in ("torch", "torch_xla", "numpy", "builtins")

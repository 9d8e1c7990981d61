"""Optimizers of a traced step: their numbers become sources of what the graph takes, their step counts are counted."""

import sys
from collections.abc import Hashable
from typing import Any, Optional

import torch

from .guards import Places
from .numbers import Book, Number

__all__ = ["Hyperparameters", "Masters", "StepCounts", "add_optimizer"]


def master_weights(optimizers: list[torch.optim.Optimizer]) -> list[Any]:
    """Those that run another optimizer, on float32 copies of parameters."""
    module = sys.modules.get("torch_xla.amp.master_weights")
    return [] if module is None else [o for o in optimizers if isinstance(o, module.MasterWeights)]


class Masters:
    """MasterWeights of a step. They keep the version of each parameter, to see what changes it between steps."""

    def __init__(self, optimizers: list[torch.optim.Optimizer]) -> None:
        self._optimizers = master_weights(optimizers)

    def adopt(self) -> None:
        """Let copies have what parameters were given since the last step, as that of the optimizer would begin."""
        for optimizer in self._optimizers:
            if self._has_changes(optimizer):
                with torch.no_grad():
                    optimizer._adopt_changes()
                self._note(optimizer)

    def stepped(self) -> None:
        """A replay has changed the parameters as a traced step would."""
        for optimizer in self._optimizers:
            self._note(optimizer)

    def have_changes(self) -> bool:
        """Whether parameters were changed after the optimizer's step, which its next one would adopt."""
        return any(map(self._has_changes, self._optimizers))

    @staticmethod
    def _has_changes(optimizer: Any) -> bool:
        return any(parameter._version != seen for parameter, seen in optimizer._versions.items())

    @staticmethod
    def _note(optimizer: Any) -> None:
        optimizer._versions.update([(parameter, parameter._version) for parameter in optimizer._versions])


def add_optimizer(places: Places, optimizer: torch.optim.Optimizer, fed: set[tuple[int, str]]) -> None:
    """Expect of an optimizer the groups, parameters, state and hyperparameters that it has, but for those fed."""
    kind = type(optimizer).__name__
    places._kept.append(optimizer)
    if type(optimizer).__module__.split(".")[0] not in ("torch", "torch_xla"):
        places.add_attributes(vars(optimizer), kind)  # such as a count of steps
    groups, states = optimizer.param_groups, list(optimizer.state.values())
    places.of_optimizers |= {id(vars(optimizer)), id(groups), id(optimizer.state)}
    places.of_optimizers |= {id(part) for part in (*groups, *states, *[group["params"] for group in groups])}
    for key in ("param_groups", "state"):
        if key in vars(optimizer):  # those of a wrapper are properties
            places.same.append((vars(optimizer), key, getattr(optimizer, key), f"{kind}.{key}"))
        places.sizes.append((getattr(optimizer, key), len(getattr(optimizer, key)), f"{kind}.{key}"))
    for group in optimizer.param_groups:
        for key, value in group.items():
            if (id(group), key) not in fed:
                places.same.append((group, key, value, f"{key} of {kind}"))
        places.sizes.append((group["params"], len(group["params"]), f"params of {kind}"))
    for parameter, state in optimizer.state.items():
        places.same.append((optimizer.state, parameter, state, f"{kind}.state"))
        for key, value in state.items() if isinstance(state, dict) else ():
            places.same.append((state, key, value, f"state[{key!r}] of {kind}"))


class Hyperparameters:
    """The float hyperparameters of optimizers: numbers of a book while a step is traced."""

    def __init__(self, optimizers: list[torch.optim.Optimizer]) -> None:
        self.floats: dict[Hashable, tuple[dict, str, Optional[int]]] = {}
        self._outer: list[tuple[dict, str, Any, Any]] = []  # group, key, its value, and the book's
        # MasterWeights copies its own to the groups of the optimizer that it runs.
        inner = {id(o.optimizer) for o in master_weights(optimizers)}
        self._copies = [group for o in optimizers if id(o) in inner for group in o.param_groups]
        for optimizer in [o for o in optimizers if id(o) not in inner]:
            for group in optimizer.param_groups:
                for key, value in group.items():
                    if type(value) is float:
                        self.floats[(id(group), key)] = (group, key, None)
                    elif type(value) is tuple and any(type(item) is float for item in value):
                        for i, item in enumerate(value):
                            if type(item) is float:
                                self.floats[(id(group), key, i)] = (group, key, i)

    def fed(self) -> set[tuple[int, str]]:
        copied = {(id(group), key) for group in self._copies for key in group if key != "params"}
        return copied | {(id(group), key) for group, key, _ in self.floats.values()}

    def put(self, book: Book) -> None:
        """Groups have numbers of the book from here on."""
        outer = {(id(group), key): (group, key, group[key]) for group, key, _ in self.floats.values()}
        for source, (group, key, at) in self.floats.items():
            if at is None:
                group[key] = book.source(source, group[key])
            else:
                value = list(group[key])
                value[at] = book.source(source, value[at])
                group[key] = tuple(value)
        self._outer = [(group, key, value, group[key]) for group, key, value in outer.values()]

    def restore(self) -> list[str]:
        """Groups have their own numbers again; the hyperparameters that the step has changed stay, and are told."""
        changed = []
        for group, key, value, put in self._outer:
            if group.get(key) is put:
                group[key] = value
            else:
                changed.append(f"{key} of a param_group, which was {value}")
        self._outer = []
        for group in self._copies:
            group.update({key: _without_book(value) for key, value in group.items() if key != "params"})
        return changed


class StepCounts:
    """Step counts that optimizers keep in tensors on the CPU: each is one more after a step."""

    def __init__(self, optimizers: list[torch.optim.Optimizer]) -> None:
        self._before: dict[int, tuple[torch.Tensor, float, torch.Tensor]] = {}  # its value, and who stands for it
        for optimizer in optimizers:
            equal: dict[tuple, torch.Tensor] = {}
            for state in optimizer.state.values():
                for key, value in state.items() if isinstance(state, dict) else ():
                    if isinstance(value, torch.Tensor) and value.device.type == "cpu" and value.numel() == 1:
                        number = float(value)
                        self._before[id(value)] = (value, number, equal.setdefault((key, number), value))

    def __contains__(self, tensor: torch.Tensor) -> bool:
        return id(tensor) in self._before

    def read(self, tensor: torch.Tensor, book: Book, value: float) -> Number:
        """The value of a count in the midst of a step: a source, which says what was counted before the reading."""
        _, before, standing = self._before[id(tensor)]
        return book.source(("count", id(standing), value - before), value)

    def changed(self) -> tuple[list[torch.Tensor], bool]:
        """The tensors that the step counted up by one, and whether it changed any in another way."""
        counted, other = [], False
        for tensor, before, _ in self._before.values():
            now = float(tensor)
            if now == before + 1:
                counted.append(tensor)
            elif now != before:
                other = True
        return counted, other

    def restore(self) -> None:
        """Count as before the step."""
        for tensor, before, _ in self._before.values():
            tensor.fill_(before)

    def standing(self) -> dict[int, torch.Tensor]:
        """The tensors that sources name, by id."""
        return {id(tensor): tensor for _, _, tensor in self._before.values()}


def _without_book(value: Any) -> Any:
    if type(value) is tuple:
        return tuple(map(_without_book, value))
    return float(value) if isinstance(value, Number) else value


def hyperparameter(place: tuple[dict, str, Optional[int]]) -> Optional[float]:
    group, key, at = place
    value = group.get(key)
    if at is not None:
        value = value[at] if type(value) is tuple and at < len(value) else None
    return value if type(value) is float else None

"""What a replayed call does: inputs in the order of the graph, one execution, and outputs to where they go."""

import ctypes
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Optional, Union

import torch
import torch_xla.runtime as xr
from torch.utils import _pytree as pytree

from . import device as runtime
from .capture import Input, Refused, Traced, put
from .numbers import evaluate
from .optimizers import hyperparameter
from .reads import Read, bits
from .tensors import Objects, Starter, TensorGuards, TensorResults, count_up, give_own_buffers, sync_all

__all__ = ["Plan"]


@dataclass
class _Shared:
    """An input that was one with a number of the step, if that has a handle here, and with other tensors."""

    number: Optional[int]
    terms: set[tuple]
    sharing: dict[Any, Any]

    def take(self, entry: Input) -> bool:
        """What one more trace of the same graph leaves of it; whether nothing is left.

        What was another number is another input, so it was not part of this one.
        """
        self.terms &= set(entry.terms)
        self.sharing = {key: other for key, other in self.sharing.items() if key in entry.sharing}
        if self.number != entry.number:
            self.number = entry.number if self.terms else None
        return self.number is None and len(self.sharing) <= 1

    def holds(self, tensor: torch.Tensor, arguments: list[torch.Tensor]) -> bool:
        handle = runtime.handle_of(tensor)
        if handle is None or (self.number is not None and handle != self.number):
            return False
        others = [arguments[other] if type(other) is int else other() for other in self.sharing.values()]
        return all(other is None or runtime.handle_of(other) == handle for other in others)


class Plan:
    """One graph of a step, and what has to hold for it to be the one that a call would trace."""

    def __init__(self, traced: Traced) -> None:
        self.structure = traced.structure()
        self.is_spmd = xr.is_spmd()
        self.traces = 0
        self.replays = 0
        self._varied: set[Hashable] = set()  # numbers that had several values in traces
        self._seen: dict[Hashable, float] = {}
        self._terms: dict[int, set[tuple]] = {}  # of inputs that are numbers
        self._constants: dict[int, Any] = {}  # of inputs that had one value in all traces
        self._uploaded: dict[int, tuple[float, torch.Tensor]] = {}
        self._shared: dict[int, _Shared] = {}  # inputs that are one with others, of the same number
        self._free: set[int] = set()  # arguments that were other buffers in several traces
        self.take(traced)

    # What traces of the same graph say.

    def take(self, traced: Traced) -> None:
        """Learn from one more trace. Raises Refused if an input changes and nobody says how."""
        self._keep_relevant(traced)
        for key, value in traced.book.sources().items():
            if key in self._seen and self._seen[key] != value:
                self._varied.add(key)
            self._seen[key] = value
        for i, entry in enumerate(traced.inputs):
            if entry.source[0] == "number":
                self._take_number(i, entry)
            elif not self.traces and entry.number is not None:
                self._shared[i] = _Shared(entry.number, set(entry.terms), dict(entry.sharing))
            elif i in self._shared and self._shared[i].take(entry):
                del self._shared[i]
        if self.traces:
            pairs = zip(self._traced.argument_handles, traced.argument_handles, strict=True)
            self._free.update(i for i, (old, new) in enumerate(pairs) if old != new)
        self.traces += 1
        self._traced = traced
        self._prepare(traced)

    def _take_number(self, i: int, entry: Input) -> None:
        """What a number can have been computed from, or be, after one more trace."""
        if not self.traces:
            self._terms[i], self._constants[i] = set(entry.terms), entry.constant
        else:
            self._terms[i] &= set(entry.terms)
            if self._constants[i] is not None and not _same(self._constants[i], entry.constant):
                self._constants[i] = None
        if not self._terms[i] and self._constants[i] is None:
            what = f"{entry.constant.item()}" if entry.constant.numel() == 1 else f"of shape {entry.source[2]}"
            where = f", at {entry.line}" if entry.line else ""
            raise Refused(
                f"it takes a number or a tensor of the host ({what}) that changes from call to call{where}: pass it "
                "as a tensor on the device"
            )

    def _keep_relevant(self, traced: Traced) -> None:
        """Leave out what is computed from numbers of optimizers that the step does not touch."""
        keys = {key for key in traced.book.sources() if key[0] == "count" or key in traced.hyperparameters}
        for table in (traced.book.values, traced.book.outcomes):
            for term in [term for term in table if not _sources_of(term) <= keys]:
                del table[term]
        for entry in traced.inputs:
            entry.terms = [term for term in entry.terms if _sources_of(term) <= keys]

    def _prepare(self, traced: Traced) -> None:
        """Lists that a call goes through."""
        objects = traced.objects
        self._template = Objects(
            objects[entry.source[1]] if entry.source[0] == "state" else entry.value for entry in traced.inputs
        )
        of_kind: dict[str, list[tuple]] = {}
        for i, entry in enumerate(traced.inputs):
            of_kind.setdefault(entry.source[0], []).append((i, *entry.source[1:]))
        self._arguments = of_kind.get("arg", [])
        self._grads = [(i, objects[key]) for i, key in of_kind.get("grad", ())]
        self._slots = [(i, objects[place], key) for i, place, key in of_kind.get("slot", ())]
        self._seeds = sorted(of_kind.get("seed", ()), key=lambda entry: entry[1])
        self._draws = [draw for _, draw in self._seeds]
        self._numbers = [(i, dtype) for i, dtype, _ in of_kind.get("number", ())]
        for i, *_ in (*self._seeds, *self._numbers):
            self._template.put(i, None)
        self._sharded = [i for i, entry in enumerate(traced.inputs) if entry.source[0] not in ("number", "seed")]
        self._bound = [(i, tensor) for i, tensor in traced.bound.items() if i not in self._free]
        self._bound += traced.views.items()
        self._reads = [(self._key(read), read) for read in traced.reads if not self._is_constant(read)]
        self._specials = [(term, value) for term, value in traced.book.values.items() if value in (0.0, 1.0, -1.0)]
        self._outcomes = list(traced.book.outcomes.items())
        self._prepare_destinations(traced)
        self._counted = Objects.of_tensors(traced.counts)
        self._counts = [(key, traced.standing[key[1]], key[2]) for key in traced.book.sources() if key[0] == "count"]
        self._result_objects = objects
        self._is_leaf = traced.result_spec == pytree.LeafSpec()
        # A replay keeps nothing of the trace but what is named above.
        traced.result = None

    def _prepare_destinations(self, traced: Traced) -> None:
        """Which outputs are the new values of tensors, and which are tensors of their own."""
        objects = traced.objects
        donated = {traced.inputs[i].source for i in traced.donated}
        given: list[tuple] = []
        self._new: list[tuple] = []
        for i, targets in enumerate(traced.outputs):
            for number, target in enumerate(targets):
                where = objects.get(target[1], target[1])
                if target[0] in ("state", "grad", "arg"):
                    given.append((i, target[0], where, target in donated))
                else:
                    self._new.append((i, number == 0, target[0], where, target[2:]))
        given.sort(key=lambda entry: not entry[-1])
        self._given, self._donated = [i for i, *_ in given], sum(entry[-1] for entry in given)
        self._targets = Objects(where if kind == "state" else None for _, kind, where, _ in given)
        self._other_targets = [(i, kind, where) for i, (_, kind, where, _) in enumerate(given) if kind != "state"]
        self._starter: Optional[Starter] = None
        states = [objects[entry.source[1]] for entry in traced.inputs if entry.source[0] == "state"]
        states += [where for _, kind, where, _ in given if kind == "state"]
        states = list({id(tensor): tensor for tensor in states}.values())
        self._guards = TensorGuards(traced.grads, traced.flags, traced.on_host, states)
        self._written = {where for _, kind, where, _ in given if kind == "arg"}
        self._storages = set(map(runtime.storage_of, states))
        self._written_storages = {runtime.storage_of(where) for _, kind, where, _ in given if kind == "state"}

    # Whether a call would trace this graph.

    def holds(self, arguments: list[torch.Tensor]) -> bool:
        """Whether a call would trace this graph now, as far as Python's objects tell."""
        for i, tensor in self._bound:
            if arguments[i] is not tensor:
                return False
        return self._guards.hold() and self._traced.places.holds() and not self._has_views(arguments)

    def _has_views(self, arguments: list[torch.Tensor]) -> bool:
        """Whether an argument aliases another tensor that the step writes, and did not when it was traced."""
        storages = list(map(runtime.storage_of, arguments))
        others = {storages[i]: arguments[i] for i in self._written}
        for i, (tensor, storage) in enumerate(zip(arguments, storages, strict=True)):
            if i in self._traced.views:
                continue
            states = self._storages if i in self._written else self._written_storages
            if storage in states or others.get(storage, tensor) is not tensor:
                return True
        return False

    def has_shardings(self, inputs: Objects, device: str) -> bool:
        """Whether state and arguments are sharded as they were."""
        runtime.settle(device)  # of what is pending XLA decides
        wanted = self._traced.shardings
        return runtime.shardings_of([inputs.kept[i] for i in self._sharded]) == [wanted[i] for i in self._sharded]

    def reads_hold(self, inputs: Objects, device: str, known: dict[tuple, bytes]) -> bool:
        """Whether the step would read what it did. Known: what was read for this call, by other plans too."""
        new = [(key, read) for key, read in self._reads if key not in known]
        if new:
            self._put_seeds(inputs, runtime.settle(device))
            self._send(inputs, device)
            values = [read.run(inputs.kept[read.inputs]) for _, read in new]
            for (key, _), value in zip(new, runtime.to_cpu(values), strict=True):
                known[key] = bits(value)
        return all(known[key] == bits(read.value) for key, read in self._reads)

    def changed_read(self, traced: Traced) -> Optional[Read]:
        """The first value that a trace has read otherwise, of the same graph."""
        for mine, other in zip(self._traced.reads, traced.reads, strict=False):
            if (mine.graph, mine.seen()) != (other.graph, other.seen()):
                return other if mine.graph == other.graph else None
        return None

    def changed_number(self, traced: Traced) -> Optional[str]:
        """A number that is part of the graph itself, and that a trace has another of."""
        for where, values in traced.fixed.items():
            new = values - self._traced.fixed.get(where, values)
            if new:
                return f"the number {min(new):g} of {where}"
        return None

    def _is_constant(self, read: Read) -> bool:
        places = range(read.first, read.inputs.stop)
        return all(self._traced.inputs[i].source[0] == "number" and not self._terms[i] for i in places)

    def _key(self, read: Read) -> tuple:
        """Equal for two plans that read the same value in one call."""
        key: list = [read.graph]
        for i in range(read.first, read.inputs.stop):
            source = self._traced.inputs[i].source
            if source[0] == "number":
                source = (*source, (id(self), i) if self._terms[i] else bits(self._constants[i]))
            key.append(source)
        return tuple(key)

    def shared_hold(self, inputs: Objects, arguments: list[torch.Tensor]) -> bool:
        """Whether the inputs that were one with others still are."""
        return all(shared.holds(inputs.kept[i], arguments) for i, shared in self._shared.items())

    def adopt(self) -> None:
        """What the step's own optimizers would find changed since the last step."""
        self._traced.masters.adopt()

    @property
    def input_count(self) -> int:
        return self._traced.taken

    @property
    def read_count(self) -> int:
        return len(self._reads)

    def is_stale(self) -> bool:
        return self._traced.places.is_stale()

    def sources(self) -> Optional[dict[Hashable, float]]:
        """The numbers that the graph's are computed from, after this step's count; None if they call for a trace."""
        found: dict[Hashable, float] = {}
        for key, place in self._traced.hyperparameters.items():
            value = hyperparameter(place)
            if value is None or (key not in self._varied and value != self._seen.get(key, value)):
                return None
            found[key] = value
        for key, tensor, more in self._counts:
            found[key] = float(tensor) + more
        for term, outcome in self._outcomes:
            if evaluate(term, found) != outcome:
                return None
        for term, value in self._specials:
            if evaluate(term, found) != value:
                return None
        return found

    def numbers(self, sources: dict[Hashable, float]) -> Optional[list[tuple[int, Any]]]:
        """The inputs that are numbers; None if what they could be no longer agrees."""
        found = []
        for i, dtype in self._numbers:
            constant, terms = self._constants[i], self._terms[i]
            if not terms:
                found.append((i, self._traced.inputs[i].value))
                continue
            values = {_rounded(evaluate(term, sources), dtype) for term in terms}
            if constant is not None:
                values.add(_rounded(float(constant), dtype))
            if len(values) != 1:
                return None
            found.append((i, self._number(i, values.pop(), dtype)))
        return found

    def _number(self, i: int, value: float, dtype: torch.dtype) -> torch.Tensor:
        """An input that is this number: on the device, if the last call had the same."""
        last, like = self._uploaded.get(i), self._traced.inputs[i].value
        if last is None or last[0] != value:
            made = torch.full(like.shape, value, dtype=dtype, device="cpu")
        elif last[1].is_cpu:
            made = runtime.keep(last[1].to(like.device))
        else:
            return last[1]
        self._uploaded[i] = (value, made)
        return made

    def difference(self, traced: Traced, numbers: list[tuple[int, Any]]) -> Optional[str]:
        """What a traced call has that a replay would not have had."""
        if traced.refusal is not None or traced.unsettled is not None:
            return traced.refusal or traced.unsettled
        if traced.structure() != self.structure:
            return "its graph, or what it reads and changes, is another one"
        for i, value in numbers:
            found, would_be = traced.inputs[i].constant, value.cpu()
            if not _same(found, would_be):
                line = f", at {traced.inputs[i].line}" if traced.inputs[i].line else ""
                return f"it takes {_told(found)} where {_told(would_be)} would be taken{line}"
        return None

    # A call.

    def run(self, inputs: Objects, arguments: list[torch.Tensor], device: str) -> Any:
        traced = self._traced
        seed = runtime.settle(device)
        give_own_buffers(map(inputs.kept.__getitem__, traced.donated), lambda: runtime.settle(device))
        self._put_seeds(inputs, seed)
        results = self._started(inputs, device)
        runtime.set_seed(runtime.advanced(runtime.drawn(seed, traced.seeds)), device)
        if traced.counts:
            count_up(self._counted)
        placed = self._place(results, arguments)
        traced.masters.stepped()
        self.replays += 1
        return self._result(placed, arguments)

    def inputs(self, arguments: list[torch.Tensor], numbers: list[tuple[int, Any]]) -> Objects:
        """The inputs of the graph but for seeds, with what was written to those that alias them."""
        inputs = self._template.copy()
        for i, number in self._arguments:
            inputs.put(i, arguments[number])
        for i, parameter in self._grads:
            inputs.put(i, parameter.grad)
        for i, place, key in self._slots:
            inputs.put(i, place.cell_contents if key is None else place[key])
        sync_all(inputs)
        for i, value in numbers:
            inputs.put(i, value)
        return inputs

    def _put_seeds(self, inputs: Objects, seed: int) -> None:
        if self._seeds:
            for (i, _), word in zip(self._seeds, runtime.seeds_of(seed, self._draws), strict=True):
                inputs.put(i, word)

    def _send(self, inputs: Objects, device: str) -> None:
        """Under SPMD a result has a sharding, too, and nothing is sent by the start of a graph."""
        for i, *_ in (*self._seeds, *self._numbers) if self.is_spmd else ():
            inputs.put(i, inputs.kept[i].to(device))

    def _started(self, inputs: Objects, device: str) -> Union[TensorResults, Starter]:
        """The results of the graph, which was started: those of the first call say of what shapes they are."""
        taken = self._traced.taken
        if self._starter is not None:
            return self._starter.start(inputs, taken)
        self._send(inputs, device)
        results = TensorResults(self._traced.graph, inputs.kept[:taken], self._given, self._donated)
        if not self.is_spmd and Starter.can_start():
            self._starter = Starter(self._traced.graph, results, self._given, self._donated)
        return results

    def _place(self, results: Union[TensorResults, Starter], arguments: list[torch.Tensor]) -> dict[int, torch.Tensor]:
        made = [results.tensor(i, is_first) for i, is_first, *_ in self._new]
        targets = self._targets.copy() if self._other_targets else self._targets
        for i, kind, where in self._other_targets:
            targets.put(i, where.grad if kind == "grad" else arguments[where])
        results.give(targets)
        placed: dict[int, torch.Tensor] = {}
        for value, (_, _, kind, where, rest) in zip(made, self._new, strict=True):
            self._put(kind, where, rest, value, placed)
        for parameter in self._traced.cleared:
            parameter.grad = None
        return placed

    def _put(self, kind: str, where: Any, rest: tuple, value: torch.Tensor, results: dict[int, torch.Tensor]) -> None:
        if kind == "new_grad":
            where.grad = value
        elif kind == "result":
            results[where] = value
        else:
            put(where, rest[0], value)
            self._traced.places.replaced(where, rest[0], value)

    def _result(self, results: dict[int, torch.Tensor], arguments: list[torch.Tensor]) -> Any:
        leaves = []
        for i, (kind, *where) in enumerate(self._traced.results):
            if kind == "output":
                leaves.append(results[i])
            elif kind == "arg":
                leaves.append(arguments[where[0]])
            elif kind == "state":
                leaves.append(self._result_objects[where[0]])
            else:
                leaves.append(self._traced.constants[i])
        return leaves[0] if self._is_leaf else pytree.tree_unflatten(leaves, self._traced.result_spec)


def _sources_of(term: Any) -> set[Hashable]:
    if type(term) is not tuple:
        return set()
    return {term[1]} if term[0] == "source" else set().union(*map(_sources_of, term[1:]))


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(one, other) or (
        one.is_floating_point()
        and torch.equal(one.isnan(), other.isnan())
        and torch.equal(one.nan_to_num(), other.nan_to_num())
    )


def _told(value: torch.Tensor) -> str:
    return str(value.item()) if value.numel() == 1 else f"other values, of shape {tuple(value.shape)},"


def _rounded(value: float, dtype: torch.dtype) -> float:
    if dtype == torch.float32:
        return ctypes.c_float(value).value
    return value if dtype == torch.float64 else float(torch.tensor(value, dtype=dtype))

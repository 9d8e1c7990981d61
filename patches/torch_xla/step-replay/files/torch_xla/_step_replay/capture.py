"""One traced call of a step: its graph, where each input comes from, and where each output goes."""

import gc
import operator
import random
import sys
import time
import warnings
import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Optional

import _XLAC
import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.utils import _pytree as pytree

from . import device as runtime
from .guards import Places
from .numbers import Book
from .optimizers import Hyperparameters, Masters, StepCounts, add_optimizer
from .reads import Read
from .witness import PLAIN, Witness, single

__all__ = ["Call", "Refused", "Traced", "put", "trace"]

_RANDOM_STEPS = 4096  # random operators of a step
_LEAVES = frozenset({*PLAIN, int, float, bool, str, type(None)})  # types of arguments without others in them
_MOST_BYTES = 1 << 20  # of a constant that is compared


class Refused(RuntimeError):
    """A step that cannot be replayed."""


@dataclass
class Call:
    """The arguments of one call, taken apart."""

    leaves: Sequence[Any]
    spec: Any  # None: they are the arguments
    form: Any  # equal for arguments of one structure

    @classmethod
    def of(cls, args: tuple, kwargs: dict) -> "Call":
        if not kwargs and _LEAVES.issuperset(map(type, args)):
            return cls(args, None, len(args))
        leaves, spec = pytree.tree_flatten((args, kwargs))
        flat = not kwargs and len(leaves) == len(args)
        return cls(leaves, spec, len(args) if flat and all(map(operator.is_, leaves, args)) else str(spec))

    def run(self, step: Callable) -> Any:
        args, kwargs = (self.leaves, {}) if self.spec is None else pytree.tree_unflatten(self.leaves, self.spec)
        return step(*args, **kwargs)


@dataclass
class Input:
    """Where an input of the graph comes from; `value` is that of the trace, for one that is a number or a constant."""

    source: tuple
    value: Any = None
    terms: list[tuple] = field(default_factory=list)
    constant: Any = None  # the same on the host
    line: str = ""
    number: Optional[int] = None  # its handle, if what has the same number is the same input
    sharing: dict[Any, Any] = field(default_factory=dict)  # that: places of arguments, and references to tensors by id


@dataclass
class Traced:
    """What one traced call showed."""

    result: Any
    refusal: Optional[str] = None
    unsettled: Optional[str] = None  # what was made or changed in this call alone, such as an optimizer's first state
    graph: bytes = b""
    inputs: list[Input] = field(default_factory=list)  # those of the graph, and of the values that the step reads
    taken: int = 0  # how many the graph takes
    reads: list[Read] = field(default_factory=list)
    outputs: list[list[tuple]] = field(default_factory=list)  # for each its destinations
    results: list[tuple] = field(default_factory=list)
    result_spec: Any = None
    cleared: list[torch.Tensor] = field(default_factory=list)  # their .grad is None after the step
    objects: dict[int, Any] = field(default_factory=dict)  # of ids in sources and destinations
    donated: list[int] = field(default_factory=list)
    places: Places = field(default_factory=Places)
    grads: list[tuple[torch.Tensor, Optional[torch.dtype]]] = field(default_factory=list)  # dtypes of .grad before
    flags: list[tuple[torch.Tensor, bool]] = field(default_factory=list)
    on_host: list[tuple[torch.Tensor, int]] = field(default_factory=list)
    book: Book = field(default_factory=Book)
    hyperparameters: dict[Hashable, tuple] = field(default_factory=dict)
    counts: list[torch.Tensor] = field(default_factory=list)
    standing: dict[int, torch.Tensor] = field(default_factory=dict)  # the counts that sources name
    masters: Masters = field(default_factory=lambda: Masters([]))
    constants: list[Any] = field(default_factory=list)  # the leaves of the result
    seeds: int = 0  # how far the step itself moved the seed
    bound: dict[int, Any] = field(default_factory=dict)  # arguments whose buffer something else has, too
    views: dict[int, Any] = field(default_factory=dict)  # arguments that alias another tensor, which is written
    argument_handles: list[Any] = field(default_factory=list)
    fixed: dict[str, set[float]] = field(default_factory=dict)  # of `Witness.taken` those that no input of the graph is
    shardings: list[str] = field(default_factory=list)  # of the inputs; the key of the graph has them
    seconds: float = 0.0

    def structure(self) -> tuple:
        """What two traces of one replay have in common."""
        sources = tuple(entry.source for entry in self.inputs)
        outputs = tuple(map(tuple, self.outputs))
        cleared = tuple(map(id, self.cleared))
        graphs = (self.graph, self.taken, *[read.key() for read in self.reads])
        return (graphs, sources, outputs, tuple(self.results), str(self.result_spec), cleared, self.seeds)


class _Before:
    """The tensors, optimizers and generators before a step."""

    def __init__(self, call: Call, places: Places) -> None:
        self.device, self.places = runtime.device_name(), places
        self.arguments = [leaf for leaf in call.leaves if isinstance(leaf, torch.Tensor)]
        self.on_host: dict[int, Any] = {}
        found, self.optimizers = self._found()
        Masters(self.optimizers).adopt()
        self.seed = runtime.settle(self.device, found, wait=True)
        self.leaves = [tensor for tensor in found if tensor.requires_grad and _is_leaf(tensor)]
        self.grad_of = {id(leaf): id(leaf.grad) for leaf in self.leaves if leaf.grad is not None}
        self.grad_dtypes = {id(leaf): leaf.grad.dtype for leaf in self.leaves if leaf.grad is not None}
        self.parameter_of = {id(leaf.grad): leaf for leaf in self.leaves if leaf.grad is not None}
        self.alive = {id(tensor): weakref.ref(tensor) for tensor in found}
        self.handles: dict[int, list[int]] = {}
        self.ids: dict[int, int] = {}
        # Kept until the graph runs, to return to them, and since what the step sends to the device would otherwise have
        # the handle of a buffer that it overwrites.
        self.values = runtime.values_of(found)
        for tensor, handle in zip(found, runtime.handles_of(found), strict=True):
            if handle is not None:
                self.handles.setdefault(handle, []).append(id(tensor))
                self.ids[id(tensor)] = _XLAC._xla_get_tensor_id(tensor)
        self.argument_handles = runtime.handles_of(self.arguments)
        self.random, self.closures = _generators(), _step_closures()
        self.changes: list[tuple] = []  # of places, by the step

    def _found(self) -> tuple[list[torch.Tensor], list[torch.optim.Optimizer]]:
        """All tensors of the device that Python can know, the oldest first, and all optimizers.

        The collector's own order, in which a graph would have its outputs, changes as objects outlive collections.
        """
        tensors, optimizers, modules = runtime.all_objects(torch.Tensor, torch.optim.Optimizer, torch.nn.Module)
        self.modules = {id(module): weakref.ref(module) for module in modules}
        self.on_host = {id(tensor): weakref.ref(tensor) for tensor in tensors if _is_on_host(tensor)}
        tensors += [value for _, _, value, _ in self.places.same if isinstance(value, torch.Tensor)]
        tensors += [value for _, value, _ in self.places.cells if isinstance(value, torch.Tensor)]
        found = {id(tensor): tensor for tensor in (*tensors, *self.arguments) if _is_on_xla(tensor)}
        found = {key: tensor for key, tensor in found.items() if not runtime.is_kept(tensor)}
        grads = [tensor.grad for tensor in found.values() if _is_leaf(tensor) and tensor.grad is not None]
        found.update((id(grad), grad) for grad in grads)
        return sorted(found.values(), key=_XLAC._xla_get_tensor_id), optimizers

    def known(self, key: Optional[int]) -> Optional[torch.Tensor]:
        """The tensor that had this id before the step, if it is still there."""
        reference = self.alive.get(key)
        tensor = None if reference is None else reference()
        if tensor is not None:
            runtime.own_reference(tensor)
        return tensor

    def add_called(self, module: torch.nn.Module) -> None:
        """Expect of a module that the step calls, and of those in it, what they are; not of one that the step makes."""
        reference = self.modules.get(id(module))
        if reference is None or reference() is not module:
            return
        for part in module.modules():
            self.places.add_module(part, self._was_there)

    def _was_there(self, tensor: torch.Tensor) -> bool:
        if type(tensor) not in PLAIN:
            return not isinstance(tensor, (FakeTensor, FunctionalTensor))  # by which a step is traced
        return tensor.is_meta or self.known(id(tensor)) is tensor or self.had_on_host(tensor)

    def had_on_host(self, tensor: torch.Tensor) -> bool:
        reference = self.on_host.get(id(tensor))
        return reference is not None and reference() is tensor

    def return_to(self, counts: StepCounts) -> None:
        """Undo what a step did that was not executed."""
        _XLAC._clear_pending_irs(self.device)
        for place, key, value, _, _ in self.changes:
            if isinstance(value, torch.Tensor) and place is not None:
                put(place, key, value)
        for handle, keys in self.handles.items():
            for tensor in map(self.known, keys):
                # What torch.compile leaves has no value that could be given back.
                if tensor is not None and runtime.handle_of(tensor) != handle:
                    runtime.give(tensor, torch._from_functional_tensor(self.values[handle]))
        for leaf in self.leaves:
            leaf.grad = self._old_grad(leaf)
        counts.restore()
        runtime.set_seed(self.seed, self.device)

    def _old_grad(self, leaf: torch.Tensor) -> Optional[torch.Tensor]:
        """The gradient before the step, which nothing here has kept: one that it drops is none of its results."""
        key = self.grad_of.get(id(leaf))
        grad = self.known(key)
        for handle, keys in self.handles.items() if grad is None else ():
            if key in keys:
                return runtime.own(self.values[handle])
        return grad


def put(place: Any, key: Any, value: Any) -> None:
    """Give an entry of a dict, or a variable of a closure, another value."""
    if key is None:
        place.cell_contents = value
    else:
        place[key] = value


def _is_leaf(tensor: torch.Tensor) -> bool:
    """Whether autograd takes it for a leaf; of a view that it refuses, as it is no longer what it was, no."""
    try:
        return tensor.is_leaf
    except RuntimeError:
        return False


def _is_on_xla(tensor: torch.Tensor) -> bool:
    """Whether it is a tensor of the device as programs have them."""
    # Of subclasses, such as fake tensors, the device says nothing; values in functionalization's wrappers have none.
    if type(tensor) not in PLAIN or tensor.device.type != "xla":
        return False
    return torch._is_functional_tensor(tensor)


def _is_on_host(tensor: torch.Tensor) -> bool:
    return type(tensor) in PLAIN and tensor.device.type == "cpu"


def _generators() -> tuple:
    numpy = sys.modules.get("numpy")
    states = [random.getstate(), torch.get_rng_state().numpy().tobytes()]
    if numpy is not None:
        states.append(str(numpy.random.get_state()[1:]) + str(numpy.random.get_state()[1].tolist()))
    return tuple(states)


@contextmanager
def _uncompiled() -> Iterator[None]:
    """Functions of torch.compile run as they are written, so that they are part of the step's graph."""
    if "torch._dynamo" not in sys.modules:  # nothing is compiled, and the import takes a second
        yield
        return
    with torch.compiler.set_stance("force_eager"), warnings.catch_warnings():
        # The witness has hooks on all modules.
        warnings.filterwarnings("ignore", r"Using `torch\.compile\(module\)` when there are global hooks", UserWarning)
        yield


def _step_closures() -> int:
    import torch_xla.core.xla_model as xm

    context = xm._get_device_context()
    return sum(len(getattr(context, name, None) or ()) for name in ("step_closures", "async_step_closures"))


def trace(step: Callable, call: Call, judge: Optional[Callable[[Traced], Optional[str]]] = None) -> Traced:
    """Run a step as it is written, and its graph; say what a replay has to know of it.

    What the step raises is raised, and leaves the state as a traced step does. With a judge nothing is executed if he
    objects to what was traced: the state is that before the call, and Refused is raised with his words.
    """
    started = time.perf_counter()
    places = Places()
    places.add_call(step, call.leaves)
    before = _Before(call, places)
    traced, witness, counts = _observed(step, call, before, places)
    after = _After(traced, before, places)
    traced.result = after.detached()
    if traced.refusal is None:
        after.look(witness)
    runs = traced.refusal is None and traced.unsettled is None
    if runs:
        after.compile()
    traced.seconds = time.perf_counter() - started
    objection = judge(traced) if judge is not None else None
    if objection is not None:
        before.return_to(counts)
        raise Refused(objection)
    before.values = {}
    if runs:
        after.execute()
    else:
        import torch_xla

        torch_xla.sync()
        after.own_grads()
    return traced


def _observed(step: Callable, call: Call, before: "_Before", places: Places) -> tuple[Traced, Witness, StepCounts]:
    """Run the step, and note what it does besides the graph."""
    runtime.set_seed(before.seed, before.device)
    book, hyperparameters = Book(), Hyperparameters(before.optimizers)
    counts = StepCounts(before.optimizers)
    for optimizer in before.optimizers:
        add_optimizer(places, optimizer, hyperparameters.fed())
    witness = Witness(book, counts, before.add_called)
    hyperparameters.put(book)
    try:
        with witness.watching(), _uncompiled():
            result = call.run(step)
    finally:
        changed = hyperparameters.restore()
    executed = witness.values.executed_else()
    traced = Traced(result, places=places, book=book, hyperparameters=hyperparameters.floats)
    traced.counts, other_counts = counts.changed()
    traced.standing = counts.standing()
    traced.refusal = _refusal(witness, before, executed, changed, other_counts)
    return traced, witness, counts


def _refusal(
    witness: Witness, before: _Before, executed: Optional[str], changed: list[str], other_counts: bool
) -> Optional[str]:
    if witness.reads:
        return f"it reads a value of the device, which ends the graph: {witness.reads[0]}"
    if executed:
        return f"it executes a graph: {executed}"
    if _generators() != before.random:
        return "it draws random numbers on the CPU, which a replay would not draw again: draw them on the device"
    changed_object = before.places.changed_object()
    if changed_object is not None:
        return f"it changes the state of a {changed_object}, which a replay would not: do that outside the step"
    if _step_closures() != before.closures:
        return "it adds a step closure, which a replay would not run"
    if changed:
        return f"it changes a hyperparameter, which a replay would not: {changed[0]}. Do that after the step"
    if other_counts:
        return "its optimizer keeps state on the CPU that is more than a count of steps: set capturable=True"
    for entry in witness.on_host.values():
        if entry[0]._version != entry[1] and _is_kept(entry) and before.had_on_host(entry[0]):
            return f"it changes a tensor on the CPU, of shape {tuple(entry[0].shape)}, which a replay would not"
    return None


def _is_kept(entry: tuple[torch.Tensor, int]) -> bool:
    """Whether a tensor that the step used is anybody's but the entry's."""
    return sys.getrefcount(entry[0]) > 2


class _After:
    """The tensors after a step, none of which is computed yet."""

    def __init__(self, traced: Traced, before: _Before, places: Places) -> None:
        self.traced, self.before, self.places = traced, before, places
        self.outputs: list[torch.Tensor] = []
        self.holders: list[list[torch.Tensor]] = []
        self.written: set[tuple] = set()  # the destinations of all outputs
        self.values: list[Any] = []
        self.unknown = False  # whether something is computed that Python does not know

    def detached(self) -> Any:
        """The result without its graph of autograd, which only the traced call would have."""
        leaves, spec = pytree.tree_flatten(self.traced.result)
        self.traced.result_spec = spec
        for i, leaf in enumerate(leaves):
            if isinstance(leaf, torch.Tensor) and _is_on_xla(leaf) and not self._is_known(leaf):
                leaves[i] = runtime.own(leaf)
        self.leaves = leaves
        self.traced.constants = [None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        return pytree.tree_unflatten(leaves, spec)

    def _is_known(self, tensor: torch.Tensor) -> bool:
        return self.before.known(id(tensor)) is tensor

    def own_grads(self) -> None:
        """Gradients that are views, as an earlier backward left them, would be so in each later call."""
        for leaf in self.before.leaves if self.unknown else ():
            if leaf.grad is not None and _is_on_xla(leaf.grad):
                leaf.grad = runtime.own(leaf.grad)

    # What is pending, and where it goes.

    def look(self, witness: Witness) -> None:
        traced = self.traced
        slots = self._slots()
        if traced.refusal is not None:
            return
        destinations = self._destinations(slots)
        pending = self._pending(destinations)
        if traced.refusal is not None:
            return
        self._assign(pending)
        self._all_computed(destinations)
        self._find_views()
        if traced.refusal is None:
            self._take_inputs(witness, slots)
        if traced.refusal is None:
            self._results()
        if traced.refusal is None:
            self._find_seeds()
        self._expectations(witness)

    def _slots(self) -> dict[int, tuple]:
        """Attributes, entries and variables that have another tensor after the step: their source by the old one."""
        slots: dict[int, tuple] = {}
        self._new: list[tuple[torch.Tensor, tuple]] = []
        self.before.changes = self.places.changes()
        for place, key, value, found, whose in self.before.changes:
            if place is not None and isinstance(found, torch.Tensor) and _is_on_xla(found):
                source = ("slot", id(place), key)
                self.traced.objects[id(place)] = place
                self._new.append((found, source))
                if isinstance(value, torch.Tensor) and _is_on_xla(value):
                    slots[id(value)] = source
                else:
                    self.traced.unsettled = f"{whose} was made"
            elif place is None and id(found) in self.places.of_optimizers:
                self.traced.unsettled = f"{whose} was made"
            else:
                self.traced.refusal = (
                    f"it changes {whose}, which a replay would not: it was {_short(value)} and is {_short(found)}. "
                    "Do that outside the step"
                )
        return slots

    def _destinations(self, slots: dict[int, tuple]) -> list[tuple[torch.Tensor, tuple]]:
        """Every tensor that is known, with where its value would go."""
        before, found = self.before, []
        arguments = {id(tensor): i for i, tensor in enumerate(before.arguments)}
        for key in before.alive:
            tensor = before.known(key)
            if tensor is None or key in slots:
                continue
            if key in arguments:
                found.append((tensor, ("arg", arguments[key])))
            elif key in before.parameter_of:
                found.append((tensor, ("grad", self._named(before.parameter_of[key]))))
            else:
                found.append((tensor, ("state", key)))
        found += self._new_grads()
        found += self._new
        for i, leaf in enumerate(self.leaves):
            if isinstance(leaf, torch.Tensor) and _is_on_xla(leaf) and not self._is_known(leaf):
                found.append((leaf, ("result", i)))
        return found

    def _new_grads(self) -> list[tuple[torch.Tensor, tuple]]:
        """Gradients that were not there before; those that are gone are noted."""
        before, found = self.before, {}
        for leaf in before.leaves:
            old, grad = before.known(before.grad_of.get(id(leaf))), leaf.grad
            if grad is not None and grad is not old:
                # Of a weight that the forward pass transposes it is a view, whose base would be computed, too.
                grad = leaf.grad = runtime.own(grad)
                found[id(grad)] = (grad, ("new_grad", self._named(leaf)))
            elif grad is None and id(leaf) in before.grad_of:
                self.traced.cleared.append(leaf)
        return list(found.values())

    def _named(self, thing: Any) -> int:
        self.traced.objects[id(thing)] = thing
        return id(thing)

    def _pending(self, destinations: list[tuple[torch.Tensor, tuple]]) -> dict[int, list[tuple]]:
        """Of the known tensors those that are not computed yet, by the id of the value."""
        for tensor, _ in destinations:
            torch._functionalize_sync(tensor)
        needed = _XLAC._check_tensor_need_materialization([tensor for tensor, _ in destinations])
        pending: dict[int, list[tuple]] = {}
        for (tensor, destination), is_pending in zip(destinations, needed, strict=True):
            if is_pending:
                pending.setdefault(_XLAC._xla_get_tensor_id(tensor), []).append((tensor, destination))
        if len(pending) != runtime.pending_total(self.before.device):
            gc.collect()  # what only cycles of references keep is not the step's
            if len(pending) != runtime.pending_total(self.before.device):
                self._find_kept(pending, destinations)
        return self._without_views(pending)

    def _find_kept(self, pending: dict[int, list[tuple]], destinations: list[tuple]) -> None:
        """Tensors that the step made and that something keeps."""
        known = {id(tensor) for tensor, _ in destinations}
        kept: Optional[torch.Tensor] = None
        for tensor in runtime.all_objects(torch.Tensor)[0]:
            if id(tensor) in known or not _is_on_xla(tensor):
                continue
            torch._functionalize_sync(tensor)
            if _XLAC._check_tensor_need_materialization([tensor])[0]:
                number = _XLAC._xla_get_tensor_id(tensor)
                if number not in pending:
                    kept = tensor
                    pending[number] = [(tensor, ("kept", 0))]
        if kept is not None:  # one of them: to find who refers to a tensor takes as long as there are objects
            self.traced.unsettled = f"a tensor of shape {tuple(kept.shape)} is made and kept{_keeper(kept)}"
        if len(pending) != runtime.pending_total(self.before.device):
            self.unknown = True
            self.traced.unsettled = (
                "tensors are kept that Python does not know, such as those that a graph of autograd saves: call "
                "backward() in the step, and keep no tensor with a grad_fn"
            )

    def _without_views(self, pending: dict[int, list[tuple]]) -> dict[int, list[tuple]]:
        """Of tensors that alias each other the base alone: the others follow it."""
        by_storage: dict[int, list[int]] = {}
        for number, holders in pending.items():
            by_storage.setdefault(runtime.storage_of(holders[0][0]), []).append(number)
        for numbers in by_storage.values():
            if len(numbers) > 1:
                bases = [n for n in numbers if all(tensor._base is None for tensor, _ in pending[n])]
                if len(bases) != 1:
                    if self.traced.unsettled is None:  # else they may be what is made once
                        self.traced.refusal = "it changes tensors that are views of one another"
                    return pending
                for number in numbers:
                    if number != bases[0]:
                        del pending[number]
        return pending

    def _all_computed(self, destinations: list[tuple[torch.Tensor, tuple]]) -> None:
        """Refuse what is put into a place without being computed in the step."""
        for tensor, destination in destinations:
            if destination[0] in ("slot", "new_grad") and (destination not in self.written or self._is_known(tensor)):
                self.traced.refusal = (
                    f"it puts a tensor of shape {tuple(tensor.shape)} that it did not compute into an attribute "
                    "or a .grad: copy_() to the tensor that is there"
                )

    def _assign(self, pending: dict[int, list[tuple]]) -> None:
        """Outputs are in the order of a traced step, on which it depends how XLA fuses, and with that a last digit."""
        for _, holders in sorted(pending.items(), key=lambda entry: entry[0]):
            tensors, targets, storages = [], [], set()
            for tensor, destination in holders:
                if destination[0] != "result" and runtime.storage_of(tensor) in storages:
                    continue  # follows the one that it aliases
                storages.add(runtime.storage_of(tensor))
                tensors.append(tensor)
                targets.append(destination)
                if destination[0] == "state":
                    self.traced.objects[destination[1]] = tensor
            self.outputs.append(tensors[0])
            self.holders.append(tensors)
            self.traced.outputs.append(targets)
            self.written.update(targets)

    def _find_views(self) -> None:
        """Which view an argument is of what is written is part of the graph."""
        arguments = dict(enumerate(self.before.arguments))
        storages = {i: runtime.storage_of(tensor) for i, tensor in arguments.items()}
        written = {runtime.storage_of(tensor) for tensors in self.holders for tensor in tensors}
        own = {id(arguments[i]) for kind, i in (target[:2] for target in self.written) if kind == "arg"}
        follow = {storages[i] for i, tensor in arguments.items() if storages[i] in written and id(tensor) not in own}
        self.traced.views = {i: tensor for i, tensor in arguments.items() if storages[i] in follow}

    def _results(self) -> None:
        """Of each leaf of the result: an output, something that was there before, or a constant."""
        arguments = {id(tensor): i for i, tensor in enumerate(self.before.arguments)}
        produced = {id(tensor) for tensors in self.holders for tensor in tensors}
        for i, leaf in enumerate(self.leaves):
            if not isinstance(leaf, torch.Tensor):
                self.traced.results.append(("constant", type(leaf).__name__, _hashable(leaf)))
                self.traced.objects[id(leaf)] = leaf
            elif id(leaf) in arguments:
                self.traced.results.append(("arg", arguments[id(leaf)]))
            elif self._is_known(leaf) and id(leaf) in self.before.parameter_of:
                self.traced.refusal = "it returns the .grad of a parameter: return a clone() of it"
            elif self._is_known(leaf):
                self.traced.results.append(("state", id(leaf)))
                self.traced.objects[id(leaf)] = leaf
            elif id(leaf) in produced:
                self.traced.results.append(("output", i))
            elif not _is_on_xla(leaf):
                self.traced.refusal = f"it returns a tensor on {leaf.device}: return one of the device"
            else:
                self.traced.refusal = (
                    "it returns a tensor that is not computed in the step, but is data of the host or aliases another"
                )

    def _take_inputs(self, witness: Witness, slots: dict[int, tuple]) -> None:
        if not self.outputs:
            self.traced.refusal = "it computes nothing on the device: no tensor is changed, and none is returned"
            return
        traced = self.traced
        numbers, self.values = runtime.taken_by(self.outputs)
        values, traced.taken = self.values.copy(), len(self.values)
        traced.reads = list(witness.values.found.values())
        for read in traced.reads:
            read.first = len(values)
            numbers += read.numbers
            values += read.tensors
        for number, value, handle in zip(numbers, values, runtime.handles_of(values), strict=True):
            traced.inputs.append(self._input(number, value, handle, witness, slots))
        traced.argument_handles = self.before.argument_handles
        traced.shardings = runtime.shardings_of(values)
        fed = {single(sign * float(e.constant)) for e in traced.inputs if _is_float(e) for sign in (1, -1)}
        traced.fixed = {where: {v for v in values if single(v) not in fed} for where, values in witness.taken.items()}
        for read in traced.reads:
            read.tensors = ()  # of the state before the step

    def _input(self, number: int, value: torch.Tensor, handle: Any, witness: Witness, slots: dict[int, tuple]) -> Input:
        before = self.before
        if runtime.is_seed(number) or handle in witness.values.seeds:
            return Input(("seed",), int(value.item()) % (1 << 64))
        if handle in before.argument_handles:
            place = before.argument_handles.index(handle)
            found, is_number = Input(("arg", place)), runtime.has_number(value, handle)
            argument = before.arguments[place]
            others = [key for key in before.handles.get(handle, ()) if key not in map(id, before.arguments)]
            if (others and not is_number) or _is_read_elsewhere(self.places, argument):
                self.traced.bound[place] = argument
        elif handle in before.handles:
            found, is_number = self._state(before.handles[handle], number, slots), runtime.has_number(value, handle)
        else:
            return self._number(value, handle, witness)
        if is_number:
            self._share(found, value, handle)
        return found

    def _share(self, found: Input, value: torch.Tensor, handle: int) -> None:
        """torch_xla has one buffer for all that was sent to the device as the same number, and a graph one input."""
        before = self.before
        found.number, found.constant = handle, runtime.keep(value)
        found.terms = self._terms(value.cpu())
        found.sharing = {i: i for i, other in enumerate(before.argument_handles) if other == handle}
        arguments = set(map(id, before.arguments))
        keys = [key for key in before.handles.get(handle, ()) if key not in arguments]
        found.sharing |= {("state", key): before.alive[key] for key in keys if key in before.alive}

    def _state(self, keys: list[int], number: int, slots: dict[int, tuple]) -> Input:
        before, traced = self.before, self.traced
        # A result of the call before may be the same value as the attribute that this call replaces, or the tensor that
        # it writes.
        keys = sorted(
            keys, key=lambda key: (before.ids.get(key) != number, key not in slots, ("state", key) not in self.written)
        )
        for key in keys:
            if key in slots:
                return Input(slots[key])
            if key in before.parameter_of:
                return Input(("grad", self._named(before.parameter_of[key])))
            tensor = before.known(key)
            if tensor is not None:
                return Input(("state", self._named(tensor)))
        traced.unsettled = "it reads a tensor that nothing keeps after it"
        return Input(("gone",))

    def _number(self, value: torch.Tensor, handle: Any, witness: Witness) -> Input:
        """A number or a tensor of the host: what it may have been computed from."""
        data = value.cpu()
        found = Input(("number", data.dtype, tuple(data.shape)), runtime.keep(value))
        if data.numel() * data.element_size() > _MOST_BYTES:
            self.traced.refusal = (
                f"it sends {data.numel()} elements to the device in each call: pass them as an argument"
            )
        found.constant = data
        if data.numel() == 1 and data.is_floating_point():
            found.terms = self._terms(data)
            found.line = witness.lines.get(single(float(data)), "")
        found.line = witness.uploads.get(handle, found.line)
        return found

    def _terms(self, data: torch.Tensor) -> list[tuple]:
        """The numbers of the book that a number may be."""
        known, number = self.traced.book.values, data.reshape(())
        return [term for term, value in known.items() if torch.tensor(value, dtype=data.dtype) == number]

    def _find_seeds(self) -> None:
        """Which random operators' seeds the graph takes, counted from the step's first one."""
        traced = self.traced
        wanted = {entry.value for entry in traced.inputs if entry.source == ("seed",)}
        end = runtime.base_seed(self.before.device)
        numbers, seed = {}, self.before.seed
        for number in range(_RANDOM_STEPS):
            numbers[seed] = number
            if wanted <= numbers.keys() and end in numbers:
                break
            seed = runtime.drawn(seed)
        if not (wanted <= numbers.keys() and end in numbers):
            traced.refusal = (
                "it seeds the device's random numbers, or draws from a torch.Generator: seed before the step, and draw "
                "without a generator"
            )
            return
        for entry in traced.inputs:
            if entry.source == ("seed",):
                entry.source, entry.value = ("seed", numbers[entry.value]), None
        traced.seeds = numbers[end]

    def _expectations(self, witness: Witness) -> None:
        """What a replay has to find as it was before this call."""
        traced, before = self.traced, self.before
        used = {source[1] for source in _states(traced)}
        parameters = {id(p) for module in self.places.modules for p in module._parameters.values() if p is not None}
        relevant = used | parameters
        traced.grads = [(leaf, before.grad_dtypes.get(id(leaf))) for leaf in before.leaves if id(leaf) in relevant]
        named = [p for module in self.places.modules for p in module._parameters.values() if p is not None]
        traced.flags = [
            (p, p.requires_grad) for p in {id(p): p for p in (*named, *before.leaves)}.values() if id(p) in relevant
        ]
        optimizers = [o for o in before.optimizers if _has_any(o, relevant)]
        traced.masters = Masters(optimizers)
        if traced.masters.have_changes():
            traced.refusal = traced.refusal or (
                "it changes parameters after, or without, the step of their MasterWeights: do that outside the step"
            )
        _keep_relevant(traced, optimizers)
        self.places.settle()
        for tensor, (_, place, key) in self._new:
            self.places.replaced(traced.objects[place], key, tensor)
        traced.on_host = [entry for entry in witness.on_host.values() if _is_kept(entry)]
        made = [entry[0] for entry in traced.on_host if not before.had_on_host(entry[0])]
        if made:
            traced.unsettled = f"a tensor on the CPU, of shape {tuple(made[0].shape)}, is made and kept"

    # The graph.

    def compile(self) -> None:
        self._donate()
        self.traced.graph = runtime.compiled(self.outputs, [self.values[i] for i in self.traced.donated])

    def execute(self) -> None:
        """Run the compiled graph, and let every tensor have its value."""
        device = self.before.device
        end = runtime.base_seed(device)
        _XLAC._clear_pending_irs(device)
        outputs = _XLAC._run_cached_graph(self.traced.graph, self.values)
        for tensors, output in zip(self.holders, outputs, strict=True):
            inner = torch._from_functional_tensor(output)
            for tensor in tensors:
                runtime.give(tensor, inner)
        runtime.set_seed(runtime.advanced(end), device)

    def _donate(self) -> None:
        """Inputs that the step replaces, and that nothing else has, are the memory of what replaces them."""
        traced, before = self.traced, self.before
        replaced = {
            targets[0] for targets in traced.outputs if len(targets) == 1 and targets[0][0] in ("state", "grad")
        }
        returned = {result[1] for result in traced.results if result[0] == "state"}
        handles = runtime.handles_of(self.values)
        for i, (entry, handle) in enumerate(zip(traced.inputs[: traced.taken], handles, strict=True)):
            keys = before.handles.get(handle, ())
            storages = {runtime.storage_of(t) for t in map(before.known, keys) if t is not None}
            # The buffer of a number is one that torch_xla keeps for the next time that somebody uses this number.
            is_number = self.values[i].dim() == 0
            if entry.source in replaced and len(storages) <= 1 and not is_number and not returned.intersection(keys):
                traced.donated.append(i)


def _is_float(entry: Input) -> bool:
    """Whether an input is a number of floating point that the step has."""
    return entry.source[0] == "number" and entry.constant.numel() == 1 and entry.constant.is_floating_point()


def _states(traced: Traced) -> set[tuple]:
    sources = {entry.source for entry in traced.inputs}
    sources.update(target for targets in traced.outputs for target in targets)
    return {source for source in sources if source[0] in ("state", "grad", "new_grad")}


def _has_any(optimizer: torch.optim.Optimizer, wanted: set[int]) -> bool:
    return any(id(parameter) in wanted for group in optimizer.param_groups for parameter in group["params"])


def _keep_relevant(traced: Traced, optimizers: list[torch.optim.Optimizer]) -> None:
    """Expect nothing of the optimizers that the step does not touch."""
    groups = {id(group) for optimizer in optimizers for group in optimizer.param_groups}
    traced.hyperparameters = {key: place for key, place in traced.hyperparameters.items() if id(place[0]) in groups}
    dicts = groups | {id(vars(o)) for o in optimizers} | {id(o.state) for o in optimizers}
    dicts |= {id(state) for o in optimizers for state in o.state.values()}
    lists = {id(x) for o in optimizers for x in (o.param_groups, o.state, *[g["params"] for g in o.param_groups])}
    places = traced.places
    of_optimizers = places.of_optimizers
    places.same = [e for e in places.same if id(e[0]) not in of_optimizers or id(e[0]) in dicts]
    places.sizes = [e for e in places.sizes if id(e[0]) not in of_optimizers or id(e[0]) in lists]


def _is_read_elsewhere(places: Places, tensor: torch.Tensor) -> bool:
    return any(value is tensor for _, _, value, _ in places.same) or any(
        value is tensor for _, value, _ in places.cells
    )


def _hashable(value: Any) -> Any:
    try:
        hash(value)
    except TypeError:
        return ("object", id(value))
    return value


def _short(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    text = repr(value)
    return text if len(text) < 60 else text[:57] + "…"


def _keeper(tensor: torch.Tensor) -> str:
    """The name under which something refers to a tensor, for a message."""
    for holder in gc.get_referrers(tensor):
        key = (
            next((key for key, value in holder.items() if value is tensor), None) if isinstance(holder, dict) else None
        )
        if isinstance(key, str):
            return f" as {key!r}"
    return ""

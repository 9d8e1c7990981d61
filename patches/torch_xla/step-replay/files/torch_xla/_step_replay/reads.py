"""Values of the device that a step reads: each is the result of a graph of its own, which a replay runs first."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Optional

import torch

from . import device as runtime

__all__ = ["Read", "Reads", "bits"]

#: Methods that give Python the values of a tensor, and no tensor.
_CONTENTS = frozenset(
    {"item", "__bool__", "__float__", "__int__", "__index__", "__complex__", "is_nonzero", "tolist", "__contains__"}
)
_MOST = 1024  # elements


@dataclass
class Read:
    """One value. Its graph computes it of tensors of the device; without a graph it is that tensor's."""

    line: str  # and by which method
    graph: bytes
    numbers: Sequence[int]  # of the tensors, as torch_xla counts them
    tensors: Sequence[torch.Tensor]
    value: torch.Tensor = field(default_factory=lambda: torch.empty(0))  # on the CPU
    first: int = 0  # the place of its first input among those of the step

    @property
    def inputs(self) -> slice:
        return slice(self.first, self.first + len(self.numbers))

    def run(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        """What is to be read, of other tensors in their places."""
        return runtime.run(self.graph, tensors) if self.graph else tensors[0]

    def seen(self) -> tuple:
        return (self.value.dtype, tuple(self.value.shape), bits(self.value))

    def key(self) -> tuple:
        """What two traces that read the same have in common."""
        return (self.graph, self.first, len(self.numbers), *self.seen())

    def is_discrete(self) -> bool:
        """Whether it is one of few values: a number of floating point seldom is."""
        return not (self.value.is_floating_point() or self.value.is_complex())


class Reads:
    """The values that a step reads while it is traced, each of them once."""

    def __init__(self) -> None:
        self.found: dict[tuple, Read] = {}
        self.seeds: set[int] = set()  # handles: under SPMD a graph that was compiled has lost what its seeds are
        self._executions, self._on_the_cpu = runtime.executions(), runtime.on_the_cpu()
        self._graphs_run, self._place = runtime.graphs_run(), ""

    def note_place(self, place: Callable[[], str]) -> None:
        """Keep where a graph was executed, if that is the first one."""
        if not self._place and runtime.graphs_run() != self._graphs_run:
            self._place = f", {place()}"

    def executed_else(self) -> Optional[str]:
        """What else executed graphs or read values, as far as that can be told."""
        if runtime.executions() == self._executions:
            return None
        names = [name for name, calls in runtime.on_the_cpu().items() if calls != self._on_the_cpu.get(name)]
        if names:
            return f"{', '.join(names)} ran on the CPU{self._place}"
        return f"a value is read, torch_xla.sync() is called, or an operator runs on the CPU{self._place}"

    def can_read(self, name: str, tensor: torch.Tensor) -> bool:
        # The values of functorch's wrappers are not to be had.
        is_small = tensor.numel() <= _MOST or name == "__contains__"
        return name in _CONTENTS and is_small and torch._is_functional_tensor(tensor)

    def read(self, function: Any, args: Sequence[Any], line: str) -> Any:
        """What a function says of its first argument, a tensor of the device, by the value of that on the CPU."""
        tensor = args[0]
        if function.__name__ == "__contains__":
            if not isinstance(args[1], (torch.Tensor, int, float)):
                return function(*args)  # which raises
            function, tensor = torch.Tensor.__bool__, (args[1] == tensor).any()
        before = runtime.executions()
        with torch.no_grad():
            value = self._value(runtime.own(tensor), line)
        spent = [now - then for now, then in zip(runtime.executions(), before, strict=True)]
        self._executions = tuple(map(sum, zip(self._executions, spent, strict=True)))
        self._graphs_run = runtime.graphs_run()
        return function(value, *args[1:]) if function.__name__ != "__bool__" else function(value)

    def _value(self, tensor: torch.Tensor, line: str) -> torch.Tensor:
        numbers, tensors = runtime.taken_by([tensor])
        graph = runtime.computed_alone(tensor) if runtime.is_pending(tensor) else b""
        handles = runtime.handles_of(tensors)
        self.seeds |= {handle for number, handle in zip(numbers, handles, strict=True) if runtime.is_seed(number)}
        key = (graph, *handles)
        if key not in self.found:
            read = self.found[key] = Read(line, graph, numbers, tensors)
            read.value = runtime.to_cpu([read.run(tensors)])[0]
        return self.found[key].value


def bits(tensor: torch.Tensor) -> bytes:
    """The content of a tensor on the CPU: NaN is equal to NaN, and the zeros are two."""
    return tensor.reshape(-1).view(torch.uint8).numpy().tobytes()

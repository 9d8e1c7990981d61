"""What happens while a step is traced: the lines of its numbers, what it reads, and the modules that it calls."""

import os
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Optional

import torch
from torch.overrides import TorchFunctionMode

from . import device
from .numbers import Book, Number
from .optimizers import StepCounts
from .reads import Reads

__all__ = ["PLAIN", "Witness", "caller_line", "single"]

_PACKAGES = {os.path.dirname(os.path.dirname(__file__)), os.path.dirname(torch.__file__)}
_LIBRARIES = tuple(package + os.sep for package in _PACKAGES)

#: Methods that wait for a value on the device.
_READS = frozenset(
    {"item", "__bool__", "__float__", "__int__", "__index__", "__complex__", "tolist", "numpy", "__array__", "cpu"}
    | {"__repr__", "__format__", "__contains__", "equal", "is_nonzero", "allclose"}
)
#: The tensors that are no other subclass.
PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
#: Functions that bring data of the host to the device.
_UPLOADS = frozenset({"tensor", "as_tensor", "asarray", "to", "new_tensor", "scalar_tensor", "xla"})


def single(value: float) -> float:
    """The number as float32 holds it."""
    try:
        return struct.unpack("f", struct.pack("f", value))[0]
    except OverflowError:
        return value


def caller_line() -> str:
    """The innermost line outside torch and torch_xla."""
    frame = first = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_LIBRARIES):
        frame = frame.f_back
    frame = frame or first
    return f"{frame.f_code.co_filename}:{frame.f_lineno}, in {frame.f_code.co_name}"


def _read(name: str) -> tuple[str, bool]:
    """What reads a value, and where; whether that is a GradScaler."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_LIBRARIES):
        if os.path.basename(frame.f_code.co_filename) == "grad_scaler.py":
            return f"{name}() at {caller_line()}, by a GradScaler, which bfloat16 does not need", True
        frame = frame.f_back
    return f"{name}() at {caller_line()}", False


class Witness(TorchFunctionMode):
    """Hears the calls of torch's functions in the thread of the step."""

    def __init__(self, book: Book, counts: StepCounts, called: Callable[[torch.nn.Module], None]) -> None:
        super().__init__()
        self.lines: dict[float, str] = {}  # of numbers, by their value in float32
        self.taken: dict[str, set[float]] = {}  # numbers of the book that functions took, by the function and its line
        self.uploads: dict[int, str] = {}  # lines, by handle
        self.reads: list[str] = []  # of values that a replay does not read
        self.values = Reads()
        self.on_host: dict[int, tuple[torch.Tensor, int]] = {}  # CPU tensors, and their versions before
        self._book, self._counts, self._called = book, counts, called

    @contextmanager
    def watching(self) -> Iterator[None]:
        """The step runs in this block."""
        handle = torch.nn.modules.module.register_module_forward_pre_hook(lambda module, inputs: self._called(module))
        try:
            with self:
                yield
        finally:
            handle.remove()

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Optional[dict] = None) -> Any:
        name = getattr(function, "__name__", "")
        if name == "__get__":
            return function(*args, **(kwargs or {}))
        tensor = args[0] if args and isinstance(args[0], torch.Tensor) else None
        if name == "item" and tensor is not None and tensor in self._counts:
            return self._counts.read(tensor, self._book, float(function(*args)))
        self.values.note_place(lambda: f"before {name}() at {caller_line()}")
        # Fake tensors have no value; what reads the tensor within another subclass executes a graph.
        self._note_arguments(name, args, kwargs)
        if name in _READS and type(tensor) in PLAIN and tensor.device.type == "xla":
            line, is_scaler = _read(name)
            if not kwargs and not is_scaler and self.values.can_read(name, tensor):
                return self.values.read(function, args, line)
            self.reads.append(line)
        result = function(*args, **(kwargs or {}))
        self.values.note_place(lambda: f"in {name}() at {caller_line()}")
        if name in _UPLOADS and isinstance(result, torch.Tensor):
            self._note_result(name, tensor, result)
        return result

    def _note_arguments(self, name: str, args: Any, kwargs: Optional[dict]) -> None:
        for value in (*args, *kwargs.values()) if kwargs else args:
            if isinstance(value, torch.Tensor):
                if value.device.type == "cpu" and value not in self._counts and id(value) not in self.on_host:
                    self.on_host[id(value)] = (value, value._version)
            elif isinstance(value, (int, float)) and not isinstance(value, bool):
                if isinstance(value, Number):
                    self.taken.setdefault(f"{name}() at {caller_line()}", set()).add(float(value))
                # What a number is called for is the number and its negative.
                for key in (single(value), single(-value)):
                    if key not in self.lines:
                        self.lines[key] = caller_line()

    def _note_result(self, name: str, tensor: Optional[torch.Tensor], result: torch.Tensor) -> None:
        if result.device.type == "xla" and (tensor is None or tensor.device.type != "xla"):
            handle = device.handle_of(result)
            if handle is not None:
                self.uploads[handle] = caller_line()
        elif result.device.type == "cpu" and tensor is not None and tensor.device.type == "xla":
            self.reads.append(_read(name)[0])

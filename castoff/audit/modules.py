"""Module paths: the place of an operation in the tree of modules."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch


class ModulePaths:
    """Knows the path of the innermost module whose forward runs, within ``followed``.

    A module that is called outside any other is a root, named by its class; those within it have their
    names below it, as in ``named_modules``.
    """

    def __init__(self) -> None:
        self._names: dict[int, str] = {}
        self._roots: list[Any] = []  # the ids of these modules are keys: the modules must stay alive
        self._parameters: dict[int, tuple[Callable[[], Any], str]] = {}
        self._here = threading.local()

    @contextlib.contextmanager
    def followed(self) -> Iterator[None]:
        """Follow the modules that run; can be used once."""
        hooks = torch.nn.modules.module
        before = hooks.register_module_forward_pre_hook(self._begin)
        after = hooks.register_module_forward_hook(self._end, always_call=True)
        with before, after:
            yield

    def current(self) -> str:
        """Return the path of the innermost module that runs in this thread; "" outside modules."""
        stack = self._stack()
        return stack[-1] if stack else ""

    def inside(self) -> bool:
        """Tell whether a module's forward runs in this thread, or a function that torch traced."""
        return bool(self._stack())

    def parameter(self, tensor: Any) -> str:
        """Return the path of the parameter that an operation's tensor is; "" if it is not one of a known module."""
        reference, name = self._parameters.get(id(tensor), (lambda: None, ""))
        return name if reference() is tensor else ""

    def _stack(self) -> list[str]:
        stack: list[str] | None = getattr(self._here, "stack", None)
        if stack is None:
            stack = self._here.stack = []
        return stack

    def _begin(self, module: Any, _args: Any) -> None:
        stack = self._stack()
        if _is_traced(module):
            stack.append(stack[-1] if stack else "")
            return
        if id(module) not in self._names:
            self._name(module, stack[-1] if stack else "")
        path = self._names[id(module)]
        stack.append(path)
        for name, parameter in module.named_parameters(recurse=False):
            seen = _below_functionalization(parameter)
            self._parameters[id(seen)] = (weakref.ref(seen), f"{path}.{name}")

    def _end(self, _module: Any, _args: Any, _output: Any) -> None:
        self._stack().pop()

    def _name(self, root: Any, below: str) -> None:
        own = type(root).__name__
        path = f"{below}.{own}" if below else own
        self._roots.append(root)
        for name, module in root.named_modules():
            self._names.setdefault(id(module), f"{path}.{name}" if name else path)


def _is_traced(module: Any) -> bool:
    """Tell whether a module is a function that torch traced, such as that of scan, and none of the program's."""
    return isinstance(module, torch.fx.GraphModule) and not any(module.children())


def _below_functionalization(tensor: Any) -> Any:
    """Return a tensor as operations on the device see it."""
    return torch._from_functional_tensor(tensor) if torch._is_functional_tensor(tensor) else tensor

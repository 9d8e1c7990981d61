"""Functions for backend "openxla" that write to XLA tensors which share their memory run uncompiled.

AOTAutograd rebuilds inputs of one memory from a base and their ``storage_offset()``, which is 0 for every XLA tensor:
each of four slices of a cache would be its first one (pytorch/xla#8832).

And functions may return an argument's ``detach()``, and copy an argument to another.
"""

import functools
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import _castoff
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["arguments_for_their_aliases", "uncompiled_if_shared_inputs_are_written"]

_ENABLED = _castoff.enabled("compiled-views")

_Compiled = Callable[..., Any]
_ALIASES = (torch.ops.aten.alias.default, torch.ops.aten.detach.default)
_warned = False


def uncompiled_if_shared_inputs_are_written(compile_fn: _Compiled) -> _Compiled:
    """The backend ``compile_fn(graph, inputs, **options)``, but for graphs that write to inputs of one memory.

    Those are returned as they are: they run operator by operator, as in eager mode, which is right. A warning says so
    once a process.
    """
    if not _ENABLED:
        return compile_fn

    @functools.wraps(compile_fn)
    def compile_or_leave(graph: torch.fx.GraphModule, inputs: Sequence[Any], **options: Any) -> _Compiled:
        shared = _shared_memory(inputs)
        if not shared or not _writes_to(shared, graph, inputs):
            return compile_fn(graph, inputs, **options)
        _warn_once()
        return graph.forward

    return compile_or_leave


def arguments_for_their_aliases(compile_fn: _Compiled) -> _Compiled:
    """The compiler ``compile_fn(graph, inputs)`` of AOTAutograd, which returns an argument for its alias.

    torch_xla leaves both out of the graph's results, and puts back what is the argument itself. A copy of an argument,
    as ``x.copy_(y)`` is one of ``y``, is made after the graph, which would have no result for it, either.
    """
    if not _ENABLED:
        return compile_fn

    @functools.wraps(compile_fn)
    def compile_results(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> _Compiled:
        (output,) = (node for node in graph.graph.nodes if node.op == "output")
        before = list(output.args[0])
        changed = _read_what_was_copied(graph.graph)
        results = [_argument_of(node) if isinstance(node, torch.fx.Node) else node for node in output.args[0]]
        copies = [place for place, node in enumerate(before) if results[place] is not node and _has_copy(node)]
        if changed or results != before:
            output.args = (tuple(results),)
            graph.graph.eliminate_dead_code()
            graph.recompile()
        if all(node.op in ("placeholder", "output") for node in graph.graph.nodes):
            compiled = torch._functorch.aot_autograd.make_boxed_func(graph.forward)
        else:
            compiled = compile_fn(graph, inputs)
        return _with_copies(compiled, copies) if copies else compiled

    return compile_results


def _read_what_was_copied(graph: torch.fx.Graph) -> bool:
    """Let what reads ``copy(x, y)`` read ``y``, which torch_xla mistakes there. Whether anything does."""
    copies = [n for n in graph.nodes if n.target is torch.ops.aten.copy.default and _are_alike(*n.args[:2])]
    for node in copies:
        node.replace_all_uses_with(node.args[1])
    return bool(copies)


def _argument_of(node: torch.fx.Node) -> torch.fx.Node:
    """The argument that ``node`` is an alias or a copy of, unless the graph writes to it; otherwise ``node``."""
    source = node
    while source.op == "call_function" and source.target in (*_ALIASES, torch.ops.aten.clone.default):
        source = source.args[0]
    written = any(user.target is torch.ops.aten.copy_.default and user.args[0] is source for user in source.users)
    return source if source.op == "placeholder" and not written else node


def _are_alike(a: torch.fx.Node, b: torch.fx.Node) -> bool:
    values = [node.meta.get("val") if isinstance(node, torch.fx.Node) else None for node in (a, b)]
    if not all(isinstance(value, torch.Tensor) for value in values):
        return False
    return values[0].dtype == values[1].dtype and values[0].shape == values[1].shape


def _has_copy(node: torch.fx.Node) -> bool:
    """Whether what ``node`` makes of an argument is a tensor of its own."""
    while node.op == "call_function":
        if node.target not in _ALIASES:
            return True
        node = node.args[0]
    return False


def _with_copies(compiled: _Compiled, places: Sequence[int]) -> _Compiled:
    """``compiled``, which takes a list of arguments, with copies of some of its results."""

    def run(arguments: list[Any]) -> Any:
        results = list(compiled(arguments))
        for place in places:
            results[place] = results[place].clone()
        return results

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def _shared_memory(inputs: Sequence[Any]) -> set[int]:
    """The storages that more than one XLA tensor of ``inputs`` has."""
    storages = Counter(_memory(x) for x in inputs if isinstance(x, torch.Tensor) and x.device.type == "xla")
    return {storage for storage, tensors in storages.items() if tensors > 1}


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _writes_to(storages: set[int], graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> bool:
    """Whether ``graph``, run on fake tensors like its ``inputs``, writes to one of ``storages``.

    A graph that cannot run on fake tensors outside of AOTAutograd is left to it.
    """
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    fakes = [mode.from_tensor(x) if isinstance(x, torch.Tensor) else x for x in inputs]
    pairs = [(fake, x) for fake, x in zip(fakes, inputs, strict=True) if isinstance(x, torch.Tensor)]
    writes = _Writes({_memory(fake) for fake, x in pairs if _memory(x) in storages})
    try:
        with torch.no_grad(), mode, writes:
            graph(*fakes)
    except Exception:
        return writes.seen
    return writes.seen


class _Writes(TorchDispatchMode):
    """Whether an operator has written to one of ``storages``."""

    def __init__(self, storages: set[int]) -> None:
        super().__init__()
        self.seen = False
        self._storages = storages

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func._schema.is_mutable:
            for index, argument in enumerate(func._schema.arguments):
                if argument.alias_info is not None and argument.alias_info.is_write:
                    value = args[index] if index < len(args) else kwargs.get(argument.name)
                    self.seen = self.seen or any(
                        _memory(tensor) in self._storages
                        for tensor in torch.utils._pytree.tree_leaves(value)
                        if isinstance(tensor, torch.Tensor)
                    )
        return func(*args, **kwargs)


def _warn_once() -> None:
    global _warned
    if not _warned:
        _warned = True
        warnings.warn(
            "castoff: a function compiled with backend 'openxla' writes to inputs that are views of one XLA tensor; "
            "it runs uncompiled. Pass the base, and make the views inside the function, to have it compiled.",
            stacklevel=2,
        )

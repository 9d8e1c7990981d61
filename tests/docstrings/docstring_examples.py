"""The examples in torch's own docstrings, as programs of statements that run on the CPU and on XLA."""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
import textwrap
from collections.abc import Iterator
from typing import Any

import torch
from judge import Run
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors
from torch.utils._pytree import tree_flatten, tree_map_only

MODULES = (
    "torch",
    "torch.autograd",
    "torch.autograd.forward_ad",
    "torch.autograd.functional",
    "torch.distributions",
    "torch.fft",
    "torch.func",
    "torch.linalg",
    "torch.nn",
    "torch.nn.attention",
    "torch.nn.functional",
    "torch.nn.init",
    "torch.nn.utils",
    "torch.nn.utils.parametrizations",
    "torch.nn.utils.parametrize",
    "torch.nn.utils.prune",
    "torch.nn.utils.rnn",
    "torch.nn.utils.stateless",
    "torch.optim",
    "torch.optim.lr_scheduler",
    "torch.optim.swa_utils",
    "torch.signal.windows",
    "torch.special",
    "torch.testing",
    "torch.utils.checkpoint",
    "torch.utils.dlpack",
)
ELSEWHERE = (
    *("cuda", "device", "xpu", "mps", "torch.distributed", "torch.compile", "profiler", "onnx", "jit."),
    *(".seed()", "set_default", "LongTensor(", "FloatTensor("),
)
"""Docstrings with one of these words are about something else than tensors of the process's device."""
RANDOM = {torch.rand, torch.randn, torch.randint, torch.randperm, torch.normal}
UNINITIALIZED = {torch.empty, torch.empty_permuted, torch.empty_strided}
UNINITIALIZED_LIKE = {torch.empty_like, torch.Tensor.new_empty, torch.Tensor.new_empty_strided}
RANDOM_LIKE = {torch.rand_like, torch.randn_like, torch.randint_like}
RANDOM_IN_PLACE = {
    getattr(torch.Tensor, f"{name}_")
    for name in ("bernoulli", "cauchy", "exponential", "geometric", "log_normal", "normal", "random", "uniform")
}
INITIALIZERS = {torch.nn.init.kaiming_uniform_, torch.nn.init.normal_, torch.nn.init.uniform_}
"""Those of torch.nn.init that a mode sees; of the others it sees what they call."""
FACTORIES = (_device_constructors() | {torch.from_numpy}) - RANDOM_LIKE
NAMES = {
    "torch": torch,
    "nn": torch.nn,
    "F": torch.nn.functional,
    "optim": torch.optim,
    "autograd": torch.autograd,
    "Variable": torch.autograd.Variable,
    "Tensor": torch.Tensor,
    "tensor": torch.tensor,
}
NOISE = 4e-4


class OnDevice(TorchFunctionMode):
    """Tensors that a program makes are made on the CPU, by a generator of its own, and sent to a device.

    A program then has the same tensors on each device. What draws on the device (dropout, multinomial) is left alone.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device, self.generator = device, torch.Generator().manual_seed(0)

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function in RANDOM_IN_PLACE:
            return self._filled(function, *args, **kwargs)
        if function in INITIALIZERS:
            with torch.no_grad():
                return self._filled(function, *args, **kwargs)
        if function in RANDOM_LIKE:
            like = torch.empty_like(args[0], device="cpu")
            made = {"generator": self.generator} if function is torch.randint_like else {}
            return self._sent(function, like, *args[1:], **kwargs, **made)
        if function in UNINITIALIZED_LIKE:
            return function(*args, **kwargs).detach().zero_().requires_grad_(kwargs.get("requires_grad", False))
        if function in FACTORIES:
            return self._sent(
                function, *args, **kwargs, **({"generator": self.generator} if function in RANDOM else {})
            )
        return function(*args, **kwargs)

    def _sent(self, function: Any, *args: Any, requires_grad: bool = False, out: Any = None, **kwargs: Any) -> Any:
        args, kwargs = tree_map_only(torch.Tensor, lambda t: t.cpu(), (args, kwargs))
        made = function(*args, **kwargs)
        made = (made.zero_() if function in UNINITIALIZED else made).to(self.device)
        if out is not None:
            return out.copy_(made)
        return made.requires_grad_() if requires_grad else made

    def _filled(self, function: Any, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        drawn = torch.empty(tensor.shape, dtype=tensor.dtype)
        return tensor.copy_(function(drawn, *args, **{**kwargs, "generator": self.generator}))


def docstrings() -> dict[str, list[str]]:
    """The statements of each docstring that has some, by the name of what it describes; equal docstrings once."""
    found: dict[str, list[str]] = {}
    seen = set()
    for name, text in sorted(documented(), key=lambda pair: (pair[0].count("."), pair)):
        statements = statements_of(text)
        if statements and tuple(statements) not in seen and not any(w in s for s in statements for w in ELSEWHERE):
            seen.add(tuple(statements))
            found[name] = statements
    return found


def documented() -> Iterator[tuple[str, str]]:
    """Each public function, class and method of the modules, with its docstring."""
    for name in MODULES:
        module = importlib.import_module(name)
        for member, value in public(module):
            if member.endswith("Tensor") and member != "Tensor":
                continue  # a name of before dtypes, with Tensor's methods
            yield f"{name}.{member}", inspect.getdoc(value) or ""
            if inspect.isclass(value):
                for method, function in public(value):
                    yield f"{name}.{member}.{method}", inspect.getdoc(function) or ""


def public(of: Any) -> Iterator[tuple[str, Any]]:
    for name in dir(of):
        value = getattr(of, name, None)
        if (
            not name.startswith("_")
            and not inspect.ismodule(value)
            and (callable(value) or isinstance(value, property))
        ):
            yield name, value


def statements_of(text: str) -> list[str]:
    """The statements of a docstring that parse."""
    try:
        examples = doctest.DocTestParser().get_examples(textwrap.dedent(text))
    except ValueError:  # its indents are not doctest's
        return []
    return [source for example in examples if parses(source := example.source.strip())]


def parses(source: str) -> bool:
    try:
        return len(ast.parse(source).body) == 1
    except SyntaxError:
        return False


def runs_of(statements: list[str], device: torch.device, seed: int) -> list[Run]:
    """What each statement gives on a device: an expression's value, or those of the names that it assigns to."""
    torch.manual_seed(seed)
    names = dict(NAMES)
    with OnDevice(device):
        return [run_of(statement, names) for statement in statements]


def run_of(statement: str, names: dict[str, Any]) -> Run:
    try:
        return Run([on_the_cpu(leaf) for leaf in tree_flatten(value_of(statement, names))[0]])
    except Exception as error:
        return Run([], error)


def value_of(statement: str, names: dict[str, Any]) -> Any:
    (node,) = ast.parse(statement).body
    if isinstance(node, ast.Expr):
        return eval(statement, names)
    exec(statement, names)
    return [names[target] for target in assigned(node) if target in names]


def assigned(node: ast.stmt) -> list[str]:
    if not isinstance(node, ast.Assign | ast.AugAssign):
        return []
    return [part.id for part in ast.walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)]


def on_the_cpu(leaf: Any) -> Any:
    """A leaf as it is compared: a tensor's values; of other objects their type, as they compare by identity."""
    if isinstance(leaf, torch.Tensor):
        return leaf.detach().cpu().rename(None).clone()
    return leaf if isinstance(leaf, bool | int | float | complex | str | torch.dtype | torch.Size) else type(leaf)


def without_values(run: Run) -> Run:
    """What is not drawn at random: types, dtypes and shapes."""
    return Run([torch.zeros_like(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in run.leaves], run.error)


def without_noise(run: Run, other: Run) -> Run:
    """A run with zeros where both have small values: an example may show an error of rounding, such as x - U S V."""
    if len(run.leaves) != len(other.leaves):
        return run
    return Run([with_zeros(*pair) for pair in zip(run.leaves, other.leaves, strict=True)], run.error)


def with_zeros(leaf: Any, other: Any) -> Any:
    tensors = isinstance(leaf, torch.Tensor) and isinstance(other, torch.Tensor)
    if not tensors or leaf.shape != other.shape or not leaf.is_floating_point():
        return leaf
    return torch.where((leaf.abs() < NOISE) & (other.abs() < NOISE), 0, leaf)

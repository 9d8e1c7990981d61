"""``torch_xla.amp.MasterWeights``: any optimizer, on float32 copies of bfloat16 and float16 parameters."""

import itertools
from collections.abc import Callable, Iterable
from typing import Any, Optional

import torch
import torch_xla

__all__ = ["MasterWeights"]

_REDUCED = (torch.bfloat16, torch.float16)
_MASTER = "master"  # in the state of a parameter


class MasterWeights(torch.optim.Optimizer):
    """Run an optimizer on float32 copies of the reduced-precision parameters: its state and its updates are float32.

    ::

        wide_grads(model)                                      # gradients in float32
        optimizer = MasterWeights(model.parameters(), torch.optim.AdamW, lr=1e-3)

    A step hands each parameter's gradient to its copy, which takes no cast where it is float32, runs the optimizer
    on the copies, and writes each copy that had a gradient back to its parameter: one cast, and no other. A
    bfloat16 gradient is widened. Parameters of other dtypes are updated as they are.

    To the outside this is the optimizer of the model's own parameters. ``param_groups`` has the parameters and the
    options of ``optimizer_class``, so schedulers, ``zero_grad``, gradient clipping and GradScaler work on them.
    ``state[p]`` has the optimizer's state of ``p``, float32, and from the first step on ``state[p]["master"]``.
    ``state_dict`` holds both, and ``load_state_dict`` takes both back to the bit; parameters whose saved state has
    no master, as of the optimizer alone, start from their own values. On XLA a copy gets its parameter's sharding.
    A parameter that was changed in place since the last step (``load_state_dict`` of the model, a constraint) keeps
    the change: elements that differ from their copy replace it. Changes through ``p.data`` cannot be seen and are
    lost.

    Why this shape. The parameters stay in the groups: apex's O2 and FairScale put the copies there, and need patched
    clipping, scaling and checkpoints. The signature is that of ZeroRedundancyOptimizer, torch's and torch_xla's, for
    which Neuron's zero1 and the ``optimizer_cls_and_kwargs`` of transformers are made. Megatron's distributed
    optimizer keeps shards of the copies; here they are sharded as their parameters are. torchao and bitsandbytes
    narrow the state instead, and round the update stochastically or not at all.

    Memory, in bytes for each bfloat16 parameter, with AdamW: 2 for the parameter, 4 for the copy, 8 for the state,
    and 4 for the gradient if it is float32. Float32 training takes 16, AdamW in bfloat16 8.

    Args:
        params: what ``optimizer_class`` takes: parameters, groups, or pairs of a name and a parameter.
        optimizer_class: a torch.optim.Optimizer.
        options: its further arguments. Not ``differentiable``.

    Raises:
        TypeError: ``optimizer_class`` is not a class of optimizers.
        ValueError: ``differentiable`` is set, or ``optimizer_class`` refuses its arguments.
    """

    def __init__(
        self,
        params: Iterable[Any],
        optimizer_class: type[torch.optim.Optimizer],
        **options: Any,
    ) -> None:
        if not (isinstance(optimizer_class, type) and issubclass(optimizer_class, torch.optim.Optimizer)):
            raise TypeError(f"expected a class of torch.optim.Optimizer, found {optimizer_class!r}")
        if options.get("differentiable"):
            raise ValueError("expected differentiable=False: a step casts the copies, and records no gradient of that")
        self._optimizer: Optional[torch.optim.Optimizer] = None
        self._masters: dict[torch.Tensor, torch.Tensor] = {}
        self._versions: dict[torch.Tensor, int] = {}
        super().__init__(params, {})
        self._optimizer = optimizer_class([self._of_masters(group) for group in self.param_groups], **options)
        self.defaults = self._optimizer.defaults
        self._take_options()

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The optimizer of the copies."""
        assert self._optimizer is not None
        return self._optimizer

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters, as torch.optim.Optimizer does."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        for p in group["params"]:
            if p.dtype in _REDUCED:
                self._masters[p] = _copy_of(p)
                self._versions[p] = p._version
        if self._optimizer is not None:
            self._optimizer.add_param_group(self._of_masters(group))
            self._take_options()

    @torch.no_grad()
    def step(self, closure: Optional[Callable[[], Any]] = None, **options: Any) -> Any:
        """Update the copies, and write them back to their parameters.

        Args:
            closure: computes the loss and the gradients again, as torch.optim's optimizers take it.
            options: what else the step of ``optimizer_class`` takes (``found_inf`` of torch_xla.amp.syncfree).

        Returns:
            What that step returns.
        """
        self._give_options()
        self._adopt_changes()
        if closure is None:
            self._give_gradients()
            result = self.optimizer.step(**options)
        else:
            result = self.optimizer.step(self._on_masters(closure), **options)
        self._write_back()
        self._let_go()
        return result

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take back what ``state_dict`` gave: options, state and copies to the bit. The parameters become the copies.

        Raises:
            ValueError: the groups are not as large as here.
        """
        state_dict = state_dict.copy()
        for pre_hook in self._optimizer_load_state_dict_pre_hooks.values():
            changed = pre_hook(self, state_dict)
            state_dict = state_dict if changed is None else changed
        states = state_dict["state"]
        bare = {i: {name: v for name, v in state.items() if name != _MASTER} for i, state in states.items()}
        self.optimizer.load_state_dict({**state_dict, "state": bare})
        self._take_options()
        saved = itertools.chain.from_iterable(group["params"] for group in state_dict["param_groups"])
        own = itertools.chain.from_iterable(group["params"] for group in self.param_groups)
        self.state.clear()
        for i, p in zip(saved, own, strict=True):
            if p in self._masters and i in states:
                self._load_master(p, states[i].get(_MASTER))
        self._show_state()
        for post_hook in self._optimizer_load_state_dict_post_hooks.values():
            post_hook(self)

    def __getstate__(self) -> dict[str, Any]:
        own = {name: getattr(self, name) for name in ("_optimizer", "_masters")}
        return {**super().__getstate__(), **own, "_versions": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._versions = {p: p._version for p in self._masters}

    def _of_masters(self, group: dict[str, Any]) -> dict[str, Any]:
        params = [self._masters.get(p, p) for p in group["params"]]
        named = list(zip(group["param_names"], params, strict=True)) if "param_names" in group else params
        return {**group, "params": named}

    @torch._disable_dynamo
    def _give_options(self) -> None:
        for outer, inner in zip(self.param_groups, self.optimizer.param_groups, strict=True):
            inner.update({name: value for name, value in outer.items() if name != "params"})

    @torch._disable_dynamo
    def _take_options(self) -> None:
        for outer, inner in zip(self.param_groups, self.optimizer.param_groups, strict=True):
            outer.update({name: value for name, value in inner.items() if name != "params"})

    @torch._disable_dynamo
    def _give_gradients(self) -> None:
        for p, master in self._masters.items():
            master.grad = None if p.grad is None else p.grad.to(master.dtype)

    def _on_masters(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        calls = itertools.count()

        def evaluate() -> Any:
            if next(calls):
                self._write_back()
            with torch.enable_grad():
                loss = closure()
            self._give_gradients()
            return loss

        return torch.no_grad()(evaluate)

    def _write_back(self) -> None:
        for p, master in self._masters.items():
            if master.grad is not None:
                p.copy_(master)

    @torch._disable_dynamo
    def _adopt_changes(self) -> None:
        on_xla = []
        for p, master in self._masters.items():
            if master.device != p.device:
                master.data = master.to(p.device)
            if self._versions[p] != p._version:
                master.copy_(torch.where(master.to(p.dtype) == p, master, p.to(master.dtype)))
                on_xla += [master] if p.device.type == "xla" else []
        if on_xla:  # a graph of its own, so that the step's last bits are those of a step without changes
            torch_xla._XLAC._xla_sync_multi(on_xla, [], wait=False, sync_xla_data=True)

    def _load_master(self, p: torch.Tensor, saved: Optional[torch.Tensor]) -> None:
        with torch.no_grad():
            if saved is None:
                self._masters[p].copy_(p)
            else:
                self._masters[p].copy_(saved)
                p.copy_(self._masters[p])
        self._versions[p] = p._version
        self.state[p] = {}  # which _show_state completes

    @torch._disable_dynamo
    def _let_go(self) -> None:
        for p, master in self._masters.items():
            master.grad = None  # which would live on after p.grad
            self._versions[p] = p._version
        self._show_state()

    def _show_state(self) -> None:
        """Let ``state[p]`` be the optimizer's own dict of the copy, with the copy in it.

        Not while that dict is empty: that is how optimizers know that they have to fill it.
        """
        of_masters = self.optimizer.state
        for p in itertools.chain.from_iterable(group["params"] for group in self.param_groups):
            master = self._masters.get(p)
            state = of_masters.get(p if master is None else master)
            if state:
                self.state[p] = state
            if master is not None:
                self.state[p][_MASTER] = master


def _copy_of(p: torch.Tensor) -> torch.Tensor:
    """A float32 copy of ``p``, sharded as it is."""
    master = p.detach().to(torch.float32)
    if p.device.type == "xla" and torch_xla._XLAC._get_xla_sharding_spec(p):
        torch_xla._XLAC._xla_mark_sharding(master, torch_xla._XLAC._get_xla_op_sharding(p))
    return master

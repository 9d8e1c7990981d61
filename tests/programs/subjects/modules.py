"""Programs: modules."""

import torch
from options import options
from torch import nn
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.nn.utils import prune


@options(tolerance=3e-2)
def casts_in_place(device):
    """module.bfloat16(), .half() and .float() keep requires_grad, hooks and buffers of integers."""
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).to(device)
    model[0].bias.requires_grad_(False)
    fired = []
    model[0].weight.register_hook(lambda g: fired.append(str(g.dtype)))
    model.bfloat16()
    model(torch.randn(5, 3).bfloat16().to(device)).sum().backward()
    model.float()
    model(torch.randn(5, 3).to(device)).sum().backward()
    return fired, model[0].bias.requires_grad, str(model[1].num_batches_tracked.dtype), model[1].running_mean


def default_device(device):
    """Modules and tensors made under torch.device, or with a default device."""
    with device:
        model = nn.Linear(3, 2)
        x = torch.ones(4, 3)
        mask = torch.arange(4) > 1
    nn.init.ones_(model.weight)
    nn.init.zeros_(model.bias)
    return model(x)[mask], x.device.type == device.type, model.weight.device.type == device.type


def functional_call_and_vmap(device):
    """functional_call, vmap over an ensemble of models and gradients per sample."""
    models = [nn.Linear(3, 2).to(device) for _ in range(3)]
    parameters, buffers = stack_module_state(models)
    x = torch.randn(4, 3).to(device)
    one = models[0]

    def call(p, b, x):
        return functional_call(one, (p, b), (x,))

    ensemble = vmap(call, (0, 0, None))(parameters, buffers, x)
    mine = {k: v.detach() for k, v in one.named_parameters()}
    each = vmap(grad(lambda p, row: functional_call(one, p, (row,)).square().sum()), (None, 0))(mine, x)
    return ensemble, each


class _Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleDict({"conv": nn.LazyConv2d(3, 3), "linear": nn.LazyLinear(2)})
        self.scales = nn.ParameterList(torch.full((1,), float(i)) for i in range(2))
        self.register_buffer("shift", torch.ones(1), persistent=False)

    def forward(self, x):
        x = self.parts["conv"](x).flatten(1)
        return self.parts["linear"](x) * self.scales[1] + self.shift


def lazy_and_sequential(device):
    """Lazy modules find their sizes on the device; ModuleDict, ParameterList and buffers."""
    model = _Model().to(device)
    out = model(torch.randn(2, 1, 5, 5).to(device))
    for parameter in model.parameters():
        nn.init.constant_(parameter, 0.1)
    return out.shape, model(torch.ones(2, 1, 5, 5).to(device)), sorted(model.state_dict())


def meta_to_empty(device):
    """A model made on the meta device is materialized by to_empty and filled."""
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4))
    model.to_empty(device=device)
    with torch.no_grad():
        for parameter in model.parameters():
            nn.init.constant_(parameter, 0.5)
    return model(torch.arange(6.0).view(2, 3).to(device)), [p.device.type == device.type for p in model.parameters()]


def optimizer_made_before_to(device):
    """An optimizer that is made before the model is sent to the device goes on to train it."""
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    model.to(device)
    before = model.weight.detach().clone()
    model(torch.ones(2, 3).to(device)).sum().backward()
    optimizer.step()
    return (before - model.weight).cpu()


@options(tolerance=2e-3)
def parametrizations(device):
    """Weight norm, spectral norm in evaluation and orthogonal parametrization."""
    weight = nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)).to(device)
    spectral = nn.utils.parametrizations.spectral_norm(nn.Linear(4, 3), n_power_iterations=5).to(device).eval()
    x = torch.randn(2, 4).to(device)
    (weight(x).sum() + spectral(x).sum()).backward()
    return weight(x), spectral(x), [p.grad for p in weight.parameters()]


def pruning_and_hooks(device):
    """A pruned layer, and hooks before and after forward."""
    layer = nn.Linear(4, 3).to(device)
    prune.l1_unstructured(layer, "weight", amount=0.5)
    seen = []
    layer.register_forward_pre_hook(lambda _, args: (args[0] * 2,))
    layer.register_forward_hook(lambda _, __, out: out + 1)
    layer.register_full_backward_hook(lambda _, i, o: seen.append((i[0], o[0])))
    x = torch.randn(2, 4).to(device).requires_grad_()
    out = layer(x)
    out.sum().backward()
    prune.remove(layer, "weight")
    return out, seen, layer.weight, layer.weight_mask if hasattr(layer, "weight_mask") else None


def there_and_back(device):
    """A model goes to the device, to the CPU and back; its parameters are the optimizer's all the while."""
    model = nn.Linear(3, 1).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.5)
    for where in (device, "cpu", device):
        model.to(where)
        optimizer.zero_grad()
        model(torch.ones(2, 3).to(where)).sum().backward()
    trained = [p is q for p, q in zip(model.parameters(), optimizer.param_groups[0]["params"], strict=True)]
    return trained, [p.grad for p in model.parameters()]


class _Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(6, 4)
        self.head = nn.Linear(4, 6, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        return self.head(self.embed(ids))


def tied_weights(device):
    """Tied weights stay tied when the model is sent to the device (pytorch/xla#7042)."""
    model = _Tied().to(device)
    loss = model(torch.tensor([1, 2, 3]).to(device)).logsumexp(-1).sum()
    loss.backward()
    return loss, model.head.weight is model.embed.weight, model.embed.weight.grad, len(list(model.parameters()))

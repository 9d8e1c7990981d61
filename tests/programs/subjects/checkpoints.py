"""Programs: checkpoints."""

import copy
import pickle

import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.utils.checkpoint import checkpoint


def activation_checkpoint(device):
    """torch.utils.checkpoint, reentrant and not, with dropout off (pytorch/xla#5766)."""
    results = []
    for reentrant in (True, False):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2)).to(device)
        x = torch.randn(3, 4).to(device).requires_grad_()
        checkpoint(model, x, use_reentrant=reentrant).square().sum().backward()
        results.append((x.grad, [p.grad for p in model.parameters()]))
    return results


def activation_checkpoint_with_dropout(device):
    """The second forward of a checkpoint drops what the first did: gradients are those of the output
    (pytorch/xla#5766)."""
    x = torch.ones(64).to(device).requires_grad_()
    out = checkpoint(nn.Dropout(0.5), x, use_reentrant=False)
    out.sum().backward()
    return bool((out.detach() == x.grad).all()), 0 < int((x.grad == 0).sum()) < 64


def batch_norm_made_on_meta(device):
    """A network with batch norm is made on the meta device, materialized, trained and saved"""
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    model.to_empty(device=device)
    model[1].reset_parameters()
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            parameter.copy_(torch.arange(parameter.numel()).view_as(parameter) * 0.1 + number)
    saved_before = model.state_dict()
    for step in range(2):
        model(torch.arange(15.0).view(5, 3).to(device).sin() * (step + 1)).pow(3).sum().backward()
    return saved_before, model.state_dict(), [parameter.grad for parameter in model[1].parameters()]


def distributed_checkpoint(device):
    """torch.distributed.checkpoint without a process group: saved and loaded in place."""
    model = nn.Linear(3, 2).to(device)
    dcp.save({"model": model.state_dict()}, checkpoint_id="saved")
    other = nn.Linear(3, 2).to(device)
    state = {"model": other.state_dict()}
    dcp.load(state, checkpoint_id="saved")
    other.load_state_dict(state["model"])
    return model(torch.ones(1, 3).to(device)) - other(torch.ones(1, 3).to(device))


def load_refuses_other_shapes(device):
    """load_state_dict of another shape raises; with strict=False what is missing is named."""
    model = nn.Linear(3, 2).to(device)
    missing = model.load_state_dict({"weight": torch.ones(2, 3), "more": torch.ones(1)}, strict=False)
    said = (missing.missing_keys, missing.unexpected_keys)
    try:
        model.load_state_dict({"weight": torch.ones(3, 3), "bias": torch.ones(2)})
    except RuntimeError as error:
        return said, "size mismatch" in str(error), model.weight
    return said


def map_location(device):
    """torch.load with map_location to the device: a string, a device and a function."""
    torch.save({"w": torch.arange(6.0).view(2, 3), "step": 7}, "state.pt")
    loaded = [
        torch.load("state.pt", map_location=where, weights_only=True)
        for where in (device.type, device, lambda storage, _: storage)
    ]
    return [state["w"] for state in loaded], [state["w"].device.type == device.type for state in loaded[:2]]


def memory_mapped(device):
    """torch.load(mmap=True) of tensors that were saved from the device, and then sent to it."""
    torch.save([torch.arange(6.0).to(device), torch.ones(2, dtype=torch.bfloat16).to(device)], "state.pt")
    a, b = torch.load("state.pt", mmap=True, weights_only=True, map_location="cpu")
    direct = torch.load("state.pt", mmap=True, weights_only=True, map_location=device.type)
    return a.to(device) + 1, b.to(device), direct


def pickle_and_deepcopy(device):
    """Tensors and modules of the device are pickled and deeply copied, gradients and all."""
    model = nn.Linear(3, 2).to(device)
    model(torch.ones(1, 3).to(device)).sum().backward()
    twin = copy.deepcopy(model)
    back = pickle.loads(pickle.dumps(model))
    with torch.no_grad():
        model.weight.zero_()
    return twin.weight, twin.weight.grad, back.weight, back.weight.device.type == device.type, model.weight


def safetensors_round_trip(device):
    """safetensors writes a model of the device and reads it."""
    from safetensors.torch import load_file, load_model, save_file, save_model

    model = nn.Linear(3, 2).bfloat16().to(device)
    save_model(model, "model.safetensors")
    other = nn.Linear(3, 2).bfloat16().to(device)
    load_model(other, "model.safetensors")
    save_file({"x": torch.arange(4).to(device)[::2].contiguous()}, "x.safetensors")
    return dict(other.state_dict()), load_file("x.safetensors")["x"], other.weight.device.type == device.type


def _make():
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def save_and_load_state_dict(device):
    """A state dict is saved from the device and loaded into a new model on it, in place and by assignment."""
    model = _make().to(device)
    model(torch.randn(6, 3).to(device)).sum().backward()
    torch.save(model.state_dict(), "model.pt")
    copied, assigned = _make().to(device), _make().to(device)
    copied.load_state_dict(torch.load("model.pt", weights_only=True, map_location="cpu"))
    assigned.load_state_dict(torch.load("model.pt", weights_only=True), assign=True)
    x = torch.ones(2, 3).to(device)
    return [m.eval()(x) for m in (model, copied, assigned)], {p.device.type for p in assigned.parameters()} == {
        device.type
    }


def views_that_share(device):
    """Two tensors that share memory are saved and loaded; values are right, shared or not."""
    base = torch.arange(8.0).to(device)
    torch.save({"all": base, "half": base[::2], "row": base.view(2, 4)[1]}, "state.pt")
    return torch.load("state.pt", weights_only=True, map_location="cpu")


def xm_save_round_trip(device):
    """xm.save writes tensors of the CPU; without XLA torch.save does."""
    state = {"w": torch.ones(2, 2, dtype=torch.bfloat16).to(device), "n": 3, "list": [torch.arange(3).to(device)]}
    if device.type == "xla":
        import torch_xla.core.xla_model as xm

        xm.save(state, "state.pt")
    else:
        torch.save(state, "state.pt")
    loaded = torch.load("state.pt", weights_only=True)
    return loaded, loaded["w"].device.type

"""Programs: spmd."""

import os

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from options import options
from torch import nn


def all_to_all(device):
    """all_to_all of a process with one device, as ranks of experts exchange tokens (pytorch/xla#8345)."""
    x = torch.arange(8.0).view(2, 4).to(device).requires_grad_()
    if device.type == "xla":
        import torch_xla.core.xla_model as xm

        y = xm.all_to_all(x, split_dimension=0, concat_dimension=1, split_count=1)
    else:
        y = x * 1
    y.square().sum().backward()
    return y, x.grad


@options(devices=4)
def attention_heads(device):
    """Attention whose heads are sharded."""
    q, k, v = (torch.randn(2, 4, 6, 8).to(device).requires_grad_() for _ in range(3))
    if device.type == "xla":
        import torch_xla.distributed.spmd as xs

        mesh = xs.Mesh(np.arange(4), (1, 4), ("data", "model"))
        for t in (q, k, v):
            xs.mark_sharding(t, mesh, ("data", "model", None, None))
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    out.square().sum().backward()
    return out, q.grad, v.grad


@options(devices=4, tolerance=1e-2)
def bf16_contraction(device):
    """A sharded contraction of bfloat16: the sum over devices loses nothing."""
    x, w = torch.randn(8, 64).bfloat16().to(device), torch.randn(64, 8).bfloat16().to(device)
    if device.type == "xla":
        import torch_xla.distributed.spmd as xs

        mesh = xs.Mesh(np.arange(4), (4,), ("model",))
        xs.mark_sharding(x, mesh, (None, "model"))
        xs.mark_sharding(w, mesh, ("model", None))
    return x @ w


def collectives_into_views(device):
    """torch.distributed of one rank gathers and scatters into rows of a buffer"""
    x = torch.arange(4.0).to(device) + 1
    buffer = torch.zeros(4, 4).to(device)
    rows = list(buffer)
    if device.type == "xla":
        import torch_xla.distributed.xla_backend  # noqa: F401

        os.environ.update(MASTER_ADDR="localhost", MASTER_PORT="0", RANK="0", WORLD_SIZE="1")
        dist.init_process_group("xla", init_method="xla://")
        dist.all_gather_into_tensor(buffer[0], x)
        dist.reduce_scatter_tensor(buffer[1], x)
        dist.all_gather([buffer[2]], x)
        buffer[3] = x
        dist.all_reduce(buffer[3])
    else:
        buffer[:] = x
    return buffer, rows


def collectives_of_one_rank(device):
    """all_reduce, all_gather and reduce_scatter of one rank, with gradients (pytorch/xla#2989)."""
    x = torch.arange(4.0).to(device).requires_grad_()
    if device.type == "xla":
        import torch_xla.core.xla_model as xm

        a = xm.all_reduce(xm.REDUCE_SUM, x)
        b = xm.all_gather(x)
        c = xm.reduce_scatter(xm.REDUCE_SUM, x, scale=1.0, scatter_dim=0, shard_count=1)
    else:
        a, b, c = x * 1, x * 1, x * 1
    (a.sum() + b.square().sum() + (c * 3).sum()).backward()
    return a, b, c, x.grad


@options(devices=4)
def fully_sharded(device):
    """SpmdFullyShardedDataParallel trains as a plain model does."""
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8)).to(device)
    x = torch.randn(8, 8).to(device)
    if device.type == "xla":
        import torch_xla.distributed.spmd as xs
        from torch_xla.experimental.spmd_fully_sharded_data_parallel import SpmdFullyShardedDataParallel

        mesh = xs.Mesh(np.arange(4), (4, 1), ("fsdp", "model"))
        xs.mark_sharding(x, mesh, ("fsdp", None))

        def shard_output(output, mesh):
            xs.mark_sharding(output, mesh, ("fsdp", None))

        model = SpmdFullyShardedDataParallel(model, mesh=mesh, shard_output=shard_output)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
    return loss, list(model.parameters())


@options(devices=4)
def one_dimensional_tensor(device):
    """A 1-D tensor is sharded as it is sent (pytorch/xla#8606)."""
    x = torch.arange(8.0)
    if device.type == "xla":
        import torch_xla.core.xla_model as xm
        import torch_xla.distributed.spmd as xs

        mesh = xs.Mesh(np.arange(4), (4,), ("data",))
        [x] = xm.send_cpu_data_to_device([x], device, xs.ShardingSpec(mesh, ("data",)))
    return x * 2, x.sum()


@options(devices=4)
def sharded_checkpoint(device):
    """Weights sharded over one axis of a 2-D mesh are saved and loaded (pytorch/xla#7215)."""
    model, other = nn.Linear(8, 4), nn.Linear(8, 4)
    wanted = [p.detach().clone() for p in model.parameters()]
    if device.type == "cpu":
        return wanted
    import torch_xla.distributed.spmd as xs
    from torch_xla.experimental.distributed_checkpoint import SPMDLoadPlanner, SPMDSavePlanner

    mesh = xs.Mesh(np.arange(4), (2, 2), ("data", "model"))
    for each in (model.to(device), other.to(device)):
        xs.mark_sharding(each.weight, mesh, ("model", None))
    dcp.save({"model": model.state_dict()}, checkpoint_id="saved", planner=SPMDSavePlanner(), no_dist=True)
    state = {"model": other.state_dict()}
    dcp.load(state, checkpoint_id="saved", planner=SPMDLoadPlanner(), no_dist=True)
    return state["model"]["weight"].cpu(), state["model"]["bias"].cpu()


@options(devices=4)
def sharded_linear(device):
    """A linear layer with its weight sharded over four devices, forward and backward."""
    model = nn.Linear(8, 4).to(device)
    x = torch.randn(4, 8).to(device)
    if device.type == "xla":
        import torch_xla.distributed.spmd as xs

        mesh = xs.Mesh(np.arange(4), (2, 2), ("data", "model"))
        xs.mark_sharding(model.weight, mesh, ("model", None))
        xs.mark_sharding(x, mesh, ("data", None))
    out = model(x)
    out.square().sum().backward()
    return out, model.weight.grad, model.bias.grad


@options(devices=4)
def sharded_training(device):
    """AdamW of sharded parameters: some steps, as without shards."""
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)).to(device)
    if device.type == "xla":
        import torch_xla.distributed.spmd as xs

        mesh = xs.Mesh(np.arange(4), (1, 4), ("data", "model"))
        xs.mark_sharding(model[0].weight, mesh, ("model", None))
        xs.mark_sharding(model[2].weight, mesh, (None, "model"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    x = torch.randn(4, 8).to(device)
    for _ in range(3):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    return list(model.parameters())


@options(devices=4)
def sharding_of_a_view(device):
    """A tensor that is marked, viewed and written to keeps its values."""
    x = torch.arange(16.0).view(4, 4).to(device)
    if device.type == "xla":
        import torch_xla.distributed.spmd as xs

        xs.mark_sharding(x, xs.Mesh(np.arange(4), (4, 1), ("a", "b")), ("a", "b"))
    y = x.t()
    y[0].mul_(10)
    x[1:3] += 1
    return x, y, x.flatten()[5:9], x.cumsum(0)


@options(devices=4)
def image_tokens_into_sharded_text(device):
    """Features of images are put into the embeddings of a sharded batch by masked_scatter."""
    x, features = torch.randn(8, 5, 3).to(device), torch.randn(9, 3).to(device).requires_grad_()
    mask = torch.arange(40).view(8, 5, 1).to(device) % 5 == 2
    if device.type == "xla":
        import torch_xla.distributed.spmd as xs

        xs.mark_sharding(x, xs.Mesh(np.arange(4), (4,), ("data",)), ("data", None, None))
    out = x.masked_scatter(mask.expand_as(x), features)
    out.square().sum().backward()
    return out, features.grad

"""Checkpoints of sharded weights: patches/torch_xla/whole-checkpoints."""

import pytest
import torch
import torch_xla  # noqa: F401
from expecttest import assert_expected_inline
from marks import fails_on_stock, passes_on_stock
from other_process import forked
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.planner import SavePlan, WriteItem, WriteItemType


@fails_on_stock
def test_safetensors_of_a_model(tmp_path):
    """Tied weights are written once for each name."""
    safetensors = pytest.importorskip("safetensors.torch")
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)).to("xla")
    model[1].weight = model[0].weight
    safetensors.save_model(model, tmp_path / "model.safetensors")
    other = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)).to("xla")
    safetensors.load_model(other, tmp_path / "model.safetensors")
    for name, value in model.state_dict().items():
        assert torch.equal(other.state_dict()[name].cpu(), value.cpu())


@fails_on_stock
def test_pointers_of_storages():
    assert torch.ones(2).to("xla").untyped_storage().data_ptr() == 0
    assert torch.ones(2).untyped_storage().data_ptr() != 0


SAVE_AND_LOAD = """
import sys, tempfile
import numpy, torch, torch_xla
import torch.distributed.checkpoint as dcp
import torch_xla.distributed.spmd as xs
import torch_xla.runtime
from distributed_checkpoint import ALONE
from ir_text import ir
from torch_xla.experimental.distributed_checkpoint import SPMDLoadPlanner, SPMDSavePlanner

torch_xla.runtime.use_spmd()
device = torch_xla.device()
mesh = xs.Mesh(numpy.arange(4), (2, 2), ("data", "model"))
specs = {name: spec for name, spec in (
    ("rows", ("model", None)), ("columns", (None, "data")), ("uneven", ("model", None)),
    ("both", ("data", "model")), ("copies", (None, None)),
) if sys.argv[1] == "some" or name in ("both", "copies")}

def state(scale):
    made = {}
    for i, (name, spec) in enumerate(specs.items()):
        made[name] = (torch.arange(16.0).reshape(4, 4)[: 3 if name == "uneven" else 4] * scale + i).to(device)
        xs.mark_sharding(made[name], mesh, spec)
    return made

saved, loaded = state(1), state(0)
with tempfile.TemporaryDirectory() as folder:
    dcp.save(saved, storage_writer=dcp.FileSystemWriter(folder), planner=SPMDSavePlanner(), **ALONE)
    dcp.load(loaded, storage_reader=dcp.FileSystemReader(folder), planner=SPMDLoadPlanner(), **ALONE)
for name in specs:
    assert torch.equal(loaded[name].cpu(), saved[name].cpu()), name
print(ir(loaded["both"] @ loaded["rows" if "rows" in specs else "copies"]), end="")
"""


@fails_on_stock
def test_weights_that_are_sharded_over_one_axis_of_two_are_saved_and_loaded():
    ir = forked("-c", SAVE_AND_LOAD, "some", CPU_NUM_DEVICES="4").stdout
    assert_expected_inline(
        ir,
        """\
%0 = f32[4,4] xla::device_data()
%1 = f32[4,4] xla::device_data()
%2 = f32[4,4] aten::mm(%1, %0)
return %2
""",
    )


@passes_on_stock
def test_weights_that_are_sharded_over_all_axes_or_none_are_saved_and_loaded():
    forked("-c", SAVE_AND_LOAD, "all", CPU_NUM_DEVICES="4")


@fails_on_stock
def test_of_the_plans_of_several_hosts_the_first_has_each_piece():
    from torch_xla.experimental.distributed_checkpoint import SPMDSavePlanner

    def plan(*names):
        return SavePlan([WriteItem(MetadataIndex(name), WriteItemType.BYTE_IO) for name in names], planner_data={})

    planner = SPMDSavePlanner()
    plans, metadata = planner.create_global_plan([plan("a", "b", "b"), plan("b", "c", "c", "a"), plan()])
    assert [[item.index.fqn for item in p.items] for p in plans] == [["a", "b"], ["c"], []]
    assert sorted(metadata.state_dict_metadata) == ["a", "b", "c"]

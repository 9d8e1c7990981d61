"""torch.load(path, map_location="xla"), mmap=True and load_state_dict(assign=True)."""

import copy
import io
import pickle

import pytest
import torch
import torch_xla
from ir_text import ir

XLA = torch_xla.device()


def restored_to_xla(storage, location):
    return torch.serialization.default_restore_location(storage, "xla")


LOCATIONS = ["xla", "xla:0", XLA, {"cpu": "xla:0"}, restored_to_xla]


def saved(value, tmp_path, **how):
    torch.save(value, tmp_path / "file.pt", **how)
    return tmp_path / "file.pt"


@pytest.fixture
def tensors():
    base = torch.arange(12.0).view(3, 4)
    dtypes = (torch.bfloat16, torch.int8, torch.bool, torch.uint16, torch.float8_e5m2)
    return {
        "base": base,
        "row": base[1],
        "transposed": base.t(),
        "part": torch.arange(6)[2:4],
        "empty": torch.empty(0, 3),
        "number": torch.tensor(3.0),
        "parameter": torch.nn.Parameter(torch.ones(2)),
        **{str(dtype): torch.ones(3).to(dtype) for dtype in dtypes},
    }


@pytest.mark.fails_on_stock
@pytest.mark.parametrize("mmap", [False, True])
@pytest.mark.parametrize("weights_only", [False, True])
@pytest.mark.parametrize("location", LOCATIONS, ids=["xla", "index", "device", "dict", "function"])
def test_tensors_are_loaded_to_the_device(tmp_path, tensors, location, mmap, weights_only):
    loaded = torch.load(saved(tensors, tmp_path), map_location=location, mmap=mmap, weights_only=weights_only)
    assert loaded.keys() == tensors.keys()
    for name, expected in tensors.items():
        found = loaded[name]
        assert (found.device, found.dtype, type(found)) == (XLA, expected.dtype, type(expected)), name
        assert found.requires_grad == expected.requires_grad, name
        assert torch.equal(found.cpu().float(), expected.float()), name


@pytest.mark.fails_on_stock
def test_what_shared_memory_shares_it(tmp_path, tensors):
    loaded = torch.load(saved(tensors, tmp_path), map_location="xla")
    loaded["row"].fill_(-1)
    assert loaded["base"][1].tolist() == [-1] * 4
    assert loaded["transposed"][:, 1].tolist() == [-1] * 4


@pytest.mark.fails_on_stock
def test_a_whole_tensor_is_the_data_that_was_sent(tmp_path):
    loaded = torch.load(saved(torch.ones(2, 3), tmp_path), map_location="xla")
    assert ir(loaded).splitlines() == ["%0 = f32[2,3] xla::device_data()", "return %0"]


@pytest.mark.fails_on_stock
@pytest.mark.parametrize("mmap", [False, True])
def test_a_model_takes_what_was_loaded(tmp_path, mmap):
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    path = saved(model.state_dict(), tmp_path)
    with torch.device("meta"):
        other = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    other.load_state_dict(torch.load(path, map_location="xla", mmap=mmap), assign=True)
    assert all(t.device == XLA for t in other.state_dict().values())
    x = torch.ones(2, 3)
    result = other.eval()(x.to(XLA))
    result.sum().backward()
    torch.testing.assert_close(result.cpu(), model.eval()(x))


@pytest.mark.fails_on_stock
def test_an_optimizer_goes_on(tmp_path):
    model = torch.nn.Linear(2, 2).to(XLA)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 2, device=XLA)).sum().backward()
    optimizer.step()
    path = saved({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path)
    loaded = torch.load(path, map_location="xla")
    optimizer.load_state_dict(loaded["optimizer"])
    moment = optimizer.state[model.weight]["exp_avg"]
    assert moment.device == XLA and torch.equal(
        moment.cpu(), torch.load(path, "cpu")["optimizer"]["state"][0]["exp_avg"]
    )


@pytest.mark.fails_on_stock
def test_the_format_before_zip_is_refused_with_what_to_do(tmp_path):
    path = saved(torch.ones(2), tmp_path, _use_new_zipfile_serialization=False)
    with pytest.raises(RuntimeError, match='map_location="cpu"'):
        torch.load(path, map_location="xla")


@pytest.mark.passes_on_stock
def test_other_locations_are_as_they_were():
    file = io.BytesIO()
    torch.save([torch.ones(2), torch.ones(2, device=XLA)], file)
    for location in ("cpu", None):
        file.seek(0)
        host, device = torch.load(file, map_location=location)
        assert host.device.type == "cpu" and device.device.type == ("cpu" if location else "xla")


# ---- copy.copy and pickle


class Named(torch.Tensor):
    pass


def copied(x):
    x.said = "first"
    found = copy.copy(x)
    with torch.no_grad():
        x.add_(1)
        found.mul_(3)
    return found, x, found.is_leaf, found.requires_grad, found.grad_fn, type(found), getattr(found, "said", None)


SOURCES = {
    "plain": lambda x: x,
    "view": lambda x: x.view(2, 3)[1],
    "transposed": lambda x: x.view(2, 3).t(),
    "bfloat16": lambda x: x.bfloat16(),
    "subclass": lambda x: x.as_subclass(Named),
    "parameter": torch.nn.Parameter,
    "leaf": lambda x: x.requires_grad_(),
    "graph": lambda x: x.requires_grad_() * 2,
    "copy": copy.copy,
}


@pytest.mark.parametrize(
    "name", [name if name == "parameter" else pytest.param(name, marks=pytest.mark.fails_on_stock) for name in SOURCES]
)
def test_a_copy_is_a_leaf_that_shares_memory(name):
    """pytorch/xla#876."""
    make = SOURCES[name]
    found, expected = copied(make(torch.arange(6.0, device=XLA))), copied(make(torch.arange(6.0)))
    assert found[2:] == expected[2:]
    assert found[0].device == XLA and found[0].dtype == expected[0].dtype
    assert found[0].tolist() == expected[0].tolist() and found[1].tolist() == expected[1].tolist()


@pytest.mark.fails_on_stock
def test_a_copy_has_a_gradient_of_its_own():
    x = torch.ones(2, device=XLA, requires_grad=True)
    y = copy.copy(x)
    (y * 3).sum().backward()
    assert x.grad is None and y.grad.tolist() == [3, 3]


@pytest.mark.passes_on_stock
def test_copies_of_other_tensors_are_as_before():
    for x in (torch.ones(2), torch.ones(2, device="meta"), torch.ones(2).as_subclass(Named)):
        y = copy.copy(x)
        assert type(y) is type(x) and y is not x and y.device == x.device
        assert y.data_ptr() == x.data_ptr()
    module = torch.nn.Linear(2, 2).to(XLA)
    assert copy.copy(module).weight is module.weight


@pytest.mark.fails_on_stock
@pytest.mark.parametrize("weights_only", [False, True])
def test_tensors_that_want_a_gradient_are_saved_on_the_device_and_loaded(tmp_path, weights_only):
    leaf = torch.arange(3.0, device=XLA, requires_grad=True)
    found = torch.load(saved({"leaf": leaf, "graph": leaf * 2}, tmp_path), weights_only=weights_only)
    assert found["leaf"].tolist() == [0, 1, 2] and found["graph"].tolist() == [0, 2, 4]
    for x in (*found.values(), pickle.loads(pickle.dumps(leaf))):
        assert (x.device, x.is_leaf, x.requires_grad) == (XLA, True, True)

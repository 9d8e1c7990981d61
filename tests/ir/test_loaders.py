"""MpDeviceLoader and ParallelLoader: patches/torch_xla/loaders.

Tests marked ``fails_on_stock`` state what the topic is for, those marked ``passes_on_stock`` what it leaves alone.
"""

from typing import NamedTuple

import pytest
import torch
from ir_text import ir
from marks import fails_on_stock, passes_on_stock
from tensors import DEVICE
from torch.utils.data import DataLoader
from torch_xla.distributed.parallel_loader import MpDeviceLoader

quiet = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # stock's thread


class Items(torch.utils.data.Dataset):
    def __init__(self, damaged=None):
        self.damaged = damaged

    def __len__(self):
        return 5

    def __getitem__(self, i):
        if i == self.damaged:
            raise ValueError(f"item {i} is damaged")
        return torch.full((2,), float(i))


@fails_on_stock
@quiet
@pytest.mark.parametrize("damaged", [0, 2, 4])
def test_what_a_dataset_raises_is_raised_after_the_batches_before_it(damaged):
    seen = []
    batches = iter(MpDeviceLoader(DataLoader(Items(damaged)), DEVICE))
    with pytest.raises(ValueError, match=f"item {damaged} is damaged"):
        seen.extend(batch[0, 0] for batch in batches)
    assert [x.item() for x in seen] == list(range(damaged))
    assert next(batches, "the end") == "the end"


@fails_on_stock
@pytest.mark.ends_the_process_on_stock("2.9", "2.8", "2.7", "2.6")  # it waits for ever
@quiet
def test_what_a_loader_raises_before_its_first_batch_is_raised():
    class Refusing:
        def __iter__(self):
            raise OSError("no such file")

    with pytest.raises(OSError, match="no such file"):
        list(MpDeviceLoader(Refusing(), DEVICE))


@fails_on_stock
@quiet
def test_the_next_epoch_begins_anew():
    items = Items(1)
    loader = MpDeviceLoader(DataLoader(items), DEVICE)
    with pytest.raises(ValueError, match="item 1"):
        list(loader)
    items.damaged = None
    assert len(list(loader)) == 5


@fails_on_stock
@quiet
def test_ir_of_what_was_read():
    total = torch.zeros(1, 2, device=DEVICE)
    with pytest.raises(ValueError, match="item 1"):
        for batch in MpDeviceLoader(DataLoader(Items(1)), DEVICE, batches_per_execution=4):
            total = total + batch
    ir(total).expect("""\
%0 = f32[] prim::Constant()
%1 = f32[1,2] xla::device_data()
%2 = f32[] prim::Constant()
%3 = f32[1,2] aten::expand(%2)
%4 = f32[1,2] aten::add(%3, %1, %0)
return %4
""")


@fails_on_stock
def test_the_dataset_of_a_loader():
    items = Items()
    assert MpDeviceLoader(DataLoader(items), DEVICE).dataset is items
    assert not hasattr(MpDeviceLoader([torch.ones(2)], DEVICE), "dataset")


@fails_on_stock
def test_attributes_of_a_loader():
    loader = DataLoader(Items(), batch_size=2, drop_last=True)
    wrapped = MpDeviceLoader(loader, DEVICE)
    for name in ("batch_size", "drop_last", "sampler", "batch_sampler", "num_workers", "generator", "collate_fn"):
        assert getattr(wrapped, name) is getattr(loader, name)


@passes_on_stock
def test_an_epoch_without_errors_is_whole():
    batches = list(MpDeviceLoader(DataLoader(Items(), batch_size=2), DEVICE))
    assert torch.cat([b.cpu() for b in batches]).tolist() == [[float(i)] * 2 for i in range(5)]
    assert len(MpDeviceLoader(DataLoader(Items()), DEVICE)) == 5


class Pair(NamedTuple):
    image: torch.Tensor
    label: object


@fails_on_stock
def test_batches_that_are_named_tuples():
    batches = [Pair(torch.ones(2), Pair(torch.zeros(1), "name")), (torch.ones(1), {"pair": Pair(torch.ones(3), 4)})]
    first, second = MpDeviceLoader(batches, DEVICE)
    assert isinstance(first, Pair) and first.label.label == "name" and first.label.image.device.type == "xla"
    assert isinstance(second, list) and second[1]["pair"].image.tolist() == [1.0] * 3


@fails_on_stock
@pytest.mark.parametrize("number", [1, 2])
def test_batches_that_are_none(number):
    """As a collate function makes of items that are all damaged."""
    loader = MpDeviceLoader([torch.ones(1), None, None, torch.zeros(1)], DEVICE, batches_per_execution=number)
    assert [batch if batch is None else batch.item() for batch in loader] == [1.0, None, None, 0.0]


@fails_on_stock
def test_a_loop_that_another_one_ends():
    loader = MpDeviceLoader([torch.ones(1)] * 100, DEVICE)
    batches = iter(loader)
    next(batches)
    assert len(list(loader)) == 100
    with pytest.raises(RuntimeError, match="expected one loop at a time"):
        list(batches)
    with pytest.raises(RuntimeError, match="expected one loop at a time"):
        for _ in loader:
            list(loader)


@passes_on_stock
def test_a_loop_after_one_that_was_left_or_has_ended():
    loader = MpDeviceLoader(DataLoader(Items()), DEVICE)
    for _ in loader:
        break
    left = iter(loader)
    next(left)
    ended = iter(loader)
    assert len(list(ended)) == len(list(loader)) == 5
    assert next(ended, "the end") == "the end"

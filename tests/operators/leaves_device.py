"""Which operators leave the device: torch's own samples on XLA, and what torch_xla hands to the CPU for them.

    PJRT_DEVICE=CPU ENVIRONMENT/bin/python tests/operators/leaves_device.py [OPERATOR…]

For each operator of ``op_db`` the first samples are run, forward and backward. Nothing is computed unless an operator
needs a value. Prints a line of JSON for each operator, [name, {"forward": […], "backward": […]}] with the operators of
aten that were handed to the CPU, and "raises" where each sample raises. With --list it prints the names alone.
"""

import json
import sys
import warnings
from itertools import islice

import torch
import torch_xla
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_leaves, tree_map

SAMPLES = 8
DTYPES = (torch.float32, torch.bfloat16, torch.int64)


def handed_over(run):
    """What ``run`` returns, and the operators that torch_xla handed to the CPU meanwhile."""
    xlac = torch_xla._XLAC

    def counts():
        return {name: xlac._xla_counter_value(name) for name in xlac._get_executed_fallback_ops()}

    before = counts()
    result = run()
    return result, {name for name, count in counts().items() if count != before.get(name, 0)}


def on_xla(sample):
    def moved(value):
        if isinstance(value, str):  # a factory makes its result on the device, too
            return "xla" if value == "cpu" else value
        if not isinstance(value, torch.Tensor):
            return value
        return value.detach().to("xla").requires_grad_(value.requires_grad)

    moved_all = tree_map(moved, (sample.input, sample.args, sample.kwargs))
    torch_xla.sync()
    return moved_all


def backward(result, inputs):
    results = [t for t in tree_leaves(result) if isinstance(t, torch.Tensor) and t.requires_grad]
    leaves = [t for t in tree_leaves(inputs) if isinstance(t, torch.Tensor) and t.requires_grad]
    if results and leaves:
        torch.autograd.grad(results, leaves, [torch.ones_like(t) for t in results], allow_unused=True)


def of_sample(op, sample, found):
    inputs = on_xla(sample)
    result, names = handed_over(lambda: op(inputs[0], *inputs[1], **inputs[2]))
    found["forward"] |= names
    found["backward"] |= handed_over(lambda: backward(result, inputs))[1]


def of_operator(op):
    found, ran, raised = {"forward": set(), "backward": set()}, 0, 0
    for dtype in DTYPES:
        if dtype not in op.dtypes:
            continue
        grad = dtype.is_floating_point and op.supports_autograd
        for sample in islice(op.sample_inputs("cpu", dtype, requires_grad=grad), SAMPLES):
            ran += 1
            try:
                of_sample(op, sample, found)
            except Exception:
                raised += 1
    left = {phase: sorted(names) for phase, names in found.items() if names}
    return left | ({"raises": True} if ran and raised == ran else {})


def name_of(op):
    return op.name + (f".{op.variant_test_name}" if op.variant_test_name else "")


def main(names):
    warnings.filterwarnings("ignore")
    operators = {name_of(op): op for op in op_db}
    if names == ["--list"]:
        print(json.dumps(list(operators)))
        return
    for name in names:
        print(json.dumps([name, of_operator(operators[name])]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])

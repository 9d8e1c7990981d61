"""What ``Tensor.grad_dtype`` and ``ctx.set_output_grad_dtype`` do in many cases, each as one line of text.

``recorded()`` is what stock torch 2.15 does, as this program wrote it there:

    "$(.venv/bin/castoff env oracle)" tests/torch/grad_dtype_cases.py --write
"""

import copy
import itertools
import json
import pickle
import sys
import warnings
from pathlib import Path

import torch

RECORD = Path(__file__).with_name("grad_dtype_cases.json")
UNSET = "unset"
NAMES = {
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.float32: "f32",
    torch.float64: "f64",
    torch.complex64: "c64",
    torch.int32: "s32",
    torch.int64: "s64",
    None: "none",
    UNSET: UNSET,
}
F16, BF16, F32, F64, C64, S32, S64, *_ = NAMES
LEAVES = (F32, BF16, F64, C64)
WANTED = (UNSET, None, F32, BF16, F64, C64, S32)
ARRIVING = (F16, BF16, F32, F64, C64, S64)


class Returns(torch.autograd.Function):
    """Of x a float32 scalar, whose backward hands ``gradient`` to x just as it is."""

    @staticmethod
    def forward(ctx, x, gradient):
        ctx.gradient = gradient
        return torch.zeros(())

    @staticmethod
    def backward(ctx, grad):
        return ctx.gradient, None


def leaf(dtype, wanted, size=3):
    w = torch.full((size,), 2, dtype=dtype, requires_grad=True)
    want(w, wanted)
    return w


def want(w, wanted):
    if wanted != UNSET:
        w.grad_dtype = wanted


def full(dtype, *size):
    return torch.full(size or (3,), 1.5, dtype=dtype)


def told(tensor):
    """A tensor's dtype, layout and sum, which tells whether it was rounded."""
    if tensor is None:
        return "no gradient"
    values = tensor.detach().to_dense() if tensor.layout != torch.strided else tensor.detach()
    total = values.sum().to(torch.complex128 if values.is_complex() else F64).item()
    layout = "" if tensor.layout == torch.strided else f" {str(tensor.layout).removeprefix('torch.')}"
    return f"{NAMES.get(tensor.dtype, tensor.dtype)}{layout} {total}"


# ---- a gradient that arrives at a leaf


def by_backward(dtype, wanted, arriving):
    w = leaf(dtype, wanted)
    Returns.apply(w, full(arriving)).backward()
    return told(w.grad)


def by_autograd_grad(dtype, wanted, arriving):
    w = leaf(dtype, wanted)
    return told(torch.autograd.grad(Returns.apply(w, full(arriving)), [w])[0])


def set_after_the_forward(dtype, wanted, arriving):
    w = leaf(dtype, UNSET)
    loss = Returns.apply(w, full(arriving))
    want(w, wanted)
    loss.backward()
    return told(w.grad)


def reduced(dtype, wanted, arriving):
    w = leaf(dtype, wanted)
    Returns.apply(w, full(arriving, 5, 3)).backward()
    return told(w.grad)


def twice(dtype, wanted, arriving):
    w = leaf(dtype, wanted)
    for _ in range(2):
        Returns.apply(w, full(arriving)).backward()
    return told(w.grad)


def with_a_graph(dtype, wanted, arriving):
    w = leaf(dtype, wanted)
    Returns.apply(w, full(arriving).requires_grad_(arriving is not S64)).backward(create_graph=True)
    return f"{told(w.grad)} {w.grad.requires_grad}"


def seen_by_a_hook(dtype, wanted, arriving):
    w, seen = leaf(dtype, wanted), []
    w.register_hook(lambda grad: seen.append(told(grad)))
    w.register_post_accumulate_grad_hook(lambda w: seen.append(told(w.grad)))
    Returns.apply(w, full(arriving)).backward()
    return ", ".join(seen)


def sparse(dtype, wanted, arriving):
    w = leaf(dtype, wanted)
    Returns.apply(w, full(arriving).to_sparse()).backward()
    return told(w.grad)


def a_view_as_leaf(dtype, wanted, arriving):
    w = torch.full((4,), 2, dtype=dtype)[:3].requires_grad_()
    want(w, wanted)
    Returns.apply(w, full(arriving)).backward()
    return told(w.grad)


def assigned(dtype, wanted, arriving):
    w = leaf(dtype, wanted)
    w.grad = full(arriving)
    return told(w.grad)


def set_where_a_gradient_is(dtype, wanted, arriving):
    w = leaf(dtype, None)
    w.grad = full(arriving)
    want(w, wanted)
    return f"{NAMES[w.grad_dtype]} {told(w.grad)}"


# ---- operators on a leaf that has one


def product(w):
    return (w * w.detach()).abs().sum()


def through_operators(dtype, wanted):
    w = leaf(dtype, wanted)
    product(w).backward()
    return told(w.grad)


def second_derivative(dtype, wanted):
    w = leaf(dtype, wanted)
    (first,) = torch.autograd.grad((w**3).abs().sum(), [w], create_graph=True)
    (second,) = torch.autograd.grad(first.abs().sum(), [w])
    return f"{told(first)}, {told(second)}"


def changed_in_place_without_grad(dtype, wanted):
    w = leaf(dtype, wanted)
    with torch.no_grad():
        w.mul_(3)
    product(w).backward()
    return f"{NAMES[w.grad_dtype]} {told(w.grad)}"


def former_leaf(dtype, wanted):
    w, x = torch.full((3,), 2, dtype=dtype), leaf(dtype, UNSET)
    want(w, wanted)
    w.mul_(x)
    w.retain_grad()
    w.abs().sum().backward()
    return f"{NAMES[w.grad_dtype]} {told(w.grad)} {told(x.grad)}"


IN_PLACE = {
    "copy_": lambda w, x: w.copy_(x),
    "fill_": lambda w, x: w.fill_(x[0]),
    "twice": lambda w, x: w.mul_(x).mul_(x),
    "in part": lambda w, x: w[:2].mul_(x[:2]),
    "in a view": lambda w, x: w.view(3).mul_(x),
    "setitem": lambda w, x: w.__setitem__(0, x[0]),
    "foreach": lambda w, x: torch._foreach_mul_([w], [x]),
    "detach_": lambda w, x: w.mul_(x).detach_().requires_grad_(),
}


def changed_in_place(dtype, wanted, how):
    """A tensor that has a grad_dtype and, before, no gradient."""
    return changed(torch.full((3,), 2, dtype=dtype), wanted, how)


def view_changed_in_place(dtype, wanted):
    return changed(torch.full((4,), 2, dtype=dtype)[:3], wanted, "copy_")


def changed(w, wanted, how):
    x = leaf(w.dtype, UNSET)
    want(w, wanted)
    IN_PLACE[how](w, x)
    w.retain_grad()
    Returns.apply(w, full(F64)).backward()
    return f"{NAMES[w.grad_dtype]} {told(w.grad)} {told(x.grad)}"


def data_assigned(dtype, wanted, other):
    w = leaf(dtype, wanted)
    w.data = w.data.to(other)
    product(w).backward()
    return f"{NAMES[w.grad_dtype]} {told(w.grad)}"


def checkpointed(dtype, wanted, reentrant):
    from torch.utils.checkpoint import checkpoint

    w = leaf(dtype, wanted)
    checkpoint(product, w, use_reentrant=reentrant).backward()
    return told(w.grad)


def func_grad(dtype, wanted):
    return told(torch.func.grad(lambda x: (x * 2).abs().sum())(leaf(dtype, wanted)))


def func_vmap(dtype, wanted):
    w = leaf(dtype, wanted)
    torch.func.vmap(lambda x: x * 2)(w).abs().sum().backward()
    return told(w.grad)


def func_functional_call(dtype, wanted):
    module = torch.nn.Linear(3, 1, bias=False)
    w = torch.ones(1, 3, dtype=dtype, requires_grad=True)
    want(w, wanted)
    torch.func.functional_call(module, {"weight": w}, (torch.ones(2, 3, dtype=dtype),)).abs().sum().backward()
    return told(w.grad)


def compiled(dtype, wanted):
    torch._dynamo.reset()
    w = leaf(dtype, wanted)
    torch.compile(product, backend="aot_eager", fullgraph=True)(w).backward()
    return told(w.grad)


def rounded_sum(dtype, wanted, arriving):
    """Of numbers whose sum is none of bfloat16's."""
    w = leaf(dtype, wanted)
    Returns.apply(w, torch.full((4, 3, 3), 1.1, dtype=F64).to(arriving)).backward()
    return told(w.grad)


def returned_by_a_hook(dtype, wanted, arriving):
    w, y = leaf(dtype, wanted), leaf(dtype, wanted)
    w.register_hook(lambda grad: grad.to(arriving))
    y.expand_as(y).grad_fn.next_functions[0][0].register_prehook(lambda grads: (grads[0].to(arriving),))
    product(w).backward()
    outcomes = [told(w.grad)]
    product(y).backward()
    return ", ".join([*outcomes, told(y.grad)])


def zeroed(w):
    w.grad.zero_()
    product(w).backward()


def set_again(w):
    w.grad = None
    w.grad_dtype = F64
    Returns.apply(w, full(BF16)).backward()


# What is done with a leaf that has a gradient.
ACTIONS = {
    "del grad": lambda w: delattr(w, "grad"),
    "requires_grad off and on": lambda w: product(w.requires_grad_(False).requires_grad_()).backward(),
    "detach_": lambda w: w.detach_(),
    "its own gradient": lambda w: w.backward(full(BF16)),
    "zeroed": zeroed,
    "in place": lambda w: w.grad.add_(1),
    "set again": set_again,
    "a gradient of the gradient": lambda w: product(w).backward(create_graph=True),
    "a gradient in a list": lambda w: setattr(w, "grad", [w.grad]),
    "a gradient of another shape": lambda w: setattr(w, "grad", torch.ones(4, dtype=w.grad.dtype)),
    "split": lambda w: sum(part.abs().sum() for part in w.split(1)).backward(),
    "two uses": lambda w: (Returns.apply(w, full(F64)) + Returns.apply(w, full(BF16))).backward(),
    "deepcopy": copy.deepcopy,
    "SGD": lambda w: torch.optim.SGD([w], lr=0.5).step(),
}


def with_a_gradient(dtype, wanted, action):
    w = leaf(dtype, wanted)
    Returns.apply(w, full(F32)).backward()
    ACTIONS[action](w)
    return f"{NAMES[w.grad_dtype]} {w.is_leaf} {told(w)} {told(w.grad)}"


CONVERSIONS = {
    "half": lambda module: module.half(),
    "double": lambda module: module.double(),
    "cpu": lambda module: module.cpu(),
    "zero_grad": lambda module: module.zero_grad(set_to_none=False),
    "deepcopy": copy.deepcopy,
    "load_state_dict": lambda module: (module.load_state_dict({"w": torch.ones(3)}), module)[1],
}


def converted(dtype, wanted, how):
    """A module whose parameter has a gradient."""
    module = torch.nn.Module()
    module.w = torch.nn.Parameter(torch.full((3,), 2, dtype=dtype))
    want(module.w, wanted)
    Returns.apply(module.w, full(F32)).backward()
    made = CONVERSIONS[how](module) or module
    return f"{NAMES[made.w.grad_dtype]} {told(made.w)} {told(made.w.grad)}"


COPIES = {
    "deepcopy": copy.deepcopy,
    "copy": copy.copy,
    "pickle": lambda w: pickle.loads(pickle.dumps(w)),
    "detach": lambda w: w.detach(),
    "data": lambda w: w.data,
    "Parameter": torch.nn.Parameter,
    "view": lambda w: w.detach().view(3),
    "to": lambda w: w.detach().to(F64),
}


def copied(dtype, wanted, how):
    made = COPIES[how](leaf(dtype, wanted))
    return NAMES[made.grad_dtype]


VALUES = {"number": 3, "string": "float32", "layout": torch.strided, "type": float, "list": [F32]}


def set_to_no_dtype(dtype, value):
    leaf(dtype, UNSET).grad_dtype = VALUES[value]


def set_on_a_non_leaf(dtype, wanted):
    y = leaf(dtype, UNSET) * 2
    want(y, wanted)
    return NAMES[y.grad_dtype]


# ---- ctx.set_output_grad_dtype


class Declares(torch.autograd.Function):
    """x in another dtype; the gradient of that has a declared dtype."""

    @staticmethod
    def forward(ctx, x, output, declared, seen):
        ctx.seen = seen
        if declared != UNSET:
            ctx.set_output_grad_dtype(declared)
        return x.to(output) * 1

    @staticmethod
    def backward(ctx, grad):
        ctx.seen.append(told(grad))
        return grad.to(F32) if not grad.is_complex() else grad.real.to(F32), None, None, None


def declared(output, wanted, arriving):
    seen = []
    y = Declares.apply(leaf(F32, UNSET), output, wanted, seen)
    Returns.apply(y, full(arriving)).backward()
    return f"{NAMES[y.grad_dtype]} {seen[0]}"


def declared_without_grad(output, wanted):
    with torch.no_grad():
        y = Declares.apply(leaf(F32, UNSET), output, wanted, [])
    return NAMES[y.grad_dtype]


def grad_of_an_output(output, wanted, assigned):
    y = Declares.apply(leaf(F32, UNSET), output, wanted, [])
    y.grad = full(assigned)
    return y.is_leaf


USES = {
    "view": lambda y: Returns.apply(y.view(3), full(F64)).backward(),
    "slice": lambda y: Returns.apply(y[:2], full(F64, 2)).backward(),
    "two uses": lambda y: (Returns.apply(y, full(F64)) + Returns.apply(y, full(BF16))).backward(),
    "product": lambda y: (y * 2).abs().sum().backward(),
    "in place": lambda y: Returns.apply(y.mul_(2), full(F64)).backward(),
    "split": lambda y: sum(Returns.apply(part, full(F64, 1)) for part in y.split(1)).backward(),
    "its own gradient": lambda y: y.backward(full(F64)),
    "another shape": lambda y: Returns.apply(y, full(F64, 4)).backward(),
    "broadcast": lambda y: Returns.apply(y, full(F64, 5, 3)).backward(),
}


def declared_and_used(output, wanted, use):
    seen = []
    y = Declares.apply(leaf(F32, UNSET), output, wanted, seen)
    USES[use](y)
    return seen[0]


NO_DTYPES = {"string": "float32", "number": 3, "list": [F32]}


def declared_no_dtype(value):
    Declares.apply(leaf(F32, UNSET), F32, NO_DTYPES[value], [])


class DeclaresTwo(torch.autograd.Function):
    """Two outputs, of which one gets no gradient: zeros take its place."""

    @staticmethod
    def forward(ctx, x, output, declared, seen):
        ctx.seen = seen
        ctx.set_output_grad_dtype(declared, declared)
        return x.to(output) * 1, x.to(output) * 2

    @staticmethod
    def backward(ctx, *grads):
        ctx.seen += [told(grad) for grad in grads]
        return torch.ones_like(grads[0], dtype=F32), None, None, None


def declared_for_an_output_without_a_gradient(output, wanted):
    seen = []
    first, _ = DeclaresTwo.apply(leaf(F32, UNSET), output, wanted, seen)
    Returns.apply(first, full(F32)).backward()
    return ", ".join(seen)


OF_A_GRADIENT = (
    by_backward,
    by_autograd_grad,
    set_after_the_forward,
    reduced,
    twice,
    with_a_graph,
    seen_by_a_hook,
    sparse,
    a_view_as_leaf,
    assigned,
    set_where_a_gradient_is,
    rounded_sum,
    returned_by_a_hook,
)
OF_A_LEAF = (
    through_operators,
    second_derivative,
    changed_in_place_without_grad,
    former_leaf,
    view_changed_in_place,
    func_grad,
    func_vmap,
    func_functional_call,
    set_on_a_non_leaf,
)
FLOATS = (F32, BF16, C64)


def cases():
    """Every case: a function and its arguments."""
    for case in OF_A_GRADIENT:
        yield from ((case, arguments) for arguments in itertools.product(LEAVES, WANTED, ARRIVING))
    for case in OF_A_LEAF:
        yield from ((case, arguments) for arguments in itertools.product(LEAVES, WANTED))
    yield from ((compiled, arguments) for arguments in itertools.product((F32, BF16), (UNSET, None, F32, BF16)))
    yield from ((data_assigned, arguments) for arguments in itertools.product(LEAVES, WANTED, (BF16, F32)))
    yield from ((changed_in_place, arguments) for arguments in itertools.product(LEAVES, WANTED, IN_PLACE))
    yield from ((with_a_gradient, arguments) for arguments in itertools.product((F32, BF16, C64), WANTED, ACTIONS))
    yield from ((converted, arguments) for arguments in itertools.product((F32, BF16), WANTED, CONVERSIONS))
    yield from ((checkpointed, arguments) for arguments in itertools.product(LEAVES, WANTED, (False, True)))
    yield from ((copied, arguments) for arguments in itertools.product((F32, BF16), WANTED, COPIES))
    yield from ((set_to_no_dtype, arguments) for arguments in itertools.product((F32,), VALUES))
    yield from ((declared, arguments) for arguments in itertools.product(FLOATS, WANTED, ARRIVING))
    yield from ((grad_of_an_output, arguments) for arguments in itertools.product(FLOATS, WANTED, (F32, BF16, C64)))
    yield from ((declared_and_used, arguments) for arguments in itertools.product(FLOATS, WANTED, USES))
    yield from ((declared_no_dtype, arguments) for arguments in itertools.product(NO_DTYPES))
    yield from ((declared_without_grad, arguments) for arguments in itertools.product(FLOATS, WANTED))
    yield from (
        (declared_for_an_output_without_a_gradient, arguments)
        for arguments in itertools.product(FLOATS, [wanted for wanted in WANTED if wanted != UNSET])
    )


def outcome(case, arguments):
    """What a case gives, or the type of the error that it raises."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return str(case(*arguments))
    except Exception as error:  # noqa: BLE001 - its type is what is compared
        return type(error).__name__


def outcomes(chosen=lambda case, arguments: True):
    """The outcome of every case, or of every one that is ``chosen``, by its name."""
    return {
        " ".join(
            [case.__name__, *(NAMES.get(one, str(one)) if not isinstance(one, bool) else str(one) for one in arguments)]
        ): outcome(case, arguments)
        for case, arguments in cases()
        if chosen(case, arguments)
    }


def recorded():
    """What stock torch 2.15 does."""
    return {
        f"{case} {middle} {last}".replace("  ", " "): outcome
        for names, middles, row in json.loads(RECORD.read_text(encoding="utf-8"))
        for case in names
        for middle in middles
        for last, outcome in row.items()
    }


def _written(found):
    """The text of the record: a line for each row of outcomes, by their last argument, and for whom it is the same."""
    rows, middles, names = {}, {}, {}
    for name, outcome in found.items():
        case, *middle = name.split(" ")
        *middle, last = middle
        rows.setdefault((case, " ".join(middle)), {})[last] = outcome
    for (case, middle), row in rows.items():
        middles.setdefault((case, json.dumps(row)), []).append(middle)
    for (case, row), those in middles.items():
        names.setdefault((json.dumps(those), row), []).append(case)
    return "[" + ",\n".join(f"[{json.dumps(cases)}, {those}, {row}]" for (those, row), cases in names.items()) + "]\n"


if __name__ == "__main__":
    found = outcomes()
    if "--write" in sys.argv:
        RECORD.write_text(_written(found), encoding="utf-8")
    else:
        print(json.dumps(found))

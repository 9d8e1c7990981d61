"""Programs: dtypes."""

import torch


def casts_between(device):
    """Casts from floats to integers and back, truncation and bool."""
    x = torch.tensor([-1.9, -0.5, 0.0, 0.5, 1.9, 255.5]).to(device)
    kinds = (torch.int8, torch.int32, torch.int64, torch.bool, torch.bfloat16, torch.float16, torch.float64)
    return [x[:5].to(kind) for kind in kinds], x.to(torch.int32).to(torch.uint8), x.double().float()


def complex_arithmetic(device):
    """Complex numbers: products, absolute values, angles, conjugates and real parts, with gradients."""
    a, b = (torch.randn(3, 2).to(device).requires_grad_() for _ in range(2))
    z, w = torch.view_as_complex(a), torch.view_as_complex(b)
    y = z * w.conj() + 2j
    loss = y.abs().square().sum() + y.angle().sum() + (z * w).real.sum()
    loss.backward()
    return y, loss, a.grad, b.grad, torch.complex(a[:, 0].detach(), b[:, 0].detach()).exp()


def complex_division(device):
    """Quotients of complex numbers, by complex numbers and by real ones, with gradients."""
    a, b = (torch.randn(3, 2).to(device).requires_grad_() for _ in range(2))
    z, w = torch.view_as_complex(a), torch.view_as_complex(b)
    (z / w).real.sum().backward()
    return z.detach() / w.detach(), z.detach() / 2, 2 / z.detach(), a.grad, b.grad


def default_dtype(device):
    """A default dtype of float64, and what is made with it."""
    torch.set_default_dtype(torch.float64)
    try:
        x = torch.tensor([1.0, 2.0]).to(device)
        whole = torch.tensor([1, 2]).to(device)
        return x, whole / 2, torch.ones(2, device=device), torch.arange(0, 1, 0.5, device=device), whole.sqrt()
    finally:
        torch.set_default_dtype(torch.float32)


def finfo_masks(device):
    """Masks of finfo.min: sums of two of them, softmax and their dtype."""
    results = []
    for kind in (torch.float32, torch.bfloat16, torch.float16):
        low = torch.finfo(kind).min
        mask = torch.zeros(3, 3, dtype=kind, device=device).masked_fill(torch.ones(3, 3).triu(1).bool().to(device), low)
        both = mask + mask
        results += [
            both.softmax(-1),
            mask.clamp(min=low),
            torch.max(both, torch.tensor(low, device=device, dtype=kind)),
        ]
    return results


def float16_range(device):
    """float16: overflow, sums that need float32, and a loss that is scaled."""
    x = torch.full((4, 1024), 40.0, dtype=torch.float16).to(device)
    big = x[0, 0] * 2000
    return big, x.mean(1), x.sum(1), (x / 1000).square().sum(1), x.float().square().mean(1).sqrt().half()


def float8_storage(device):
    """Weights kept in float8 with a scale, and widened for the product."""
    w = torch.tensor([[0.1, -3.0, 448.0], [1.0, 0.0, 2.0**-9]])
    stored = w.to(device).to(torch.float8_e4m3fn)
    wide = stored.to(torch.float32)
    other = w.to(device).to(torch.float8_e5m2).to(torch.bfloat16)
    return wide, other, str(stored.dtype), stored.element_size()


def int64_beyond_float(device):
    """Integers above 2^24 and 2^53 in sums, products, remainders and floor division (pytorch/xla#6750)."""
    x = torch.tensor([100_000_001, 2**53 + 1, -(2**40) - 7]).to(device)
    return x // 3, x % 10, x * 3, x.sum(), x.max(), torch.div(x, 7, rounding_mode="trunc"), x.abs(), x.sort().values


def promotion_of_numbers(device):
    """Tensors with Python numbers and 0-d tensors: what dtype the result has."""
    half, whole, flag = (torch.ones(2, dtype=d).to(device) for d in (torch.bfloat16, torch.int32, torch.bool))
    zero = torch.tensor(2.0).to(device)
    results = [half + 1, half * 2.5, whole + 1.5, flag + 1, flag * 1.0, whole / 2, whole // 2, whole**2, half + zero]
    results += [whole + zero, zero + whole.long(), torch.where(flag, half, 1.0), half.sum(), whole.sum(), flag.sum()]
    results += [whole.float().mean(), torch.stack([half, half]).mean(0), flag & True, whole % 3, -half]
    return results


def uint8_wraps(device):
    """uint8 and int8 wrap around; shifts, negation and sums of them."""
    u = torch.tensor([250, 5, 0], dtype=torch.uint8).to(device)
    i = torch.tensor([127, -128, -1], dtype=torch.int8).to(device)
    return u + 10, u * 2, -u, ~u, u.sum(), u << 1, u >> 2, i + 1, i * 2, i.abs(), i // 2, i >> 1, i.float() / 2


def views_of_bits(device):
    """view(dtype): the bits of floats as integers."""
    x = torch.tensor([1.0, -0.0, float("inf"), 2.5]).to(device)
    bits = x.view(torch.int32)
    halves = x.bfloat16().view(torch.int16)
    return bits, (bits >> 23) & 0xFF, halves, bits.view(torch.float32)


def integers_for_a_float_result(device):
    """A buffer of integers as out= of a product with a fraction, which torch refuses."""
    counts = torch.arange(4).to(device)
    return torch.mul(counts, 0.5, out=torch.empty_like(counts))

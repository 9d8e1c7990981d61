"""Programs: random."""

import torch
import torch.nn.functional as F
from options import options
from torch import distributions as D
from torch import nn


def diffusion_noise(device):
    """A step of diffusion training: noise by a schedule that is indexed with timesteps, as 0-d and 1-d tensors."""
    betas = torch.linspace(1e-4, 0.02, 100, device=device)
    alphas = (1 - betas).cumprod(0)
    x, noise = torch.randn(3, 2, 4, 4).to(device), torch.randn(3, 2, 4, 4).to(device)
    t = torch.tensor([0, 50, 99]).to(device)
    a = alphas[t].sqrt().view(-1, 1, 1, 1)
    noisy = a * x + (1 - alphas[t]).sqrt().view(-1, 1, 1, 1) * noise
    velocity = a * noise - (1 - a.square()).sqrt() * x
    half = torch.exp(-torch.arange(4, device=device) * 2.3)
    embedded = torch.cat([(t[:, None] * half).sin(), (t[:, None] * half).cos()], -1)
    return noisy, velocity, embedded, alphas[10] / alphas[9]


def distributions(device):
    """torch.distributions: log-probabilities, entropies, divergences, and samples that have gradients."""
    mu, sigma = torch.tensor([0.0, 1.0]).to(device).requires_grad_(), torch.tensor([1.0, 2.0]).to(device)
    normal, other = D.Normal(mu, sigma), D.Normal(mu.detach() + 1, sigma)
    value = torch.tensor([0.5, 0.5]).to(device)
    categorical = D.Categorical(logits=torch.randn(2, 3).to(device))
    kl = D.kl_divergence(normal, other)
    sample = normal.rsample((5,))
    (normal.log_prob(value).sum() + kl.sum() + (sample - sample.detach()).sum()).backward()
    beta = D.Beta(torch.tensor([2.0]).to(device), torch.tensor([3.0]).to(device))
    return normal.log_prob(value), kl, categorical.entropy(), beta.log_prob(value[:1]), sample.shape, mu.grad


def dropout_gradient(device):
    """The gradient of dropout drops what the forward dropped."""
    x = torch.ones(300).to(device).requires_grad_()
    y = F.dropout(x, 0.4)
    y.sum().backward()
    return bool((y.detach() == x.grad).all()), 100 < int((y > 0).sum()) < 260


def dropout_rates(device):
    """The share that dropout keeps, and its scale, in float32 and bfloat16; dropout of whole channels."""
    results = []
    for kind in (torch.float32, torch.bfloat16):
        x = torch.ones(20_000, dtype=kind, device=device)
        y = F.dropout(x, 0.1)
        results += [round(float((y > 0).float().mean()), 1), y.max()]
    z = F.dropout2d(torch.ones(2, 50, 3, 3, device=device), 0.5)
    same = (z.amax((2, 3)) == z.amin((2, 3))).all()
    return results, same, F.dropout(torch.ones(3, device=device), 0.5, training=False)


def fork_rng(device):
    """fork_rng around draws of the device leaves its state as it was."""
    torch.manual_seed(1)
    with torch.random.fork_rng(devices=[]):
        torch.rand(3)
    a = torch.rand(3)
    torch.manual_seed(1)
    return bool((a == torch.rand(3)).all())


def generator_of_the_cpu(device):
    """Draws with a generator of the CPU, sent to the device, are those of the CPU; diffusers does so."""
    g = torch.Generator().manual_seed(3)
    latents = torch.randn(2, 3, generator=g).to(device)
    noise = torch.randn(2, 3, generator=torch.Generator().manual_seed(3), dtype=torch.bfloat16)
    return latents * 0.5, noise.to(device), torch.randperm(5, generator=g).to(device)


def generator_of_the_device(device):
    """A Generator of the device with a seed: rand, randn, randint and multinomial repeat (pytorch/xla#9159)."""

    def draws():
        g = torch.Generator(device=device).manual_seed(3)
        weights = torch.ones(4, 5, device=device)
        return [
            torch.rand(20, generator=g, device=device), torch.randn(20, generator=g, device=device),
            torch.randint(0, 100, (20,), generator=g, device=device), torch.multinomial(weights, 2, generator=g),
        ]  # fmt: skip

    one, two = draws(), draws()
    return [bool((a == b).all()) for a, b in zip(one, two, strict=True)], len(one[0].unique()) > 15


@options(tolerance=6e-2)
def initializers(device):
    """nn.init of parameters on the device: constants, and moments of random ones."""
    results = []
    for init in (nn.init.xavier_uniform_, nn.init.kaiming_normal_, lambda w: nn.init.trunc_normal_(w, std=0.02)):
        w = torch.empty(200, 100, device=device)
        init(w)
        results += [w.std(), w.abs().max() > 0]
    eye, dirac = torch.empty(3, 4, device=device), torch.empty(4, 2, 3, device=device)
    q = nn.init.orthogonal_(torch.empty(4, 4, device=device))
    return results, nn.init.eye_(eye), nn.init.dirac_(dirac), q @ q.t()


@options(tolerance=6e-2)
def moments_of_draws(device):
    """Means and deviations of normal, uniform, exponential and Bernoulli draws."""
    n = 40_000
    x = torch.empty(n, device=device)
    draws = [
        torch.randn(n, device=device).square(),
        torch.rand(n, device=device),
        x.clone().normal_(2.0, 0.5),
        x.clone().uniform_(-1, 3),
        x.clone().exponential_(2.0),
        torch.bernoulli(torch.full((n,), 0.3, device=device)),
        torch.randint(0, 10, (n,), device=device).float(),
        torch.randn(n, device=device, dtype=torch.bfloat16).float().abs(),
    ]
    return [d.mean() for d in draws], [d.std() for d in draws[1:]]


def permutations(device):
    """randperm and shuffled indices are permutations; randint keeps to its bounds."""
    p = torch.randperm(50, device=device)
    i = torch.randint(3, 7, (200,), device=device)
    return p.sort().values, p.dtype, i.min(), i.max(), i.dtype, bool((p == torch.arange(50, device=device)).all())


def rng_state(device):
    """The state of the generator is taken and put back: draws repeat."""
    if device.type == "xla":
        import torch_xla.core.xla_model as xm

        get, put = xm.get_rng_state, xm.set_rng_state
    else:
        get, put = torch.get_rng_state, torch.set_rng_state
    state = get()
    one = torch.rand(10, device=device).clone().cpu()
    put(state)
    two = torch.rand(10, device=device).cpu()
    return bool((one == two).all())


def seeded_draws_repeat(device):
    """torch.manual_seed makes draws of the device repeat (pytorch/xla#7340)."""

    def draws():
        torch.manual_seed(7)
        return [f((50,), device=device).cpu() for f in (torch.rand, torch.randn)]

    one, two = draws(), draws()
    return [bool((a == b).all()) for a, b in zip(one, two, strict=True)], bool((one[0] == torch.rand(50)).all())


def samples_of_other_shapes_after_a_seed(device):
    """A seed before each draw of exponential numbers: Weibull samples of several shapes"""
    scale, shapes = torch.tensor([1.0, 2.0, 3.0]).to(device), []
    for shape in ((2,), (), (4, 5)):
        torch.manual_seed(1)
        drawn = torch.distributions.Weibull(scale, scale).rsample(shape)
        shapes.append((list(drawn.shape), bool((drawn > 0).all())))
    return shapes


def compiled_after_a_seed(device):
    """A compiled function draws the same numbers after a seed in its first call, and not those of noise before it."""
    compiled = torch.compile(lambda x: F.dropout(x, 0.5), backend="openxla" if device.type == "xla" else "eager")
    x, found = torch.ones(200).to(device), []
    for _ in range(3):
        torch.manual_seed(3)
        found.append(compiled(x).cpu())
    torch.manual_seed(3)
    noise = torch.rand_like(x)
    kept = compiled(x) != 0
    return [torch.equal(found[0], other) for other in found[1:]], torch.equal(kept, noise < 0.5)

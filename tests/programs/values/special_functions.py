"""Special functions: erf and its inverse, gamma, digamma, expm1, log1p, sinc, xlogy and Bessel."""

import torch


def program(device):
    x = torch.tensor([-0.9, -1e-5, 0.0, 1e-5, 0.5, 0.99]).to(device)
    y = x + 1.5
    return (
        x.erf(),
        x.erfinv(),
        x.erfc(),
        y.lgamma(),
        y.digamma(),
        x.expm1(),
        x.log1p(),
        torch.sinc(x),
        torch.xlogy(x.abs(), y),
        torch.special.i0(y),
        torch.special.entr(y),
        x.logit(eps=1e-3),
        x.atanh(),
        torch.hypot(x, y),
        torch.atan2(x, y),
    )

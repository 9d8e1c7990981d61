"""The state of the generator is taken and put back: draws repeat."""

import torch


def program(device):
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

"""functional_call, vmap over an ensemble of models and gradients per sample."""

import torch
from torch import nn
from torch.func import functional_call, grad, stack_module_state, vmap


def program(device):
    models = [nn.Linear(3, 2).to(device) for _ in range(3)]
    parameters, buffers = stack_module_state(models)
    x = torch.randn(4, 3).to(device)
    one = models[0]

    def call(p, b, x):
        return functional_call(one, (p, b), (x,))

    ensemble = vmap(call, (0, 0, None))(parameters, buffers, x)
    mine = {k: v.detach() for k, v in one.named_parameters()}
    each = vmap(grad(lambda p, row: functional_call(one, p, (row,)).square().sum()), (None, 0))(mine, x)
    return ensemble, each

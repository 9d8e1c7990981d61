"""XLAPatchedLinear in the place of nn.Linear, by the name that each release has for it."""

try:
    from torch_xla.distributed.spmd.xla_sharding import apply_xla_patch_to_nn_linear
except ImportError:  # torch_xla 2.6
    from torch_xla.distributed.fsdp import utils
    from torch_xla.distributed.spmd.xla_sharding import xla_patched_nn_linear_forward

    def apply_xla_patch_to_nn_linear(module):
        return utils.apply_xla_patch_to_nn_linear(module, xla_patched_nn_linear_forward)


__all__ = ["apply_xla_patch_to_nn_linear"]

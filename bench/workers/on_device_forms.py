"""Operators of topic on-device as torch and as JAX have them; their StableHLO for bench/on_device_cycles.py.

    python bench/workers/on_device_forms.py torch|jax FOLDER

Runs in an environment with patched wheels, with PJRT_DEVICE=CPU, or in the TPU compiler's, with JAX_PLATFORMS=cpu, and
writes FOLDER/NAME for each operator: the result and, of those in DIFFERENTIATED, the gradients of all operands. Nothing
is computed.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

IMAGES, MATRICES = (8, 32, 64, 64), (16, 128, 128)
SHAPES: dict[str, tuple[tuple[int, ...], ...]] = {
    "linear upsampling": ((8, 32, 4096),),
    "bicubic upsampling": (IMAGES,),
    "grid_sample": (IMAGES, (8, 64, 64, 2)),
    "unfold": (IMAGES,),
    "huber_loss": ((4096, 1024),) * 2,
    "glu": ((4096, 1024),),
    "logaddexp": ((4096, 1024),) * 2,
    "nansum": ((4096, 1024),),
    "lgamma": ((4096, 1024),),
    "cumprod": ((1024, 1024),),
    "median": ((1024, 1024),),
    "searchsorted": ((4096,), (65536,)),
    "isin": ((65536,), (64,)),
    "scatter_reduce": ((8192, 64), (65536, 64)),
    "rfft": ((256, 4096),),
    "cholesky": (MATRICES,),
    "solve_triangular": (MATRICES,) * 2,
    "qr": ((16, 64, 64),),
}
DIFFERENTIATED = frozenset(SHAPES) - {"median", "searchsorted", "isin", "rfft", "cholesky", "qr", "cumprod"}


def forms_of_torch() -> dict[str, Any]:
    import torch
    import torch_xla
    from torch.nn import functional as of

    rows = torch.arange(65536, device=torch_xla.device()).remainder(8192)[:, None].expand(-1, 64)
    return {
        "linear upsampling": lambda x: of.interpolate(x, scale_factor=2, mode="linear"),
        "bicubic upsampling": lambda x: of.interpolate(x, scale_factor=2, mode="bicubic"),
        "grid_sample": lambda x, grid: of.grid_sample(x, grid, align_corners=True),
        "unfold": lambda x: of.unfold(x, 3, padding=1),
        "huber_loss": of.huber_loss,
        "glu": of.glu,
        "logaddexp": torch.logaddexp,
        "nansum": torch.nansum,
        "lgamma": torch.lgamma,
        "cumprod": lambda x: x.cumprod(-1),
        "median": lambda x: x.median(-1).values,
        "searchsorted": torch.searchsorted,
        "isin": torch.isin,
        "scatter_reduce": lambda x, source: x.scatter_reduce(0, rows, source, "amax"),
        "rfft": lambda x: torch.view_as_real(torch.fft.rfft(x)),
        "cholesky": lambda x: torch.linalg.cholesky_ex(x).L,
        "solve_triangular": lambda a, b: torch.linalg.solve_triangular(a, b, upper=False),
        "qr": lambda a: torch.linalg.qr(a).R,
    }


def forms_of_jax() -> dict[str, Any]:
    import jax
    import jax.numpy as jnp
    from jax.scipy.special import gammaln

    rows = jnp.arange(65536) % 8192

    def resized(method: str) -> Any:
        return lambda x: jax.image.resize(x, (*x.shape[:2], *(2 * size for size in x.shape[2:])), method)

    def grid_sample(x: Any, grid: Any) -> Any:
        """Elements between pixels, and 0 beyond the border."""
        height, width = x.shape[2:]
        at = [(grid[..., 1] + 1) * (height - 1) / 2, (grid[..., 0] + 1) * (width - 1) / 2]
        of_channel = lambda image, *at: jax.scipy.ndimage.map_coordinates(image, at, 1, mode="constant")  # noqa: E731
        return jax.vmap(jax.vmap(of_channel, (0, None, None)))(x, *at)

    def huber_loss(x: Any, y: Any) -> Any:
        error = jnp.abs(x - y)
        return jnp.where(error < 1, 0.5 * error**2, error - 0.5).mean()

    def patches(x: Any) -> Any:
        found = jax.lax.conv_general_dilated_patches(x, (3, 3), (1, 1), "SAME")
        return found.reshape(*found.shape[:2], -1)

    return {
        "linear upsampling": resized("linear"),
        "bicubic upsampling": resized("bicubic"),
        "grid_sample": grid_sample,
        "unfold": patches,
        "huber_loss": huber_loss,
        "glu": jax.nn.glu,
        "logaddexp": jnp.logaddexp,
        "nansum": jnp.nansum,
        "lgamma": gammaln,
        "cumprod": lambda x: jnp.cumprod(x, -1),
        "median": lambda x: jnp.median(x, -1),
        "searchsorted": jnp.searchsorted,
        "isin": jnp.isin,
        "scatter_reduce": lambda x, source: x.at[rows].max(source),
        "rfft": lambda x: jnp.stack([(found := jnp.fft.rfft(x)).real, found.imag], -1),
        "cholesky": jnp.linalg.cholesky,
        "solve_triangular": lambda a, b: jax.scipy.linalg.solve_triangular(a, b, lower=True),
        "qr": lambda a: jnp.linalg.qr(a, mode="r"),
    }


def stablehlo_of_torch(name: str, form: Any) -> str:
    import torch
    import torch_xla

    operands = [torch.zeros(shape).to("xla") for shape in SHAPES[name]]
    for operand in operands:
        operand.requires_grad_(name in DIFFERENTIATED)
    gradient = torch.zeros(form(*operands).shape).to("xla")
    torch_xla.sync()
    results = [form(*operands)]
    if name in DIFFERENTIATED:
        results += torch.autograd.grad(results[0], operands, gradient)
    text: bytes = torch_xla._XLAC._get_stablehlo(results, "", [], False)
    return text.decode()


def stablehlo_of_jax(name: str, form: Any) -> str:
    import jax
    import jax.numpy as jnp

    def step(gradient: Any, *operands: Any) -> Any:
        if name not in DIFFERENTIATED:
            return form(*operands)
        result, backward = jax.vjp(form, *operands)
        return result, backward(gradient)

    operands = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in SHAPES[name]]
    gradient = jax.ShapeDtypeStruct(jax.eval_shape(form, *operands).shape, jnp.float32)
    text: str = jax.jit(step, keep_unused=False).trace(gradient, *operands).lower(lowering_platforms=("tpu",)).as_text()
    return text


def main() -> None:
    column, folder = sys.argv[1:]
    forms, stablehlo = (
        (forms_of_torch(), stablehlo_of_torch) if column == "torch" else (forms_of_jax(), stablehlo_of_jax)
    )
    for name in SHAPES:
        (Path(folder) / name).write_text(stablehlo(name, forms[name]))


if __name__ == "__main__":
    main()

"""The tracing of a small transformer's training steps on CPU-XLA. Run by exact_casts.py under callgrind.

python transformer_tracing.py autocast bfloat16 eager
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "ir"))

import torch
from shared import callgrind
from small_transformer import loss_of, model_and_data

STEPS = 2


def trace_decoder() -> None:
    """A layer of a Llama whose attention is written by hand, without gradients and with them."""
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer

    def data(*sizes: int) -> torch.Tensor:
        return torch.randn(sizes).bfloat16().to("xla")

    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2}
    layer = LlamaDecoderLayer(LlamaConfig(**sizes, attn_implementation="eager"), 0).bfloat16().to("xla")
    x, grad, mask, angles = data(2, 16, 64), data(2, 16, 64), data(1, 1, 16, 16), (data(1, 16, 16), data(1, 16, 16))

    def forward() -> torch.Tensor:
        result = layer(x, position_embeddings=angles, attention_mask=mask)
        return result[0] if isinstance(result, tuple) else result

    def train() -> None:
        forward().backward(grad)
        layer.zero_grad()

    for name, step, has_gradients in (("served", forward, False), ("trained", train, True)):
        with torch.set_grad_enabled(has_gradients):
            for _ in range(2):
                step()
            with callgrind.counted(name):
                for _ in range(STEPS):
                    step()


def trace(kind: str) -> None:
    model, *data = model_and_data(torch.float32 if kind == "autocast" else torch.bfloat16)

    def step() -> None:
        loss_of(model, *data, amp=kind == "autocast").backward()
        model.zero_grad()

    for _ in range(2):
        step()
    with callgrind.counted(kind):
        for _ in range(STEPS):
            step()


if __name__ == "__main__":
    for kind in sys.argv[1:]:
        trace_decoder() if kind == "eager" else trace(kind)

"""Audits training steps of small models of transformers, and prints what was found as JSON.

    python bench/workers/audited_models.py [topics]

Runs in an environment with torch_xla and transformers. The configurations are tiny and the weights random;
nothing is downloaded. With ``topics`` the steps ask for what castoff offers to those that ask: float32
gradients of bfloat16 weights, and products in their operands' dtype.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

os.environ.update(PJRT_DEVICE="CPU", HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error")
sys.path.append(str(Path(__file__).resolve().parents[2]))

import torch
import torch_xla
import transformers
from torch import nn

from castoff.audit import audit

LAYERS, TOKENS, WORDS, WIDTH = 1, 16, 64, 32
SIZES = {"vocab_size": WORDS, "hidden_size": WIDTH, "intermediate_size": 64, "num_attention_heads": 4}
MODES = ("bf16", "autocast", "FSDP")


def llama() -> nn.Module:
    config = transformers.LlamaConfig(**SIZES, num_hidden_layers=LAYERS, num_key_value_heads=2)
    return transformers.LlamaForCausalLM(config)


def bert() -> nn.Module:
    return transformers.BertForMaskedLM(transformers.BertConfig(**SIZES, num_hidden_layers=LAYERS))


def vit() -> nn.Module:
    config = transformers.ViTConfig(**SIZES, num_hidden_layers=LAYERS, image_size=16, patch_size=8)
    return transformers.ViTForImageClassification(config)


def t5() -> nn.Module:
    sizes = {"vocab_size": WORDS, "d_model": WIDTH, "d_kv": 8, "d_ff": 64, "num_heads": 4}
    config = transformers.T5Config(**sizes, num_layers=LAYERS, decoder_start_token_id=0)
    return transformers.T5ForConditionalGeneration(config)


def gpt2() -> nn.Module:
    sizes = {"vocab_size": WORDS, "n_embd": WIDTH, "n_head": 4, "n_positions": TOKENS}
    config = transformers.GPT2Config(**sizes, n_layer=LAYERS, bos_token_id=0, eos_token_id=0)
    model = transformers.GPT2LMHeadModel(config)
    assert model.lm_head.weight is model.transformer.wte.weight
    return model


MODELS = {"Llama": llama, "BERT": bert, "ViT": vit, "T5": t5, "GPT-2, tied": gpt2}


def inputs(name: str) -> dict[str, torch.Tensor]:
    """A batch of two, with labels."""
    if name == "ViT":
        return {"pixel_values": torch.randn(2, 3, 16, 16), "labels": torch.tensor([0, 1])}
    ids = torch.randint(0, WORDS, (2, TOKENS))
    return {"input_ids": ids, "labels": ids.clone()}


def step_of(name: str, mode: str, topics: bool) -> Callable[[], torch.Tensor]:
    """A training step: forward, backward and AdamW, as people write it for that mode."""
    torch.manual_seed(0)
    model, data = MODELS[name](), inputs(name)
    if mode == "bf16":
        model = model.bfloat16()
    if mode != "autocast":
        data = {key: value.bfloat16() if value.is_floating_point() else value for key, value in data.items()}
    model = model.to("xla")
    data = {key: value.to("xla") for key, value in data.items()}
    if mode == "FSDP":
        from torch_xla.distributed.fsdp import XlaFullyShardedDataParallel

        # One rank. Its full parameters are in bfloat16, the shards that AdamW sees in float32.
        model = XlaFullyShardedDataParallel(model, compute_dtype=torch.bfloat16, flatten_parameters=True)
    if topics:
        from torch_xla.amp import wide_grads

        wide_grads(model)
    weights = list(model.parameters())
    # A step of 1e-3 of a bfloat16 number rounds to nothing: AdamW has float32 copies of such weights.
    masters = [weight.detach().float().clone() for weight in weights] if mode == "bf16" else weights
    optimizer = torch.optim.AdamW(masters, lr=1e-3)
    torch_xla.sync()

    def step() -> torch.Tensor:
        with torch.autocast("xla", dtype=torch.bfloat16, enabled=mode == "autocast"), native_mul(topics):
            loss = model(**data).loss
        with native_mul(topics):
            loss.backward()
        if mode == "bf16":
            for master, weight in zip(masters, weights, strict=True):
                master.grad = None if weight.grad is None else weight.grad.float()
        optimizer.step()
        if mode == "bf16":
            with torch.no_grad():
                for master, weight in zip(masters, weights, strict=True):
                    weight.copy_(master)
        model.zero_grad()
        return loss

    return step


@contextlib.contextmanager
def native_mul(enable: bool) -> Iterator[None]:
    if not enable:
        yield
        return
    from torch_xla.experimental import native_mul_context

    with native_mul_context():
        yield


def main() -> None:
    topics = "topics" in sys.argv[1:]
    found = {}
    for mode in MODES:
        for name in MODELS:
            report = audit(step_of(name, mode, topics))
            traced = [cast.line is not None and cast.phase != "unknown" for cast in report.casts]
            found[f"{name} | {mode}"] = {**report.totals(), "traced": sum(traced), "conversions": len(traced)}
            torch_xla._XLAC._clear_pending_irs(str(torch_xla.device()))
    print(json.dumps(found))


if __name__ == "__main__":
    main()

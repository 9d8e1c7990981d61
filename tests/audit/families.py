"""Training steps of model families of transformers: what an audit counts in them, and what their HLO has.

    XLA_SAVE_TENSORS_FILE=FILE python families.py [FAMILY…]

Tiny configurations with random weights; nothing is downloaded. A step is run without an audit while torch_xla
writes the HLO of what it runs to FILE.0, in which converts.py counts the converts with regular expressions; then it is
audited. The last line of the output is JSON: by family, both counts, and the casts without a line or a phase.
"""

import gc
import json
import os
import sys
import time
from collections import Counter
from pathlib import Path

os.environ.update(PJRT_DEVICE="CPU", HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", XLA_SAVE_TENSORS_FMT="hlo")
sys.path.append(str(Path(__file__).resolve().parents[2]))

import torch
import torch_xla
import transformers
from converts import converts
from torch import nn

from castoff.audit import audit

WORDS, TOKENS, WIDTH = 32, 8, 16
TEXT = {"vocab_size": WORDS, "hidden_size": WIDTH, "intermediate_size": 32, "num_attention_heads": 2}
DECODER = {**TEXT, "num_hidden_layers": 1, "num_key_value_heads": 1, "head_dim": 8, "pad_token_id": 0}


def made(family, model="ForCausalLM", config=None, **sizes):
    """A model by its name in transformers."""
    return getattr(transformers, family + model)(getattr(transformers, f"{config or family}Config")(**sizes))


class Unet(nn.Module):
    """A diffusion UNet with one step down, timesteps and group norms."""

    def __init__(self):
        super().__init__()
        self.time, self.into = nn.Linear(1, 8), nn.Conv2d(3, 8, 3, padding=1)
        self.norm, self.down = nn.GroupNorm(2, 8), nn.Conv2d(8, 8, 3, stride=2, padding=1)
        self.up, self.out = nn.ConvTranspose2d(8, 8, 2, stride=2), nn.Conv2d(16, 3, 3, padding=1)

    def forward(self, pixel_values):
        time = self.time(pixel_values.new_full((len(pixel_values), 1), 0.5))[:, :, None, None]
        before = nn.functional.silu(self.norm(self.into(pixel_values)) + time)
        after = self.up(nn.functional.silu(self.down(before)))
        return self.out(torch.cat([before, after], 1))


class ConvolutionalNet(nn.Module):
    """Convolutions, batch norms and pooling."""

    def __init__(self):
        super().__init__()
        self.convolutions = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))
        self.out = nn.Linear(8, 4)

    def forward(self, pixel_values):
        return self.out(self.convolutions(pixel_values).mean((2, 3)))


IDS = {"input_ids": (2, TOKENS), "labels": (2, TOKENS)}
PIXELS = {"pixel_values": (2, 3, 8, 8)}
FAMILIES = {
    "Llama": (lambda: made("Llama", **DECODER), IDS),
    "Qwen3": (lambda: made("Qwen3", **DECODER), IDS),
    "Gemma3": (
        lambda: made("Gemma3", config="Gemma3Text", **{**DECODER, "num_hidden_layers": 2}, sliding_window=4),
        IDS,
    ),
    "GPT-2": (lambda: made("GPT2", "LMHeadModel", vocab_size=WORDS, n_embd=WIDTH, n_head=2, n_layer=1), IDS),
    "BERT": (lambda: made("Bert", "ForMaskedLM", **TEXT, num_hidden_layers=1), IDS),
    "T5": (
        lambda: made(
            *("T5", "ForConditionalGeneration"),
            vocab_size=WORDS,
            d_model=WIDTH,
            d_kv=8,
            d_ff=32,
            num_heads=2,
            num_layers=1,
            decoder_start_token_id=0,
        ),
        IDS,
    ),
    "ViT": (
        lambda: made("ViT", "Model", **{**TEXT, "vocab_size": 1}, num_hidden_layers=1, image_size=8, patch_size=4),
        PIXELS,
    ),
    "Whisper": (
        lambda: made(
            *("Whisper", "ForConditionalGeneration"),
            vocab_size=WORDS,
            d_model=WIDTH,
            num_mel_bins=4,
            max_source_positions=4,
            **{f"{side}_layers": 1 for side in ("encoder", "decoder")},
            **{f"{side}_attention_heads": 2 for side in ("encoder", "decoder")},
            **{f"{side}_ffn_dim": 32 for side in ("encoder", "decoder")},
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
            decoder_start_token_id=1,
        ),
        {"input_features": (2, 4, 8), "labels": (2, TOKENS)},
    ),
    "Mixtral": (
        # The default, grouped_mm, makes a histogram of integers, for which torch has no kernel on CPUs;
        # eager reads sizes from the device, in graphs of their own, which an audit does not see.
        lambda: made(
            "Mixtral", **DECODER, num_local_experts=2, num_experts_per_tok=1, experts_implementation="batched_mm"
        ),
        IDS,
    ),
    "Mamba": (
        lambda: made("Mamba", vocab_size=WORDS, hidden_size=WIDTH, num_hidden_layers=1, state_size=4),
        IDS,
    ),
    "UNet": (Unet, PIXELS),
    "convolutional": (ConvolutionalNet, PIXELS),
}


LOGGED = ("UNet", "convolutional")
"""Whose gradients' norm the step reads: these steps have two graphs, and compute things twice."""


def step_of(family):
    """A step under autocast, with gradient clipping and AdamW."""
    torch.manual_seed(0)
    make, shapes = FAMILIES[family]
    model = make().train().to("xla")
    data = {
        name: (torch.randint(0, WORDS, shape) if name in ("input_ids", "labels") else torch.randn(shape)).to("xla")
        for name, shape in shapes.items()
    }
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch_xla.sync()

    def step():
        with torch.autocast("xla", dtype=torch.bfloat16):
            output = model(**data)
        if isinstance(output, torch.Tensor):
            loss = output.float().square().mean()
        else:
            loss = output.loss if "loss" in output else output[0].float().square().mean()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if family in LOGGED:
            float(norm)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


def main():
    saved = Path(os.environ["XLA_SAVE_TENSORS_FILE"] + ".0")
    found = {}
    for family in sys.argv[1:] or FAMILIES:
        start = time.monotonic()
        step = step_of(family)
        for _ in range(2):  # the first makes the optimizer's state
            size = saved.stat().st_size if saved.exists() else 0
            kept = step()
            gc.collect()  # as an audit does, for equal graphs
            torch_xla.sync()
            del kept
        by_hand = converts(saved.read_bytes()[size:].decode())
        report = audit(step)
        found[family] = {
            "by hand": by_hand,
            "audit": Counter(f"{cast.source} {cast.target}" for cast in report.casts),
            "graphs": [graph.reason for graph in report.graphs],
            "unaccounted": [cast.hlo for cast in report.casts if cast.line is None or cast.phase == "unknown"],
            "phases": report.totals()["by_phase"],
            "seconds": round(time.monotonic() - start, 1),
        }
        torch_xla.sync()
        print(family, found[family], file=sys.stderr, flush=True)
    print(json.dumps(found))


if __name__ == "__main__":
    main()

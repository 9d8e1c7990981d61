"""Trains a tiny bfloat16 Llama of transformers for four steps with wide gradients, and prints what was found as JSON.

    python bench/workers/llama_step.py

Run by pins.py with the transformers of each pin's time. The weights are random; nothing is downloaded.
"""

import json
import os

os.environ.update(PJRT_DEVICE="CPU", HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error")

import torch
import torch_xla
import transformers
from torch_xla.amp import MasterWeights, wide_grads

STEPS = 4


def main() -> None:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_attention_heads=4, num_hidden_layers=2
    )
    model = transformers.LlamaForCausalLM(config).bfloat16().to("xla")
    names = wide_grads(model)
    optimizer = MasterWeights(model.parameters(), torch.optim.AdamW, lr=1e-2)
    ids = torch.randint(0, 64, (2, 16)).to("xla")
    losses, dtypes = [], set()
    for _ in range(STEPS):
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        dtypes |= {str(parameter.grad.dtype) for parameter in model.parameters()}
        optimizer.step()
        optimizer.zero_grad()
        torch_xla.sync()
        losses.append(loss.item())
    found = {"transformers": transformers.__version__, "weights": len(names), "gradients": sorted(dtypes)}
    print(json.dumps(found | {"losses": losses}))


if __name__ == "__main__":
    main()

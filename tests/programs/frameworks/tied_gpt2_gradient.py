"""GPT-2 of transformers sent to the device: the gradient of its tied embedding (pytorch/xla#7042)."""

import torch


def program(device):
    import transformers

    config = transformers.GPT2Config(
        vocab_size=32, n_embd=16, n_layer=1, n_head=2, n_positions=16, bos_token_id=0, eos_token_id=0
    )
    model = transformers.GPT2LMHeadModel(config).eval().to(device)
    ids = torch.arange(8)[None].to(device)
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    return loss, model.transformer.wte.weight.grad, sum(p.numel() for p in model.parameters())

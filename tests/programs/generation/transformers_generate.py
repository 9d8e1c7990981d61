"""Greedy generation of transformers with a tiny Llama, with and without its cache."""

import torch


def program(device):
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, bos_token_id=1, eos_token_id=2, pad_token_id=0,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).eval().to(device)
    ids = torch.tensor([[0, 5, 6, 7], [3, 4, 5, 6]]).to(device)
    mask = (ids != 0).long()
    return [
        model.generate(ids, attention_mask=mask, max_new_tokens=4, do_sample=False, use_cache=use_cache)
        for use_cache in (True, False)
    ]

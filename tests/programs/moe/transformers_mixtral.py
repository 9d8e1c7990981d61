"""A tiny Mixtral of transformers, trained for two steps."""

import torch


def program(device):
    import transformers

    config = transformers.MixtralConfig(
        vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, num_local_experts=4, output_router_logits=True, sliding_window=64,
    )  # fmt: skip
    model = transformers.MixtralForCausalLM(config).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ids, losses = torch.randint(0, 32, (2, 9)).to(device), []
    for _ in range(2):
        optimizer.zero_grad()
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        losses.append(loss)
    return losses, list(model.parameters())

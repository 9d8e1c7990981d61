"""Programs: moe."""

import torch
import torch.nn.functional as F
from torch import nn


def balance_loss(device):
    """The auxiliary loss that balances experts, and a bias that is corrected by the sign of an error."""
    logits = torch.randn(10, 4).to(device).requires_grad_()
    p = logits.softmax(-1)
    chosen = p.topk(2).indices
    share = F.one_hot(chosen, 4).float().mean((0, 1))
    loss = 4 * (share * p.mean(0)).sum() + 1e-3 * logits.logsumexp(-1).square().mean()
    loss.backward()
    load = torch.bincount(chosen.flatten(), minlength=4)
    bias = torch.zeros(4, device=device)
    bias += 1e-3 * torch.sign(load.float().mean() - load)
    return loss, logits.grad, load, bias


def capacity_and_dispatch(device):
    """A capacity for each expert: positions by cumsum of one-hots, dispatch and combination by einsum."""
    x = torch.randn(8, 4).to(device)
    logits = torch.randn(8, 3).to(device).requires_grad_()
    gate, expert = logits.softmax(-1).max(-1)
    mask = F.one_hot(expert, 3)
    place = (mask.cumsum(0) - 1) * mask
    kept = (place < 2) & mask.bool()
    slot = F.one_hot((place * mask).sum(1).clamp(max=1), 2)
    combine = gate[:, None, None] * kept[:, :, None] * slot[:, None]
    sent = torch.einsum("tec,td->ecd", combine.bool().float(), x)
    out = torch.einsum("tec,ecd->td", combine, sent)
    out.sum().backward()
    return sent, out, logits.grad


def counts_by_histc(device):
    """The experts' counts by histc of integers, as transformers 5 counts them; on the CPU torch has it for floats."""
    chosen = torch.tensor([[0, 2], [2, 3], [0, 0], [5, 2]]).to(device)
    experts = chosen.int() if device.type != "cpu" else chosen.float()
    counts = torch.histc(experts, bins=6, min=0, max=5).int()
    return counts, counts.cumsum(0, dtype=torch.int32), torch.histc(chosen.float(), bins=6, min=0, max=5)


def grouped_choice(device):
    """DeepSeek's choice: sigmoid scores, the best groups by the sum of their two best, then their best experts."""
    scores = torch.randn(5, 8).to(device).sigmoid()
    biased = scores + torch.randn(8).to(device) * 0.1
    group = biased.view(5, 4, 2).topk(2, dim=-1)[0].sum(-1)
    best = group.topk(2, dim=-1, sorted=False)[1]
    mask = torch.zeros_like(group).scatter_(1, best, 1)
    mask = mask.unsqueeze(-1).expand(5, 4, 2).reshape(5, 8)
    chosen = biased.masked_fill(~mask.bool(), 0.0).topk(3, dim=-1)[1].sort(-1).values
    return chosen, scores.gather(1, chosen)


def sorted_by_expert(device):
    """Tokens sorted by expert, multiplied expert by expert, and put back in their order."""
    x, w = torch.randn(8, 4).to(device).requires_grad_(), torch.randn(3, 4, 4).to(device).requires_grad_()
    expert = torch.tensor([2, 0, 1, 2, 0, 0, 1, 2]).to(device)
    order = torch.argsort(expert, stable=True)
    ordered = torch.bmm(x[order].unsqueeze(1), w[expert[order]]).squeeze(1)
    out = torch.empty_like(ordered)
    out[order] = ordered
    out.square().sum().backward()
    return order, torch.argsort(order), out, x.grad, w.grad


def top_k_routing(device):
    """Routing to the best experts: top-k, softmax over them, a loop over experts with index_add_."""
    tokens = torch.randn(6, 4).to(device).requires_grad_()
    router = torch.randn(4, 3).to(device)
    experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(3)).to(device)
    weights, chosen = (tokens @ router).softmax(-1).topk(2, dim=-1)
    weights = weights / weights.sum(-1, keepdim=True)
    out = torch.zeros_like(tokens)
    one_hot = nn.functional.one_hot(chosen, 3).permute(2, 1, 0)
    for number, expert in enumerate(experts):
        slot, row = torch.where(one_hot[number])
        out.index_add_(0, row, expert(tokens[row]) * weights[row, slot, None])
    out.square().sum().backward()
    return out, chosen, tokens.grad, [p.grad for p in experts.parameters()]


def transformers_mixtral(device):
    """A tiny Mixtral of transformers, trained for two steps."""
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

"""Programs: generation."""

import torch
import torch.nn.functional as F


def beam_search_step(device):
    """A step of beam search: flat top-k over beams and words, and the reordering of a cache."""
    scores = torch.randn(2, 3, 7).to(device).log_softmax(-1) + torch.randn(2, 3, 1).to(device)
    best, index = scores.view(2, -1).topk(6, dim=1, largest=True, sorted=True)
    beam, word = torch.div(index, 7, rounding_mode="floor"), index % 7
    cache = torch.randn(6, 4).to(device)
    reordered = cache.index_select(0, (beam[:, :3] + torch.arange(2, device=device)[:, None] * 3).view(-1))
    return best, beam, word, reordered


def cache_by_slice_assignment(device):
    """A cache that is written by slices of a buffer, a prompt first and then token by token."""
    cache = torch.zeros(2, 8, 3, device=device)
    prompt = torch.randn(2, 4, 3).to(device)
    cache[:, :4] = prompt
    for step in range(4, 7):
        cache[:, step] = cache[:, :step].mean(1)
        cache[:, step : step + 1].mul_(2.0)
    return cache


def greedy_with_static_cache(device):
    """Greedy generation with a cache that is written by index_copy_ (huggingface/transformers#31857)."""
    table = torch.randn(16, 8).to(device)
    keys, values = torch.zeros(1, 10, 8, device=device), torch.zeros(1, 10, 8, device=device)
    token, tokens = torch.tensor([3], device=device), []
    for step in range(5):
        x = table[token][:, None]
        where = torch.tensor([step], device=device)
        keys.index_copy_(1, where, x)
        values.index_copy_(1, where, x * 0.5)
        mask = torch.arange(10, device=device)[None, None] <= step
        out = F.scaled_dot_product_attention(x, keys, values, attn_mask=mask)
        token = (out[:, 0] @ table.t()).argmax(-1)
        tokens.append(token)
    return torch.cat(tokens), keys


def gumbel_argmax(device):
    """Sampling by argmax of probabilities over exponential noise, with noise that is given."""
    p = torch.tensor([[0.1, 0.2, 0.7], [0.5, 0.5, 0.0]]).to(device)
    noise = torch.tensor([[1.0, 0.1, 5.0], [2.0, 1.0, 1e-6]]).to(device)
    drawn = p.div_(noise).argmax(dim=-1).to(torch.int32)
    return drawn, p


def left_padding_positions(device):
    """Positions of left-padded prompts, from the mask's cumsum."""
    mask = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]]).to(device)
    position = mask.long().cumsum(-1) - 1
    position.masked_fill_(mask == 0, 1)
    by_bool = mask.bool().cumsum(-1)
    return position, by_bool, position[:, -1:] + 1


def min_p_and_temperature(device):
    """min-p filtering, a temperature for each row and a repetition penalty."""
    logits, seen = torch.randn(3, 10).to(device), torch.tensor([[1, 2], [3, 3], [0, 9]], device=device)
    score = logits.gather(1, seen)
    logits = logits.scatter(1, seen, torch.where(score < 0, score * 1.2, score / 1.2))
    temperature = torch.tensor([0.5, 1.0, 0.0], device=device)
    greedy = temperature == 0
    p = (logits / torch.where(greedy, 1.0, temperature)[:, None]).softmax(-1)
    keep = p >= 0.1 * p.max(-1, keepdim=True).values
    return torch.where(keep, p, 0.0), torch.where(greedy, logits.argmax(-1), -1)


def paged_cache(device):
    """A paged cache: slots of a flat cache are written and read by a table of blocks, with padding slots of -1."""
    cache = torch.zeros(3, 4, 2, device=device)
    keys = torch.randn(5, 2).to(device)
    slots = torch.tensor([4, 5, 6, 0, -1], device=device)
    keep = slots >= 0
    cache.view(12, 2).index_copy_(0, slots[keep], keys[keep])
    blocks = torch.tensor([[1, 0], [2, 2]], device=device)
    return cache, cache[blocks].flatten(1, 2)


def ring_cache(device):
    """A ring of positions, written by index_put with the remainder of a position."""
    cache = torch.zeros(4, 3, device=device)
    for step in range(9):
        position = torch.tensor([step], device=device) % 4
        cache[position] = torch.full((1, 3), float(step), device=device)
    return torch.roll(cache, -(9 % 4), 0)


def sliding_cache(device):
    """A cache of the last positions, which is cut by a negative start that may be longer than what there is."""
    cache, seen = torch.zeros(1, 2, 0, 4, device=device), []
    for step in range(6):
        new = torch.full((1, 2, 2, 4), float(step), device=device)
        cache = torch.cat([cache, new], dim=2)[:, :, -5:]
        seen.append(cache.sum((0, 1, 3)))
    return seen


def speculative_acceptance(device):
    """How many tokens of a draft are accepted: cumprod of a comparison."""
    draft = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]]).to(device)
    target = torch.tensor([[1, 2, 0, 4, 9], [5, 6, 7, 8, 3]]).to(device)
    same = (draft == target[:, :-1]).to(torch.int32)
    accepted = same.cumprod(1).sum(1)
    return accepted, target.gather(1, accepted[:, None].long()), accepted.dtype


def stop_condition(device):
    """A loop that ends when every row has its end token."""
    finished = torch.zeros(3, dtype=torch.bool, device=device)
    steps = 0
    stream = torch.tensor([[1, 2, 3], [9, 4, 5], [6, 9, 7], [8, 8, 9], [1, 1, 1]]).to(device)
    out = []
    for row in stream:
        token = torch.where(finished, 0, row)
        finished |= token.eq(9)
        out.append(token)
        steps += 1
        if finished.all():
            break
    return steps, torch.stack(out)


def top_k_and_top_p(device):
    """Logits filtered by top-k and by top-p, as a sampler does it; the draw has one choice left."""
    logits = torch.randn(2, 12).to(device)
    kth = torch.topk(logits, 5).values[..., -1, None]
    filtered = logits.masked_fill(logits < kth, -float("inf"))
    ordered, order = torch.sort(filtered, descending=True)
    remove = ordered.softmax(-1).cumsum(-1) > 0.7
    remove[..., 1:] = remove[..., :-1].clone()
    remove[..., 0] = False
    filtered = filtered.masked_fill(remove.scatter(1, order, remove), -float("inf"))
    best = torch.full_like(filtered, 0.0).scatter_(1, filtered.argmax(-1, keepdim=True), 1.0)
    return filtered, torch.multinomial(best, 1)


def transformers_generate(device):
    """Greedy generation of transformers with a tiny Llama, with and without its cache."""
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

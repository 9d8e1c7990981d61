"""Programs: frameworks."""

import torch
import torch.nn.functional as F
from options import options
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, TensorDataset


def accelerate_save_state(device):
    """accelerate saves and loads its state: model, optimizer, random numbers and loader."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)  # it is the process's, and that of one device

    accelerator = Accelerator(cpu=device.type == "cpu")
    model = nn.Linear(3, 1).to(accelerator.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(torch.randn(4, 3), batch_size=2))
    for x in loader:
        accelerator.backward(model(x).sum())
        optimizer.step()
    saved = model.weight.detach().clone()
    accelerator.save_state("state")
    with torch.no_grad():
        model.weight.zero_()
    accelerator.load_state("state")
    return model.weight - saved, saved


def accelerate_training(device):
    """A loop with accelerate's Accelerator: prepare, accumulate, clip and gather."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)  # it is the process's, and that of one device

    model, data = nn.Linear(3, 1), TensorDataset(torch.randn(8, 3), torch.randn(8, 1))
    accelerator = Accelerator(cpu=device.type == "cpu", gradient_accumulation_steps=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if device.type == "xla":
        model.to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data, batch_size=2))
    for x, y in loader:
        with accelerator.accumulate(model):
            loss = nn.functional.mse_loss(model(x), y)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    return accelerator.gather(loss.detach()).reshape(()), accelerator.unwrap_model(model).weight


class _Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.conv, self.time = nn.GroupNorm(2, 8), nn.Conv2d(8, 8, 3, padding=1), nn.Linear(4, 16)
        self.qkv, self.out = nn.Conv1d(8, 24, 1), nn.Conv1d(8, 8, 1)

    def forward(self, x, t):
        scale, shift = self.time(F.silu(t))[:, :, None, None].chunk(2, 1)
        h = self.conv(F.silu(self.norm(x) * (1 + scale) + shift))
        q, k, v = self.qkv(h.flatten(2)).view(-1, 3, 2, 4, 16).transpose(-1, -2).unbind(1)
        a = F.scaled_dot_product_attention(q, k, v).transpose(-1, -2).reshape(h.shape)
        return x + self.out(a.flatten(2)).view_as(x)


def diffusion_unet_block(device):
    """A block of a diffusion model: group norm, time embedding, attention over pixels, skip, and v-prediction loss."""
    model = _Block().to(device)
    x, t = torch.randn(2, 8, 4, 4).to(device).requires_grad_(), torch.randn(2, 4).to(device)
    y = model(x, t)
    F.mse_loss(y, torch.ones_like(y)).backward()
    return y, x.grad, [p.grad for p in model.parameters()]


def embedding_bag(device):
    """Recommendation: EmbeddingBag with offsets, of sums, means and maxima, with padding and weights."""
    ids, offsets = torch.tensor([1, 2, 4, 5, 0, 3]).to(device), torch.tensor([0, 3, 3]).to(device)
    results = []
    for mode in ("sum", "mean", "max"):
        bag = nn.EmbeddingBag(6, 3, mode=mode, padding_idx=0).to(device)
        out = bag(ids, offsets)
        out.square().sum().backward()
        results += [out, bag.weight.grad]
    return results


def embedding_options(device):
    """Embedding with padding, a maximal norm and gradients scaled by frequency."""
    ids = torch.tensor([[0, 1, 1], [2, 0, 1]]).to(device)
    results = []
    for keywords in ({"padding_idx": 0}, {"scale_grad_by_freq": True}, {"max_norm": 0.5}):
        embed = nn.Embedding(4, 3, **keywords).to(device)
        out = embed(ids)
        out.square().sum().backward()
        results += [out, embed.weight.grad]
    return results


def gan_step(device):
    """A GAN's alternating steps, with detach and frozen parameters."""
    g, d = nn.Linear(2, 4).to(device), nn.Sequential(nn.Linear(4, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1)).to(device)
    go, do = torch.optim.Adam(g.parameters(), 1e-2, (0.5, 0.9)), torch.optim.Adam(d.parameters(), 1e-2, (0.5, 0.9))
    real, losses = torch.randn(5, 4).to(device), []
    for _ in range(2):
        fake = g(torch.ones(5, 2).to(device))
        do.zero_grad()
        d_loss = F.softplus(-d(real)).mean() + F.softplus(d(fake.detach())).mean()
        d_loss.backward()
        do.step()
        d.requires_grad_(False)
        go.zero_grad()
        g_loss = F.softplus(-d(fake)).mean()
        g_loss.backward()
        go.step()
        d.requires_grad_(True)
        losses += [d_loss, g_loss]
    return losses, list(g.parameters()), list(d.parameters())


def graph_convolution(device):
    """A graph network: messages by index_select, sums by index_add, softmax over neighbours by scatter."""
    x = torch.randn(4, 3).to(device).requires_grad_()
    source, target = torch.tensor([0, 1, 2, 3, 0]).to(device), torch.tensor([1, 2, 2, 0, 3]).to(device)
    score = (x[source] * x[target]).sum(-1)
    top = torch.full((4,), float("-inf"), device=device).scatter_reduce(0, target, score.detach(), "amax")
    e = (score - top[target]).exp()
    total = torch.zeros(4, device=device).index_add(0, target, e)
    message = x.index_select(0, source) * (e / total[target])[:, None]
    out = torch.zeros(4, 3, device=device).index_add(0, target, message)
    degree = torch.zeros(4, device=device).scatter_add_(0, target, torch.ones(5, device=device))
    out.square().sum().backward()
    return out, degree, x.grad


@options(late=True)
def lightning_fit(device):
    """Lightning fits a module on one XLA device (Lightning-AI/pytorch-lightning#2705)."""
    import pytorch_lightning as pl

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.embed, self.head = nn.Embedding(6, 4), nn.Linear(4, 6, bias=False)
            self.head.weight = self.embed.weight

        def training_step(self, batch, _):
            return self.head(self.embed(batch)).logsumexp(-1).sum()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    torch.manual_seed(0)
    module = Module()
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    accelerator = "cpu" if device.type == "cpu" else "tpu"
    if accelerator == "tpu":
        # Lightning looks for a TPU; the loop itself is any device's.
        module.to(device)
        optimizer = module.configure_optimizers()
        for batch in DataLoader(torch.tensor([1, 2, 3, 1]), batch_size=2):
            optimizer.zero_grad()
            module.training_step(batch.to(device), 0).backward()
            optimizer.step()
    else:
        trainer = pl.Trainer(accelerator=accelerator, max_epochs=1, **quiet)
        trainer.fit(module, DataLoader(torch.tensor([1, 2, 3, 1]), batch_size=2))
    return module.embed.weight.detach().cpu(), module.head.weight is module.embed.weight


def lora_adapter(device):
    """LoRA: frozen weights, two small matrices, a merge and its undoing."""
    base = nn.Linear(6, 4).to(device).requires_grad_(False)
    a, b = nn.Parameter(torch.randn(2, 6).to(device)), nn.Parameter(torch.zeros(4, 2).to(device))
    optimizer = torch.optim.AdamW([p for p in (a, b, *base.parameters()) if p.requires_grad], lr=1e-2)
    x = torch.randn(3, 6).to(device)
    for _ in range(3):
        optimizer.zero_grad()
        (base(x) + x @ a.t() @ b.t() * 2).square().mean().backward()
        optimizer.step()
    before = base.weight.clone()
    with torch.no_grad():
        base.weight += 2 * (b @ a)
        merged = base(x)
        base.weight -= 2 * (b @ a)
    return a, b, merged, (base.weight - before).abs().max() < 1e-5, base.weight.grad is None


def metrics(device):
    """Metrics of a validation: accuracy at k, confusion matrix, perplexity, running sums over batches."""
    logits, labels = torch.randn(10, 5).to(device), torch.randint(0, 5, (10,)).to(device)
    correct = logits.topk(3, 1).indices.t().eq(labels[None])
    at = [correct[:k].reshape(-1).float().sum(0) * (100.0 / 10) for k in (1, 3)]
    predicted = logits.argmax(1)
    confusion = torch.bincount(labels * 5 + predicted, minlength=25).view(5, 5)
    total, count = torch.zeros(1, device=device), 0
    for a, b in zip(logits.chunk(3), labels.chunk(3), strict=True):
        total += torch.nn.functional.cross_entropy(a, b, reduction="sum")
        count += b.numel()
    f1 = 2 * confusion.diag() / (confusion.sum(0) + confusion.sum(1)).clamp(min=1)
    return at, confusion, (total / count).exp(), f1, (predicted == labels).float().mean()


def mixed_resolution_batch(device):
    """Lists of tensors: cat, stack, split by sizes, chunk, pad_sequence, block_diag and repeat_interleave by counts."""
    rows = [torch.randn(n, 2).to(device) for n in (2, 3, 1)]
    whole = torch.cat(rows)
    counts = torch.tensor([2, 3, 1]).to(device)
    return (
        whole,
        pad_sequence(rows, batch_first=True),
        whole.split([2, 3, 1])[1],
        whole.chunk(4),
        whole.tensor_split(4),
        torch.repeat_interleave(torch.arange(3, device=device), counts),
        torch.block_diag(*rows),
        torch.stack([whole, whole], -1),
        whole.repeat(2, 1),
        whole.tile(2),
        torch.hstack([whole, whole]),
        torch.meshgrid(counts, counts, indexing="ij"),
    )


def tied_gpt2_gradient(device):
    """GPT-2 of transformers sent to the device: the gradient of its tied embedding (pytorch/xla#7042)."""
    import transformers

    config = transformers.GPT2Config(
        vocab_size=32, n_embd=16, n_layer=1, n_head=2, n_positions=16, bos_token_id=0, eos_token_id=0
    )
    model = transformers.GPT2LMHeadModel(config).eval().to(device)
    ids = torch.arange(8)[None].to(device)
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    return loss, model.transformer.wte.weight.grad, sum(p.numel() for p in model.parameters())


def transformers_trainer(device):
    """Some steps of transformers' Trainer with a tiny GPT-2."""
    import transformers

    config = transformers.GPT2Config(
        vocab_size=32, n_embd=16, n_layer=1, n_head=2, n_positions=16, bos_token_id=0, eos_token_id=0,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    model = transformers.GPT2LMHeadModel(config)
    rows = [{"input_ids": torch.arange(8) + i, "labels": torch.arange(8) + i} for i in range(8)]
    arguments = transformers.TrainingArguments(
        "out", max_steps=3, per_device_train_batch_size=2, report_to=[], use_cpu=device.type == "cpu", save_steps=2,
        logging_steps=1, learning_rate=1e-2, dataloader_pin_memory=False, disable_tqdm=True, seed=0, data_seed=0,
    )  # fmt: skip
    trainer = transformers.Trainer(model, arguments, train_dataset=rows)
    trainer.train()
    losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    return losses, trainer.model.transformer.wte.weight.detach().cpu()


def vae_reparameterization(device):
    """A variational auto-encoder with noise that is given: both terms of its loss."""
    encode, decode = nn.Linear(6, 4).to(device), nn.Linear(2, 6).to(device)
    x, noise = torch.rand(3, 6).to(device), torch.randn(3, 2).to(device)
    mu, log_var = encode(x).chunk(2, -1)
    z = mu + noise * (0.5 * log_var).exp()
    rebuilt = decode(z).sigmoid()
    kl = -0.5 * (1 + log_var - mu.square() - log_var.exp()).sum(-1).mean()
    loss = F.binary_cross_entropy(rebuilt, x, reduction="sum") / 3 + kl
    loss.backward()
    return loss, kl, [p.grad for m in (encode, decode) for p in m.parameters()]


def vector_quantization(device):
    """VQ-VAE: nearest codes, the straight-through gradient and moving averages of codes."""
    codes, x = torch.randn(5, 3).to(device), torch.randn(8, 3).to(device).requires_grad_()
    distance = x.square().sum(1, keepdim=True) - 2 * x @ codes.t() + codes.square().sum(1)
    nearest = distance.argmin(1)
    quantized = F.embedding(nearest, codes)
    out = x + (quantized - x).detach()
    (out.square().sum() + 0.25 * F.mse_loss(x, quantized.detach())).backward()
    hot = F.one_hot(nearest, 5).float()
    size = torch.ones(5).to(device).mul_(0.9).add_(hot.sum(0), alpha=0.1)
    average = codes.clone().mul_(0.9).add_(hot.t() @ x.detach(), alpha=0.1) / size[:, None]
    perplexity = torch.exp(-(hot.mean(0) * (hot.mean(0) + 1e-10).log()).sum())
    return nearest, out, x.grad, average, perplexity, torch.cdist(x.detach(), codes)

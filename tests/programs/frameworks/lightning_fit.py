"""Lightning fits a module on one XLA device (Lightning-AI/pytorch-lightning#2705)."""

import torch
from torch import nn
from torch.utils.data import DataLoader

LATE = True


def program(device):
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

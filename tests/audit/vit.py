"""A vision transformer, ViT-B/16, with a batch that no machine holds; and smaller models that one does."""

import torch
from torch import nn
from torch.nn import functional

BATCH = 10**10


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, tokens, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attention = (q @ k.transpose(-1, -2) * (width // self.heads) ** -0.5).softmax(-1)
        x = x + self.out((attention @ v).transpose(1, 2).reshape(batch, tokens, width))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class Vit(nn.Module):
    def __init__(self, width=768, layers=12, heads=12, image=224, patch=16, classes=1000):
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, stride=patch)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.zeros(1, (image // patch) ** 2 + 1, width))
        self.layers = nn.Sequential(*(Layer(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, images):
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.positions
        return self.head(self.norm(self.layers(x))[:, 0])


def step():
    loss_of(Vit(), torch.empty(BATCH, 3, 224, 224)).backward()


def mixed():
    """The same in bfloat16, with a float32 head."""
    model = Vit().bfloat16()
    model.head.float()
    model.norm.register_forward_hook(lambda module, args, output: output.float())
    loss_of(model, torch.empty(BATCH, 3, 224, 224, dtype=torch.bfloat16)).backward()


def loss_of(model, images):
    return functional.cross_entropy(model(images), torch.zeros(len(images), dtype=torch.int64))

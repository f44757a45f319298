"""A task small enough to train in a test: a residual network with norms that fits a smooth function."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

SIZE = 6


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.branch = nn.LayerNorm(SIZE), nn.Sequential(nn.Linear(SIZE, SIZE), nn.Tanh())

    def forward(self, x):
        return x + self.branch(self.norm(x))


class TinyNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Linear(2, SIZE), nn.Linear(SIZE, 1)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.final = nn.LayerNorm(SIZE)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x):
        x = self.embed(x)
        for block in self.blocks:
            x = self.dropout(block(x))
        return self.head(self.final(x)).squeeze(-1)


def data(rows=64):
    x = torch.linspace(-2, 2, 2 * rows).reshape(2, rows).T
    return x, torch.sin(3 * x[:, 0]) * x[:, 1]


def loss(model, batch):
    x, y = batch
    return F.mse_loss(model(x), y)


def make(seed):
    """The task of most tests."""
    x, y = data()
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    train, held = order[:48], torch.arange(0, 64, 4)
    splits = {"choose": held[0::2], "report": held[1::2]}

    def validate(model, split):
        return F.mse_loss(model(x[splits[split]]), y[splits[split]])

    return TinyNet(), [(x[rows], y[rows]) for rows in train.split(16)], loss, validate


def halve(model):
    """An edit of the user's own: halves the head."""
    with torch.no_grad():
        model.head.weight.div_(2)
    return model


def draw(model):
    """An edit that changes nothing but draws random numbers."""
    torch.rand(7)
    return model

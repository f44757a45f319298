"""Blocks whose backward pass is written by hand are marked, so that edits can refuse them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import normplace as npl


class Reversible(torch.autograd.Function):
    """Two streams that are computed back from their sums in the backward pass."""

    @staticmethod
    def forward(ctx, both, first, second):
        left, right = both.chunk(2, -1)
        left = left + first(right)
        right = right + second(left)
        return torch.cat([left, right], -1)


class Rescaled(torch.autograd.Function):
    """An operator that calls no module: nothing inside it can be edited, and nothing outside it is affected."""

    @staticmethod
    def forward(ctx, x):
        return x * 2


reversible, rescaled = Reversible.apply, Rescaled.apply  # the usual idiom: bound once, at import


def branch(dim: int) -> nn.Sequential:
    return nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, dim))


class ReversibleBlock(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.first, self.second = branch(dim), branch(dim)

    def forward(self, both):
        return reversible(both, self.first, self.second)


class Rescales(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.branch = branch(dim)

    def forward(self, x):
        return x + rescaled(self.branch(x))


def test_an_add_inside_a_user_defined_function_is_marked():
    blocks = npl.audit(nn.Sequential(nn.Linear(5, 8), ReversibleBlock(4), ReversibleBlock(4)), torch.randn(3, 5)).blocks
    assert blocks
    assert {block.custom_backward for block in blocks} == {"Reversible"}


def test_a_function_that_calls_no_module_is_not_marked():
    (block,) = npl.audit(nn.Sequential(nn.Linear(5, 4), Rescales(4)), torch.randn(3, 5)).blocks
    assert block.custom_backward is None


@pytest.mark.filterwarnings("ignore:None of the inputs")  # the audit runs without gradients
def test_gradient_checkpointing_is_not_marked():
    class Checkpointed(Rescales):
        def forward(self, x):
            return torch.utils.checkpoint.checkpoint(super().forward, x, use_reentrant=True)

    (block,) = npl.audit(nn.Sequential(nn.Linear(5, 4), Checkpointed(4)), torch.randn(3, 5)).blocks
    assert block.custom_backward is None

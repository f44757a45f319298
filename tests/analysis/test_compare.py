"""Signals of two models on one batch: equal to what hooks and autograd say of them."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

import normplace as npl
from normplace import UsageError
from normplace.edit import compare


class Block(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm, self.mix = nn.LayerNorm(dim), nn.Sequential(nn.Linear(dim, dim), nn.GELU(), nn.Linear(dim, dim))

    def forward(self, x):
        return x + self.mix(self.norm(x))


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(Block(8), Block(8)).double()


def square(y):
    return y.square().mean()


def test_peaks_gradients_and_survival_are_the_models_own(model):
    x = torch.randn(5, 8, dtype=torch.float64)
    sums = []
    handles = [block.register_forward_hook(lambda *call: sums.append(call[2].abs().max().item())) for block in model]
    square(model(x)).backward()
    gradients = [
        torch.cat([parameter.grad.flatten() for parameter in block.mix.parameters()]).norm().item() for block in model
    ]
    for handle in handles:
        handle.remove()
    model.zero_grad()

    moved = npl.move(model, x, to="peri")
    found = compare(model, moved, x, loss=square)
    assert [block.peak for block in found.before.blocks] == pytest.approx(sums)
    assert [block.gradient for block in found.before.blocks] == pytest.approx(gradients)
    assert [block.module for block in found.before.blocks] == ["0.mix", "1.mix"]
    assert (found.before.placement, found.after.placement) == ("pre", "peri")
    assert found.before.survival == npl.survival(model, x)
    assert len(found.after.survival.sites) == 2 * len(found.before.survival.sites)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert json.loads(json.dumps(found.to_dict()))["after"]["placement"] == "peri"
    assert "x + N(F(N(x)))" in str(found)


def test_without_a_loss_there_are_no_gradients(model):
    found = compare(model, model, torch.randn(5, 8, dtype=torch.float64))
    assert found.before == found.after
    assert {block.gradient for block in found.before.blocks} == {None}


def test_what_cannot_be_compared_has_a_sentence(model):
    x = torch.randn(5, 8, dtype=torch.float64)
    with pytest.raises(UsageError, match="Linear has no residual block to compare"):
        compare(model, nn.Linear(8, 8).double(), x)
    with pytest.raises(UsageError, match="loss must be a tensor of one number"):
        compare(model, model, x, loss=lambda y: y)

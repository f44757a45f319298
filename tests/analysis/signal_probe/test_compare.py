"""Signals of two models on one batch equal the numbers from hooks and autograd."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

import normplace as npl
from normplace import UsageError
from normplace.analysis import compare, survival


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


def test_peaks_gradients_and_survival_match_hooks_and_autograd(model):
    x = torch.randn(5, 8, dtype=torch.float64)
    sums = []
    handles = [block.register_forward_hook(lambda *call: sums.append(call[2].abs().max().item())) for block in model]
    square(model(x)).backward()
    gradients = [
        torch.cat([parameter.grad.flatten() for parameter in block.parameters()]).norm().item() for block in model
    ]
    for handle in handles:
        handle.remove()
    model.zero_grad()

    moved = npl.move(model, x, to="peri")
    comparison = compare(model, moved, x, loss=square)
    before, after = comparison.before, comparison.after
    assert [depth.peak for depth in before.depths[1:]] == pytest.approx(sums)
    assert [depth.gradient for depth in before.depths[1:]] == pytest.approx(gradients)
    assert [depth.name for depth in before.depths[1:]] == ["0.mix", "1.mix"]
    assert [depth.equation for depth in after.depths] == ["", "x + N(F(N(x)))", "x + N(F(N(x)))"]
    assert (before.placement, after.placement) == ("pre", "peri")
    assert before.survival == survival(model, x, exact=False)
    assert len(after.survival.sites) == 2 * len(before.survival.sites)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert json.loads(json.dumps(comparison.to_dict()))["after"]["placement"] == "peri"
    assert "x + N(F(N(x)))" in str(comparison)


def test_a_comparison_runs_each_model_five_times(model):
    class Counted(nn.Sequential):
        passes = 0

        def forward(self, x):
            Counted.passes += 1
            return super().forward(x)

    compare(Counted(*model), model, torch.randn(5, 8, dtype=torch.float64), loss=square)
    assert Counted.passes == 5


def test_signals_of_two_models_are_compared(model):
    x = torch.randn(5, 8, dtype=torch.float64)
    comparison = npl.signals(model, x).compare(npl.signals(model, 2 * x))
    assert comparison.after.depths[0].peak == 2 * comparison.before.depths[0].peak


def test_without_a_loss_there_are_no_gradients(model):
    comparison = compare(model, model, torch.randn(5, 8, dtype=torch.float64))
    assert comparison.before == comparison.after
    assert {depth.gradient for depth in comparison.before.depths} == {None}


def test_models_that_cannot_be_compared_raise(model):
    x = torch.randn(5, 8, dtype=torch.float64)
    with pytest.raises(UsageError, match="Linear has no residual add"):
        compare(model, nn.Linear(8, 8).double(), x)
    with pytest.raises(UsageError, match="loss must be a tensor of one number"):
        compare(model, model, x, loss=lambda y: y)

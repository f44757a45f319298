"""Folds are undone one by one, and only where the function stays the same."""

from __future__ import annotations

import pytest
import torch
from tests.edit.small_models import Block, Stack, features
from torch import nn

import normplace as npl

NORMS = ("layers.0.norm", "layers.1.norm", "norm")


@torch.no_grad()
def with_random_norms(model: nn.Module) -> nn.Module:
    for name in NORMS:
        for parameter in model.get_submodule(name).parameters():
            parameter.add_(torch.rand(parameter.shape) - 0.3)
    return model.eval()


def network() -> nn.Module:
    """A fold adds biases to its linear maps."""
    model = Stack(Block(), Block())
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.bias = None
    return with_random_norms(model)


@torch.no_grad()
def test_the_last_of_two_folds_is_undone_first(tmp_path):
    model, x = network(), features(4)
    once = with_random_norms(npl.fold(model, x))
    twice = npl.fold(once, x)
    first = npl.edit.unfold(twice)
    both = npl.edit.unfold(first)
    for name in NORMS:
        torch.testing.assert_close(first.get_submodule(name).weight, once.get_submodule(name).weight)
    for number, edited in enumerate((twice, first, both)):
        torch.testing.assert_close(edited(x), once(x), rtol=1e-5, atol=1e-5)
        npl.edit.save(edited, tmp_path / str(number))
        assert torch.equal(npl.edit.load(tmp_path / str(number), network(), x).eval()(x), edited(x))
    with pytest.raises(npl.UsageError, match="there is no fold to undo"):
        npl.edit.unfold(both)


@torch.no_grad()
def test_a_fold_before_a_move_is_not_undone_with_a_later_one():
    model, x = network(), features(4)
    moved = npl.move(with_random_norms(npl.fold(model, x)), x, to="post", norm="rms")
    again = npl.move(moved, x, to="pre")
    folded = npl.fold(again, x)
    undone = npl.edit.unfold(folded)
    torch.testing.assert_close(undone(x), again(x), rtol=1e-5, atol=1e-5)
    with pytest.raises(npl.UsageError, match="edited after the fold"):
        npl.edit.unfold(undone)


@torch.no_grad()
def test_folding_under_autocast_uses_the_folded_weights():
    model, x = with_random_norms(Stack(Block(), Block())), features(64)
    with torch.autocast("cpu", torch.bfloat16):
        expected = model(x)
        folded = npl.fold(model, x)
        assert float((folded(x) - expected).abs().max() / expected.abs().max()) < 0.02  # a few roundings to bfloat16

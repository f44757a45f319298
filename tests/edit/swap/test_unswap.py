"""A swap is undone between other edits, or the reason is given why not."""

from __future__ import annotations

import pytest
import torch
from tests.edit.small_models import Block, Stack, features
from torch import nn

import normplace as npl


def network() -> nn.Module:
    """Norms without a shift, so that an RMSNorm has the same parameters."""
    model = Stack(Block(), Block())
    for norm in (*(block.norm for block in model.layers), model.norm):
        norm.bias = None
        nn.init.uniform_(norm.weight, 0.5, 1.5)
    return model.eval()


@torch.no_grad()
def test_norms_that_a_move_copied_from_a_swap_are_kept_and_saved(tmp_path):
    model, x = network(), features(4)
    moved = npl.move(npl.swap(model, x, norm="rms"), x, to="peri")
    undone = npl.edit.unswap(moved)
    kinds = {site.slot: site.kind for site in npl.audit(undone, x).sites}
    assert kinds == {"input": "layer", "output": "rms", "final": "layer"}
    for number, saved in enumerate((undone, npl.swap(undone, x, norm="dyt"))):
        npl.edit.save(saved, tmp_path / str(number))
        loaded = npl.edit.load(tmp_path / str(number), network(), x).eval()
        assert torch.equal(loaded(x), saved(x))
        with pytest.raises(npl.UsageError, match="loaded from a file"):
            npl.edit.unswap(loaded)


@torch.no_grad()
def test_a_folded_swap_is_undone_after_the_fold():
    model, x = network(), features(4)
    swapped = npl.swap(model, x, norm="rms")
    folded = npl.fold(swapped, x)
    with pytest.raises(npl.UsageError, match="would apply their gains a second time"):
        npl.edit.unswap(folded)
    undone = npl.edit.unswap(npl.edit.unfold(folded))
    torch.testing.assert_close(undone(x), model(x), rtol=1e-5, atol=1e-5)
    assert [site.note for site in npl.changes(undone).sites] == ["restored"] * 3
    assert npl.changes(undone).moves == ()


@pytest.mark.parametrize("norm", ["rms", "group", "dyt", "identity"])
def test_the_replacement_of_a_frozen_norm_is_frozen(norm):
    model, x = Stack(Block()), features(4)
    model.norm.requires_grad_(False)
    for strength in (None, 0.5):
        swapped = npl.swap(model, x, norm=norm, strength=strength)
        assert not any(parameter.requires_grad for parameter in swapped.norm.parameters())
        assert all(parameter.requires_grad for parameter in swapped.layers.parameters())
        assert swapped.norm.training is model.norm.training

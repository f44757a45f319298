"""Adapters of PEFT before and after edits."""

from __future__ import annotations

import copy

import pytest
import torch
from tests.edit.small_models import WIDTH, Stack, features
from torch import nn

import normplace as npl

peft = pytest.importorskip("peft")


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 16), nn.Linear(16, WIDTH)

    def forward(self, x):
        return self.down(self.up(x).relu())


class Branches(nn.Module):
    """One branch that is a module, and one whose layers the block calls."""

    def __init__(self):
        super().__init__()
        self.norm1, self.norm2, self.mlp = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH), Mlp()
        self.inner, self.outer = nn.Linear(WIDTH, 16), nn.Linear(16, WIDTH)

    def forward(self, x):
        x = x + self.mlp(self.norm1(x))
        return x + self.outer(self.inner(self.norm2(x)).relu())


def network() -> nn.Module:
    torch.manual_seed(0)
    model = Stack(Branches(), Branches()).eval()
    for block in model.layers:
        nn.init.uniform_(block.norm1.weight, 0.5, 1.5)
        nn.init.uniform_(block.norm2.weight, 0.5, 1.5)
    return model


def adapted(model: nn.Module, *layers: str) -> nn.Module:
    """A model with low-rank adapters whose output is not zero."""
    config = peft.LoraConfig(r=2, target_modules=list(layers), init_lora_weights=False, lora_dropout=0.0)
    return peft.get_peft_model(model, config).eval()


def assert_merged_equal(model: nn.Module, x: torch.Tensor) -> None:
    torch.testing.assert_close(copy.deepcopy(model).merge_and_unload()(x), model(x), rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_adapters_around_a_layer_that_a_norm_is_attached_to_are_an_error():
    model, x = network(), features(4)
    moved = npl.move(model, x, to="peri")
    assert_merged_equal(adapted(copy.deepcopy(moved), "up", "down", "inner"), x)
    with pytest.raises(npl.UsageError, match="an adapter was added to 'outer' of Branches"):
        adapted(moved, "outer")(x)


@torch.no_grad()
def test_adapters_that_would_drop_a_norm_when_they_are_merged_are_refused():
    x = features(4)
    assert_merged_equal(npl.move(adapted(network(), "up", "down", "inner"), x, to="peri"), x)
    with pytest.raises(npl.UsageError, match=r"'base_model.model.layers.0.outer' has an adapter, and merging it"):
        npl.move(adapted(network(), "outer"), x, to="peri")


@torch.no_grad()
def test_a_shift_is_not_folded_into_an_adapter(tmp_path):
    model, x = network(), features(4)
    folded = npl.fold(adapted(model, "up", "inner"), x)
    assert len(npl.changes(folded).where("folded")) == 5  # the shifts are zero
    assert_merged_equal(folded, x)
    with pytest.raises(npl.UsageError, match="PeftModel is not a class of transformers"):
        folded.save_pretrained(tmp_path)  # of the adapters alone
    model = network()
    for block in model.layers:
        nn.init.normal_(block.norm1.bias)
    folded = npl.fold(adapted(model, "up"), x)
    assert_merged_equal(folded, x)
    assert "lora_A.default.weight' has no bias that could hold its shift" in npl.changes(folded).refused[0]


@torch.no_grad()
def test_a_fold_under_adapters_is_undone_after_they_are_merged():
    model, x = network(), features(4)
    model = adapted(npl.fold(model, x), "up")
    with pytest.raises(npl.UsageError, match=r"an adapter was added to 'layers.0.mlp.up' after the fold"):
        npl.edit.unfold(model.base_model.model)
    expected = model(x)
    torch.testing.assert_close(npl.edit.unfold(model.merge_and_unload())(x), expected, rtol=1e-4, atol=1e-5)

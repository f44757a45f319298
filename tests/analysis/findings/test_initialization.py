"""The finding on small matrices before a norm."""

from __future__ import annotations

import math

import pytest
import torch

import normplace as npl
from normplace.models.transformer import AttentionConfig, Transformer, TransformerConfig

TOKENS = torch.arange(12).reshape(2, 6)


def findings(model: torch.nn.Module, tokens: torch.Tensor = TOKENS) -> list:
    return [found for found in npl.audit(model, tokens).findings if found.rule == "small matrix before a norm"]


def transformer(placement: str, init: str | None, eps: float | None = None) -> Transformer:
    config = TransformerConfig(16, 64, 4, placement, attention=AttentionConfig(heads=4), init=init, eps=eps)
    return Transformer(config, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("placement", ["peri", "output"])
def test_depth_scaled_matrices_before_an_output_norm_are_reported(placement):
    attention, mlp = findings(transformer(placement, "depth"))
    assert attention.severity == mlp.severity == "note"
    assert len(attention.where) == len(mlp.where) == 4  # one for each layer
    assert "layers.0.attention.branch.output.weight" in attention.evidence
    assert not findings(transformer(placement, None))


def test_matrices_without_a_norm_behind_them_may_be_small():
    assert not findings(transformer("pre", "depth"))


def test_the_remedy_leaves_the_function_as_it_is():
    model = transformer("peri", "depth", eps=0.0).double()
    before = model(TOKENS).detach()
    with torch.no_grad():
        for layer in model.layers:
            for matrix in (layer.attention.branch.output.weight, layer.mlp.branch.down.weight):
                usual = math.sqrt(2 / sum(matrix.shape))
                matrix.mul_(usual / matrix.square().mean().sqrt())
    assert torch.allclose(model(TOKENS), before, rtol=1e-10, atol=1e-12)
    assert not findings(model)


def test_a_model_without_values_is_not_judged():
    assert not findings(transformer("peri", "depth").to("meta"), TOKENS.to("meta"))

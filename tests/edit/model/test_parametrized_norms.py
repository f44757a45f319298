"""Norms whose parameters a parametrization computes, and norms without parameters at the input of a model."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

import normplace as npl

X = torch.randn(3, 8, generator=torch.Generator().manual_seed(0))


class Squared(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return weight**2


class Block(nn.Module):
    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm, self.layer = norm, nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layer(self.norm(x))


def network(*, affine: bool = True, parametrized: bool = False) -> nn.Sequential:
    norms = [nn.LayerNorm(8, elementwise_affine=affine) for _ in range(2)]
    if parametrized:
        for norm in norms:
            parametrize.register_parametrization(norm, "weight", Squared())
    return nn.Sequential(*(Block(norm) for norm in norms))


@pytest.mark.parametrize("edit", [lambda model: npl.fold(model, X), lambda model: npl.swap(model, X, norm="rms")])
def test_a_parametrized_norm_is_refused(edit):
    with pytest.raises(npl.UsageError, match="computed by a parametrization"):
        edit(network(parametrized=True))


def test_a_parametrized_norm_is_no_template_of_new_norms():
    with pytest.raises(npl.UsageError, match="choose a kind"):
        npl.move(network(parametrized=True), X, to="peri")
    moved = npl.move(network(parametrized=True), X, to="peri", norm="layer")
    assert npl.audit(moved, X).placement == "peri"


def test_a_norm_without_parameters_at_the_input_is_swapped():
    model = network(affine=False)
    swapped = npl.swap(model, X, norm="rms")
    expected = X
    for block in model:
        expected = expected + block.layer(nn.functional.rms_norm(expected, (8,), eps=1e-5))
    torch.testing.assert_close(swapped(X), expected)

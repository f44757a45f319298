"""The MLP branch."""

from __future__ import annotations

import pytest
import torch
from tests.models.transformer.reference import mlp
from torch.nn import functional as F

from normplace import BlockSpec, Placement, Residual, UsageError
from normplace.models.transformer import FeedForward

X = torch.randn(3, 8, generator=torch.Generator().manual_seed(0)).double()


@pytest.mark.parametrize("kind", ["swiglu", "gelu"])
def test_it_equals_its_formula(kind):
    made = FeedForward(8, 5, kind=kind).double()
    block = Residual(made, 8, Placement.uniform(BlockSpec(inner=("pre_output",))), norm="rms").double()
    torch.testing.assert_close(block(X), X + mlp(made, X), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("kind", "activation"),
    [("geglu", lambda x: F.gelu(x, approximate="tanh")), ("gelu-tanh", lambda x: F.gelu(x, approximate="tanh")),
     ("relu", F.relu)],
)  # fmt: skip
def test_other_kinds(kind, activation):
    made = FeedForward(8, 5, kind=kind, bias=True).double()
    hidden = activation(made.up(X)) if made.gate is None else activation(made.gate(X)) * made.up(X)
    torch.testing.assert_close(made(X), hidden @ made.down.weight.T + made.down.bias)


def test_widths():
    assert FeedForward(12).up.out_features == 32
    assert FeedForward(12, kind="gelu").up.out_features == 48
    with pytest.raises(UsageError, match="at least 1"):
        FeedForward(12, 0)
    with pytest.raises(UsageError, match="did you mean 'swiglu'"):
        FeedForward(12, kind="swigl")

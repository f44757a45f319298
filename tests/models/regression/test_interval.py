"""The interval of outputs: contains what a search finds, and equals a bound that is computed another way."""

from __future__ import annotations

import math

import pytest
import torch

from normplace.models import MLP
from normplace.models.regression.interval import CONTRACTING, output_interval
from normplace.norms import build_norm


def build(norm_at, activation="relu", widths=(3, 16, 12, 2), norm="layer", seed=0):
    generator = torch.Generator().manual_seed(seed)
    return MLP(
        widths,
        norm=lambda width: build_norm(norm, width, elementwise_affine=False),
        norm_at=norm_at,
        activation=activation,
        generator=generator,
        dtype=torch.float64,
    )


def search(mlp, output, sign, steps=60):
    """The largest ``sign * output`` that gradient ascent from 64 points of all magnitudes finds."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(64, mlp.in_features, generator=generator, dtype=torch.float64)
    x = (x * 10.0 ** torch.linspace(-2, 4, 64, dtype=torch.float64)[:, None]).requires_grad_()
    optimizer = torch.optim.Adam([x], lr=0.1)
    largest = -math.inf
    for _ in range(steps):
        values = sign * mlp(x)[:, output]
        largest = max(largest, values.max().item())
        optimizer.zero_grad()
        (-values.sum()).backward()
        optimizer.step()
    return largest


@pytest.mark.parametrize("activation", CONTRACTING)
@pytest.mark.parametrize(("norm_at", "layers"), [("first", {1}), ("last", {2}), ("every", {1, 2})])
def test_no_input_leaves_the_interval(activation, norm_at, layers):
    mlp = build(norm_at, activation)
    interval = output_interval(mlp, activation, frozenset(layers))
    for output, (low, high) in enumerate(interval.tolist()):
        assert search(mlp, output, 1) <= high
        assert -search(mlp, output, -1) >= low


@pytest.mark.parametrize("norm", ["layer", "rms"])
def test_one_normalized_layer_has_the_exact_bound_of_the_ball(norm):
    mlp = build("every", widths=(3, 16, 1), norm=norm)
    ((low, high),) = output_interval(mlp, "relu", frozenset({1})).tolist()
    weight, bias = mlp.head.weight[0], mlp.head.bias.item()
    # Over h ≥ 0 with ‖h‖ ≤ √16, w·h is largest along the positive part of w.
    assert high == pytest.approx(bias + 4 * weight.clamp(min=0).norm().item(), rel=1e-12)
    assert low == pytest.approx(bias - 4 * weight.clamp(max=0).norm().item(), rel=1e-12)


def test_the_bound_is_attained_where_the_ball_is():
    # RMSNorm of (w, 0, 0, 0) is (2, 0, 0, 0), the farthest point of the ball along the only positive weight.
    mlp = build("every", widths=(1, 4, 1), norm="rms")
    dense, head = mlp.blocks[0].branch.dense, mlp.head
    with torch.no_grad():
        dense.weight.copy_(torch.tensor([[1.0], [0], [0], [0]]))
        dense.bias.zero_()
        head.weight.copy_(torch.tensor([[3.0, -1, -1, -1]]))
        head.bias.fill_(0.5)
    ((_, high),) = output_interval(mlp, "relu", frozenset({1})).tolist()
    # RMSNorm divides by √(x²/4 + 1e-6): at x = 1e6 the shortfall is far below 1e-9.
    assert high == pytest.approx(6.5, abs=1e-12)
    assert mlp(torch.tensor([[1e6]], dtype=torch.float64)).item() == pytest.approx(high, abs=1e-9)


def test_without_a_norm_only_tanh_is_bounded():
    for activation in CONTRACTING:
        interval = output_interval(build("none", activation), activation, frozenset())
        assert bool(torch.isfinite(interval).all()) is (activation == "tanh")
    mlp = build("none", "tanh")
    interval = output_interval(mlp, "tanh", frozenset())
    reach = mlp.head.weight.abs().sum(1)
    assert (interval[:, 1] <= mlp.head.bias + reach).all()


def test_a_unit_that_is_never_active_does_not_contribute():
    mlp = build("first", widths=(2, 4, 2, 1))
    second, head = mlp.blocks[1].branch.dense, mlp.head
    with torch.no_grad():
        second.weight.zero_()
        second.bias.copy_(torch.tensor([-1.0, 2.0]))
        head.weight.copy_(torch.tensor([[5.0, 1.0]]))
        head.bias.zero_()
    assert output_interval(mlp, "relu", frozenset({1})).tolist() == [[0.0, 2.0]]

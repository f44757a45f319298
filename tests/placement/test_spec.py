"""Block specs: numbers, equations and contradictions; see also test_placement.py."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from normplace import BlockSpec, First, LearnedScale, Placement, Power, Residual, UsageError
from normplace.models.depth import Coupling


def test_powers_of_a_logarithm():
    gain = Power("depth", 1 / 2, times=2, log=True)
    assert str(gain) == "ln(2L)^(1/2)"
    assert gain.at(layer=3, depth=12) == pytest.approx(math.sqrt(math.log(24)))
    with pytest.raises(UsageError, match="above 1"):
        Power("depth", 1.0, log=True)


def test_equations_show_every_field():
    assert BlockSpec(stream=True, damped=True, skip_scale=2.0).equation() == "N(2 D(x) + F(x))"
    assert BlockSpec(damped=True).equation() == "D(x + F(x))"
    assert BlockSpec(skip_scale=LearnedScale()).equation() == "g x + F(x)"
    assert BlockSpec(inner=("q",), inner_scale=("heads",)).equation() == "x + F[N: q; g: heads](x)"
    assert BlockSpec(input=True, input_gain=0.5).equation() == "x + F(N(x)), gain of N from 0.5"
    assert BlockSpec(stream=True).equation(extra_residual="x0") == "N(x0 + x + F(x))"


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (lambda: BlockSpec(input_gain=0.5), "set input=True"),
        (lambda: BlockSpec(input=True, input_gain=0.0), "positive"),
        (lambda: BlockSpec(skip_scale=0.0, damped=True), "there is none"),
    ],
)
def test_contradictions_are_errors(build, reason):
    with pytest.raises(UsageError, match=reason):
        build()


def test_without_norms_also_drops_their_scales():
    bare = BlockSpec(
        input=True, input_gain=0.5, input_scale=0.5, stream=True, branch_scale=LearnedScale()
    ).without_norms()
    assert bare == BlockSpec(branch_scale=LearnedScale())


def test_damping_shrinks_the_forward_pass_only():
    block = Residual(nn.Linear(4, 4), 4, Placement.uniform(BlockSpec(damped=True)))
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0), requires_grad=True)
    whole = x + block.branch(x)
    torch.testing.assert_close(block(x), whole)  # the gate is initially 0
    with torch.no_grad():
        block.damping.fill_(0.7)
    share = 0.7 / (1 + math.exp(-0.7))
    torch.testing.assert_close(block(x), (1 - share) * whole)
    torch.testing.assert_close(*(torch.autograd.grad(y.sum(), x)[0] for y in (block(x), whole)))


def test_a_learned_skip_scale_has_its_initial_value():
    block = Residual(
        nn.Linear(4, 4), 4, Placement.uniform(BlockSpec(skip_scale=LearnedScale(per_channel=True, init=0.3)))
    )
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(block(x), 0.3 * x + block.branch(x))
    assert block.skip_scale.shape == (4,)


@pytest.mark.parametrize(
    "block",
    [
        BlockSpec(skip_scale=2.0),
        BlockSpec(damped=True),
        BlockSpec(input=True, skip_normed=True),
        BlockSpec(skip_scale=LearnedScale()),
    ],
)
def test_reversible_networks_need_an_unchanged_skip(block):
    assert not block.keeps_skip
    with pytest.raises(UsageError, match="plain adds"):
        Coupling([Residual(nn.Linear(4, 4), 4, Placement.uniform(block))])


def test_an_input_gain_needs_a_norm_with_a_gain():
    placement = Placement.uniform(BlockSpec(input=True, input_gain=0.5))
    torch.testing.assert_close(Residual(nn.Linear(4, 4), 4, placement).input_norm.weight, torch.full((4,), 0.5))
    with pytest.raises(UsageError, match="Identity has none"):
        Residual(nn.Linear(4, 4), 4, placement, norm="identity")


@pytest.mark.parametrize("name", ["pre", "deepnorm", "hybrid", "layerscale", "mix", "siamese"])
def test_a_repr_builds_the_value_again_without_naming_defaults(name):
    names = {kind.__name__: kind for kind in (BlockSpec, First, LearnedScale, Placement, Power)}
    placement = Placement.named(name)
    for value in (placement, *placement.all_specs):
        assert eval(repr(value), names) == value
    assert repr(BlockSpec(input=True, output=True)) == "BlockSpec(input=True, output=True)"

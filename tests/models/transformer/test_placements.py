"""Every placement of the Transformer against its published equation, forward and backward, in double precision."""

from __future__ import annotations

import math

import pytest
import torch
from tests.models.transformer.reference import (
    DEPTH,
    EQUATIONS,
    build,
    gpas_deepnorm,
    normed,
    parallel_separate,
    tokens,
)

from normplace import Placement, UsageError
from normplace.models.transformer import AttentionConfig, Transformer, TransformerConfig
from normplace.placement.presets import ALL_PRESETS

OLMO2 = Placement.named("qk", base="output", over="projection")
VARIANTS = {
    "olmo2": (OLMO2, EQUATIONS["output"]),
    "normformer-skip": (Placement.named("normformer", scale_skip=True), EQUATIONS["normformer"]),
    "gpas-deepnorm": (Placement.named("gpas", base="deepnorm"), gpas_deepnorm),
    "qk-siamese": (Placement.named("qk", base="siamese"), EQUATIONS["siamese"]),
    "parallel-separate": (Placement.named("parallel", norm="separate"), parallel_separate),
    "parallel-qk": (Placement.named("qk", base="parallel"), EQUATIONS["parallel"]),
    "hybrid-projection": (Placement.named("hybrid", over="projection"), EQUATIONS["hybrid"]),
}
CASES = {**{name: (name, equation) for name, equation in EQUATIONS.items()}, **VARIANTS}


def embedded(model, ids):
    x = model.embed.weight[ids]
    return x if model.embedding_norm is None else normed(model.embedding_norm, x)


@pytest.mark.parametrize("norm", ["rms", "layer"])
@pytest.mark.parametrize("case", CASES)
def test_it_equals_its_published_equation(case, norm):
    placement, equation = CASES[case]
    model, ids = build(placement, norm=norm), tokens()
    direction = torch.randn(*ids.shape, model.config.dim, generator=torch.Generator().manual_seed(3)).double()
    parameters = list(model.parameters())
    got, wanted = model.hidden(ids), equation(model, embedded(model, ids))
    torch.testing.assert_close(got, wanted, rtol=1e-10, atol=1e-10)
    gradients = [torch.autograd.grad((y * direction).sum(), parameters) for y in (got, wanted)]
    for (name, _), mine, theirs in zip(model.named_parameters(), *gradients, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-8, atol=1e-10, msg=lambda said, name=name: f"{name}: {said}")


def test_every_preset_has_an_equation_here():
    assert EQUATIONS.keys() == ALL_PRESETS.keys() - {"plain"}


@pytest.mark.parametrize("name", EQUATIONS)
def test_every_block_does_something(name):
    """In published code of LNS the branch of its own name is unreachable, and every layer is an identity."""
    model, ids = build(name), tokens()
    model.hidden(ids).square().sum().backward()
    assert all(parameter.grad.abs().max() > 0 for parameter in model.parameters())
    if name not in ("none", "rezero"):
        for layer in model.layers:
            assert any("norm" in key for key in layer.state_dict())


@pytest.mark.parametrize("name", ["LNS", "Peri", "post-ln"])
def test_a_misspelt_placement_is_refused(name):
    with pytest.raises(UsageError, match="unknown placement"):
        TransformerConfig(11, 8, 2, name)


@pytest.mark.parametrize("name", EQUATIONS)
def test_the_stream_is_normed_at_its_end_once(name):
    model = build(name)
    last = model.layers[-1].mlp.stream_norm is not None
    ends = {"none": 0, "rezero": 0, "residual-dual": 2, "siamese": 2}.get(name, 1)  # two streams have an end each
    assert last + (model.final_norm is not None) == ends


@pytest.mark.parametrize("depth", [1, 3, 8, 32])
def test_depth_counts_layers_of_two_branches(depth):
    """So do the papers of DeepNorm, sub-LN, Mix-LN and LNS; KEEL's factor is the number of branches."""

    def blocks(name):
        return [block for layer in build(name, depth=depth).layers for block in (layer.attention, layer.mlp)]

    assert [block.spec.skip_scale for block in blocks("deepnorm")] == pytest.approx([(2 * depth) ** 0.25] * 2 * depth)
    assert {block.spec.skip_scale for block in blocks("keel")} == {2 * depth}
    assert [block.spec.input_scale for block in blocks("lns")] == pytest.approx(
        [layer**-0.5 for layer in range(1, depth + 1) for _ in range(2)]
    )
    assert sum(block.spec.stream for block in blocks("mix")) == 2 * (depth // 4)


def test_lns_is_a_constant_and_lns_init_a_start():
    def gains(name):
        config = TransformerConfig(11, 8, DEPTH, name, attention=AttentionConfig(heads=2))
        return [block.input_norm.weight.detach() for layer in Transformer(config).layers for block in layer.children()]

    wanted = [torch.full((8,), layer**-0.5) for layer in range(1, DEPTH + 1) for _ in range(2)]
    torch.testing.assert_close(gains("lns-init"), wanted)
    assert all(torch.equal(gain, torch.ones(8)) for gain in gains("lns"))


@pytest.mark.parametrize(("name", "gain"), [("deepnorm", (8 * 4) ** -0.25), ("sub", math.log(2 * 4) ** 0.5)])
def test_initial_gains_scale_values_outputs_and_mlp(name, gain):
    config = TransformerConfig(11, 64, 4, name, attention=AttentionConfig(heads=2))
    scaled = Transformer(config, generator=torch.Generator().manual_seed(0)).layers[2]
    plain = Transformer(
        TransformerConfig(11, 64, 4, "pre", attention=AttentionConfig(heads=2), init="xavier"),
        generator=torch.Generator().manual_seed(0),
    ).layers[2]
    for kind, parts in (("attention", ("query", "key", "value", "output")), ("mlp", ("gate", "up", "down"))):
        for part in parts:
            mine, base = (getattr(getattr(layer, kind).branch, part).weight for layer in (scaled, plain))
            torch.testing.assert_close(mine, base * (1.0 if part in ("query", "key") else gain))


def test_a_norm_that_only_squashes_can_stand_anywhere():
    model, ids = build("peri", norm="dyt"), tokens()
    torch.testing.assert_close(
        model.hidden(ids), EQUATIONS["peri"](model, embedded(model, ids)), rtol=1e-10, atol=1e-10
    )

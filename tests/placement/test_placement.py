"""Placements as values: equations, presets, depth, and invalid combinations."""

from __future__ import annotations

import json
import math
from itertools import pairwise

import pytest

from normplace import BlockSpec, First, LearnedScale, Placement, Power, UsageError
from normplace.placement import by_layer
from normplace.placement.presets import ALIASES, PRESETS

EQUATIONS = {
    "plain": "F(x)",
    "none": "x + F(x)",
    "post": "N(x + F(x))",
    "pre": "x + F(N(x))",
    "peri": "x + N(F(N(x)))",
    "output": "x + N(F(x))",
    "pre-post": "N(x + F(N(x)))",
    "deepnorm": "N((2L)^(1/4) x + F(x))",
    "lns": "x + F(l^(-1/2) N(x))",
    "mix": "N(x + F(x)) for 0 < l <= 0.25 L; x + F(N(x)) for 0.25 L < l <= L",
    "rezero": "x + g F(x)",
    "layerscale": "x + g F(N(x))",
}


@pytest.mark.parametrize("name", PRESETS)
def test_each_preset_prints_its_published_equation(name):
    placement = Placement.named(name)
    assert placement.equation() == EQUATIONS[name]
    assert placement.name == name
    assert PRESETS[name].__doc__


@pytest.mark.parametrize("name", PRESETS)
def test_json_round_trip_and_value_semantics(name):
    placement = Placement.named(name)
    assert Placement.from_dict(json.loads(json.dumps(placement.to_dict()))) == placement
    assert hash(placement) == hash(Placement.named(name))


@pytest.mark.parametrize(("alias", "name"), ALIASES.items())
def test_aliases_are_the_same_value(alias, name):
    assert Placement.named(alias) == Placement.named(name)


@pytest.mark.parametrize("depth", [1, 4, 6, 24, 32])
def test_deepnorm_constants_follow_the_depth(depth):
    for block in Placement.named("deepnorm").specs(depth):
        assert block.skip_scale == pytest.approx((2 * depth) ** 0.25)
        assert block.init_gain == pytest.approx((8 * depth) ** -0.25)


def test_lns_divides_by_the_root_of_the_layer():
    scales = [block.input_scale for block in Placement.named("lns").specs(9)]
    assert scales == pytest.approx([1 / math.sqrt(layer) for layer in range(1, 10)])


@pytest.mark.parametrize(("depth", "posts"), [(1, 0), (3, 0), (4, 1), (7, 1), (12, 3)])
def test_mix_starts_with_post_for_a_quarter_of_the_layers(depth, posts):
    blocks = list(Placement.named("mix").specs(depth))
    assert [block.stream for block in blocks] == [True] * posts + [False] * (depth - posts)
    assert [block.input for block in blocks] == [False] * posts + [True] * (depth - posts)


def test_presets_have_the_options_of_their_papers():
    assert Placement.named("mix", fraction=0.5).at(2, 4).stream
    # 0.29 * 100 is 28.999999999999996
    assert sum(spec.stream for spec in Placement.named("mix", fraction=0.29).specs(100)) == 29
    assert Placement.named("layerscale", init=0.1).at(1, 1).branch_scale == LearnedScale(per_channel=True, init=0.1)
    with pytest.raises(UsageError, match="did you mean 'fraction'"):
        Placement.named("mix", fractoin=0.5)
    with pytest.raises(UsageError, match="between 0 and 1"):
        Placement.named("mix", fraction=1.0)


def test_ends_of_the_network():
    assert {name for name in PRESETS if Placement.named(name).final} == {
        "pre", "peri", "output", "lns", "mix", "layerscale",
    }  # fmt: skip


CONTRADICTIONS = [
    (lambda: BlockSpec(input_scale=0.5), "no input norm"),
    (lambda: BlockSpec(skip_normed=True), "set input=True"),
    (lambda: BlockSpec(skip_scale=0.0, branch_scale=LearnedScale()), "skip_scale is 0"),
    (lambda: BlockSpec(skip_scale=0.0, output=True, stream=True), "keep one of them"),
    (lambda: BlockSpec(skip_scale=0.0, input=True, skip_normed=True), "there is none"),
    (lambda: BlockSpec(skip_scale=-1.0), "zero or more"),
    (lambda: BlockSpec(init_gain=0.0), "positive"),
    (lambda: BlockSpec(input=True, input_scale=math.inf), "finite"),
    (lambda: Placement.uniform(BlockSpec(stream=True), final=True), "normalize twice"),
    (lambda: Placement(((0.5, BlockSpec()),)), "the last at 1"),
    (lambda: Placement(((0.5, BlockSpec()), (0.5, BlockSpec()), (1.0, BlockSpec()))), "increasing"),
    (lambda: Placement(()), "segments"),
    (lambda: Placement(((1.0, BlockSpec()), (First(1), BlockSpec()))), "increasing"),
    (lambda: Placement(((First(2), BlockSpec()), (First(1), BlockSpec()), (1.0, BlockSpec()))), "increasing"),
    (lambda: First(0), "at least 1"),
    (lambda: Placement.named("pre").at(3, 2), "between 1 and the depth 2"),
    (lambda: Power("width", 1.0), "unknown quantity 'width'"),
    (lambda: Power("layer", 1.0, times=0), "must be positive"),
    (lambda: Placement.named("periln"), "did you mean 'peri'"),
    (lambda: Placement.from_dict({"segmets": []}), "did you mean 'segments'"),
]


@pytest.mark.parametrize(("build", "reason"), CONTRADICTIONS)
def test_contradictions_are_errors(build, reason):
    with pytest.raises(UsageError, match=reason):
        build()


@pytest.mark.parametrize("depth", [1, 2, 9])
def test_segments_can_end_after_a_number_of_layers(depth):
    rule = Placement(((First(2), BlockSpec()), (0.5, BlockSpec(output=True)), (1.0, BlockSpec(input=True))))
    slots = [block.slots for block in rule.specs(depth)]
    assert slots == ([()] * 2 + [("output",)] * (depth // 2 - 2) + [("input",)] * (depth - max(2, depth // 2)))[:depth]
    assert rule.equation().startswith("x + F(x) for 0 < l <= 2; x + N(F(x)) for 2 < l <= 0.5 L")


def test_inner_norms_and_a_normalized_skip_are_in_the_equation():
    assert BlockSpec(input=True, inner=("q", "k")).equation() == "x + F[N: q, k](N(x))"
    assert BlockSpec(input=True, skip_normed=True).equation() == "N(x) + F(N(x))"
    assert BlockSpec(skip_scale=0.5, branch_scale=2.0).equation() == "0.5 x + 2 F(x)"
    assert BlockSpec(input=True, inner=("q",), stream=True).slots == ("input", "inner.q", "stream")


def test_segments_by_layer_give_each_layer_its_spec():
    a, b = BlockSpec(input=True), BlockSpec(output=True)
    for specs in ([a], [a, a, b], [a, b, a, a], [b, b, b]):
        placement = Placement(by_layer(specs))
        assert list(placement.specs(len(specs))) == specs
        assert len(placement.segments) == 1 + sum(first != second for first, second in pairwise(specs))

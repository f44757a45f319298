"""Transformer presets as values; tests/models/transformer compares networks with them."""

from __future__ import annotations

import json
import math

import pytest
import torch

from normplace import BlockSpec, Placement, Residual, UsageError, move
from normplace.placement.transformer_presets import TRANSFORMER_PRESETS

PRE = "x + F(N(x))"
EQUATIONS = {
    "sub": "x + F[N: pre_output](N(x))",
    "normformer": "attention: x + N(F[g: heads](N(x))); mlp: x + F[N: pre_output](N(x))",
    "qk": f"attention: x + F[N: q, k](N(x)); mlp: {PRE}",
    "qkv": f"attention: x + F[N: q, k, v](N(x)); mlp: {PRE}",
    "hybrid": "attention: x + F[N: q, k, v](x); mlp: N(x) + F(N(x))",
    "hybrid-star": (
        "attention: x + F[N: q, k, v](N(x)) for 0 < l <= 1; x + F[N: q, k, v](x) for 1 < l <= L; "
        f"mlp: {PRE} for 0 < l <= 1; N(x) + F(N(x)) for 1 < l <= L"
    ),
    "b2t": "attention: N(x + F(x)); mlp: N(x0 + x + F(x)), x0 the layer's input",
    "residual-dual": "z = F(x), x' = N(x + z), r' = r + z, out = x + N(r)",
    "siamese": "z = F(N(x + N(y))), x' = N(x + (2l)^(-1/2) z), y' = y + z, out = x + N(y)",
    "keel": "N((2L) x + F(N(x)))",
    "lns-init": "x + F(N(x)), gain of N from l^(-1/2)",
    "gpas": "D(x + F(N(x)))",
    "bert-residual": "N(x) + F(N(x))",
    "embedding-norm": PRE,
    "parallel": "x + F1(N(x)) + F2(N(x))",
}


@pytest.mark.parametrize("name", TRANSFORMER_PRESETS)
def test_each_prints_its_published_equation(name):
    placement = Placement.named(name)
    assert placement.equation() == EQUATIONS[name]
    assert placement.name == name
    assert Placement.from_dict(json.loads(json.dumps(placement.to_dict()))) == placement
    assert hash(placement) == hash(Placement.named(name))


def test_equations_of_one_layer():
    assert Placement.named("keel").equation(1, 6) == "N(12 x + F(N(x)))"
    assert Placement.named("hybrid-star").equation(1, 6) == "attention: x + F[N: q, k, v](N(x)); mlp: x + F(N(x))"
    assert Placement.named("b2t").equation(1, 6) == EQUATIONS["b2t"]
    assert Placement.named("lns-init").equation(4, 6) == "x + F(N(x)), gain of N from 0.5"


def test_presets_with_a_base_combine():
    assert Placement.named("gpas", base="deepnorm").equation() == "N((2L)^(1/4) D(x) + F(x))"
    assert Placement.named("gpas", base="hybrid").equation().count("D(") == 2
    olmo2 = Placement.named("qk", base="output", over="projection")
    assert olmo2.equation() == "attention: x + N(F[N: q_full, k_full](x)); mlp: x + N(F(x))"
    assert Placement.named("qk", base=Placement.named("sub")).at(1, 1, "attention").inner == ("pre_output", "q", "k")
    assert Placement.named("qk", base="siamese").equation() == (
        "attention: z = F[N: q, k](N(x + N(y))); mlp: z = F(N(x + N(y))), x' = N(x + (2l)^(-1/2) z), y' = y + z, "
        "out = x + N(y)"
    )
    assert Placement.named("embedding-norm", base="post").embedding
    separate = Placement.named("qk", base=Placement.named("parallel", norm="separate"), over="each")
    assert separate.equation() == "x + F1[N: q_each, k_each](N1(x)) + F2(N2(x))"
    with pytest.raises(UsageError, match="leave the skip and the stream slot alone"):
        Placement.named("gpas", base="parallel")
    with pytest.raises(UsageError, match="did you mean 'shared'"):
        Placement.named("parallel", norm="share")
    with pytest.raises(UsageError, match="in the first kind only"):
        Placement.by_kind({"attention": BlockSpec(), "mlp": BlockSpec(input=True)}, streams="parallel-shared")
    with pytest.raises(UsageError, match="give kinds with one spec each"):
        Placement(((1.0, BlockSpec()),), streams="parallel")
    with pytest.raises(UsageError, match="leave the skip alone"):
        Placement.named("gpas", base="siamese")
    with pytest.raises(UsageError, match="did you mean 'projection'"):
        Placement.named("qk", over="projections")


@pytest.mark.parametrize("depth", [1, 6, 32])
def test_deepnorm_of_an_encoder_and_decoder(depth):
    encoder = Placement.named("deepnorm", part="encoder", decoder=4).at(1, depth)
    assert encoder.skip_scale == pytest.approx(0.81 * (depth**4 * 4) ** (1 / 16))
    assert encoder.init_gain == pytest.approx(0.87 * (depth**4 * 4) ** (-1 / 16))
    decoder = Placement.named("deepnorm", part="decoder").at(1, depth)
    assert decoder.skip_scale == pytest.approx((3 * depth) ** 0.25)
    assert decoder.init_gain == pytest.approx((12 * depth) ** -0.25)
    assert Placement.named("sub").at(1, depth).init_gain == pytest.approx(math.sqrt(math.log(2 * depth)))
    decoder = Placement.named("sub", part="decoder").at(1, depth)
    assert decoder.init_gain == pytest.approx(math.sqrt(math.log(3 * depth)))
    encoder = Placement.named("sub", part="encoder", encoder=depth, decoder=4).at(1, depth)
    assert encoder.init_gain == pytest.approx(math.sqrt(math.log(12) * math.log(2 * depth) / 3))


@pytest.mark.parametrize("options", [{"part": "encoder"}, {"part": "decoder", "decoder": 4}, {"encoder": 4}])
def test_sub_of_an_encoder_needs_both_depths(options):
    with pytest.raises(UsageError, match="sub needs the numbers of encoder and decoder layers"):
        Placement.named("sub", **options)


def test_deepnorm_of_an_encoder_needs_the_decoder_depth():
    for options in ({"part": "encoder"}, {"decoder": 3}):
        with pytest.raises(UsageError, match="the number of decoder layers"):
            Placement.named("deepnorm", **options)
    with pytest.raises(UsageError, match="did you mean 'decoder'"):
        Placement.named("deepnorm", part="decodr")


def test_unknown_kinds_are_errors():
    hybrid = Placement.named("hybrid")
    with pytest.raises(UsageError, match="hybrid differs between attention and mlp branches"):
        Residual(torch.nn.Linear(4, 4), 4, hybrid)
    with pytest.raises(UsageError, match="did you mean 'attention'"):
        hybrid.map_specs(lambda spec: spec, "atention")
    with pytest.raises(UsageError, match="not both or none"):
        Placement(((1.0, BlockSpec()),), kinds=(("mlp", ((1.0, BlockSpec()),)),))


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("hybrid", "which move does not place"),
        ("gpas", "which move does not place"),
        ("lns-init", "which move does not place"),
        ("b2t", "spans several branches"),
    ],
)
def test_move_does_not_support_them(name, reason):
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    with pytest.raises(UsageError, match=reason):
        move(layer, torch.zeros(1, 3, 8), to=name)

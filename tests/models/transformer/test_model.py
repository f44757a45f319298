"""The whole network: what every configuration must do, and what it refuses."""

from __future__ import annotations

import copy
import math
import pickle

import pytest
import torch
from tests.models.transformer.reference import DEPTH, EQUATIONS, build, normed, tokens

import normplace as npl
from normplace import UsageError
from normplace.models.transformer import (
    AttentionConfig,
    ExpertsConfig,
    HeadConfig,
    MLPConfig,
    PositionConfig,
    Transformer,
    TransformerConfig,
)

SHAPES = {
    "decoder": {},
    "encoder": {"causal": False, "token_types": 2},
    "learned": {"positions": PositionConfig("learned", length=9), "mlp": MLPConfig(kind="gelu", bias=True)},
    "padded": {
        "positions": PositionConfig("learned", length=9, offset=3, padding=int(tokens()[0, 1])),
        "causal": False,
    },
    "alibi": {"positions": PositionConfig("alibi"), "head": HeadConfig(tied=False, bias=True)},
    "no positions": {"positions": PositionConfig("none"), "embedding_scale": 3.0},
    "capped": {"attention": AttentionConfig(2, softcap=1.0, windows=(2, None)), "head": HeadConfig(softcap=2.0)},
    "experts": {"experts": ExpertsConfig(5, hidden=6, shared=1, layers=(True, False))},
    "relative": {"positions": PositionConfig("relative", buckets=8, distance=6)},
    "llama 4": {
        "attention": AttentionConfig(2, chunks=(3, None), temperature=0.5, temperature_floor=2, qk_gain=False),
        "positions": PositionConfig(rotary_layers=(True, False), interleaved=True),
        "experts": ExpertsConfig(4, 1, shared=1, scores="sigmoid", normalized=False, weighed="input"),
    },
    "transform": {"head": HeadConfig(transform=True, scale=0.5), "norm": "layer"},
}
every_shape = pytest.mark.parametrize("shape", SHAPES)
every_placement = pytest.mark.parametrize("placement", EQUATIONS)


@every_placement
def test_a_cache_changes_nothing(placement):
    model, ids = build(placement), tokens(length=7)
    cache = model.new_cache()
    with torch.no_grad():
        parts = [model(ids[:, a:b], cache=cache) for a, b in ((0, 3), (3, 4), (4, 7))]
        torch.testing.assert_close(torch.cat(parts, 1), model(ids), rtol=1e-9, atol=1e-9)
    assert cache.length == 7


@pytest.mark.parametrize("shape", ["learned", "alibi", "no positions", "capped", "experts", "relative", "llama 4"])
def test_a_cache_changes_nothing_in_other_shapes(shape):
    model, ids = build("peri", **SHAPES[shape]), tokens(length=7)
    cache = model.new_cache()
    with torch.no_grad():
        parts = [model(ids[:, a:b], cache=cache) for a, b in ((0, 5), (5, 6), (6, 7))]
        torch.testing.assert_close(torch.cat(parts, 1), model(ids), rtol=1e-9, atol=1e-9)


@every_placement
def test_later_tokens_are_not_read(placement):
    model, ids = build(placement), tokens()
    changed = ids.clone()
    changed[:, -1] = (ids[:, -1] + 1) % 11
    with torch.no_grad():
        torch.testing.assert_close(model(changed)[:, :-1], model(ids)[:, :-1], rtol=0, atol=0)
        assert not torch.allclose(model(changed)[:, -1], model(ids)[:, -1])


def test_masked_tokens_are_not_read():
    model, ids = build("peri", causal=False), tokens(length=6)
    mask = torch.arange(6) < torch.tensor([[6], [4]])
    with torch.no_grad():
        torch.testing.assert_close(model(ids, mask)[1:, :4], model(ids[1:, :4]), rtol=1e-10, atol=1e-10)


def positions_of(ids, config):
    """Tokens are counted from the offset; padding is not counted, and takes the entry before."""
    found, number = [], config.offset
    for token in ids:
        found.append(config.offset - 1 if token == config.padding else number)
        number += token != config.padding
    return found


@every_shape
def test_embedding_and_head_equal_their_formulas(shape):
    model, ids = build("embedding-norm", **SHAPES[shape]), tokens()
    config, types = model.config, torch.tensor([[0, 1, 1, 0, 1]] * 2)
    x = model.embed.weight[ids] * config.embedding_scale
    if model.positions is not None:
        x = x + model.positions.weight[torch.tensor([positions_of(row, config.positions) for row in ids.tolist()])]
    x = x if model.types is None else x + model.types.weight[types]
    captured = []
    model.layers[0].attention.register_forward_pre_hook(lambda _, args: captured.append(args[0]))
    given = {"types": types} if config.token_types else {}
    scores = model(ids, **given)
    torch.testing.assert_close(captured[0], normed(model.embedding_norm, x), rtol=1e-12, atol=1e-12)
    h, head = model.hidden(ids, **given), model.head
    if config.head.transform:
        h = head.transform(h)
        h = normed(head.transform_norm, 0.5 * h * (1 + torch.erf(h / math.sqrt(2))))
    wanted = h @ (model.embed if config.head.tied else head.projection).weight.T
    wanted = wanted + head.bias if config.head.bias else wanted
    wanted = config.head.scale * wanted
    if config.head.softcap is not None:
        wanted = config.head.softcap * torch.tanh(wanted / config.head.softcap)
    torch.testing.assert_close(scores, wanted, rtol=1e-12, atol=1e-12)


@every_placement
def test_copies_and_states_behave_alike(placement):
    model, ids = build(placement, torch.float32), tokens()
    expected = model(ids)
    assert torch.equal(copy.deepcopy(model)(ids), expected)
    assert torch.equal(pickle.loads(pickle.dumps(model))(ids), expected)
    other = Transformer(model.config)
    other.load_state_dict(model.state_dict(), strict=True)
    assert torch.equal(other(ids), expected)


@every_placement
def test_it_builds_on_the_meta_device_and_resets(placement):
    model = build(placement, torch.float32)
    on_meta = Transformer(model.config, device="meta")
    assert all(parameter.is_meta for parameter in on_meta.parameters())
    torch.manual_seed(3)
    model.reset_parameters()
    first = copy.deepcopy(model.state_dict())
    torch.manual_seed(3)
    model.reset_parameters()
    fresh = Transformer(model.config, generator=torch.Generator().manual_seed(4)).state_dict()
    for name, value in model.state_dict().items():
        assert torch.equal(value, first[name]), name
        if value.ndim > 1:  # random: compare the scale, which is where an initial gain would be lost or applied twice
            assert 0.5 < float(value.std() / fresh[name].std()) < 2, name
        else:
            assert torch.equal(value, fresh[name]), name


@pytest.mark.parametrize("placement", ["peri", "normformer", "siamese"])
def test_it_compiles_without_a_graph_break(placement):
    torch._dynamo.reset()
    model, ids = build(placement, torch.float32), tokens()
    assert torch.equal(torch.compile(model, fullgraph=True, backend="eager")(ids), model(ids))


@pytest.mark.parametrize("placement", ["peri", "qkv", "siamese"])
def test_half_precision_is_kept_and_close(placement):
    exact, model, ids = build(placement), build(placement, torch.bfloat16), tokens()
    with torch.no_grad():
        got, wanted = model(ids), exact(ids)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            cast = build(placement, torch.float32)(ids)
    assert got.dtype == torch.bfloat16
    for y in (got, cast):  # eight roundings of the stream and as many of each branch
        assert float((y.double() - wanted).abs().max()) < 40 * torch.finfo(torch.bfloat16).eps * float(
            wanted.abs().max()
        )


def moved_by_one_rounding(exact, dtype, *given):
    """How far the outputs move if every parameter is rounded once, the largest of a few draws."""
    wanted, furthest = exact(*given), 0.0
    for seed in range(5):
        rounded, generator = copy.deepcopy(exact), torch.Generator().manual_seed(seed)
        for weight in rounded.parameters():
            away = torch.rand(weight.shape, generator=generator, dtype=weight.dtype) * 2 - 1
            weight.mul_(1 + away * torch.finfo(dtype).eps / 2)
        furthest = max(furthest, float((rounded(*given) - wanted).abs().max()))
    return furthest


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_gpu_computes_the_same(shape, dtype):
    exact, model, ids = build("qk", **SHAPES[shape]), build("qk", dtype, **SHAPES[shape]).cuda(), tokens()
    mask = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    with torch.no_grad():
        for given in ((), (mask,)):
            wanted, got = exact(ids, *given), model(ids.cuda(), *(part.cuda() for part in given)).cpu()
            allowed = 40 * torch.finfo(dtype).eps * float(wanted.abs().max())
            # A soft cap makes the outputs so sensitive that rounding each parameter once moves them nearly as far.
            allowed = max(allowed, 2 * moved_by_one_rounding(exact, dtype, ids, *given))
            assert float((got.double() - wanted).abs().max()) < allowed
        if exact.config.causal:
            assert torch.equal(build("qk").cuda().generate(ids.cuda(), 4).cpu(), build("qk").generate(ids, 4))


AUDITED = ["post", "pre", "peri", "output", "pre-post", "deepnorm", "lns", "mix", "layerscale", "keel", "bert-residual"]


@pytest.mark.parametrize("name", AUDITED)
def test_the_audit_names_the_placement(name):
    assert npl.audit(build(name, torch.float32), tokens()).placement == name


def test_it_shows_its_equations():
    shown = repr(build("hybrid-star", torch.float32))
    assert npl.Placement.named("hybrid-star").equation() in shown
    assert f"N(x) + F(N(x)), layer {DEPTH} of {DEPTH}" in shown


@pytest.mark.parametrize(
    ("options", "call", "said"),
    [
        ({}, lambda model: model(torch.zeros(3, dtype=torch.long)), "single sequence as ids"),
        ({}, lambda model: model(torch.zeros(1, 0, dtype=torch.long)), "batch × length"),
        ({}, lambda model: model(torch.zeros(1, 3)), "integers"),
        ({}, lambda model: model(tokens(), types=tokens()), "no token types"),
        (
            SHAPES["learned"],
            lambda model: model(tokens(length=10)),
            "9 learned positions, but the sequence has 10",
        ),
        (
            {"positions": PositionConfig("learned", length=9, offset=1, padding=0)},
            lambda model: model(tokens()),
            "only an encoder",
        ),
        ({"causal": False}, lambda model: model(tokens(), cache=model.new_cache()), "cannot use a cache"),
        ({}, lambda model: model(tokens(), cache=model.new_cache()), "holds no gradients"),
    ],
)
def test_bad_input_is_refused(options, call, said):
    with pytest.raises(UsageError, match=said):
        call(build("pre", **options))


def test_learned_positions_end_in_the_cache_too():
    model = build("pre", **SHAPES["learned"])
    cache = model.new_cache()
    with torch.no_grad():
        model(tokens(length=8), cache=cache)
        with pytest.raises(UsageError, match="sequence has 10"):
            model(tokens(length=2), cache=cache)


def test_heads_that_do_not_divide_are_refused():
    with pytest.raises(UsageError, match="3 heads cannot share a width of 8"):
        Transformer(TransformerConfig(11, 8, 1, attention=AttentionConfig(heads=3)))

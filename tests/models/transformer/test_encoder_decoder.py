"""The encoder-decoder: every placement against its equation in both stacks, masks, caches, files and errors."""

from __future__ import annotations

import copy
import math
import pickle

import pytest
import torch
from tests.models.transformer.reference import EQUATIONS, Side, build, normed, tokens
from tests.stack.conftest import passes  # noqa: F401, a fixture
from tests.stack.small_stacks import compare

import normplace as npl
from normplace import Residual, UsageError
from normplace.models.transformer import (
    AttentionConfig,
    CrossAttention,
    PositionConfig,
    Transformer,
    TransformerConfig,
    load,
    save,
)

RELATIVE = PositionConfig("relative", buckets=8, distance=6)
SOURCE = tokens(length=7, seed=5)
MASK = torch.arange(7) < torch.tensor([[7], [4]])


def both(placement="pre", dtype=torch.float64, **options):
    """A network of three layers that reads two of an encoder."""
    options = {"positions": RELATIVE, "encoder_depth": 2, "depth": 3, **options}
    return build(placement, dtype, **options)


def embedded(network, x):
    return x if network.embedding_norm is None else normed(network.embedding_norm, x)


def by_equation(model, placement, ids, source, mask):
    """The decoder's stream, with the bias of each side from its table by hand."""
    sides = {}
    for name, network, length in (("encoder", model.encoder, source.shape[1]), ("decoder", model, ids.shape[1])):
        sides[name] = Side(network.layers, network.streams, network.final_norm, bias=bias(network.relative, length))
    layers, others = len(model.encoder.layers), len(model.layers)
    sides["encoder"].alpha, sides["decoder"].alpha = 0.81 * (layers**4 * others) ** (1 / 16), (3 * others) ** 0.25
    sides["encoder"].mask = mask
    memory = EQUATIONS[placement](sides["encoder"], embedded(model.encoder, model.embed.weight[source]))
    sides["decoder"].memory, sides["decoder"].memory_mask = memory, mask
    return EQUATIONS[placement](sides["decoder"], embedded(model, model.embed.weight[ids]))


def bias(relative, length):
    """The formula at few distances: single + floor(ranges log(distance / single) / log(6 / single))."""
    after = {0: 0, 1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 7}  # causal: 4 single distances and 4 ranges
    around = {0: 0, 1: 1, 2: 2, 3: 2, 4: 3, 5: 3, 6: 3}  # each side: 2 single distances and 2 ranges
    rows = torch.zeros(relative.weight.shape[1], length, length, dtype=torch.float64)
    for t in range(length):
        for s in range(length):
            if relative.causal:
                rows[:, t, s] = relative.weight[after[max(t - s, 0)]]
            else:
                rows[:, t, s] = relative.weight[around[abs(t - s)] + 4 * (s > t)]
    return rows


def test_deepnorm_and_sub_have_the_factors_of_an_encoder_and_its_decoder():
    """The tables of arXiv 2203.00555 and 2210.06423, for N = 2 encoder and M = 3 decoder layers."""
    deep, sub = (TransformerConfig(11, 8, 3, encoder_depth=2, placement=name) for name in ("deepnorm", "sub"))
    for config in (deep, TransformerConfig.from_dict(deep.to_dict())):
        decoder, encoder = config.rule.at(1, 3), config.encoder().rule.at(1, 2)
        assert (decoder.skip_scale, decoder.init_gain) == pytest.approx((9**0.25, 36**-0.25))
        root = (2**4 * 3) ** (1 / 16)
        assert (encoder.skip_scale, encoder.init_gain) == pytest.approx((0.81 * root, 0.87 / root))
    assert sub.rule.at(1, 3).init_gain == pytest.approx(math.sqrt(math.log(9)))
    assert sub.encoder().rule.at(1, 2).init_gain == pytest.approx(math.sqrt(math.log(9) * math.log(4) / 3))


@pytest.mark.parametrize("placement", EQUATIONS)
def test_every_placement_equals_its_equation_in_both_stacks(placement):
    model, ids = both(placement), tokens()
    got = model.hidden(ids, source=SOURCE, source_mask=MASK)
    wanted = by_equation(model, placement, ids, SOURCE, MASK)
    torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-10)
    got.square().sum().backward()
    unused = {
        name for name, parameter in model.named_parameters() if parameter.grad is None or not parameter.grad.any()
    }
    assert unused <= {"relative.weight"}, unused


@pytest.mark.parametrize("placement", ["pre", "b2t", "siamese", "normformer", "qk"])
def test_a_cache_keeps_the_memory(placement):
    model, ids = both(placement), tokens(length=6)
    with torch.no_grad():
        whole = model(ids, source=SOURCE, source_mask=MASK)
        cache = model.new_cache()
        first = model(ids[:, :3], cache=cache, source=SOURCE, source_mask=MASK)
        parts = [first, *(model(ids[:, t : t + 1], cache=cache) for t in range(3, 6))]
        torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=1e-9, atol=1e-9)
        with pytest.raises(UsageError, match="already has the encoder's output"):
            model(ids[:, :1], cache=cache, source=SOURCE)


def test_greedy_generation_follows_the_logits():
    model, ids = both(), tokens(length=1)
    longer = model.generate(ids, 5, source=SOURCE, source_mask=MASK)
    with torch.no_grad():
        for t in range(1, 6):
            scores = model(longer[:, :t], source=SOURCE, source_mask=MASK)[:, -1]
            assert torch.equal(scores.argmax(-1), longer[:, t])


@pytest.mark.parametrize("kind", ["rotary", "learned", "alibi", "none"])
def test_masked_source_tokens_are_not_read(kind):
    positions = PositionConfig(kind, length=9) if kind == "learned" else PositionConfig(kind)
    model, ids = both("post", positions=positions), tokens()
    with torch.no_grad():
        masked = model(ids, source=SOURCE, source_mask=MASK)[1:]
        torch.testing.assert_close(masked, model(ids[1:], source=SOURCE[1:, :4]), rtol=1e-10, atol=1e-10)
        assert not torch.allclose(masked, model(ids, source=SOURCE)[1:])


@pytest.mark.parametrize("softcap", [None, 3.0])
def test_an_empty_source_adds_nothing_and_leaves_the_gradients_finite(softcap):
    model, ids = both(attention=AttentionConfig(heads=2, softcap=softcap)), tokens()
    logits = model(ids, source=SOURCE, source_mask=torch.tensor([[True], [False]]).expand(2, 7))
    logits.sum().backward()
    assert logits.isfinite().all()
    assert all(parameter.grad is None or parameter.grad.isfinite().all() for parameter in model.parameters())
    for layer in model.layers:  # a branch of zeros
        layer.cross.branch.output.weight.data.zero_()
    torch.testing.assert_close(model(ids, source=SOURCE)[1], logits[1])


def test_the_encoder_reads_both_ways_and_the_decoder_does_not():
    model, ids = both(), tokens()
    changed, other = SOURCE.clone(), ids.clone()
    changed[:, -1], other[:, -1] = (SOURCE[:, -1] + 1) % 11, (ids[:, -1] + 1) % 11
    with torch.no_grad():
        assert not torch.allclose(model.encode(changed)[:, 0], model.encode(SOURCE)[:, 0])
        a, b = model(ids, source=SOURCE), model(other, source=SOURCE)
    assert torch.equal(a[:, :-1], b[:, :-1])


@pytest.mark.parametrize("placement", ["peri", "siamese"])
def test_copies_states_files_and_the_meta_device(placement, tmp_path):
    model, ids = both(placement, torch.float32), tokens()
    expected = model(ids, source=SOURCE)
    assert torch.equal(copy.deepcopy(model)(ids, source=SOURCE), expected)
    assert torch.equal(pickle.loads(pickle.dumps(model))(ids, source=SOURCE), expected)
    save(model, tmp_path)
    assert torch.equal(load(tmp_path)(ids, source=SOURCE), expected)
    assert all(parameter.is_meta for parameter in Transformer(model.config, device="meta").parameters())
    model.reset_parameters()
    assert not torch.equal(model(ids, source=SOURCE), expected)


def test_it_compiles_without_a_graph_break():
    torch._dynamo.reset()
    model, ids = both("peri", torch.float32), tokens()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(ids, source=SOURCE), model(ids, source=SOURCE))


@pytest.mark.parametrize("name", ["post", "pre", "peri", "output", "layerscale"])
def test_the_audit_finds_three_blocks_in_a_layer(name):
    model = both(name, torch.float32)
    audit = npl.audit(model, tokens(), source=SOURCE)
    norms = [module for key, module in model.named_modules() if key.endswith("_norm")]
    assert len(audit.sites) == len(norms)
    assert audit.placement == name


def test_the_audit_finds_norms_inside_cross_attention():
    audit = npl.audit(both("qk", torch.float32), tokens(), source=SOURCE)
    names = {site.name for site in audit.sites}
    assert {"layers.0.cross.branch.norms.q", "layers.0.cross.branch.norms.k"} <= names


@pytest.mark.parametrize(("placement", "count"), [("peri", 13), ("pre", 13), ("post", 13), ("b2t", 8), ("siamese", 0)])
def test_fused_boundaries_change_nothing(placement, count, passes):  # noqa: F811
    model, ids = both(placement), tokens()
    compare(model, lambda: model(ids, source=SOURCE, source_mask=MASK))
    assert len(passes) == count  # of 2 × 2 and 3 × 3 boundaries


def test_the_fusion_of_both_stacks_is_explained():
    decoder, encoder = both("peri").explain_fusion().split("\nencoder: ")
    assert decoder.startswith("decoder: ")
    assert "blocks 1 to 8" in decoder
    assert "blocks 1 to 3" in encoder


@pytest.mark.parametrize("to", ["peri", "post"])
def test_norms_of_both_stacks_move(to):
    moved = npl.move(both("pre", torch.float32), tokens(), source=SOURCE, to=to)
    assert npl.audit(moved, tokens(), source=SOURCE).placement == to


def test_the_final_norm_of_the_encoder_folds_into_every_cross_attention():
    model = both("pre", torch.float32)
    folded = npl.fold(model, tokens(), source=SOURCE)
    gain = folded.get_parameter("encoder.final_norm.weight")
    assert torch.equal(gain, torch.ones_like(gain))
    with torch.no_grad():
        outputs = [network(tokens(), source=SOURCE) for network in (model, folded)]
    torch.testing.assert_close(*outputs, rtol=1e-5, atol=1e-5)


def test_cross_attention_is_a_branch_of_its_own():
    block = Residual(CrossAttention(8, 2, dtype=torch.float64), 8, "peri", norm="rms").double()
    x, memory = torch.randn(2, 2, 3, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    # The order of the memory does not matter: there are no positions.
    torch.testing.assert_close(block(x, memory=memory), block(x, memory=memory.flip(1)), rtol=1e-11, atol=1e-12)
    with pytest.raises(UsageError, match="pass it as memory"):
        block(x)
    with pytest.raises(UsageError, match=r"shape \(2, 3\)"):
        block(x, memory=memory, mask=torch.ones(2, 4))


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: both()(tokens()), "tokens as source"),
        (lambda: build()(tokens(), source=SOURCE), "no encoder: leave the source out"),
        (lambda: both()(tokens(), source=SOURCE[0]), "single sequence"),
        (lambda: both(causal=False), "set causal=True"),
        (lambda: both(encoder_depth=-1), "encoder_depth must be"),
        (lambda: both(token_types=2), "has no token types"),
        (lambda: both(positions=PositionConfig("relative", buckets=2)), "choose more buckets"),
        (lambda: TransformerConfig(11, 8, 2).encoder(), "no encoder"),
    ],
)
def test_bad_input_is_refused(call, said):
    with pytest.raises(UsageError, match=said):
        call()


def test_the_initial_weights_count_three_branches():
    config = TransformerConfig(11, 64, 3, encoder_depth=2, attention=AttentionConfig(2), std=0.3)
    assert config.weight_init().of(8, 8, last=True) == pytest.approx(0.3 / 3)
    assert config.encoder().weight_init().of(8, 8, last=True) == pytest.approx(0.3 / 2)

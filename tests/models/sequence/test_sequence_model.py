"""The trunk with every mixer: decoding equals reading at once, placements, generation, and what it refuses."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch.nn import functional as F

from normplace import Placement, UsageError
from normplace.models import CausalRN, SequenceModel
from normplace.models.sequence import Relation, SelfAttention, count_parameters
from normplace.models.sequence.mixers import MIXERS, POSITIONS
from normplace.placement.presets import PRESETS
from normplace.stack import fusion_mode

CASES = [
    *((kind, positions) for kind in MIXERS for positions in POSITIONS),
    ("attention", "rotary"),
    ("attention", "alibi"),
    (SelfAttention(heads=4), "hard-alibi"),
    (Relation(norm="separate", heads=2), "none"),
    (Relation(norm="none", hidden=12), "sinusoidal"),
]


def build(mixer="relation", positions="none", depth=2, context=40, **options) -> SequenceModel:
    torch.manual_seed(0)
    context = context if positions == "learned" else None
    return SequenceModel(
        11, 8, depth, mixer=mixer, positions=positions, context=context, dtype=torch.float64, **options
    )


def tokens(rows=2, length=30, seed=0):
    return torch.randint(11, (rows, length), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("mixer", "positions"), CASES, ids=str)
def test_reading_token_by_token_equals_reading_at_once(mixer, positions):
    model, read = build(mixer, positions), tokens()
    whole = model(read)
    first, state = model.prefill(read[:, :20])
    rows = [first, *(model.step(token, state)[:, None] for token in read[:, 20:].unbind(1))]
    torch.testing.assert_close(torch.cat(rows, 1), whole)
    assert state.length == 30


@pytest.mark.parametrize(("mixer", "positions"), CASES, ids=str)
def test_no_token_sees_those_after_it(mixer, positions):
    model, read = build(mixer, positions), tokens()
    changed = read.clone()
    changed[:, 17:] = (changed[:, 17:] + 1) % 11
    torch.testing.assert_close(model(read)[:, :17], model(changed)[:, :17])
    assert not torch.allclose(model(read)[:, 17:], model(changed)[:, 17:])


@pytest.mark.parametrize("mixer", MIXERS)
def test_masked_tokens_are_not_read(mixer):
    model, read = build(mixer), tokens()
    mask = torch.ones_like(read, dtype=torch.bool)
    mask[1, :5] = mask[1, 9] = False
    torch.testing.assert_close(model(read, mask)[0], model(read)[0])
    torch.testing.assert_close(model(read, mask)[1:, mask[1]], model(read[1:, mask[1]]))


@pytest.mark.parametrize("placement", [name for name in PRESETS if name != "plain"])
@pytest.mark.parametrize("mixer", ["relation", "attention"])
def test_every_preset_is_a_placement_of_the_trunk(mixer, placement):
    model, read = build(mixer, placement=placement, depth=3), tokens(length=6)
    rule = Placement.named(placement)
    x = model.embed(read)
    for layer, block in enumerate(model.layers, start=1):
        for residual in block:
            assert residual.equation() == rule.equation(layer, 3)
            x = residual(x)
    x = x if model.final_norm is None else F.layer_norm(x, (8,))
    torch.testing.assert_close(model(read), model.head(x))


@pytest.mark.parametrize("placement", ["pre", "peri", "post"])
@pytest.mark.parametrize("mixer", MIXERS)
def test_fused_boundaries_change_nothing(mixer, placement):
    model, read = build(mixer, placement=placement), tokens()
    with fusion_mode("never"):
        wanted = model(read)
    with fusion_mode("always"):
        torch.testing.assert_close(model(read), wanted)
        rows, state = model.prefill(read[:, :-1])
        rows = torch.cat([rows, model.step(read[:, -1], state)[:, None]], 1)
    torch.testing.assert_close(rows, wanted)


def test_placements_of_two_streams_are_carried():
    model = build("relation", placement="residual-dual")
    read = tokens(length=6)
    x = r = model.embed(read)
    for (residual,) in model.layers:
        added = residual.branch(x)
        x, r = F.layer_norm(x + added, (8,)), r + added
    torch.testing.assert_close(model(read), model.head(x + F.layer_norm(r, (8,))))


def test_published_sizes():
    shared = 130 * 192 + 29 * 192  # positions and tokens
    assert count_parameters(CausalRN(29, context=130)) - shared == 1_337_280
    assert count_parameters(SequenceModel(29, 192, 12, mixer="attention", context=130)) - shared == 5_325_504


def test_greedy_generation_takes_the_likeliest_token_each_time():
    model, read = build("relation", "learned", context=12), tokens(length=5)
    wanted = read
    for _ in range(8):
        wanted = torch.cat([wanted, model(wanted)[:, -1:].argmax(-1)], 1)
    assert torch.equal(model.generate(read, 8), wanted)


def test_a_sequence_that_ends_is_filled_with_its_end():
    model, read = build(), tokens(rows=6, length=3)
    free = model.generate(read, 10)[:, 3:]
    stop = int(free[0, 2])
    ended = model.generate(read, 10, stop=stop)[:, 3:]
    for row, wanted in zip(ended.tolist(), free.tolist(), strict=True):
        end = wanted.index(stop) + 1 if stop in wanted else len(wanted)
        assert row == (wanted[:end] + [stop] * 10)[: len(row)]
    alone = model.generate(read[:1], 10, stop=stop)[:, 3:]
    assert alone.tolist() == [free[0, : free[0].tolist().index(stop) + 1].tolist()]


def test_draws_follow_the_generator_and_its_limits():
    model, read = build(), tokens(rows=1, length=3).expand(2000, -1)

    def drawn(seed, **options):
        return model.generate(read, 1, generator=torch.Generator().manual_seed(seed), **options)[:, -1]

    assert torch.equal(drawn(0, temperature=2.0), drawn(0, temperature=2.0))
    assert not torch.equal(drawn(0, temperature=2.0), drawn(1, temperature=2.0))
    chances = (model(read[:1])[0, -1] / 2).softmax(-1)
    shares = drawn(0, temperature=2.0).bincount(minlength=11) / 2000
    # Four deviations of a share over 2,000 draws.
    torch.testing.assert_close(shares.double(), chances, atol=4 * (0.25 / 2000) ** 0.5, rtol=0)
    assert set(drawn(0, temperature=2.0, top_k=3).tolist()) == set(chances.topk(3).indices.tolist())


def test_generating_changes_nothing():
    model = build()
    before = copy.deepcopy(model.state_dict())
    model.train()
    model.generate(tokens(), 3)
    assert model.training
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


@pytest.mark.parametrize("mixer", MIXERS)
def test_models_are_modules_like_others(mixer):
    model, read = build(mixer), tokens(length=6)
    for again in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(again(read), model(read))
    starts = []
    for _ in range(2):
        torch.manual_seed(1)
        model.reset_parameters()
        starts.append(copy.deepcopy(model.state_dict()))
    assert all(torch.equal(starts[0][name], starts[1][name]) for name in starts[0])
    assert {p.device.type for p in build(mixer, device="meta").parameters()} == {"meta"}


def test_a_compiled_model_is_the_model():
    model, read = build(depth=1), tokens(length=9)
    # Without code generation, which the operators' own tests cover and which takes long.
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    results = [call(read) for call in (model, compiled)]
    torch.testing.assert_close(*results)
    torch.testing.assert_close(*(torch.autograd.grad(out.square().sum(), [*model.parameters()]) for out in results))


MISTAKES = [
    (lambda: build(positions="rotary"), "unknown kind of position for the mixer 'relation': 'rotary'"),
    (lambda: build("atention"), "did you mean 'attention'"),
    (lambda: SequenceModel(11, 8, 2), "pass context="),
    (lambda: SequenceModel(11, 8, 2, positions="none", context=9), "leave context out"),
    (lambda: SequenceModel(11, 8, 2, context=0), "context must be"),
    (lambda: SequenceModel(11, 0, 2, positions="none"), "of at least 1"),
    (lambda: build(positions="learned", context=9)(tokens(length=10)), "9 learned positions, but the sequence has 10"),
    (lambda: build(positions="learned", context=9).generate(tokens(length=5), 6), "9 learned positions"),
    (lambda: build()(tokens(length=0)), "both at least 1"),
    (lambda: build()(tokens()[0]), "both at least 1"),
    (lambda: build()(tokens().double()), "integers, got torch.float64"),
    (lambda: build()(tokens(), torch.ones(2, 29, dtype=torch.bool)), "a boolean tensor of the shape"),
    (lambda: build()(tokens(), torch.ones(2, 30)), "got torch.float32"),
    (lambda: build().generate(tokens(), 0), "at least 1, got 0"),
    (lambda: build().generate(tokens(), 1, temperature=-1.0), "temperature"),
    (lambda: build().step(tokens(), build().prefill(tokens())[1]), "one token for each sequence"),
]


@pytest.mark.parametrize(("call", "reason"), MISTAKES)
def test_mistakes_are_named(call, reason):
    with pytest.raises(UsageError, match=reason):
        call()

"""Generation: what is drawn, from what, and what is refused."""

from __future__ import annotations

import math

import pytest
import torch
from tests.models.transformer.reference import build, tokens

from normplace import UsageError
from normplace.models.transformer import PositionConfig
from normplace.models.transformer.generate import draw, filtered

SCORES = torch.tensor([[0.5, 0.2, 0.1, 0.15, 0.05]]).log()


def slowly(model, ids, new):
    for _ in range(new):
        ids = torch.cat((ids, model(ids)[:, -1].argmax(-1, keepdim=True)), 1)
    return ids


@pytest.mark.parametrize("placement", ["peri", "hybrid-star", "b2t", "residual-dual", "siamese"])
def test_greedy_tokens_are_those_without_a_cache(placement):
    model = build(placement)
    assert torch.equal(model.generate(tokens(), 6), slowly(model, tokens(), 6))


def test_a_generator_decides_the_draws():
    model = build("peri")
    first, same, other = (
        model.generate(tokens(), 20, temperature=2.0, generator=torch.Generator().manual_seed(seed))
        for seed in (0, 0, 1)
    )
    assert torch.equal(first, same)
    assert not torch.equal(first, other)
    assert torch.equal(first[:, :5], tokens())


def test_limits_keep_the_likeliest():
    def keeps(**limits):
        return torch.isfinite(filtered(SCORES, **limits))[0].tolist()

    assert keeps(top_k=2) == [True, True, False, False, False]
    assert keeps(top_k=9) == [True] * 5
    assert keeps(top_p=0.7) == [True, True, False, False, False]
    assert keeps(top_p=0.71) == [True, True, False, True, False]
    assert keeps(top_p=1e-9) == [True, False, False, False, False]
    assert keeps(top_p=1.0) == [True] * 5


def test_draws_have_the_probabilities_of_the_scores():
    many = SCORES.expand(20_000, -1)
    counts = torch.bincount(draw(many, 0.5, generator=torch.Generator().manual_seed(0)), minlength=5) / 20_000
    wanted = (2 * SCORES[0]).softmax(-1)
    # Five standard deviations of a share.
    assert ((counts - wanted).abs() < 5 * (wanted * (1 - wanted) / 20_000).sqrt()).all()


@pytest.mark.parametrize("positions", ["rotary", "learned", "alibi"])
def test_a_window_drops_the_older_half_of_its_tokens(positions):
    model, window = build(positions=PositionConfig(positions, length=8 if positions == "learned" else None)), 8
    ids = tokens(length=11)
    generated = model.generate(ids, 9, window=window)
    read = window  # the last tokens of the prompt
    for end in range(11, 20):
        if read > window:
            read = window // 2
        expected = model(generated[:, end - read : end])[:, -1].argmax(-1)
        assert torch.equal(generated[:, end], expected)
        read += 1
    fitting = tokens(length=3)
    assert torch.equal(model.generate(fitting, 6, window=window), model.generate(fitting, 6))


def test_sequences_stop():
    model = build("peri")
    free = model.generate(tokens(), 8)
    stop = int(free[0, 6])
    ended = model.generate(tokens(), 8, stop=stop)
    assert ended.shape[1] <= free.shape[1]
    for row, whole in zip(ended, free, strict=True):
        end = next((at for at, token in enumerate(whole.tolist()) if at >= 5 and token == stop), len(whole) - 1)
        assert torch.equal(row[: end + 1], whole[: end + 1])
        assert (row[end + 1 :] == stop).all()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"new": 0}, "at least 1"),
        ({"temperature": -1.0}, "zero, or at least"),
        ({"temperature": math.nan}, "zero, or at least"),
        ({"temperature": 1e-45}, "zero, or at least 1e-06"),
        ({"window": 0}, "at least 1"),
        ({"top_k": 3}, "temperature is 0"),
        ({"top_k": 0, "temperature": 1.0}, "at least 1"),
        ({"top_p": 0.0, "temperature": 1.0}, "above 0"),
    ],
)
def test_bad_arguments_are_refused(options, reason):
    with pytest.raises(UsageError, match=reason):
        build().generate(tokens(), options.pop("new", 3), **options)


def test_limits_of_the_network_are_told_beforehand():
    with pytest.raises(UsageError, match="causal=True"):
        build(causal=False).generate(tokens(), 1)
    model = build(positions=PositionConfig("learned", length=8))
    assert model.generate(tokens(), 4).shape == (2, 9)
    with pytest.raises(UsageError, match="can generate at most 4, not 5"):
        model.generate(tokens(), 5)

from __future__ import annotations

import pytest
import torch
from tests.lab.train.trained_runs import untrained_run

from normplace.lab.train import scoring
from normplace.lab.train.scoring import Scorer

CPU = torch.device("cpu")


def reference(model, whole, count, context):
    """Log-probability of the last tokens, each after at most ``context`` tokens; in windows that do not overlap."""
    total, first = 0.0, len(whole) - count
    while first < len(whole):
        last = min(len(whole), first + context)
        window = whole[max(0, last - context - 1) : last]
        scores = model(torch.tensor([window[:-1]])).log_softmax(-1)[0]
        total += sum(float(scores[len(window) - 1 - n, whole[last - n]]) for n in range(1, last - first + 1))
        first = last
    return total


@torch.no_grad()
@pytest.mark.parametrize("at_once", [1, 20, 1 << 14])
def test_scores_are_those_of_single_sequences(monkeypatch, at_once):
    monkeypatch.setattr(scoring, "TOKENS_AT_ONCE", at_once)
    run = untrained_run(context=8)
    scorer = Scorer(run, CPU)
    pairs = [([1, 2, 3], [4, 5]), ([], [6, 7]), (list(range(20)), [7]), ([9], list(range(30, 50))), ([1], [])]
    scores = scorer.score(pairs)
    for (context, continuation), (value, _) in zip(pairs, scores, strict=True):
        whole = [*(context or [10]), *continuation]  # 10 is a line break
        assert value == pytest.approx(reference(run.model, whole, len(continuation), 8), abs=1e-5)
    assert scores[-1] == (0.0, True)


@torch.no_grad()
def test_greedy_continuations_are_recognized():
    run = untrained_run(context=16)
    prompt = [65, 66, 67]
    greedy = run.model.generate(torch.tensor([prompt]), 4)[0, 3:].tolist()
    other = [*greedy[:3], (greedy[3] + 1) % 256]
    assert [is_greedy for _, is_greedy in Scorer(run, CPU).score([(prompt, greedy), (prompt, other)])] == [True, False]


def test_the_context_is_that_of_the_run_or_of_the_network():
    assert Scorer(untrained_run(context=24), CPU).context == 24
    assert Scorer(untrained_run(context=None), CPU).context == scoring.DEFAULT_CONTEXT
    assert Scorer(untrained_run(context=None, positions=12), CPU).context == 12

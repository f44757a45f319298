"""Plackett-Luce and its training, against enumeration and known best orders."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

pytest.importorskip("numba", reason="node selection needs numba")

from tests.lab.tasks.selection.selection_cases import policy

from normplace import UsageError
from normplace.lab.tasks.selection import mixed_graphs, ranking
from normplace.lab.tasks.selection.rewards import REWARDS
from normplace.lab.train.reinforce import PADDING, order_log_probability, sample_orders, train_policy

pytestmark = pytest.mark.usefixtures("one_thread")


def brute_force(scores, order, length):
    """Node after node, each drawn from those left."""
    left, total = list(range(len(scores))), 0.0
    for node in order[:length]:
        total += scores[node] - math.log(sum(math.exp(scores[other]) for other in left))
        left.remove(node)
    return total


@pytest.mark.parametrize("length", [1, 2, 4])
def test_probabilities_match_drawing_without_replacement(length):
    scores = torch.tensor([[0.3, -1.2, 2.0, 0.0, PADDING], [5.0, -5.0, 0.1, 0.2, PADDING]], dtype=torch.float64)
    orders = torch.tensor([[*order, 4] for order in itertools.permutations(range(4))]).expand(2, -1, -1)
    log_probabilities = order_log_probability(scores, orders, torch.tensor([length, length]))
    for row in range(2):
        expected = [brute_force(scores[row, :4].tolist(), order[:4], length) for order in orders[row].tolist()]
        assert log_probabilities[row].tolist() == pytest.approx(expected, abs=1e-9)
    # Orders that share their first entries share them with all completions of the rest.
    assert log_probabilities.exp().sum(1).tolist() == pytest.approx([math.factorial(4 - length)] * 2)


def test_gradients_are_correct_and_finite_with_padding():
    scores = torch.randn(2, 5, dtype=torch.float64, requires_grad=True)
    orders = torch.stack([torch.randperm(5) for _ in range(6)]).reshape(2, 3, 5)
    assert torch.autograd.gradcheck(lambda s: order_log_probability(s, orders, torch.tensor([2, 5])), scores)
    padded = torch.tensor([[0.5, 0.1, PADDING]], requires_grad=True)
    order_log_probability(padded, torch.tensor([[[1, 0, 2]]]), torch.tensor([2])).sum().backward()
    assert padded.grad is not None and padded.grad.isfinite().all() and padded.grad[0, 2] == 0


def test_samples_follow_their_probabilities():
    scores = torch.tensor([[0.0, 1.0, PADDING], [0.0, 0.0, 1.5]])
    orders = sample_orders(scores, 20_000, torch.Generator().manual_seed(0))
    assert (orders[0, :, 2] == 2).all()  # a place past the end always comes last
    for row in range(2):
        for order in itertools.permutations(range(3)):
            length = 2 if row == 0 else 3
            expected = math.exp(brute_force(scores[row].tolist(), order, length))
            share = float((orders[row] == torch.tensor(order)).all(-1).double().mean())
            assert abs(share - expected) < 4 * math.sqrt(0.25 / 20_000)


def test_training_learns_to_order_by_degree():
    graphs = mixed_graphs(16, 20, 40, np.random.default_rng(0))
    learner = policy("degree").float()
    drawn = torch.Generator().manual_seed(0)
    history = train_policy(learner, graphs, REWARDS["dismantling"], steps=150, learning_rate=1e-2, generator=drawn)
    assert np.mean(history[-10:]) > np.mean(history[:10]) + 0.05
    unseen = mixed_graphs(8, 60, 80, np.random.default_rng(1))
    rewards = REWARDS["dismantling"]
    ours = [rewards.rewards(graph, ranking(graph, learner.score(graph))[None])[0] for graph in unseen]
    blind = [rewards.rewards(graph, np.arange(graph.num_nodes)[None])[0] for graph in unseen]
    assert np.mean(ours) > np.mean(blind) + 0.1


def test_training_depends_on_the_generator_only():
    def trained():
        learner = policy("random").float()
        graphs = mixed_graphs(4, 10, 20, np.random.default_rng(0))
        train_policy(learner, graphs, REWARDS["influence"], steps=3, generator=torch.Generator().manual_seed(5))
        return learner.score(graphs[0])

    assert np.array_equal(trained(), trained())


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"samples": 1}, "samples must be at least 2, got 1"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
    ],
)
def test_bad_settings_are_errors(settings, sentence):
    graphs = mixed_graphs(1, 10, 20, np.random.default_rng(0))
    with pytest.raises(UsageError, match=sentence):
        train_policy(policy(), graphs, REWARDS["dismantling"], generator=torch.Generator(), **settings)
    with pytest.raises(UsageError, match="no graphs to train on"):
        train_policy(policy(), [], REWARDS["dismantling"], generator=torch.Generator())

"""Cascades against cynetdiff and closed forms, threads, and greedy seeds against CELF."""

from __future__ import annotations

import heapq
import math

import numpy as np
import pytest
from tests.lab.tasks.selection.selection_cases import path

from normplace import UsageError
from normplace.lab.tasks.selection import (
    Graph,
    IndependentCascade,
    LinearThreshold,
    barabasi_albert,
    erdos_renyi,
    ris_greedy,
    spread,
    spread_curve,
    spreads,
)

BOTH_99 = 2.576
MODELS = [IndependentCascade(0.05), IndependentCascade(0.4), IndependentCascade(), LinearThreshold()]


def graphs():
    return [barabasi_albert(300, 3, np.random.default_rng(0)), erdos_renyi(300, 0.02, np.random.default_rng(1))]


def cynetdiff_counts(graph, seeds, probability, simulations, threshold=False):
    models = pytest.importorskip("cynetdiff.models", reason="cynetdiff simulates the same cascades")
    starts, ends = graph.indptr.astype(np.uint32), graph.indices.astype(np.uint32)
    chance = np.float32(1.0) / graph.degrees[graph.indices] if probability is None else np.full(len(ends), probability)
    chance = chance.astype(np.float32)
    if threshold:
        model = models.LinearThresholdModel(starts[:-1], ends, influence=chance, rng=5)
    else:
        model = models.IndependentCascadeModel(starts[:-1], ends, activation_probs=chance, rng=5)
    model.set_seeds([int(node) for node in seeds])
    counts = []
    for _ in range(simulations):
        model.reset_model()
        model.advance_until_completion()
        counts.append(model.get_num_activated_nodes())
    return np.array(counts)


@pytest.mark.parametrize("probability", [0.05, 0.4, None])
@pytest.mark.parametrize("which", [0, 1])
def test_means_agree_with_cynetdiff(probability, which):
    graph = graphs()[which]
    reference = cynetdiff_counts(graph, [0, 7, 100], probability, 4000)
    measured = spread(graph, [0, 7, 100], IndependentCascade(probability), simulations=4000, seed=3)
    joint = math.hypot(measured.error, reference.std(ddof=1) / math.sqrt(len(reference)))
    assert abs(measured.mean - reference.mean()) < BOTH_99 * joint


def test_threshold_means_agree_with_cynetdiff():
    graph = graphs()[0]
    reference = cynetdiff_counts(graph, [0, 7, 100], None, 4000, threshold=True)
    measured = spread(graph, [0, 7, 100], LinearThreshold(), simulations=4000, seed=3)
    joint = math.hypot(measured.error, reference.std(ddof=1) / math.sqrt(len(reference)))
    assert abs(measured.mean - reference.mean()) < BOTH_99 * joint


def test_a_path_has_the_closed_form():
    # From an end of a path of 6, each next node is reached with p: 1 + p + p² + ... + p⁵.
    for p in (0.1, 0.6):
        result = spread(path(6), [0], IndependentCascade(p), simulations=100_000, seed=1)
        assert abs(result.mean - (1 - p**6) / (1 - p)) < BOTH_99 * result.error


@pytest.mark.parametrize("model", [IndependentCascade(), LinearThreshold()], ids=["weighted", "threshold"])
def test_weights_of_one_over_degree_on_a_star(model):
    """A leaf activates the center with probability 1/4, which then activates every other leaf."""
    star = Graph.from_edges([[0, i] for i in range(1, 5)])
    result = spread(star, [1], model, simulations=100_000, seed=2)
    assert abs(result.mean - (1 + 4 / 4)) < BOTH_99 * result.error


def test_certain_and_impossible_influence():
    graph = graphs()[0]
    assert set(spread(graph, [5], IndependentCascade(1.0), simulations=20).counts) == {300}
    assert set(spread(graph, [5, 6], IndependentCascade(0.0), simulations=20).counts) == {2}
    assert set(spread(graph, [], simulations=20).counts) == {0}


@pytest.mark.parametrize("model", MODELS, ids=str)
def test_results_do_not_depend_on_threads_and_batches(model):
    graph = graphs()[0]
    sets = [[0, 1], [50, 60], [299, 7]]
    one = spreads(graph, sets, model, simulations=301, seed=9, threads=1)
    two = spreads(graph, sets, model, simulations=301, seed=9, threads=2)
    assert np.array_equal(one, two)
    for row, seeds in zip(one, sets, strict=True):
        assert np.array_equal(row, spread(graph, seeds, model, simulations=301, seed=9).counts)
    assert not np.array_equal(one, spreads(graph, sets, model, simulations=301, seed=10))
    chosen = [ris_greedy(graph, 5, model, sets=3000, seed=4, threads=threads) for threads in (1, 2)]
    assert chosen[0].seeds.tolist() == chosen[1].seeds.tolist()
    assert chosen[0].influence.tolist() == chosen[1].influence.tolist()


def test_the_interval_has_its_nominal_coverage():
    graph = path(6)
    truth = (1 - 0.5**6) / 0.5
    result = [spread(graph, [0], IndependentCascade(0.5), simulations=400, seed=i, confidence=0.9) for i in range(400)]
    covered = sum(low <= truth <= high for low, high in (one.interval for one in result))
    assert abs(covered - 360) < 4 * math.sqrt(400 * 0.9 * 0.1)


@pytest.mark.parametrize("model", MODELS, ids=str)
def test_reverse_sets_estimate_the_spread(model):
    graph = graphs()[1]
    choice = ris_greedy(graph, 1, model, sets=40_000)
    result = spread(graph, choice.seeds, model, simulations=10_000)
    share = choice.influence[0] / 300
    reference = 300 * math.sqrt(share * (1 - share) / choice.sets)
    # The largest of 300 estimates is biased upwards, by about three standard errors at most.
    assert -BOTH_99 * reference < choice.influence[0] - result.mean < 6 * reference + BOTH_99 * result.error


def celf(graph, k, model, simulations):
    """Lazy greedy on simulated influence (Leskovec et al. 2007)."""

    def influence(nodes):
        return spread(graph, nodes, model, simulations=simulations, seed=77).mean

    heap = [(-influence([node]), node, 0) for node in range(graph.num_nodes)]
    heapq.heapify(heap)
    chosen, reached = [], 0.0
    while len(chosen) < k:
        gain, node, when = heapq.heappop(heap)
        if when == len(chosen):
            chosen.append(node)
            reached -= gain
        else:
            heapq.heappush(heap, (reached - influence([*chosen, node]), node, len(chosen)))
    return chosen


@pytest.mark.parametrize("model", [IndependentCascade(0.1), IndependentCascade(), LinearThreshold()], ids=str)
@pytest.mark.parametrize("which", [0, 1])
def test_reverse_greedy_is_within_two_percent_of_celf(model, which):
    graph = (
        barabasi_albert(60, 2, np.random.default_rng(3)) if which else erdos_renyi(60, 0.07, np.random.default_rng(4))
    )
    measured, reference = ris_greedy(graph, 4, model, epsilon=0.1).seeds, celf(graph, 4, model, 5000)
    reached = [spread(graph, seeds, model, simulations=100_000, seed=1).mean for seeds in (measured, reference)]
    assert reached[0] >= 0.98 * reached[1]


def test_a_smaller_epsilon_takes_more_sets():
    graph = graphs()[0]
    loose, tight = (ris_greedy(graph, 5, epsilon=epsilon) for epsilon in (0.5, 0.25))
    assert tight.sets > 3 * loose.sets
    assert (np.diff(tight.influence) >= 0).all()


def test_all_nodes_can_be_chosen():
    graph = path(7)
    assert sorted(ris_greedy(graph, 7, sets=50).seeds) == list(range(7))
    assert ris_greedy(Graph.from_edges([], 1), 1).influence.tolist() == [1.0]


@pytest.mark.parametrize("p", [-0.1, 1.1, float("nan"), float("inf"), "0.1", True])
def test_invalid_probabilities_raise_a_usage_error(p):
    with pytest.raises(UsageError, match="probability must be a number from 0 to 1"):
        IndependentCascade(p)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda g: spread(g, [4]), "the seed set has id 4, which is not from 0 to 3"),
        (lambda g: spread(g, [1, 1]), "the seed set has node 1 more than once"),
        (lambda g: spread(g, [0, 1, 2, 3, 4]), "the seed set has 5 nodes, but the graph has only 4"),
        (lambda g: spread(g, [0], simulations=0), "simulations must be a whole number of at least 1"),
        (lambda g: spread(g, [0], threads=0), "threads must be a whole number of at least 1"),
        (lambda g: spread(g, [0], seed=-1), "seed must be an integer from 0"),
        (lambda g: spread(g, [0], confidence=1.0), "confidence must be above 0 and below 1"),
        (lambda g: spread(g, [0], 0.1), "model must be an IndependentCascade or a LinearThreshold, got 0.1"),
        (lambda g: spreads(g, [0]), "seed_sets must have shape"),
        (lambda g: spreads(g, [[0], [9]]), "seed set 1 has id 9"),
        (lambda g: ris_greedy(g, 5), "k must be an integer from 1 to 4, the number of nodes, got 5"),
        (lambda g: ris_greedy(g, 0), "k must be an integer from 1"),
        (lambda g: ris_greedy(g, 1, epsilon=0.7), "epsilon must be between 0 and 1 - 1/e"),
        (lambda g: ris_greedy(g, 1, failure=0.0), "failure must be above 0 and below 1"),
        (lambda g: ris_greedy(g, 1, sets=0), "sets must be a whole number of at least 1"),
    ],
)
def test_invalid_arguments_raise_a_usage_error(call, sentence):
    with pytest.raises(UsageError, match=sentence):
        call(path(4))


@pytest.mark.parametrize("probability", [0.05, 0.4, None, 1.0])
def test_a_curve_agrees_with_the_spread_of_every_number_of_seeds(probability):
    for graph in graphs():
        order = np.random.default_rng(3).permutation(graph.num_nodes)[:12]
        curve = spread_curve(graph, order, probability, simulations=4000, seed=1)
        assert np.array_equal(curve, spread_curve(graph, order, probability, simulations=4000, seed=1, threads=1))
        assert (np.diff(curve) >= 0).all()
        for size in (1, 2, 5, 12):
            alone = spread(graph, order[:size], IndependentCascade(probability), simulations=4000, seed=2)
            # Two independent means of 4,000; five standard errors of their difference.
            allowed = 5 * math.sqrt(2 * alone.counts.var() / 4000)
            assert abs(curve[size - 1] - alone.mean) <= allowed

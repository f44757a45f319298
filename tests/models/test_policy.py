"""Policies: features, batching, ties, and scores of any graph."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch

pytest.importorskip("numba", reason="node selection needs numba")

from tests.lab.tasks.selection.selection_cases import NeighborMean, path, policy, small_graph

from normplace import Scale, UsageError
from normplace.lab.tasks.selection import Graph, adaptive_order, barabasi_albert, mixed_graphs, ranking
from normplace.models.policy import Policy, break_ties


@pytest.mark.parametrize("scale", [None, Scale("degree", -1.0), Scale("pagerank", 0.5)])
def test_a_graph_scores_the_same_alone_and_in_a_batch(scale):
    one = policy(scale=scale)
    graphs = mixed_graphs(4, 10, 30, np.random.default_rng(0))
    alone = [torch.from_numpy(one.score(graph)) for graph in graphs]
    together = one([one.prepare(graph) for graph in graphs], torch.Generator())
    assert torch.allclose(together, torch.cat(alone), atol=1e-10)  # the tolerance of ties


def test_without_degree_all_nodes_score_alike_and_with_postdeg_they_do_not():
    graph = path(5)
    plain = policy("constant").score(graph)
    assert np.ptp(plain) < 1e-10
    scaled = policy("constant", scale=Scale("degree", -1.0)).score(graph)
    assert scaled[0] == pytest.approx(scaled[4], abs=1e-9)
    assert abs(scaled[0] - scaled[2]) > 1e-3


def test_random_features_come_from_the_seed():
    one = policy("random")
    assert np.array_equal(one.score(path(6), seed=1), one.score(path(6), seed=1))
    assert not np.array_equal(one.score(path(6), seed=1), one.score(path(6), seed=2))


def test_edgeless_and_single_graphs_have_scores():
    for graph in (Graph.from_edges([], 1), Graph.from_edges([], 4), small_graph(0)):
        assert np.isfinite(policy(scale=Scale("degree", -1.0)).score(graph)).all()


def test_unknown_input():
    with pytest.raises(UsageError, match="unknown features 'degre': did you mean 'degree'"):
        policy("degre")


def rank_correlation(order: np.ndarray, values: np.ndarray) -> float:
    """Spearman correlation of the position in an order with a value; ties by id."""
    place = np.empty(len(order))
    place[order] = np.arange(len(order))
    return float(np.corrcoef(-place, np.argsort(np.argsort(values, kind="stable")))[0, 1])


def test_a_network_that_scores_all_nodes_equally_orders_them_at_random():
    """With constant features, mean aggregation gives all nodes equal scores up to rounding, which depends on degree."""
    graph = barabasi_albert(1500, 3, np.random.default_rng(0))
    torch.manual_seed(0)
    one = Policy(NeighborMean, 32, 3, features="constant", placement="post")
    orders = [ranking(graph, one.score(graph, seed)) for seed in range(20)]
    correlations = [rank_correlation(order, graph.degrees) for order in orders]
    # For a random order the standard deviation is 1/sqrt(1499) = .026, and .006 for the mean of twenty.
    assert max(map(abs, correlations)) < 0.1
    assert abs(np.mean(correlations)) < 0.025
    ids = [rank_correlation(order, np.arange(1500)) for order in orders]
    assert abs(np.mean(ids)) < 0.025
    # With a new score after every tenth of the nodes, the first removed nodes are not hubs.
    adaptive = [adaptive_order(graph, functools.partial(one.score, seed=seed), 150) for seed in range(6)]
    degrees = [graph.degrees[order[:150]].mean() for order in adaptive]
    assert abs(np.mean(degrees) - graph.degrees.mean()) < 4 * graph.degrees.std() / np.sqrt(900)


def test_ties_are_those_of_rounding():
    scores = np.array([3.0, 1.0, 1.0 + 1e-12, 1.0 - 1e-12, 2.0, 2.0 + 1e-6])
    for seed in range(5):
        order = np.argsort(-break_ties(scores, np.random.default_rng(seed)))
        assert order[:3].tolist() == [0, 5, 4]
    orders = {tuple(np.argsort(-break_ties(scores, np.random.default_rng(seed)))[3:]) for seed in range(60)}
    assert len(orders) == 6

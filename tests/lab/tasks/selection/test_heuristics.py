"""Classical scores and orders against igraph, networkx and plain definitions."""

from __future__ import annotations

import numpy as np
import pytest
from tests.lab.tasks.selection.selection_cases import path, small_graph

from normplace import UsageError
from normplace.lab.tasks.selection import (
    Graph,
    adaptive_order,
    barabasi_albert,
    betweenness,
    betweenness_order,
    collective_influence,
    collective_influence_order,
    core_numbers,
    core_order,
    corehd_order,
    degree_order,
    dismantle,
    pagerank,
    random_order,
)


def in_igraph(graph):
    igraph = pytest.importorskip("igraph", reason="igraph computes the same scores")
    return igraph.Graph(graph.num_nodes, graph.edges().tolist())


def in_networkx(graph):
    networkx = pytest.importorskip("networkx", reason="networkx computes the same scores")
    other = networkx.Graph(graph.edges().tolist())
    other.add_nodes_from(range(graph.num_nodes))
    return networkx, other


def test_core_numbers_and_betweenness_equal_igraphs():
    for number in range(100):
        graph = small_graph(number)
        other = in_igraph(graph)
        assert core_numbers(graph).tolist() == other.coreness(), number
        assert np.allclose(betweenness(graph), other.betweenness(directed=False), rtol=1e-12, atol=1e-9), number


def test_pagerank_equals_networkxs():
    for number in range(20):
        graph = small_graph(number)
        networkx, other = in_networkx(graph)
        expected = networkx.pagerank(other, tol=1e-12, max_iter=1000)
        assert np.allclose(pagerank(graph), [expected[node] for node in range(graph.num_nodes)], atol=1e-9)
        assert pagerank(graph).sum() == pytest.approx(1)


def test_collective_influence_is_its_definition():
    for number in range(30):
        graph = small_graph(number)
        networkx, other = in_networkx(graph)
        for radius in (1, 2, 3):
            expected = []
            for node in range(graph.num_nodes):
                away = networkx.single_source_shortest_path_length(other, node, cutoff=radius)
                shell = sum(other.degree[v] - 1 for v, distance in away.items() if distance == radius)
                expected.append(max(other.degree[node] - 1, 0) * shell)
            assert collective_influence(graph, radius).tolist() == expected, (number, radius)


def test_the_collective_influence_order_recomputes_after_each_removal():
    for number in range(40):
        graph = small_graph(number)
        for radius in (1, 2):
            order = collective_influence_order(graph, radius)
            assert sorted(order) == list(range(graph.num_nodes))
            plain = adaptive_order(graph, lambda left, radius=radius: collective_influence(left, radius))
            scores = collective_influence(graph, radius)
            removed = np.zeros(graph.num_nodes, bool)
            for node, expected in zip(order, plain, strict=True):
                if removed.all() or not scores.any():
                    break  # from here on by degree
                assert node == expected, (number, radius)
                removed[node] = True
                if not removed.all():
                    left, names = graph.without(removed)
                    scores = np.zeros(graph.num_nodes, int)
                    scores[names] = collective_influence(left, radius)


def test_corehd_takes_the_highest_degree_of_the_two_core_until_no_cycle_is_left():
    for number in range(60):
        graph = small_graph(number)
        networkx, other = in_networkx(graph)
        order = corehd_order(graph)
        assert sorted(order) == list(range(graph.num_nodes))
        for node in order:
            core = networkx.k_core(other, 2)
            if not core:
                break
            degrees = dict(core.degree)
            assert node == min(degrees, key=lambda v: (-degrees[v], v)), number
            other.remove_node(node)


def test_trees_are_broken_at_their_centers():
    assert corehd_order(path(7))[:3].tolist()[0] == 3
    assert dismantle(path(7), corehd_order(path(7))).curve.tolist() == [7, 3, 3, 1, 1, 1, 1, 0]
    star = Graph.from_edges([[0, i] for i in range(1, 9)])
    assert corehd_order(star)[0] == 0
    for number in range(40):
        graph = small_graph(number)
        networkx, other = in_networkx(graph)
        for node in corehd_order(graph):
            if networkx.is_forest(other):
                tree = other.subgraph(max(networkx.connected_components(other), key=len)).copy()
                assert len(networkx.node_connected_component(other, node)) == len(tree)
                part = other.subgraph(networkx.node_connected_component(other, node)).copy()
                part.remove_node(node)
                largest = max((len(c) for c in networkx.connected_components(part)), default=0)
                assert 2 * largest <= len(tree)
            other.remove_node(node)
            if not other:
                break


def test_static_orders():
    graph = barabasi_albert(100, 2, np.random.default_rng(0))
    assert np.array_equal(degree_order(graph), np.lexsort((np.arange(100), -graph.degrees)))
    cores = core_numbers(graph)[core_order(graph)]
    assert (np.diff(cores) <= 0).all()
    assert sorted(random_order(graph, np.random.default_rng(0))) == list(range(100))


def test_betweenness_is_the_same_for_any_number_of_threads():
    graph = barabasi_albert(300, 3, np.random.default_rng(0))
    assert np.array_equal(betweenness(graph, threads=1), betweenness(graph, threads=2))


def test_too_many_shortest_paths_are_refused():
    one = np.stack(np.meshgrid(np.arange(8), np.arange(8, 16)), -1).reshape(-1, 2)
    graph = Graph.from_edges(np.concatenate([one + 8 * layer for layer in range(343)]))
    with pytest.raises(UsageError, match="betweenness overflows"):  # 8 ** 342 between the first and the last layer
        betweenness(graph)


def test_sampled_betweenness():
    graph = barabasi_albert(300, 3, np.random.default_rng(0))
    exact = betweenness(graph)
    sampled = [betweenness(graph, 60, np.random.default_rng(i)) for i in range(50)]
    # The mean of 50 samples of a fifth of the sources: a few percent of the largest score.
    assert np.abs(np.mean(sampled, axis=0) - exact).max() < 0.05 * exact.max()
    assert np.allclose(betweenness(graph, 300, np.random.default_rng(0)), exact)


def test_adaptive_betweenness_beats_static():
    graph = barabasi_albert(150, 2, np.random.default_rng(2))
    static, adaptive = (dismantle(graph, betweenness_order(graph, adaptive=a)) for a in (False, True))
    assert adaptive.R < static.R
    few = betweenness_order(graph, adaptive=True, step=5, sources=40, generator=np.random.default_rng(0))
    assert sorted(few) == list(range(150))


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda g: pagerank(g, damping=1.0), "damping must be at least 0 and below 1"),
        (lambda g: pagerank(g, damping=float("nan")), "damping must be at least 0 and below 1"),
        (lambda g: pagerank(g, tolerance=0.0), "tolerance must be positive"),
        (lambda g: collective_influence(g, 0), "radius must be a whole number of at least 1"),
        (lambda g: collective_influence_order(g, 1.5), "radius must be a whole number of at least 1"),
        (
            lambda g: betweenness(g, 5, np.random.default_rng(0)),
            "sources is 5, but the graph has only 4 nodes",
        ),
        (lambda g: betweenness(g, 0, np.random.default_rng(0)), "sources must be a whole number of at least 1"),
        (lambda g: betweenness(g, 2), "generator must be a numpy.random.Generator"),
    ],
)
def test_invalid_arguments_raise_a_usage_error(call, sentence):
    with pytest.raises(UsageError, match=sentence):
        call(path(4))


@pytest.mark.parametrize("radius", [9, 10**30])
def test_no_node_is_as_far_as_the_number_of_nodes(radius):
    graph = path(9)
    assert collective_influence(graph, radius).tolist() == [0] * graph.num_nodes
    assert sorted(collective_influence_order(graph, radius)) == list(range(graph.num_nodes))

"""Random graphs: sizes, properties of each kind, and errors."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest

pytest.importorskip("numba", reason="node selection needs numba")

from normplace import UsageError
from normplace.lab.tasks.selection import (
    Graph,
    barabasi_albert,
    block_graph,
    erdos_renyi,
    exact_set,
    mixed_graphs,
    model_rb,
    powerlaw_cluster,
    shuffled,
    uniform_graph,
)


def clustering(graph: Graph) -> float:
    return nx.average_clustering(nx.Graph(graph.edges().tolist()))


def test_random_graphs_have_their_sizes_and_come_from_the_generator():
    graph = barabasi_albert(200, 3, np.random.default_rng(0))
    assert graph.num_edges == 3 + 3 * 196  # a star of four nodes, then three edges each
    assert graph.degrees[4:].min() == 3
    again = barabasi_albert(200, 3, np.random.default_rng(0))
    assert np.array_equal(graph.indices, again.indices)
    assert uniform_graph(50, 300, np.random.default_rng(0)).num_edges == 300
    assert uniform_graph(5, 10, np.random.default_rng(0)).degrees.tolist() == [4] * 5
    assert erdos_renyi(30, 0.0, np.random.default_rng(0)).num_edges == 0
    # 100 graphs of 435 pairs at 0.2: 8700 edges expected, standard deviation 83
    counts = [erdos_renyi(30, 0.2, np.random.default_rng(i)).num_edges for i in range(100)]
    assert abs(sum(counts) - 8700) < 4 * 83


def test_preferential_attachment_makes_hubs():
    generator = np.random.default_rng(1)
    hubs = barabasi_albert(2000, 2, generator).degrees.max()
    assert hubs > 3 * uniform_graph(2000, 4000, generator).degrees.max()


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda g: erdos_renyi(5, 1.5, g), "probability must be a number from 0 to 1"),
        (lambda g: erdos_renyi(5, float("nan"), g), "probability must be a number from 0 to 1"),
        (lambda g: erdos_renyi(0, 0.5, g), "the graph is empty"),
        (lambda g: uniform_graph(3, 4, g), "num_edges must be from 0 to 3 for 3 nodes, got 4"),
        (lambda g: barabasi_albert(3, 3, g), "attach must be from 1 to num_nodes - 1 = 2"),
        (lambda g: barabasi_albert(0, 1, g), "attach must be from 1"),
        (lambda g: powerlaw_cluster(9, 2, 1.5, g), "triangle must be a number from 0 to 1"),
        (lambda g: block_graph([3, 0], 0.5, 0.5, g), "every group needs at least one node"),
        (lambda g: block_graph([3, 3], 0.5, -0.1, g), "across must be a number from 0 to 1"),
        (lambda g: mixed_graphs(2, 5, 9, g), "at least 8 nodes, got 2 of 5 to 9"),
        (lambda g: mixed_graphs(0, 10, 19, g), "at least 1 graph"),
    ],
)
def test_invalid_random_graphs_raise_a_usage_error(make, sentence):
    with pytest.raises(UsageError, match=sentence):
        make(np.random.default_rng(0))


def test_triangles_are_as_common_as_in_networkx():
    clusterings = [clustering(powerlaw_cluster(600, 3, 0.8, np.random.default_rng(seed))) for seed in range(5)]
    expected = [nx.average_clustering(nx.powerlaw_cluster_graph(600, 3, 0.8, seed=seed)) for seed in range(5)]
    assert np.mean(clusterings) == pytest.approx(np.mean(expected), abs=0.05)
    assert np.mean(clusterings) > 5 * clustering(barabasi_albert(600, 3, np.random.default_rng(0)))


def test_groups_have_their_own_densities():
    sizes = [30, 50, 20]
    group = np.repeat(range(3), sizes)
    inside = across = 0
    for seed in range(40):
        ends = group[block_graph(sizes, 0.3, 0.02, np.random.default_rng(seed)).edges()]
        inside += int((ends[:, 0] == ends[:, 1]).sum())
        across += int((ends[:, 0] != ends[:, 1]).sum())
    within = sum(size * (size - 1) // 2 for size in sizes)
    between = 100 * 99 // 2 - within
    for count, pairs, chance in ((inside, within, 0.3), (across, between, 0.02)):
        trials = 40 * pairs
        assert abs(count - trials * chance) < 4 * np.sqrt(trials * chance * (1 - chance))


def test_shuffling_changes_numbers_and_nothing_else():
    graph = barabasi_albert(100, 2, np.random.default_rng(0))
    other = shuffled(graph, np.random.default_rng(1))
    assert sorted(graph.degrees) == sorted(other.degrees)
    assert nx.faster_could_be_isomorphic(nx.Graph(graph.edges().tolist()), nx.Graph(other.edges().tolist()))
    assert not np.array_equal(graph.degrees, other.degrees)


def test_a_mixture_keeps_its_sizes_and_hides_ages():
    graphs = mixed_graphs(40, 20, 60, np.random.default_rng(0))
    assert len(graphs) == 40
    assert all(20 <= graph.num_nodes <= 60 for graph in graphs)
    assert min(graph.num_nodes for graph in graphs) < 30 < 50 < max(graph.num_nodes for graph in graphs)
    # In order of age the first half of a scale-free graph has most edge ends; after shuffling it has half of them.
    ages = [graph.degrees[: graph.num_nodes // 2].sum() / graph.degrees.sum() for graph in graphs[::4]]
    assert np.mean(ages) == pytest.approx(0.5, abs=0.08)


def test_model_rb_has_cliques_and_sets_of_one_node_each():
    graph = model_rb(12, 6, 0.5, np.random.default_rng(0))
    edges = graph.edges()
    assert graph.num_nodes == 72
    inside = edges[edges[:, 0] // 6 == edges[:, 1] // 6]
    assert len(inside) == 12 * 15  # whole cliques
    # 12 ln 6 / ln 2 = 31 constraints, less one, of 18 of the 36 pairs each, of which some meet.
    assert 18 * 20 < len(edges) - len(inside) <= 18 * 30
    assert 8 <= len(exact_set(graph)) <= 12
    with pytest.raises(UsageError, match="at least 2 groups of at least 2 nodes"):
        model_rb(1, 6, 0.5, np.random.default_rng(0))
    with pytest.raises(UsageError, match="tightness must be above 0 and below 1"):
        model_rb(12, 6, 1.0, np.random.default_rng(0))


def test_constraints_of_model_rb_forbid_other_pairs_than_earlier_ones():
    # Nine constraints of 10 of the 36 pairs: one of the two ordered pairs of cliques has at least five, so all pairs.
    assert {model_rb(2, 6, 0.3, np.random.default_rng(seed)).num_edges for seed in range(5)} == {12 * 11 // 2}

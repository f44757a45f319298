"""Topology scalars against networkx, and the stated treatment of what a graph may contain."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from normplace import Scale, UsageError
from normplace.models import centrality, topology
from normplace.models.topology import TOPOLOGIES

NAMES = [*TOPOLOGIES, "constant", "constant:pagerank"]


@pytest.fixture(scope="module")
def nx():
    return pytest.importorskip("networkx", reason="networkx is the oracle")


def edges_of(graph, directed=False):
    pairs = list(graph.edges())
    pairs = pairs if directed else pairs + [(b, a) for a, b in pairs]
    return torch.tensor(pairs, dtype=torch.long).reshape(-1, 2).T.contiguous()


def graphs(nx):
    """Connected or not, with leaves, isolated nodes, triangles and none."""
    yield nx.barabasi_albert_graph(60, 3, seed=1)
    yield nx.gnp_random_graph(50, 0.05, seed=2)
    yield nx.gnp_random_graph(40, 0.3, seed=3)
    yield nx.powerlaw_cluster_graph(70, 3, 0.6, seed=4)
    yield nx.random_regular_graph(4, 30, seed=5)
    yield nx.disjoint_union(nx.star_graph(6), nx.path_graph(5))
    yield nx.empty_graph(4)
    yield nx.complete_graph(7)


def agree(values, expected, tolerance=1e-6):
    expected = torch.tensor([float(expected[node]) for node in range(len(values))])
    torch.testing.assert_close(values, expected, rtol=tolerance, atol=tolerance)


def test_core_clustering_and_betweenness_equal_networkx(nx):
    for graph in graphs(nx):
        n, edges = len(graph), edges_of(graph)
        agree(topology("degree", edges, n), {v: max(d, 1) for v, d in graph.degree()})
        agree(topology("k-core", edges, n), {v: max(k, 1) for v, k in nx.core_number(graph).items()})
        agree(topology("clustering", edges, n), {v: 1 + c for v, c in nx.clustering(graph).items()})
        exact = nx.betweenness_centrality(graph, normalized=False)
        agree(topology("betweenness", edges, n), {v: 1 + b for v, b in exact.items()})


def test_pagerank_equals_networkx_on_directed_graphs(nx):
    for seed in range(4):
        graph = nx.gnp_random_graph(40, 0.06, seed=seed, directed=True)
        expected = nx.pagerank(graph, alpha=0.9, tol=1e-12, max_iter=1000)
        values = topology("pagerank", edges_of(graph, directed=True), 40, damping=0.9)
        agree(values / 40, expected)


def test_directed_degrees_equal_networkx(nx):
    graph = nx.gnp_random_graph(40, 0.06, seed=1, directed=True)
    edges = edges_of(graph, directed=True)
    agree(topology("degree", edges, 40), {v: max(d, 1) for v, d in graph.in_degree()})
    agree(topology("out-degree", edges, 40), {v: max(d, 1) for v, d in graph.out_degree()})
    agree(topology("total-degree", edges, 40), {v: max(d, 1) for v, d in graph.degree()})


@pytest.fixture(params=range(4))
def multigraph(nx, request):
    """Directed edges with self-loops, repeats, some in both directions, and isolated nodes; and without all that."""
    generator = torch.Generator().manual_seed(request.param)
    edges = torch.randint(24, (2, 30 + 20 * request.param), generator=generator)
    edges = torch.cat([edges, edges[:, :9], edges[:, 3:7].flip(0), torch.tensor([[2, 5], [2, 5]])], 1)
    graph = nx.MultiDiGraph()
    graph.add_nodes_from(range(27))
    graph.add_edges_from((a, b) for a, b in edges.T.tolist() if a != b)
    return edges, graph, nx.DiGraph(graph)


def test_directed_multigraphs_equal_networkx(nx, multigraph):
    edges, graph, simple = multigraph
    agree(topology("degree", edges, 27), {v: max(d, 1) for v, d in simple.in_degree()})
    agree(topology("out-degree", edges, 27), {v: max(d, 1) for v, d in simple.out_degree()})
    agree(topology("total-degree", edges, 27), {v: max(d, 1) for v, d in simple.degree()})
    agree(topology("degree", edges, 27, multi=True), {v: max(d, 1) for v, d in graph.in_degree()})
    agree(topology("total-degree", edges, 27, multi=True), {v: max(d, 1) for v, d in graph.degree()})
    for multi, wanted in ((False, simple), (True, graph)):
        agree(topology("pagerank", edges, 27, multi=multi) / 27, nx.pagerank(wanted, tol=1e-12, max_iter=1000))
    paths = nx.betweenness_centrality(simple, normalized=False)
    agree(topology("betweenness", edges, 27, directed=True), {v: 1 + b for v, b in paths.items()})
    either = simple.to_undirected()
    agree(topology("k-core", edges, 27), {v: max(k, 1) for v, k in nx.core_number(either).items()})
    agree(topology("clustering", edges, 27), {v: 1 + c for v, c in nx.clustering(either).items()})
    paths = nx.betweenness_centrality(either, normalized=False)
    agree(topology("betweenness", edges, 27), {v: 1 + b for v, b in paths.items()})


def test_directed_cores_equal_igraph(multigraph):
    igraph = pytest.importorskip("igraph", reason="igraph is the oracle")
    edges, _, simple = multigraph
    graph = igraph.Graph(27, list(simple.edges()), directed=True)
    both = igraph.Graph(27, list(simple.to_undirected().edges()))
    for direction, cores in (
        ("in", graph.coreness(mode="in")),
        ("out", graph.coreness(mode="out")),
        ("any", both.coreness()),
    ):
        agree(topology("k-core", edges, 27, direction=direction), [max(core, 1) for core in cores])


def test_directed_betweenness_of_an_undirected_graph_counts_both_ways(nx):
    edges = edges_of(nx.barabasi_albert_graph(30, 2, seed=0))
    once, both = topology("betweenness", edges, 30), topology("betweenness", edges, 30, directed=True)
    torch.testing.assert_close(both - 1, 2 * (once - 1))


def test_eigenvector_is_the_leading_one_of_each_component(nx):
    for graph in graphs(nx):
        values = topology("eigenvector", edges_of(graph), len(graph))
        for component in nx.connected_components(graph):
            nodes = sorted(component)
            adjacency = torch.tensor(nx.to_numpy_array(graph, nodelist=nodes))
            leading = torch.linalg.eigh(adjacency)[1][:, -1].abs() * math.sqrt(len(nodes))
            torch.testing.assert_close(values[nodes].double(), leading, rtol=1e-4, atol=1e-5)


def test_sampled_betweenness_is_unbiased_and_seeded(nx):
    graph = nx.barabasi_albert_graph(80, 2, seed=0)
    edges, exact = edges_of(graph), topology("betweenness", edges_of(graph), 80)
    assert torch.equal(topology("betweenness", edges, 80, samples=80), exact)

    def draw(seed):
        return topology("betweenness", edges, 80, samples=20, generator=torch.Generator().manual_seed(seed))

    assert torch.equal(draw(3), draw(3))
    mean = torch.stack([draw(seed) for seed in range(200)]).mean(0)
    # The standard error of the mean of 200 is a fourteenth of one draw's, itself well below the value at a hub.
    assert float((mean - exact).abs().max() / exact.max()) < 0.05


@pytest.mark.parametrize("name", ["k-core", "pagerank"])
def test_reading_the_edges_in_parts_changes_no_bit(name, monkeypatch):
    edges = torch.randint(40, (2, 300), generator=torch.Generator().manual_seed(0))
    whole = topology(name, edges, 45)
    monkeypatch.setattr(centrality, "CHUNK", 7)
    assert torch.equal(topology(name, edges, 45), whole)


@pytest.mark.parametrize("name", ["pagerank", "eigenvector"])
def test_the_compiled_loop_changes_no_bit(name, monkeypatch):
    pytest.importorskip("numba", reason="numba compiles the loop")
    from normplace.models import edge_loops

    calls, loop = [], edge_loops.add_along_edges
    monkeypatch.setattr(edge_loops, "add_along_edges", lambda *arrays: calls.append(loop(*arrays)))
    edges = torch.randint(40, (2, 300), generator=torch.Generator().manual_seed(0))
    expected = topology(name, edges, 45)
    assert calls == [], "small graphs are not compiled for"
    monkeypatch.setattr(centrality, "COMPILED", 0)
    assert torch.equal(topology(name, edges, 45), expected)
    assert calls, "the loop was not compared"


def test_too_many_shortest_paths_are_refused():
    """Between nodes k + 1 layers of 8 nodes apart there are 8 ** k shortest paths; float64 ends at 8 ** 341.3."""
    one = torch.cartesian_prod(torch.arange(8), torch.arange(8, 16)).T
    edges = torch.cat([one + 8 * layer for layer in range(343)], 1)
    with pytest.raises(UsageError, match="betweenness overflows"):
        centrality.betweenness(edges, 344 * 8, torch.tensor([0]), directed=True)


def test_triangles_do_not_depend_on_the_chunk(nx):
    edges = edges_of(nx.powerlaw_cluster_graph(70, 5, 0.6, seed=4))
    edges = centrality.simple_edges(edges, 70, undirected=True)
    assert torch.equal(centrality.triangles(edges, 70, chunk=1), centrality.triangles(edges, 70))


@pytest.mark.parametrize("name", NAMES)
def test_every_scalar_is_positive_and_makes_a_scale(name):
    # Node 4 is isolated, 0-1 is there twice, 2 has a self-loop, 3 is only pointed at.
    edges = torch.tensor([[0, 0, 1, 2, 2, 1], [1, 1, 2, 2, 3, 0]])
    values = topology(name, edges, 5)
    assert values.shape == (5,)
    assert values.dtype == torch.get_default_dtype()
    assert bool((values > 0).all())
    assert torch.isfinite(Scale(name, power=-1).factor(values)).all()
    assert topology(name, torch.empty(2, 0, dtype=torch.long), 0).shape == (0,)
    alone = topology(name, torch.empty(2, 0, dtype=torch.long), 3)
    torch.testing.assert_close(alone, torch.ones(3))


@pytest.mark.parametrize("name", NAMES)
def test_loops_and_repeats_change_nothing(name):
    edges = torch.tensor([[0, 1, 1, 2, 2, 3], [1, 0, 2, 1, 3, 2]])
    untidy = torch.cat([edges, edges[:, :2], torch.arange(4).repeat(2, 1)], 1)
    torch.testing.assert_close(topology(name, untidy, 4), topology(name, edges, 4))


@pytest.mark.parametrize("name", ["k-core", "clustering", "eigenvector", "betweenness"])
def test_direction_is_ignored_where_the_rule_says_so(name):
    generator = torch.Generator().manual_seed(0)
    edges = torch.randint(12, (2, 20), generator=generator)
    both = torch.cat([edges, edges.flip(0)], 1)
    torch.testing.assert_close(topology(name, edges, 12), topology(name, both, 12))


@pytest.mark.parametrize("name", NAMES)
@given(
    st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), max_size=30),
    st.permutations(range(9)),
)
@settings(max_examples=25, deadline=None)
def test_renumbering_the_nodes_renumbers_the_scalars(name, pairs, order):
    edges = torch.tensor(pairs, dtype=torch.long).reshape(-1, 2).T
    order = torch.tensor(order)
    values = topology(name, edges, 9)
    torch.testing.assert_close(topology(name, order[edges], 9)[order], values, rtol=1e-4, atol=1e-5)
    assert bool((values > 0).all())


def test_repeats_count_on_request():
    edges = torch.tensor([[0, 0, 2], [1, 1, 1]])
    assert topology("degree", edges, 3).tolist() == [1, 2, 1]
    assert topology("degree", edges, 3, multi=True).tolist() == [1, 3, 1]
    several = torch.tensor([[0, 0, 0], [1, 1, 2]])
    once, each = topology("pagerank", several, 3), topology("pagerank", several, 3, multi=True)
    assert float(once[1] - once[2]) == pytest.approx(0, abs=1e-6)
    assert float(each[1]) > float(each[2])


@pytest.mark.parametrize("name", NAMES)
def test_a_batch_is_its_graphs(name):
    generator = torch.Generator().manual_seed(0)
    parts, sizes = [], [9, 5, 7]
    for n in sizes:
        half = torch.randint(n, (2, 2 * n), generator=generator)
        parts.append(torch.cat([half, half.flip(0)], 1))
    union = torch.cat([part + sum(sizes[:k]) for k, part in enumerate(parts)], 1)
    batch = torch.repeat_interleave(torch.tensor([4, 0, 7]), torch.tensor(sizes))
    expected = torch.cat([topology(name, part, n) for part, n in zip(parts, sizes, strict=True)])
    torch.testing.assert_close(topology(name, union, batch=batch), expected, rtol=1e-5, atol=1e-6)


def test_the_control_keeps_the_geometric_mean():
    edges = torch.tensor([[0, 0, 0, 1, 2, 3], [1, 2, 3, 0, 0, 0]])
    torch.testing.assert_close(topology("constant:degree", edges, 4), torch.full((4,), 3**0.25))
    assert torch.equal(topology("constant", edges, 4), topology("constant:degree", edges, 4))


EDGES = torch.tensor([[0, 1], [1, 2]])
MISTAKES = [
    (lambda: topology("degre", EDGES, 3), "did you mean 'degree'"),
    (lambda: topology("constant:kcore", EDGES, 3), "did you mean 'k-core'"),
    (lambda: topology("degree", EDGES, 2), "must be from 0 to 1, got 0 to 2"),
    (lambda: topology("degree", EDGES - 1, 3), "must be from 0 to 2, got -1 to 1"),
    (lambda: topology("degree", EDGES.float(), 3), "integers"),
    (lambda: topology("degree", EDGES.T.repeat(2, 1), 3), "2 × E"),
    (lambda: topology("degree", EDGES, 3, batch=torch.zeros(2, dtype=torch.long)), "each of the 3 nodes"),
    (lambda: topology("degree", EDGES, 3, batch=torch.tensor([0, 0, 1])), "connects two graphs"),
    (lambda: topology("degree", EDGES, 3, direction="inn"), "did you mean 'in'"),
    (lambda: topology("k-core", EDGES, 3, direction="all"), "unknown direction 'all': choose from any, in, out"),
    (lambda: topology("k-core", EDGES, 3, samples=2), "unknown option of 'k-core'"),
    (lambda: topology("betweenness", EDGES, 3, samples=4), "between 1 and the number of nodes 3"),
    (lambda: topology("pagerank", EDGES, 3, damping=1.0), "damping must lie"),
    (lambda: topology("eigenvector", EDGES, 3, iterations=2), "did not converge"),
]


@pytest.mark.parametrize(("call", "reason"), MISTAKES)
def test_mistakes_are_named(call, reason):
    with pytest.raises(UsageError, match=reason):
        call()

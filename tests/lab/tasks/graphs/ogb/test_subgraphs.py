"""Clusters and sampled neighbours."""

from __future__ import annotations

import pytest
import torch
from torch_geometric.utils import k_hop_subgraph, subgraph

from normplace.errors import UsageError
from normplace.lab.tasks.graphs.ogb.subgraphs import NeighbourSampler, clusters, random_parts

NODES = 30


@pytest.fixture
def edge_index():
    return torch.randint(NODES, (2, 200), generator=torch.Generator().manual_seed(3))


def test_clusters_are_the_induced_subgraphs(edge_index):
    """PyG's ``subgraph``, which ``RandomNodeLoader`` calls for each cluster, is the reference."""
    part = random_parts(NODES, 4, torch.Generator().manual_seed(0))
    found = list(clusters(edge_index, part, 5))  # the fifth is empty
    assert len(found) == 5 and len(found[4].nodes) == 0 and found[4].edge_index.shape == (2, 0)
    for number, cluster in enumerate(found):
        mask = part == number
        expected, _, edges = subgraph(mask, edge_index, relabel_nodes=True, num_nodes=NODES, return_edge_mask=True)
        assert torch.equal(cluster.nodes, mask.nonzero()[:, 0])
        assert torch.equal(cluster.edges, edges.nonzero()[:, 0])
        assert torch.equal(cluster.edge_index, expected)


def test_large_fanouts_keep_the_whole_neighbourhood(edge_index):
    seeds = torch.tensor([7, 2, 20])
    found = NeighbourSampler(edge_index, NODES, [200, 200]).sample(seeds, torch.Generator())
    nodes, _, _, _ = k_hop_subgraph(seeds, 2, edge_index, num_nodes=NODES)
    one_hop, _, _, _ = k_hop_subgraph(seeds, 1, edge_index, num_nodes=NODES)
    assert torch.equal(found.nodes[:3], seeds)
    assert torch.equal(found.nodes.sort().values, nodes.sort().values)
    # Each node that the first hop reached has all of its incoming edges, once.
    expected = torch.isin(edge_index[1], one_hop).nonzero()[:, 0]
    assert torch.equal(found.edges.sort().values, expected)
    assert torch.equal(found.nodes[found.edge_index], edge_index[:, found.edges])


def test_fanouts_bound_the_edges_of_each_node(edge_index):
    sampler, generator = NeighbourSampler(edge_index, NODES, [2]), torch.Generator().manual_seed(0)
    degree = torch.bincount(edge_index[1], minlength=NODES)
    drawn = torch.zeros(edge_index.shape[1])
    for _ in range(200):
        found = sampler.sample(torch.arange(NODES), generator)
        assert torch.equal(torch.bincount(found.edge_index[1], minlength=NODES), degree.clamp(max=2))
        assert len(found.edges.unique()) == len(found.edges)
        drawn[found.edges] += 1
    # Every edge of a node is equally likely; five standard deviations of the binomial distribution.
    chance = (2 / degree.clamp(min=2).double())[edge_index[1]]
    assert ((drawn - 200 * chance).abs() <= 5 * (200 * chance * (1 - chance)).sqrt() + 1e-9).all()


def test_no_hops_and_no_parts_are_refused(edge_index):
    with pytest.raises(UsageError, match="at least one hop"):
        NeighbourSampler(edge_index, NODES, [])
    with pytest.raises(UsageError, match="fanout must be a whole number"):
        NeighbourSampler(edge_index, NODES, [0])
    with pytest.raises(UsageError, match="parts must be a whole number"):
        random_parts(NODES, 0, torch.Generator())

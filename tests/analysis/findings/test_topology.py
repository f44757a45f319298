"""The audit proposes a topology scale where one reaches the output of a graph network, and nowhere else."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import normplace as npl

NODES, DIM = 12, 8


class Net(nn.Module):
    """Two rounds of message passing with a norm after each; ``end`` adds modules between the last norm and the head."""

    def __init__(self, norm=nn.LayerNorm, end: nn.Module | None = None) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(3, DIM), nn.Linear(DIM, 1)
        self.norms = nn.ModuleList(norm(DIM) for _ in range(2))
        self.end = nn.Identity() if end is None else end

    def forward(self, x, edge_index):
        x = self.embed(x)
        for norm in self.norms:
            x = norm(x + torch.zeros_like(x).index_add(0, edge_index[1], x[edge_index[0]]))
        return self.head(self.end(x))


@pytest.fixture
def graph():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(NODES, 3, generator=generator), torch.randint(NODES, (2, 40), generator=generator)


def proposed(model, *inputs):
    """The slots that the audit proposes for a scale."""
    return [name for item in npl.audit(model, *inputs).findings if item.rule == "topology scale" for name in item.where]


def test_a_scale_is_proposed_after_the_norms_that_survival_measures(graph):
    torch.manual_seed(0)
    model = Net()
    assert proposed(model, *graph) == ["norms.0", "norms.1"]
    assert all(site.kept < 1e-2 < 1e-1 < site.after for site in npl.survival(model, *graph).sites)


def test_a_slot_whose_scale_a_later_norm_divides_out_is_not_proposed(graph):
    torch.manual_seed(0)
    end = nn.Sequential(nn.Linear(DIM, DIM, bias=False), nn.ReLU(), nn.LayerNorm(DIM))
    model = Net(end=end)
    assert proposed(model, *graph) == ["norms.0", "end.2"]
    lost = next(site for site in npl.survival(model, *graph).sites if site.name == "norms.1")
    assert lost.after < 1e-3


def test_norms_over_rows_keep_a_scale_and_are_not_reported(graph):
    assert proposed(Net(nn.BatchNorm1d), *graph) == []


def test_other_networks_and_edge_features_are_not_reported():
    model = nn.Sequential(nn.Embedding(9, DIM), nn.LayerNorm(DIM))
    assert proposed(model, torch.randint(9, (2, 5))) == []  # ids of two sequences have the shape of edges


def test_pyg_networks(graph):
    from torch_geometric.nn import GAT, GIN

    kwargs = {"num_layers": 2, "norm": "LayerNorm", "norm_kwargs": {"mode": "node"}}
    assert proposed(GAT(3, DIM, **kwargs), *graph) == ["norms.0"]
    assert "norms.0" in proposed(GIN(3, DIM, **kwargs), *graph)
    stack = npl.models.GraphStack(npl.models.GENConv, 3, DIM, 1, 1, placement="pre", norm="layer")
    assert "final_norm" in proposed(stack, *graph)


@pytest.mark.parametrize("name", ["LayerNorm", "PairNorm"])
def test_one_statistic_of_a_whole_graph_keeps_a_scale(name, graph):
    from torch_geometric.nn import norm

    torch.manual_seed(0)
    model = Net(lambda dim: norm.LayerNorm(dim) if name == "LayerNorm" else norm.PairNorm())
    assert {site.kind for site in npl.audit(model, *graph).sites} == {"graph"}
    assert proposed(model, *graph) == []
    assert all(site.kept > 0.5 for site in npl.survival(model, *graph).sites)

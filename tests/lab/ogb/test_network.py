"""The networks have the published numbers of parameters, and compute what the authors' code does."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from normplace._shared.modules import count_parameters
from normplace.errors import UsageError
from normplace.lab.ogb.network import OgbNetwork
from normplace.lab.ogb.recipe import PUBLISHED, RECIPES
from normplace.lab.tasks.graphs.molecules import ATOM_SIZES, BOND_SIZES
from normplace.lab.tasks.graphs.ogb.catalog import TASKS
from normplace.models.deep_gcns import combine_categories, load_deep_gcns
from normplace.models.graph_parts import pool

WIDTHS = {
    "ogbn-arxiv": (128, None),
    "ogbn-products": (100, None),
    "ogbn-proteins": (16, 8),
    "ogbg-molhiv": (9, 3),
    "ogbg-molpcba": (9, 3),
    "ogbg-ppa": (7, 7),
}
"""Widths of the features of nodes and edges, with the eight species of ogbn-proteins."""


@pytest.mark.parametrize("name", WIDTHS)
def test_the_number_of_parameters_is_the_published_one(name):
    with torch.device("meta"):
        network = OgbNetwork(TASKS[name], RECIPES[name], *WIDTHS[name])
    assert count_parameters(network) == PUBLISHED[name].parameters


def tiny(name, **changes):
    torch.manual_seed(0)
    recipe = replace(RECIPES[name], depth=3, dim=12, **changes)
    network = OgbNetwork(TASKS[name], recipe, *WIDTHS[name]).double().eval()
    for parameter in network.parameters():  # norms and the virtual node would start as constants
        parameter.data += 0.1 * torch.randn_like(parameter)
    for buffer_name, buffer in network.named_buffers():
        if "running" in buffer_name:
            buffer.copy_(0.5 + torch.rand_like(buffer))
    return recipe, network


def inputs(name):
    """Three graphs, of which the second is a single node."""
    node_dim, edge_dim = WIDTHS[name]
    edge_index = torch.tensor([[0, 1, 1, 2, 4, 5, 5, 6, 4], [1, 0, 2, 1, 5, 4, 6, 5, 6]])
    if TASKS[name].categorical:
        x, attr = (
            torch.stack([torch.randint(size, (n,)) for size in sizes], 1)
            for sizes, n in ((ATOM_SIZES, 7), (BOND_SIZES, 9))
        )
    else:
        x, attr = torch.randn(7, node_dim).double(), None if edge_dim is None else torch.rand(9, edge_dim).double()
    return x, edge_index, attr, torch.tensor([0, 0, 0, 1, 2, 2, 2])


def official_state(name, network):
    """The weights under the names of the authors' code."""
    stack, is_graph = network.stack, TASKS[name].level == "graph"
    state = {}

    def put(official, module):
        state.update({f"{official}.{key}": value for key, value in module.state_dict().items()})

    blocks = list(stack.blocks)
    norms = [block.input_norm for block in blocks] + [stack.final_norm if is_graph else stack.final_norm[0]]
    for i, (conv, norm) in enumerate(zip([stack.stem.conv, *(b.branch.conv for b in blocks)], norms, strict=True)):
        put(f"{'layer_norms' if name == 'ogbn-proteins' else 'norms'}.{i}", norm)
        for number, module in enumerate(conv.mlp):
            if number % 4 < 2:  # a linear map or a norm; an activation and a dropout follow
                put(f"gcns.{i}.mlp.{3 * (number // 4) + number % 4}", module)
        if RECIPES[name].learn_t:
            state[f"gcns.{i}.t"] = conv.aggr_module.t
        if conv.edge_table is not None:
            for feature, table in enumerate(conv.edge_table.table.split(BOND_SIZES)):
                state[f"gcns.{i}.edge_encoder.bond_embedding_list.{feature}.weight"] = table
        elif conv.lin_edge is not None:
            put(f"gcns.{i}.edge_encoder", conv.lin_edge.own)
            put("edge_encoder", conv.lin_edge.shared)
    if name == "ogbn-proteins":
        put("node_one_hot_encoder", stack.embed.codes)
        put("node_features_encoder", stack.embed.features)
    elif TASKS[name].categorical:
        for feature, table in enumerate(stack.embed.table.split(ATOM_SIZES)):
            state[f"atom_encoder.atom_embedding_list.{feature}.weight"] = table
    else:
        put("node_features_encoder", stack.embed)
    put("graph_pred_linear" if is_graph else "node_pred_linear", stack.head)
    return state


@pytest.mark.parametrize("name", [name for name in WIDTHS if not RECIPES[name].virtual_node])
def test_a_network_is_the_official_one(name):
    recipe, network = tiny(name)
    state = official_state(name, network)
    aggr = {} if recipe.learn_t else {"aggr": recipe.aggregation, "t": recipe.t}
    official = load_deep_gcns(state, **aggr).eval()
    x, edge_index, attr, batch = inputs(name)
    types = combine_categories(attr, BOND_SIZES) if attr is not None and TASKS[name].categorical else attr
    if TASKS[name].level == "graph":
        found, expected = network(x, edge_index, attr, batch, 3), official(x, edge_index, types, batch)
    else:
        found, expected = network(x, edge_index, attr), official(x, edge_index, types)
    # float64; the products of the two linear maps of edges are rounded in another order.
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def test_the_virtual_node_is_the_official_one():
    _, network = tiny("ogbg-molpcba")
    x, edge_index, attr, batch = inputs("ogbg-molpcba")
    found = network(x, edge_index, attr, batch, 3)
    stack, types = network.stack, combine_categories(attr, BOND_SIZES)
    state = network.virtual.expand(3, -1)
    h = stack.stem.conv.conv(stack.embed(x) + state[batch], edge_index, types)
    for block in stack.blocks:
        read = F.relu(block.input_norm(h))
        state = block.branch.conv.update(pool(read, batch, "sum", 3) + state)
        h = block.branch.conv.conv(read + state[batch], edge_index, types) + h
    expected = stack.head(pool(stack.final_norm(h), batch, "mean", 3))
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "changes", [{"order": "res"}, {"order": "plain"}, {"placement": "peri"}, {"placement": "post"}]
)
@pytest.mark.parametrize("name", ["ogbn-proteins", "ogbg-molhiv"])
def test_other_orders_and_placements_train(name, changes):
    _, network = tiny(name, **changes)
    x, edge_index, attr, batch = inputs(name)
    graphs = (batch, 3) if TASKS[name].level == "graph" else ()
    network.train()(x, edge_index, attr, *graphs).sum().backward()
    assert all(parameter.grad is not None for parameter in network.parameters())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"depth": 1}, "depth must be at least 2"),
        ({"aggregation": "median"}, "unknown aggregation"),
        ({"placement": "nowhere"}, "nowhere"),
        ({"placement": "peri", "order": "res"}, "leave the order out"),
        ({"virtual_node": True, "order": "plain"}, "part of the order"),
        ({"learning_rate": 0.0}, "learning_rate"),
    ],
)
def test_impossible_settings_are_refused(changes, words):
    with pytest.raises(UsageError, match=words):
        replace(RECIPES["ogbn-arxiv"], **changes)

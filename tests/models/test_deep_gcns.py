"""Weights with the names of the official DeeperGCN code, against that network written out edge by edge."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.ops.aggregate.cases import graph
from torch import Tensor
from torch.nn import functional as F

from normplace import UsageError
from normplace.models import combine_categories, load_deep_gcns

NODES, WIDTH, DEPTH = 13, 8, 3
ATOMS, BONDS = (7, 3), (5, 6, 2)
EDGES = graph()
BATCH = torch.arange(NODES) // 5


class Official:
    """A state dict in the official layout with random numbers, and the official forward pass in evaluation mode.

    Args:
        task: ``node``, ``proteins``, ``ppa`` or ``mol``.
        norm: ``batch`` or ``layer``.
        aggr: The official name of the aggregation.
        learned: Names of learned numbers.
        mlp_layers: Linear maps of each convolution.
        msg_norm: Whether messages are normalized.
        own_edges: Whether each convolution encodes edges itself.
    """

    def __init__(self, task, norm, aggr, learned=(), mlp_layers=2, msg_norm=False, own_edges=False):
        self.task, self.norm, self.aggr, self.learned = task, norm, aggr, learned
        self.mlp_layers, self.msg_norm, self.own_edges = mlp_layers, msg_norm, own_edges
        self.is_graph = task in ("ppa", "mol")
        self.list = "layer_norms" if task == "proteins" else "norms"
        self.generator = torch.Generator().manual_seed(0)
        self.state: dict[str, Tensor] = {}
        for i in range(DEPTH):
            self.add_convolution(f"gcns.{i}.")
            self.add_norm(f"{self.list}.{i}.", WIDTH)
        if task == "mol":
            self.add_embeddings("atom_encoder.atom_embedding_list", ATOMS)
            if not own_edges:
                self.add_embeddings("bond_encoder.bond_embedding_list", BONDS)
        else:
            if task == "proteins":
                self.add_linear("node_one_hot_encoder.", 4, 4)
            self.add_linear("node_features_encoder.", 8 if task == "proteins" else 4, WIDTH)
            if task != "node":
                self.add_linear("edge_encoder.", 3, WIDTH)
        self.add_linear("graph_pred_linear." if self.is_graph else "node_pred_linear.", WIDTH, 2)

    def draw(self, *shape):
        return torch.randn(shape, generator=self.generator, dtype=torch.float64) / 2

    def add_linear(self, name, before, after):
        self.state |= {f"{name}weight": self.draw(after, before), f"{name}bias": self.draw(after)}

    def add_norm(self, name, width):
        self.state |= {f"{name}weight": self.draw(width) + 1, f"{name}bias": self.draw(width)}
        if self.norm == "batch":
            self.state |= {f"{name}running_mean": self.draw(width), f"{name}running_var": self.draw(width).exp()}
            self.state[f"{name}num_batches_tracked"] = torch.tensor(3)

    def add_embeddings(self, name, sizes):
        self.state |= {f"{name}.{k}.weight": self.draw(size, WIDTH) for k, size in enumerate(sizes)}

    def add_convolution(self, name):
        widths = [WIDTH, *[2 * WIDTH] * (self.mlp_layers - 1), WIDTH]
        for k in range(self.mlp_layers):
            self.add_linear(f"{name}mlp.{3 * k}.", widths[k], widths[k + 1])
            if k < self.mlp_layers - 1:
                self.add_norm(f"{name}mlp.{3 * k + 1}.", widths[k + 1])
        for letter in self.learned:
            self.state[f"{name}{letter}"] = {"t": 0.7, "p": 1.6, "y": -0.4}[letter] + self.draw(1)
        if self.msg_norm:
            self.state[f"{name}msg_norm.msg_scale"] = self.draw(1) + 1
        if self.own_edges and self.task == "mol":
            self.add_embeddings(f"{name}edge_encoder.bond_embedding_list", BONDS)
        elif self.own_edges:
            self.add_linear(f"{name}edge_encoder.", WIDTH, WIDTH)

    def linear(self, name, x):
        return x @ self.state[f"{name}weight"].T + self.state[f"{name}bias"]

    def normalize(self, name, x):
        weight, bias = self.state[f"{name}weight"], self.state[f"{name}bias"]
        if self.norm == "layer":
            return F.layer_norm(x, x.shape[-1:], weight, bias)
        mean, variance = self.state[f"{name}running_mean"], self.state[f"{name}running_var"]
        return (x - mean) / (variance + 1e-5).sqrt() * weight + bias

    def embeddings(self, name, categories):
        return sum(self.state[f"{name}.{k}.weight"][column] for k, column in enumerate(categories.T))

    def aggregate(self, name, messages):
        if len(messages) == 0:
            blank = torch.zeros(WIDTH, dtype=torch.float64)
            # The mean of no powers is 0, which is clamped before the root; a degree of 0 scales it to 0 again.
            return blank + 1e-7 ** (1 / self.state.get(f"{name}p", 1.0)) if self.aggr == "power" else blank
        if self.aggr.startswith("softmax"):
            t = self.state.get(f"{name}t", 0.3)
            out = (messages * torch.softmax(messages * t, 0)).sum(0)
        elif self.aggr.startswith("power"):
            p = self.state.get(f"{name}p", 1.0)
            out = messages.clamp(1e-7, 10).pow(p).mean(0).clamp(1e-7, 10).pow(1 / p)
        else:
            out = {"mean": messages.mean(0), "max": messages.amax(0), "add": messages.sum(0)}[self.aggr]
        if self.aggr.endswith("_sum"):
            out = len(messages) ** torch.sigmoid(self.state[f"{name}y"]) * out
        return out

    def convolve(self, i, x, edge_attr):
        name = f"gcns.{i}."
        if edge_attr is not None and self.own_edges:
            if self.task == "mol":
                edge_attr = self.embeddings(f"{name}edge_encoder.bond_embedding_list", edge_attr)
            else:
                edge_attr = self.linear(f"{name}edge_encoder.", edge_attr)
        sent = x[EDGES[0]] + (0 if edge_attr is None else edge_attr)
        messages = sent.relu() + 1e-7
        m = torch.stack([self.aggregate(name, messages[EDGES[1] == node]) for node in range(NODES)])
        if self.msg_norm:
            m = F.normalize(m, dim=1) * x.norm(dim=1, keepdim=True) * self.state[f"{name}msg_norm.msg_scale"]
        x = x + m
        for k in range(self.mlp_layers):
            x = self.linear(f"{name}mlp.{3 * k}.", x)
            if k < self.mlp_layers - 1:
                x = self.normalize(f"{name}mlp.{3 * k + 1}.", x).relu()
        return x

    def forward(self, x, edge_attr):
        if self.task == "mol":
            h = self.embeddings("atom_encoder.atom_embedding_list", x)
            if not self.own_edges:
                edge_attr = self.embeddings("bond_encoder.bond_embedding_list", edge_attr)
        else:
            if self.task == "proteins":
                x = torch.cat([x[:, :4], self.linear("node_one_hot_encoder.", x[:, 4:])], 1)
            h = self.linear("node_features_encoder.", x)
            edge_attr = None if edge_attr is None else self.linear("edge_encoder.", edge_attr)
        h = self.convolve(0, h, edge_attr)
        for i in range(1, DEPTH):
            h = h + self.convolve(i, self.normalize(f"{self.list}.{i - 1}.", h).relu(), edge_attr)
        h = self.normalize(f"{self.list}.{DEPTH - 1}.", h)
        if not self.is_graph:
            return self.linear("node_pred_linear.", h.relu())
        return self.linear("graph_pred_linear.", torch.stack([h[k == BATCH].mean(0) for k in range(3)]))

    def inputs(self) -> tuple[Any, Any]:
        """Node and edge features of the data, as the official network reads them."""
        if self.task == "mol":
            draw = [
                torch.stack([torch.arange(count) * 3 % size for size in sizes], 1)
                for count, sizes in ((NODES, ATOMS), (70, BONDS))
            ]
            return draw[0], draw[1]
        features = self.draw(NODES, 8 if self.task == "proteins" else 4)
        return features, None if self.task == "node" else self.draw(70, 3)


CASES = [
    ("node", "batch", "softmax_sg", {"t": 0.3}, {"mlp_layers": 1}),
    ("node", "batch", "softmax", {"t": 0.3}, {}),
    ("node", "layer", "softmax", {}, {"learned": "t", "mlp_layers": 3, "msg_norm": True}),
    ("node", "layer", "power", {}, {}),
    ("node", "batch", "power", {}, {"learned": "p"}),
    ("node", "batch", "power_sum", {}, {"learned": "py"}),
    ("node", "layer", "softmax_sum", {"t": 0.3}, {"learned": "y"}),
    ("node", "layer", "softmax_sum", {}, {"learned": "ty"}),
    ("node", "layer", "mean", {}, {}),
    ("node", "layer", "add", {}, {}),
    ("proteins", "layer", "softmax", {}, {"learned": "t", "own_edges": True}),
    ("proteins", "layer", "max", {}, {}),
    ("ppa", "layer", "softmax_sg", {"t": 0.3}, {"own_edges": True}),
    ("ppa", "layer", "power", {}, {"learned": "p", "own_edges": True}),
    ("mol", "batch", "softmax", {}, {"learned": "t", "mlp_layers": 1, "own_edges": True}),
    ("mol", "batch", "softmax_sg", {"t": 0.3}, {"mlp_layers": 1}),
]  # fmt: skip


@pytest.mark.parametrize(("task", "norm", "aggr", "loaded", "options"), CASES, ids=str)
def test_equals_the_official_network(task, norm, aggr, loaded, options):
    official = Official(task, norm, aggr, **options)
    is_told = bool(set(options.get("learned", "")) & {"t", "p"})
    stack = load_deep_gcns(official.state, aggr=None if is_told else aggr, **loaded).eval()
    x, edge_attr = official.inputs()
    attributes = combine_categories(edge_attr, BONDS) if task == "mol" else edge_attr
    y = stack(x, EDGES, attributes, BATCH if official.is_graph else None)
    # Three layers with sums of at most 70 terms in float64.
    torch.testing.assert_close(y, official.forward(x, edge_attr), rtol=1e-9, atol=1e-9)


def test_the_gradient_of_a_fixed_temperature_is_that_of_the_official_code():
    """The official softmax has no gradient unless its temperature is learned."""
    stack: Any = load_deep_gcns(Official("node", "layer", "softmax").state, aggr="softmax")
    assert stack.stem.conv.aggr_module.base == "softmax_sg"
    frozen = load_deep_gcns(Official("node", "layer", "power").state, aggr="power", p=2.0)
    powers = [parameter for name, parameter in frozen.named_parameters() if name.endswith("aggr_module.p")]
    assert [(power.item(), power.requires_grad) for power in powers] == [(2.0, False)] * DEPTH


def test_files_and_wrapped_models_load(tmp_path):
    official = Official("node", "batch", "softmax", learned="t")
    wrapped = {f"module.{name}": tensor for name, tensor in official.state.items()}
    torch.save({"epoch": 3, "model_state_dict": wrapped}, tmp_path / "best.pth")
    x, _ = official.inputs()
    stack: Any = load_deep_gcns(tmp_path / "best.pth", dropout=0.5).eval()
    torch.testing.assert_close(stack(x, EDGES), official.forward(x, None), rtol=1e-9, atol=1e-9)
    assert stack.blocks[0].branch.dropout.p == 0.5
    (tmp_path / "text.pth").write_text("no weights")
    with pytest.raises(UsageError, match="cannot read"):
        load_deep_gcns(tmp_path / "text.pth")


def without(name):
    def change(state):
        del state[name]

    return change


@pytest.mark.parametrize(
    ("change", "arguments", "words"),
    [
        (lambda state: None, {"aggr": "mean"}, r"learned numbers \['t'\] are not those of 'mean'"),
        (lambda state: None, {"aggr": "soft"}, "unknown aggregation"),
        (lambda state: None, {"readout": "last"}, "unknown readout"),
        (lambda state: state.update(extra=torch.ones(1)), {}, "unknown weights 'extra'"),
        (lambda state: state.update({"virtualnode_embedding.weight": torch.ones(1, 8)}), {}, "virtual node"),
        (without("node_pred_linear.weight"), {}, "no 'node_pred_linear.weight'"),
        (without("node_features_encoder.weight"), {}, "no 'node_features_encoder.weight'"),
        (without("gcns.1.mlp.0.bias"), {}, "not those of a DeeperGCN"),
        (lambda state: [state.pop(f"gcns.{i}.t") for i in range(DEPTH)], {}, "do not tell the aggregation"),
        (lambda state: state.clear(), {}, "no 'gcns.0.mlp.0.weight'"),
        (lambda state: state.update(epoch=3), {}, "a file or a state dict"),
    ],
)  # fmt: skip
def test_other_weights_are_refused_in_one_sentence(change, arguments, words):
    state = dict(Official("node", "batch", "softmax", learned="t").state)
    change(state)
    with pytest.raises(UsageError, match=words):
        load_deep_gcns(state, **arguments)


def test_instance_norms_and_wrong_categories_are_refused():
    state = Official("node", "layer", "softmax", learned="t").state
    bare = {name: tensor for name, tensor in state.items() if not name.startswith("norms.")}
    with pytest.raises(UsageError, match="only networks with batch or layer norms"):
        load_deep_gcns(bare)
    with pytest.raises(UsageError, match="3 categories for each item"):
        combine_categories(torch.zeros(4, 2, dtype=torch.long), BONDS)
    with pytest.raises(UsageError, match="from 0 to below"):
        combine_categories(torch.tensor([[0, 6, 0]]), BONDS)

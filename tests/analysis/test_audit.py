"""Placing norms in PyTorch's own layers, in graph networks, in hand-written code, and on models too large to build."""

from __future__ import annotations

import functools
import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.analysis.random_networks import network
from torch import Tensor, nn
from torch.nn import functional as F

import normplace as npl


def slots(model: nn.Module, *inputs, **kwargs) -> dict[str, str]:
    return {site.name: site.slot for site in npl.audit(model, *inputs, **kwargs).sites}


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_random_networks(seed):
    model, x, truth = network(seed)
    found = [site.slot for site in npl.audit(model, x).sites]
    assert found == truth


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("first", [True, False])
def test_torch_encoder_layer(first, training):
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=first).train(training)
    found = npl.audit(layer, torch.randn(2, 3, 8))
    slot = "input" if first else "stream"
    assert [(site.name, site.slot) for site in found.sites] == [("norm1", slot), ("norm2", slot)]
    assert found.placement == ("pre" if first else "post")
    assert found.equations == ("x + F(N(x))" if first else "N(x + F(x))",)


def test_torch_transformer_norms_its_end_twice():
    model = nn.Transformer(8, 2, 1, 1, 16, batch_first=True)
    found = npl.audit(model, torch.randn(1, 3, 8), torch.randn(1, 2, 8))
    assert {site.name: site.slot for site in found.sites} == {
        "encoder.layers.0.norm1": "stream", "encoder.layers.0.norm2": "stream", "encoder.norm": "final",
        "decoder.layers.0.norm1": "stream", "decoder.layers.0.norm2": "stream", "decoder.layers.0.norm3": "stream",
        "decoder.norm": "final",
    }  # fmt: skip
    assert [finding.where for finding in found.findings] == [
        ("encoder.layers.0.norm2", "encoder.norm"), ("decoder.layers.0.norm3", "decoder.norm"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "name", ["post", "pre", "peri", "output", "pre-post", "deepnorm", "lns", "rezero", "layerscale"]
)
def test_presets_are_named(name):
    class Stack(nn.Module):
        def __init__(self):
            super().__init__()
            branches = [nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)) for _ in range(4)]
            blocks = [npl.Residual(branch, 8, name, layer=at, depth=4) for at, branch in enumerate(branches, 1)]
            self.stem, self.blocks, self.head = nn.Linear(3, 8), nn.Sequential(*blocks), nn.Linear(8, 1)
            self.final = npl.LayerNorm(8) if npl.Placement.named(name).final else nn.Identity()

        def forward(self, x):
            return self.head(self.final(self.blocks(self.stem(x))))

    found = npl.audit(Stack(), torch.randn(5, 3))
    assert found.placement == name
    assert [block.equation for block in found.blocks] == [
        npl.Placement.named(name).equation(layer, 4) for layer in range(1, 5)
    ]  # fmt: skip


def test_graph_networks():
    geometric = pytest.importorskip("torch_geometric.nn", reason="needs PyG: pip install 'normplace[graphs]'")
    x, edges = torch.randn(6, 8), torch.tensor([[0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 0]])
    batch = torch.zeros(6, dtype=torch.long)
    stack = geometric.DeepGCNLayer(
        geometric.GENConv(8, 8), geometric.LayerNorm(8, mode="node"), nn.ReLU(), block="res+"
    )
    assert slots(stack, x, edges) == {"norm": "input", "conv.mlp.1": "inner.mid"}
    outer = geometric.DeepGCNLayer(geometric.GCNConv(8, 8), nn.LayerNorm(8), nn.ReLU(), block="res")
    assert slots(outer, x, edges) == {"norm": "output"}
    hybrid = geometric.GPSConv(8, geometric.GCNConv(8, 8), heads=2, norm="layer_norm", norm_kwargs={"mode": "node"})
    assert slots(hybrid, x, edges, batch) == {"norm1": "stream", "norm2": "stream", "norm3": "stream"}
    kinds = [block.kind for block in npl.audit(hybrid, x, edges, batch).blocks]
    assert kinds == ["graph convolution", "attention", "mlp"]


class GraphBlocks(nn.Module):
    """Pre-norm blocks around graph convolutions."""

    def __init__(self, conv):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(8) for _ in range(3))
        self.convs = nn.ModuleList(conv() for _ in range(3))

    def forward(self, x, edges):
        for norm, conv in zip(self.norms, self.convs, strict=True):
            x = x + conv(norm(x), edges)
        return x


@pytest.mark.parametrize(
    "name",
    ["GCNConv", "GATConv", "GATv2Conv", "GENConv", "ResGatedGraphConv", "SAGEConv", "SGConv", "TransformerConv"],
)
def test_graph_convolutions_of_pyg_are_one_branch(name):
    geometric = pytest.importorskip("torch_geometric.nn", reason="needs PyG: pip install 'normplace[graphs]'")
    edges = torch.tensor([[0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 0]])
    audit = npl.audit(GraphBlocks(lambda: getattr(geometric, name)(8, 8)), torch.randn(6, 8), edges)
    assert audit.placement == "pre"
    assert [block.kind for block in audit.blocks] == 3 * ["graph convolution"]


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state")
def test_products_with_sparse_adjacencies_are_graph_convolutions():
    geometric = pytest.importorskip("torch_geometric.nn", reason="needs PyG: pip install 'normplace[graphs]'")

    # PyG compiles a class for its first instance: after one with two aggregations, none takes a sparse matrix.
    class OwnGraphConv(geometric.GraphConv):
        pass

    class OwnSAGEConv(geometric.SAGEConv):
        pass

    adjacency = torch.eye(6).roll(1, 0).to_sparse_csr()
    for convolution in (OwnGraphConv, OwnSAGEConv):
        blocks = GraphBlocks(functools.partial(convolution, 8, 8))
        audit = npl.audit(blocks, torch.randn(6, 8), adjacency)
        assert [block.kind for block in audit.blocks] == 3 * ["graph convolution"]


class SparseBlock(nn.Module):
    """A branch whose last product is with a sparse matrix."""

    def __init__(self, matrix, product):
        super().__init__()
        self.norm, self.linear, self.product = nn.LayerNorm(8), nn.Linear(8, 8), product
        self.register_buffer("matrix", matrix)

    def forward(self, x):
        return x + self.product(self.matrix, self.linear(self.norm(x)))


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state")
@pytest.mark.parametrize("layout", ["to_sparse", "to_sparse_csr"])
@pytest.mark.parametrize(
    ("product", "rows", "kind"),
    [
        (lambda adjacency, x: adjacency @ x, 6, "graph convolution"),
        (lambda adjacency, x: torch.sparse.mm(adjacency, x), 6, "graph convolution"),
        (lambda weight, x: torch.sparse.mm(weight, x.t()).t(), 8, "mlp"),
        (lambda weight, x: (weight @ x.T).T, 8, "mlp"),
        (lambda weight, x: nn.functional.linear(x, weight), 8, "mlp"),
    ],
)
def test_a_sparse_matrix_is_an_adjacency_only_if_it_sums_over_rows(layout, product, rows, kind):
    matrix = getattr(torch.eye(rows).roll(1, 0), layout)()
    audit = npl.audit(SparseBlock(matrix, product), torch.randn(6, 8))
    assert [block.kind for block in audit.blocks] == [kind]


class TalkingHeads(nn.Module):
    """Attention whose weights are mixed over the heads before and after the softmax."""

    def __init__(self, mix):
        super().__init__()
        self.norm, self.qkv, self.query_norm = nn.LayerNorm(8), nn.Linear(8, 24), nn.RMSNorm(4)
        self.before, self.after = mix(), mix()

    def forward(self, x):
        query, key, value = self.qkv(self.norm(x)).view(*x.shape[:2], 3, 2, 4).permute(2, 0, 3, 1, 4)
        scores = self.before(self.query_norm(query) @ key.mT)
        return x + (self.after(scores.softmax(-1)) @ value).transpose(1, 2).flatten(2)


class LinearOverHeads(nn.Linear):
    def forward(self, scores):
        return super().forward(scores.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


@pytest.mark.parametrize("mix", [lambda: nn.Conv2d(2, 2, 1), lambda: LinearOverHeads(2, 2)])
def test_attention_with_talking_heads_is_attention(mix):
    audit = npl.audit(TalkingHeads(mix), torch.randn(2, 5, 8))
    assert [site.slot for site in audit.sites] == ["input", "inner.q"]
    assert [block.kind for block in audit.blocks] == ["attention"]


class OverTokens(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x.transpose(1, 2)).transpose(1, 2)


class Gating(nn.Module):
    """The spatial gating unit of gMLP."""

    def __init__(self):
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(8, 16), nn.LayerNorm(8), nn.Linear(8, 8)
        self.over_tokens = nn.Parameter(torch.randn(5, 5))

    def forward(self, x):
        kept, gate = self.up(x).chunk(2, -1)
        return self.down(kept * (self.over_tokens @ self.norm(gate)))


def perceptron(width):
    return nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))


@pytest.mark.parametrize(
    ("branch", "kind"),
    [(lambda: perceptron(8), "mlp"), (lambda: OverTokens(perceptron(5)), "mixer"), (Gating, "mixer")],
    ids=["features", "tokens", "gate"],
)
def test_matrices_over_tokens_mix_rows(branch, kind):
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.branch = nn.LayerNorm(8), branch()

        def forward(self, x):
            return x + self.branch(self.norm(x))

    audit = npl.audit(nn.Sequential(nn.Linear(8, 8), Block(), Block()), torch.randn(2, 5, 8))
    assert [block.kind for block in audit.blocks] == [kind] * 2


def test_samples_of_a_feature_map_mix_rows():
    class Deformable(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.offsets, self.out = nn.LayerNorm(8), nn.Linear(8, 2), nn.Linear(8, 8)

        def forward(self, x):
            places = self.offsets(x).tanh()[:, :, None]
            picture = x.transpose(1, 2).unflatten(2, (2, 3))
            samples = nn.functional.grid_sample(picture, places, align_corners=False)[..., 0]
            return self.norm(x + self.out(samples.transpose(1, 2)))

    (block,) = npl.audit(Deformable(), torch.randn(2, 6, 8)).blocks
    assert (block.kind, block.equation) == ("mixer", "N(x + F(x))")


def test_the_map_to_queries_is_found_without_a_softmax():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.latent_norm = nn.LayerNorm(8), nn.LayerNorm(8)
            self.latent, self.query, self.key, self.value = (nn.Linear(8, 8) for _ in range(4))

        def forward(self, x):
            read = self.norm(x)
            query = self.query(self.latent_norm(self.latent(read)))
            return x + (query @ self.key(read).mT).relu() @ self.value(read)

    audit = npl.audit(Block(), torch.randn(2, 5, 8))
    assert [site.slot for site in audit.sites] == ["input", "inner.q-latent"]


@pytest.mark.parametrize("name", ["TransformerConv", "GATv2Conv", "GENConv", "GINEConv", "GeneralConv"])
def test_edge_features_added_to_messages_are_not_a_block(name):
    geometric = pytest.importorskip("torch_geometric.nn", reason="needs PyG: pip install 'normplace[graphs]'")
    edges, attributes = torch.tensor([[0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 0]]), torch.randn(6, 4)

    class Network(GraphBlocks):
        def forward(self, x, edges, attributes):
            for norm, conv in zip(self.norms, self.convs, strict=True):
                x = x + conv(norm(x), edges, attributes)
            return x

    first = (nn.Sequential(nn.Linear(8, 8), nn.ReLU()),) if name == "GINEConv" else (8, 8)
    width = {"in_edge_channels": 4, "skip_linear": True} if name == "GeneralConv" else {"edge_dim": 4}
    model = Network(lambda: getattr(geometric, name)(*first, **width))
    audit = npl.audit(model, torch.randn(6, 8), edges, attributes)
    assert audit.placement == "pre"
    assert [block.kind for block in audit.blocks] == 3 * ["graph convolution"]


@pytest.mark.parametrize("reads_itself", [True, False])
def test_edge_features_with_a_residual_of_their_own_are_a_stream(reads_itself):
    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.nodes, self.edges = (nn.ModuleList(nn.Linear(8, 8) for _ in range(3)) for _ in range(2))

        def forward(self, x, edges, e):
            source, target = edges
            for node_map, edge_map in zip(self.nodes, self.edges, strict=True):
                e = e + edge_map((x[source] + e).relu() if reads_itself else x[source])
                x = x + node_map(torch.zeros_like(x).index_add(0, target, e.relu()))
            return x, e

    edges = torch.tensor([[0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 0]])
    audit = npl.audit(Network(), torch.randn(6, 8), edges, torch.randn(6, 8))
    assert len(audit.blocks) == (6 if reads_itself else 5)  # the first nodes do not depend on the edges


class RootMeanSquare(nn.Module):
    def forward(self, x):
        return (x * (x.float().square().mean(-1, keepdim=True) + 1e-6).rsqrt()).to(x.dtype)


class Length(nn.Module):
    def forward(self, x):
        return (x * (x.float().square().sum(-1, keepdim=True) + 1e-6).rsqrt()).to(x.dtype)


@pytest.mark.parametrize("before", ["edges", "mean"])
@pytest.mark.parametrize(
    ("norm", "kind"), [(nn.RMSNorm(8), "rms"), (RootMeanSquare(), "rms"), (Length(), "l2"), (nn.LayerNorm(8), "layer")]
)
def test_sums_before_a_norm_are_not_part_of_its_statistic(before, norm, kind):
    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.map, self.norm = nn.Linear(8, 8), norm

        def forward(self, x, edges):
            x = self.map(x)
            x = torch.zeros_like(x).index_add(0, edges[1], x[edges[0]]) if before == "edges" else x[None].mean(0)
            return self.norm(x)

    edges = torch.tensor([[0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 0]])
    (site,) = npl.audit(Network().bfloat16(), torch.randn(6, 8, dtype=torch.bfloat16), edges).sites
    assert (site.kind, site.precision) == (kind, "float32")


def test_the_count_of_a_mean_is_not_an_eps():
    geometric = pytest.importorskip("torch_geometric.nn", reason="needs PyG: pip install 'normplace[graphs]'")
    x, batch = torch.randn(6, 8), torch.tensor([0, 0, 0, 1, 1, 1])
    for norm in (geometric.GraphNorm(8), geometric.LayerNorm(8, mode="graph")):
        (site,) = npl.audit(norm, x, batch).sites
        assert site.kind == "graph"
        assert site.eps == pytest.approx(1e-5)


@pytest.mark.parametrize(
    "settings",
    [{"aggr": "softmax"}, {"aggr": "softmax", "learn_t": True}, {"aggr": "powermean", "learn_p": True},
     {"aggr": "mean"}, {"aggr": "max"}, {"aggr": "softmax", "msg_norm": True}],
    ids=str,
)  # fmt: skip
def test_graph_convolutions_of_the_package_are_one_branch(settings):
    edges = torch.tensor([[0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 0]])
    audit = npl.audit(GraphBlocks(lambda: npl.models.GENConv(8, 8, **settings)), torch.randn(6, 8), edges)
    assert audit.placement == "pre"
    assert [block.kind for block in audit.blocks] == 3 * ["graph convolution"]
    assert not audit.unknown


@pytest.mark.parametrize(("pair_norm", "length"), [("joint", 100), ("separate", 2100)])
def test_relation_networks_have_the_same_blocks_at_any_length(pair_norm, length):
    model = npl.models.CausalRN(5, 64, 2, pair_norm=pair_norm, positions="none")
    short, long = (npl.audit(model, torch.zeros(1, count, dtype=torch.long)) for count in (4, length))
    assert short.placement == long.placement == "pre"
    assert len(short.blocks) == len(long.blocks) == 2
    assert [site.name for site in short.sites] == [site.name for site in long.sites]


def test_experts_that_add_up_their_tokens_are_not_graph_convolutions():
    class Experts(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.router = nn.LayerNorm(8), nn.Linear(8, 2)
            self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))

        def forward(self, x):
            h = self.norm(x)
            chosen = self.router(h).argmax(-1)
            place = nn.functional.one_hot(chosen, 2).cumsum(0).gather(1, chosen[:, None])[:, 0]
            chosen = chosen.masked_fill(place > 5, -1)  # tokens over the capacity of an expert
            out = torch.zeros_like(h)
            for number, expert in enumerate(self.experts):
                (tokens,) = torch.where(chosen == number)
                out = out.index_add(0, tokens, expert(h[tokens]))
            return x + out

    (block,) = npl.audit(Experts(), torch.randn(12, 8)).blocks
    assert (block.kind, block.equation) == ("experts", "x + F(N(x))")


def test_timm():
    timm = pytest.importorskip("timm", reason="timm needs torchvision, which is no part of the test environment")
    model = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=2, pretrained=False)
    assert set(slots(model, torch.randn(1, 3, 32, 32)).items()) == {
        *((f"blocks.{layer}.norm{part}", "input") for layer in range(2) for part in (1, 2)),
        ("norm", "final"),
    }


class Written(nn.Module):
    """A small Transformer block without a single norm module."""

    def __init__(self, dim=8):
        super().__init__()
        self.qkv, self.out = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)
        self.gain = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        rms = torch.sqrt((x.float() ** 2).mean(dim=-1, keepdim=True) + 1e-6)
        q, k, v = self.qkv((x / rms).type_as(x) * self.gain).chunk(3, -1)
        q, k = q / q.norm(dim=-1, keepdim=True), F.normalize(k, dim=-1)
        x += self.out((q @ k.mT).softmax(-1) @ v)  # in place
        hidden = F.gelu(self.up(F.layer_norm(x, x.shape[-1:])))
        return x + F.rms_norm(self.down(hidden), x.shape[-1:])


def test_hand_written_norms():
    assert slots(Written(), torch.randn(2, 3, 8)) == {
        ":rms": "input", ":l2": "inner.q", ":l2#2": "inner.k", ":layer": "input", ":rms#2": "output",
    }  # fmt: skip


class Norms(nn.Module):
    """One norm between two linear maps."""

    def __init__(self, norm):
        super().__init__()
        self.norm, self.before, self.after = norm, nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        return self.after(self.norm(self.before(x)))


class FrozenBatch(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("variance", torch.ones(8))
        self.gain = nn.Parameter(torch.ones(8))

    def forward(self, x):
        return x * (self.gain * (self.variance + 1e-5).rsqrt())


@pytest.mark.parametrize(
    ("norm", "kind"),
    [
        (nn.LayerNorm(8), "layer"), (nn.RMSNorm(8), "rms"), (nn.BatchNorm1d(8), "batch"), (nn.GroupNorm(2, 8), "group"),
        (npl.LayerNorm(8), "layer"), (npl.RMSNorm(8), "rms"), (npl.BatchNorm(8), "batch"), (npl.GraphNorm(8), "batch"),
        (npl.DyT(8), "squash"), (FrozenBatch(), "batch"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)  # fmt: skip
def test_kinds(norm, kind):
    (site,) = npl.audit(Norms(norm), torch.randn(4, 8)).sites
    assert (site.slot, site.kind, site.name) == ("plain", kind, "norm")
    if hasattr(norm, "eps"):
        assert site.eps == pytest.approx(norm.eps or torch.finfo(torch.float32).eps)


@pytest.mark.parametrize(
    "norm",
    [
        lambda x, gain: nn.functional.normalize(x, dim=-1) * 8**0.5 * gain,
        lambda x, gain: nn.functional.normalize(x, dim=-1) * gain * 8**0.5,
        lambda x, gain: (nn.functional.normalize(x.T[None], dim=1) * gain[:, None] * 8**0.5)[0].T,
        lambda x, gain: x / (x.square().sum(-1, keepdim=True) + 8e-5).sqrt() * 8**0.5,
    ],
    ids=["then gain", "after gain", "channels first", "squares"],
)
def test_a_length_times_the_root_of_the_width_is_a_root_mean_square(norm):
    class Norm(nn.Module):
        def __init__(self):
            super().__init__()
            self.gain = nn.Parameter(torch.ones(8))

        def forward(self, x):
            return norm(x, self.gain)

    (site,) = npl.audit(Norms(Norm()), torch.randn(4, 8)).sites
    assert site.kind == "rms"
    if site.variance is not None:
        assert site.eps == pytest.approx(1e-5)


@torch.library.custom_op("normplace_tests::length", mutates_args=())
def custom_length(x: Tensor) -> Tensor:
    return x / x.norm(dim=-1, keepdim=True)


def test_custom_operators_in_python_are_looked_into():
    class Custom(nn.Module):
        def __init__(self):
            super().__init__()
            self.map = nn.Linear(8, 8)

        def forward(self, x):
            return x + custom_length(self.map(x))

    assert slots(Custom(), torch.randn(4, 8)) == {":l2": "output"}


class ReadRows(nn.Module):
    """A norm in code on rows, or on a statistic over positions."""

    def __init__(self, norm, pool):
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 8)
        self.norm, self.pool = norm, pool

    def forward(self, x):
        return self.last(self.norm(self.pool(self.first(x))))


def published_rms(x):
    """RMSNorm as its authors wrote it."""
    return x / (x.norm(2, dim=-1, keepdim=True) * x.shape[-1] ** -0.5 + 1e-8)


WRITTEN = {
    "rms, as published": (published_rms, "rms"),
    "rms, a divided length": (lambda x: x / (x.norm(dim=-1, keepdim=True) / 8**0.5 + 1e-8), "rms"),
    "rms, an inverted length": (lambda x: x * (8**0.5 / (x.norm(dim=-1, keepdim=True) + 1e-8)), "rms"),
    "rms, a sum divided by the size": (lambda x: x * ((x * x).sum(-1, keepdim=True) / 8 + 1e-6).rsqrt(), "rms"),
    "rms, a root of a reciprocal": (lambda x: x * (1 / (x.square().mean(-1, keepdim=True) + 1e-6)).sqrt(), "rms"),
    "l2": (lambda x: F.normalize(x, dim=-1), "l2"),
    "l2, a tenth of the length": (lambda x: x / (x.norm(dim=-1, keepdim=True) / 10), "l2"),
    "layer": (lambda x: (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-6), "layer"),
}
POOLS = {
    "rows": lambda x: x,
    "mean": lambda x: x.mean(1),
    "masked mean": lambda x: (x * torch.ones(1, 4, 1)).sum(1) / 4.0,
    "variance": lambda x: x.var(1),
}


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("name", WRITTEN)
def test_kinds_of_written_norms_on_pooled_rows(name, pool):
    norm, kind = WRITTEN[name]
    (site,) = npl.audit(ReadRows(norm, POOLS[pool]), torch.randn(3, 4, 8)).sites
    assert site.kind == kind


class NotNorms(nn.Module):
    """What divides without normalizing: softmax, routing weights, a quantizer, a distance, a softcap."""

    def __init__(self):
        super().__init__()
        self.map = nn.Linear(8, 8)

    def forward(self, x):
        weights = self.map(x).softmax(-1)
        weights = weights / weights.sum(-1, keepdim=True)
        step = self.map(weights).abs().amax(-1, keepdim=True)
        whole = (self.map(weights) / step * 127).round() * step / 127
        distance = torch.sqrt(((self.map(whole) - whole) ** 2).sum(-1, keepdim=True))
        return 30 * torch.tanh(self.map(whole) / 30) + distance


def test_what_is_no_norm():
    assert npl.audit(NotNorms(), torch.randn(4, 8)).sites == ()


def test_variance_is_measured():
    x = torch.randn(64, 8, dtype=torch.float64) * torch.linspace(0.1, 3, 64, dtype=torch.float64)[:, None]
    for norm, measure in ((nn.LayerNorm(8), x.var(-1, correction=0)), (nn.RMSNorm(8, eps=1e-6), x.square().mean(-1))):
        (site,) = npl.audit(nn.Sequential(norm, nn.Linear(8, 8)).double(), x).sites
        assert site.variance == pytest.approx((measure.min().item(), measure.max().item()), rel=1e-6)


def test_the_model_is_left_as_it_was():
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout())
    model[2].eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    torch.manual_seed(0)
    npl.audit(model, torch.randn(4, 8, generator=torch.Generator().manual_seed(1)))
    assert torch.rand(1) == torch.rand(1, generator=torch.Generator().manual_seed(0))
    assert (model.training, model[1].training, model[2].training) == (True, True, False)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not torch.nn.modules.module._global_forward_hooks


class Needs(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(8)

    def forward(self, x, mask):
        return self.norm(x[mask.nonzero()[:, 0]])


@pytest.mark.parametrize(
    ("model", "inputs", "sentence"),
    [
        ("model", (), "audit takes an nn.Module, got str"),
        (
            Needs(),
            (torch.randn(2, 8),),
            r"Needs.forward does not take these inputs \(missing a required argument: 'mask'\)",
        ),
        (nn.Linear(8, 8), (torch.randn(2, 7),), r"failed on inputs \(2, 7\) float32 \(RuntimeError: mat1 and mat2"),
        (
            Needs().to("meta"),
            (torch.randn(2, 8), torch.ones(2)),
            "a meta model does not have .*: build the model on the CPU",
        ),
    ],
)
def test_mistakes_get_one_sentence(model, inputs, sentence):
    with pytest.raises(npl.UsageError, match=sentence) as error:
        npl.audit(model, *inputs)
    assert "\n" not in str(error.value)


def test_nothing_to_find_is_said():
    assert "no norm was found among 2 operators, and no residual blocks" in str(
        npl.audit(nn.Linear(8, 8), torch.randn(2, 8))
    )
    assert "norms without a residual; 1 norm in use" in str(npl.audit(Norms(nn.LayerNorm(8)), torch.randn(2, 8)))


@pytest.mark.filterwarnings("ignore")
def test_seven_billion_parameters():
    transformers = pytest.importorskip("transformers", reason="needs transformers: pip install 'normplace[hf]'")
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig())
    assert sum(parameter.numel() for parameter in model.parameters()) > 6.7e9
    start = time.perf_counter()
    found = npl.audit(model, torch.zeros(1, 16, dtype=torch.long))
    assert time.perf_counter() - start < 60
    assert found.placement == "pre"
    assert [site.slot for site in found.sites] == ["input"] * 64 + ["final"]

"""Small models of every family that ``move`` supports, each with its arithmetic as separate functions.

A family defines the initial stream, the branch of each block, and the head. Tests write the placement around them by
hand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

Branch = Callable[[Tensor], Tensor]
WIDTH, LAYERS = 16, 2
PLACEMENTS = ("none", "pre", "post", "peri", "output", "pre-post", "lns", "layerscale")


@dataclass
class Family:
    """A model, its inputs, and its arithmetic without norms around branches."""

    model: nn.Module
    inputs: tuple[Any, ...]
    start: Callable[[], Tensor]
    branches: Sequence[Branch]
    head: Callable[[Tensor], Tensor]
    output: Callable[[Any], Tensor] = lambda result: result


class Attention(nn.Module):
    def __init__(self, dim: int = WIDTH) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part(x).unflatten(-1, (2, -1)).transpose(1, 2) for part in (self.q, self.k, self.v))
        return self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(-2))


class Block(nn.Module):
    """Pre-norm; the second add is in place."""

    def __init__(self, dim: int = WIDTH) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(dim, eps=1e-6), nn.RMSNorm(dim, eps=1e-6)
        self.attention = Attention(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 32), nn.GELU(), nn.Linear(32, dim))

    def forward(self, x: Tensor) -> Tensor:
        h = x + self.attention(self.norm1(x))
        h += self.mlp(self.norm2(h))
        return h


class Written(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.blocks = nn.Linear(4, WIDTH), nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.out = nn.RMSNorm(WIDTH, eps=1e-6), nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.out(self.norm(x))


class Graph(nn.Module):
    """A graph network written as one loop, without a final norm."""

    def __init__(self) -> None:
        super().__init__()
        from torch_geometric.nn import GCNConv

        self.stem, self.out = nn.Linear(4, WIDTH), nn.Linear(WIDTH, 3)
        self.convs = nn.ModuleList(GCNConv(WIDTH, WIDTH) for _ in range(3))
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(3))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.stem(x)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = x + conv(norm(x).relu(), edge_index)
        return self.out(x)


def written() -> Family:
    model = Written()
    x = torch.randn(2, 5, 4)
    branches = [branch for block in model.blocks for branch in (block.attention, block.mlp)]
    return Family(model, (x,), lambda: model.stem(x), branches, model.out)


def graph() -> Family:
    pytest.importorskip("torch_geometric", reason="needs PyG: pip install 'normplace[graphs]'")
    model, x, edges = Graph(), torch.randn(6, 4), torch.tensor([[0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 0]])

    def branch(conv: nn.Module) -> Branch:
        return lambda h: conv(h.relu(), edges)

    return Family(model, (x, edges), lambda: model.stem(x), [branch(conv) for conv in model.convs], model.out)


def deep_gcn() -> Family:
    geometric = pytest.importorskip("torch_geometric.nn", reason="needs PyG: pip install 'normplace[graphs]'")
    edges = torch.tensor([[0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 0]])

    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(
                geometric.DeepGCNLayer(
                    geometric.GCNConv(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.ReLU(), block="res+", dropout=0.1
                )
                for _ in range(3)
            )
            self.norm, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            for layer in self.layers:
                x = layer(x, edge_index)
            return self.out(self.norm(x))

    model, x = Deep(), torch.randn(6, WIDTH)

    def branch(layer: nn.Module) -> Branch:
        return lambda h: layer.conv(h.relu(), edges)

    return Family(model, (x, edges), lambda: x, [branch(layer) for layer in model.layers], model.out)


def encoder(norm_first: bool = False) -> Family:
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 32, dropout=0.1, batch_first=True, norm_first=norm_first)
    model, x = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False), torch.randn(2, 5, WIDTH)
    branches: list[Branch] = []
    for layer in model.layers:
        branches += [_self_attention(layer.self_attn), _feed_forward(layer)]
    return Family(model, (x,), lambda: x, branches, lambda stream: stream)


def decoder() -> Family:
    layer = nn.TransformerDecoderLayer(WIDTH, 2, 32, dropout=0.1, batch_first=True)
    model, x, memory = nn.TransformerDecoder(layer, LAYERS), torch.randn(2, 5, WIDTH), torch.randn(2, 4, WIDTH)
    branches: list[Branch] = []

    def cross(attention: nn.Module) -> Branch:
        return lambda h: attention(h, memory, memory)[0]

    for layer in model.layers:
        branches += [_self_attention(layer.self_attn), cross(layer.multihead_attn), _feed_forward(layer)]
    return Family(model, (x, memory), lambda: x, branches, lambda stream: stream)


def _self_attention(attention: nn.Module) -> Branch:
    return lambda h: attention(h, h, h)[0]


def _feed_forward(layer: nn.Module) -> Branch:
    return lambda h: layer.linear2(layer.linear1(h).relu())


def _transformers():
    return pytest.importorskip("transformers", reason="needs transformers: pip install 'normplace[hf]'")


def llama() -> Family:
    hf = _transformers()
    model = hf.LlamaForCausalLM(
        hf.LlamaConfig(
            vocab_size=50, hidden_size=WIDTH, intermediate_size=32, num_hidden_layers=LAYERS, num_attention_heads=2,
            num_key_value_heads=1, bos_token_id=1, eos_token_id=2,
        )
    )  # fmt: skip
    ids = torch.randint(3, 50, (2, 6))

    def attention(layer: nn.Module) -> Branch:
        def branch(h: Tensor) -> Tensor:
            angles = model.model.rotary_emb(h, torch.arange(6)[None])
            return layer.self_attn(h, position_embeddings=angles, attention_mask=None)[0]

        return branch

    branches = [branch for layer in model.model.layers for branch in (attention(layer), layer.mlp)]
    return Family(
        model, (ids,), lambda: model.model.embed_tokens(ids), branches, model.lm_head, lambda result: result.logits
    )


def gpt2() -> Family:
    hf = _transformers()
    model = hf.GPT2LMHeadModel(
        hf.GPT2Config(
            vocab_size=50, n_embd=WIDTH, n_layer=LAYERS, n_head=2, n_positions=32, bos_token_id=1, eos_token_id=2
        )
    )
    ids, inner = torch.randint(3, 50, (2, 6)), model.transformer

    def attention(block: nn.Module) -> Branch:
        return lambda h: block.attn(h)[0]

    return Family(
        model, (ids,), lambda: inner.wte(ids) + inner.wpe(torch.arange(6)),
        [branch for block in inner.h for branch in (attention(block), block.mlp)], model.lm_head,
        lambda result: result.logits,
    )  # fmt: skip


def bert() -> Family:
    hf = _transformers()
    config = hf.BertConfig(
        vocab_size=50, hidden_size=WIDTH, intermediate_size=32, num_hidden_layers=LAYERS, num_attention_heads=2
    )
    model, ids = hf.BertModel(config), torch.randint(3, 50, (2, 6))
    branches: list[Branch] = []

    def attention(layer: nn.Module) -> Branch:
        return lambda h: layer.attention.output.dense(layer.attention.self(h)[0])

    def mlp(layer: nn.Module) -> Branch:
        return lambda h: layer.output.dense(layer.intermediate(h))

    for layer in model.encoder.layer:
        branches += [attention(layer), mlp(layer)]
    return Family(
        model, (ids,), lambda: model.embeddings(ids), branches, lambda x: x, lambda result: result.last_hidden_state
    )


def vit() -> Family:
    hf = _transformers()
    config = hf.ViTConfig(
        hidden_size=WIDTH, intermediate_size=32, num_hidden_layers=LAYERS, num_attention_heads=2, image_size=16,
        patch_size=8,
    )  # fmt: skip
    model, pixels = hf.ViTModel(config), torch.randn(2, 3, 16, 16)

    def attention(layer: nn.Module) -> Branch:
        return lambda h: layer.attention(h)[0]

    layers = [layer for name, layer in model.named_modules() if type(layer).__name__ == "ViTLayer"]
    return Family(
        model, (pixels,), lambda: model.embeddings(pixels),
        [branch for layer in layers for branch in (attention(layer), layer.mlp)], lambda x: x,
        lambda result: result.last_hidden_state,
    )  # fmt: skip


FAMILIES: dict[str, Callable[[], Family]] = {
    "written": written, "graph": graph, "deep-gcn": deep_gcn, "encoder": encoder, "decoder": decoder, "llama": llama,
    "gpt2": gpt2, "bert": bert, "vit": vit,
}  # fmt: skip


def build(name: str, seed: int = 0) -> Family:
    """Build a family with its model in evaluation mode and random gains and shifts."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        family = FAMILIES[name]()
        for module in family.model.modules():
            if "norm" in type(module).__name__.lower():
                for parameter in module.parameters(recurse=False):
                    nn.init.uniform_(parameter, 0.5, 1.5)
    family.model.eval()
    return family

"""The layers of a Transformer, built from its configuration; and the encoder of an encoder-decoder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor, nn

from normplace.models.transformer.attention import Attention
from normplace.models.transformer.cache import Cache
from normplace.models.transformer.config import TransformerConfig
from normplace.models.transformer.cross import CrossAttention
from normplace.models.transformer.experts import MixtureOfExperts
from normplace.models.transformer.feedforward import FeedForward
from normplace.models.transformer.init import Embedding
from normplace.models.transformer.layer import Layer
from normplace.models.transformer.positions import RelativeBias, Rotary
from normplace.models.transformer.streams import LayerCall, build_streams
from normplace.norms import build_norm
from normplace.placement import Placement
from normplace.residual import Branch, NormChoice, Residual, build_slot_norm

NormFactory = Callable[..., nn.Module]


def norm_factory(config: TransformerConfig) -> NormFactory:
    """Builds the norms of a network over a number of features."""
    return partial(build_norm, config.norm, **config.norm_options())


def build_layers(config: TransformerConfig, factory: dict[str, Any]) -> nn.ModuleList:
    """The layers of a network."""
    placement, norm, init = config.rule.for_single_block(), _norms_of_slots(config), config.weight_init()
    shape = config.attention
    options = {
        "key_value_heads": shape.key_value_heads,
        "head_dim": shape.head_dim,
        "bias": shape.bias,
        "score_scale": shape.score_scale,
        "softcap": shape.softcap,
        "output_bias": shape.output_bias,
        "clip": shape.clip,
        "init": init,
        **factory,
    }

    def attention(number: int) -> Attention:
        window, rotates = shape.window(number), config.positions.rotates(number)
        return Attention(
            config.dim,
            shape.heads,
            causal=config.causal,
            positions=config.positions.encoding(number, window),
            window=window,
            chunk=shape.chunk(number),
            temperature=0.0 if rotates else shape.temperature,
            temperature_floor=shape.temperature_floor,
            **options,
        )

    def mlp(number: int) -> Branch:
        mixture, dense = config.experts, config.mlp
        if mixture is None or not mixture.at(number):
            return FeedForward(config.dim, dense.hidden, kind=dense.kind, bias=dense.bias, init=init, **factory)
        return MixtureOfExperts(
            config.dim,
            mixture.count,
            mixture.active,
            hidden=dense.hidden if mixture.hidden is None else mixture.hidden,
            kind=dense.kind,
            shared=mixture.shared,
            scores=mixture.scores,
            normalized=mixture.normalized,
            weighed=mixture.weighed,
            init=init,
            **factory,
        )

    def residual(branch: Branch, number: int, placement: Placement = placement) -> Residual:
        return Residual(branch, config.dim, placement, norm, number, config.depth)

    def cross(number: int) -> Residual:
        shared = config.rule.streams == "parallel-shared"  # it reads the stream through the norm of attention
        unread = placement.map_specs(lambda spec: replace(spec, input=False)) if shared else placement
        return residual(CrossAttention(config.dim, shape.heads, **options), number, unread)

    def layer(number: int) -> Layer:
        first = residual(attention(number), number)
        second = cross(number) if config.encoder_depth else None
        return Layer(first, residual(mlp(number), number), second)

    return nn.ModuleList(layer(number) for number in range(1, config.depth + 1))


def _norms_of_slots(config: TransformerConfig) -> NormChoice:
    norm, shape = norm_factory(config), config.attention
    if shape.qk_gain and (shape.qk_bias or config.norm == "rms"):
        return norm
    inner = partial(norm, bias=False) if shape.qk_gain else partial(norm, elementwise_affine=False)
    sites = {f"inner.{side}{extent}": inner for side in "qk" for extent in ("", "_each", "_full")}
    return {"input": norm, "output": norm, "stream": norm, "inner": norm, **sites}


def build_relative(config: TransformerConfig, factory: dict[str, Any]) -> RelativeBias | None:
    """The bias that all layers share, if the positions are relative."""
    shape = config.positions
    if shape.kind != "relative":
        return None
    return RelativeBias(config.attention.heads, shape.buckets, shape.distance, config.causal, config.std, **factory)


def learned_positions(config: TransformerConfig, factory: dict[str, Any]) -> Embedding | None:
    """The table of learned positions, if there are any."""
    length, offset = config.positions.length, config.positions.offset
    return None if length is None else Embedding(length + offset, config.dim, config.std, **factory)


def position_rows(config: TransformerConfig, table: Embedding, ids: Tensor, before: int) -> Tensor:
    """The learned positions of tokens, length × dim or batch × length × dim.

    Args:
        config: The configuration.
        table: All positions.
        ids: Tokens, batch × length.
        before: Number of tokens before them, none of which are padding.
    """
    first, padding = config.positions.offset, config.positions.padding
    if padding is None:
        return table.weight[first + before : first + before + ids.shape[1]]
    counted = ids != padding
    return table(first - 1 + counted * (before + counted.cumsum(1)))


def layer_calls(
    network: Any,
    x: Tensor,
    mask: Tensor | None,
    cache: Cache | None = None,
    memory: dict[str, Tensor | None] | None = None,
) -> list[LayerCall]:
    """The layers of a network with their arguments."""
    before, length = 0 if cache is None else cache.length, x.shape[1]
    caches = [None] * len(network.layers) if cache is None else cache.layers
    encodings = [_rotary_of(layer) for layer in network.layers]
    tables = {  # computed once for all layers with the same positions
        rotary: rotary.table(before, length, network.config.head_dim, x.device, x.dtype)
        for rotary in dict.fromkeys(encodings)
        if rotary is not None
    }
    shared: dict[str, Any] = {"mask": mask, **(memory or {})}
    if network.relative is not None:
        shared["bias"] = network.relative(before, length)
    return [
        (layer, {**shared, "table": None if rotary is None else tables[rotary], "cache": caches[number]})
        for number, (layer, rotary) in enumerate(zip(network.layers, encodings, strict=True))
    ]


def _rotary_of(layer: nn.Module) -> Rotary | None:
    """The rotary positions of a layer; None if it has none, or is another module."""
    positions = getattr(getattr(getattr(layer, "attention", None), "branch", None), "positions", None)
    return positions if isinstance(positions, Rotary) else None


class Encoder(nn.Module):
    """The layers of an encoder; the embedding is that of the decoder.

    Args:
        config: The configuration, as :meth:`TransformerConfig.encoder` returns it.
        **factory: Generator, device and dtype of the parameters.
    """

    def __init__(self, config: TransformerConfig, **factory: Any) -> None:
        super().__init__()
        self.config = config
        rule, norm, dim = config.rule, norm_factory(config), config.dim
        self.positions = learned_positions(config, factory)
        self.embedding_norm = build_slot_norm(norm, "embedding", dim) if rule.embedding else None
        self.relative = build_relative(config, factory)
        self.layers = build_layers(config, factory)
        self.streams = build_streams(rule.streams, norm, dim, config.branches * config.depth)
        self.final_norm = build_slot_norm(norm, "final", dim) if rule.final else None

    def forward(self, x: Tensor, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        """The output that the decoder attends to, batch × length × dim."""
        if self.positions is not None:
            x = x + position_rows(self.config, self.positions, ids, 0)
        if self.embedding_norm is not None:
            x = self.embedding_norm(x)
        return self.streams.run(x, layer_calls(self, x, mask), self.final_norm)

    def explain_fusion(self) -> str:
        """What is fused here, and why the rest is not; see :func:`normplace.explain_fusion`."""
        return self.streams.explain_fusion([(layer, {}) for layer in self.layers], self.final_norm)

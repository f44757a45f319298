"""The Transformer: a decoder or an encoder of residual blocks, with any published placement of norms."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normplace.errors import UsageError
from normplace.models.transformer.attention import Attention
from normplace.models.transformer.cache import Cache
from normplace.models.transformer.config import TransformerConfig
from normplace.models.transformer.feedforward import FeedForward
from normplace.models.transformer.generate import generate
from normplace.models.transformer.init import Embedding, Projection
from normplace.models.transformer.layer import Layer
from normplace.models.transformer.positions import ALiBi, Rotary
from normplace.models.transformer.streams import build_streams
from normplace.norms import build_norm
from normplace.residual import Residual, build_slot_norm, reset_tree

BRANCHES = 2


class Head(nn.Module):
    """Scores of tokens from the stream.

    Args:
        config: The whole network's.
        norm: Builds the norm of BERT's transform.
        **factory: Generator, device and dtype of the parameters.
    """

    def __init__(self, config: TransformerConfig, norm: Any, **factory: Any) -> None:
        super().__init__()
        head, dim, init = config.head, config.dim, config.weight_init()
        self.scale, self.softcap = head.scale, head.softcap
        self.transform = self.transform_norm = self.projection = self.bias = None
        if head.transform:
            self.transform = Projection(dim, dim, True, init.of(dim, dim), **factory)
            self.transform_norm = build_slot_norm(norm, "final", dim)
        if not head.tied:
            self.projection = Projection(dim, config.vocab_size, False, init.of(dim, config.vocab_size), **factory)
        if head.bias:
            where = {key: factory[key] for key in ("device", "dtype")}
            self.bias = nn.Parameter(torch.zeros(config.vocab_size, **where))

    def reset_parameters(self) -> None:
        """Start every parameter anew."""
        for child in self.children():
            reset_tree(child)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        """The scores of all tokens.

        Args:
            x: The stream at its end.
            embedding: The table of tokens, which a tied head reads.
        """
        if self.transform is not None and self.transform_norm is not None:
            x = self.transform_norm(F.gelu(self.transform(x)))
        x = F.linear(x, embedding if self.projection is None else self.projection.weight, self.bias)
        x = x if self.scale == 1 else self.scale * x
        return x if self.softcap is None else self.softcap * torch.tanh(x / self.softcap)


class Transformer(nn.Module):
    """A Transformer over tokens.

    Args:
        config: Its shape; see :class:`TransformerConfig`.
        generator: Source of the initial values.
        device: Where the parameters live.
        dtype: Their dtype.

    Raises:
        UsageError: If the parts of the configuration do not fit together.

    Example:
        >>> from normplace.models.transformer import AttentionConfig
        >>> config = TransformerConfig(50, 32, 2, placement="peri", attention=AttentionConfig(heads=4))
        >>> model = Transformer(config, generator=torch.Generator().manual_seed(0))
        >>> model(torch.tensor([[3, 1, 4]])).shape
        torch.Size([1, 3, 50])
        >>> model.generate(torch.tensor([[3, 1, 4]]), 5).shape
        torch.Size([1, 8])
    """

    def __init__(
        self,
        config: TransformerConfig,
        *,
        generator: torch.Generator | None = None,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.config = config
        rule, dim, init = config.rule, config.dim, config.weight_init()
        norm = partial(build_norm, config.norm, **({} if config.eps is None else {"eps": config.eps}))
        factory = {"generator": generator, "device": device, "dtype": dtype}
        self.embed = Embedding(config.vocab_size, dim, init.std, **factory)
        learned = config.positions.length
        self.positions = None if learned is None else Embedding(learned, dim, init.std, **factory)
        self.types = Embedding(config.token_types, dim, init.std, **factory) if config.token_types else None
        self.embedding_norm = build_slot_norm(norm, "embedding", dim) if rule.embedding else None
        self.rotary = Rotary(config.positions.theta) if config.positions.kind == "rotary" else None
        inside = ALiBi() if config.positions.kind == "alibi" else self.rotary

        def residual(branch: nn.Module, layer: int) -> Residual:
            return Residual(branch, dim, rule.for_single_block(), norm, layer, config.depth)

        def layer(number: int) -> Layer:
            shape = config.attention
            attention = Attention(
                dim,
                shape.heads,
                key_value_heads=shape.key_value_heads,
                head_dim=shape.head_dim,
                causal=config.causal,
                positions=inside,
                bias=shape.bias,
                window=shape.window(number),
                score_scale=shape.score_scale,
                softcap=shape.softcap,
                init=init,
                **factory,
            )
            mlp = FeedForward(dim, config.mlp.hidden, kind=config.mlp.kind, bias=config.mlp.bias, init=init, **factory)
            return Layer(residual(attention, number), residual(mlp, number))

        self.layers = nn.ModuleList(layer(number) for number in range(1, config.depth + 1))
        self.streams = build_streams(rule.streams, norm, dim, BRANCHES * config.depth)
        self.final_norm = build_slot_norm(norm, "final", dim) if rule.final else None
        self.head = Head(config, norm, **factory)
        self.to(device=device, dtype=dtype)  # the norms' factory knows neither

    def reset_parameters(self) -> None:
        """Start every parameter anew."""
        for child in self.children():
            reset_tree(child)

    def forward(
        self, ids: Tensor, mask: Tensor | None = None, types: Tensor | None = None, cache: Cache | None = None
    ) -> Tensor:
        """Scores of the next token after each token, or of the token itself in an encoder: batch × length × vocab_size.

        Args:
            ids: Tokens, batch × length.
            mask: True for tokens that may be read, batch × length with those of the cache; None for all.
            types: The type of each token, where the network has types; None for the first.
            cache: What was read before, from :meth:`new_cache`; the tokens are added to it.

        Raises:
            UsageError: If the tokens do not fit the network.
        """
        return self.head(self.hidden(ids, mask, types, cache), self.embed.weight)

    def hidden(
        self, ids: Tensor, mask: Tensor | None = None, types: Tensor | None = None, cache: Cache | None = None
    ) -> Tensor:
        """What the head reads, batch × length × dim, for the arguments of :meth:`forward`."""
        before = 0 if cache is None else cache.length
        self._check(ids, types, cache, before)
        length = ids.shape[1]
        x = self._embedded(ids, types, before)
        table = None
        if self.rotary is not None:  # once for all layers
            table = self.rotary.table(before, length, self.config.head_dim, ids.device, x.dtype)
        layers = [
            (layer, {"mask": mask, "table": table, "cache": None if cache is None else cache.layers[number]})
            for number, layer in enumerate(self.layers)
        ]
        return self.streams.through(x, layers, self.final_norm)

    def explain_fusion(self) -> str:
        """Which boundaries between blocks are computed in one pass here, and why not where they are not."""
        return self.streams.explain_fusion([(layer, {}) for layer in self.layers], self.final_norm)

    def _embedded(self, ids: Tensor, types: Tensor | None, before: int) -> Tensor:
        x = self.embed(ids)
        if self.config.embedding_scale != 1:
            x = x * self.config.embedding_scale
        if self.positions is not None:
            x = x + self.positions.weight[before : before + ids.shape[1]]
        if self.types is not None:
            x = x + self.types(torch.zeros_like(ids) if types is None else types)
        return x if self.embedding_norm is None else self.embedding_norm(x)

    def _check(self, ids: Tensor, types: Tensor | None, cache: Cache | None, before: int) -> None:
        if ids.ndim != 2 or not ids.shape[1] or ids.is_floating_point():
            raise UsageError(
                f"tokens must be whole numbers, batch × length, got {tuple(ids.shape)} of {ids.dtype}: "
                "a single sequence is ids[None]."
            )
        limit = self.config.positions.length
        if limit is not None and before + ids.shape[1] > limit:
            raise UsageError(
                f"the network has learned {limit} positions, but the sequence reaches {before + ids.shape[1]}: "
                "shorten it, or build the network with more."
            )
        if types is not None and self.types is None:
            raise UsageError("the network has no types of tokens: leave types out, or set token_types in its config.")
        if cache is not None and not self.config.causal:
            raise UsageError("an encoder reads tokens that come later, so it has no use for a cache: leave it out.")

    def new_cache(self) -> Cache:
        """An empty cache for this network."""
        return Cache(self.config.depth)

    def generate(
        self,
        ids: Tensor,
        new: int,
        *,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float | None = None,
        stop: int | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """The tokens with up to ``new`` more behind them, as :mod:`normplace.models.transformer.generate` says."""
        options = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "stop": stop, "generator": generator}
        return generate(self, ids, new, **options)

    def extra_repr(self) -> str:
        """The equation of the placement."""
        return self.config.rule.equation()

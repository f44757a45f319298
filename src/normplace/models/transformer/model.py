"""The Transformer: a decoder or an encoder of residual blocks, with any norm placement."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normplace.errors import UsageError
from normplace.models.transformer.backbone import (
    Encoder,
    build_layers,
    build_relative,
    layer_calls,
    learned_positions,
    norm_factory,
    position_rows,
)
from normplace.models.transformer.cache import Cache
from normplace.models.transformer.config import TransformerConfig
from normplace.models.transformer.generate import append_tokens, stream
from normplace.models.transformer.init import Embedding, Projection
from normplace.models.transformer.streams import build_streams
from normplace.residual import build_slot_norm, reset_tree


class Head(nn.Module):
    """The head, which maps the stream to logits."""

    def __init__(self, config: TransformerConfig, norm: Any, **factory: Any) -> None:
        super().__init__()
        head, dim, init = config.head, config.dim, config.weight_init()
        width = config.embedding_dim or dim
        self.scale, self.softcap = head.scale, head.softcap
        self.transform = self.transform_norm = self.embed_out = self.projection = self.bias = None
        if head.transform:
            self.transform = Projection(dim, dim, head.transform_bias, init.of(dim, dim), **factory)
            self.transform_norm = build_slot_norm(norm, "final", dim)
        if config.embedding_dim is not None:
            self.embed_out = Projection(dim, width, False, init.of(dim, width), **factory)
        if not head.tied:
            self.projection = Projection(width, config.vocab_size, False, init.of(width, config.vocab_size), **factory)
        if head.bias:
            options = {key: factory[key] for key in ("device", "dtype")}
            self.bias = nn.Parameter(torch.zeros(config.vocab_size, **options))

    def reset_parameters(self) -> None:
        """Reset every parameter to an initial value."""
        for child in self.children():
            reset_tree(child)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        """The logits of all tokens."""
        if self.transform is not None and self.transform_norm is not None:
            x = self.transform_norm(F.gelu(self.transform(x)))
        x = x if self.embed_out is None else self.embed_out(x)
        x = F.linear(x, embedding if self.projection is None else self.projection.weight, self.bias)
        x = x if self.scale == 1 else self.scale * x
        return x if self.softcap is None else self.softcap * torch.tanh(x / self.softcap)


class Transformer(nn.Module):
    """A Transformer over tokens.

    Args:
        config: The configuration.
        generator: Random generator of the initial values.
        device: Device of the parameters.
        dtype: Dtype of the parameters.

    Raises:
        UsageError: If the parts of the configuration do not fit together.

    Examples:
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
        norm = norm_factory(config)
        factory = {"generator": generator, "device": device, "dtype": dtype}
        narrow = config.embedding_dim
        self.embed = Embedding(config.vocab_size, narrow or dim, init.std, **factory)
        self.embed_in = None if narrow is None else Projection(narrow, dim, False, init.of(narrow, dim), **factory)
        self.positions = learned_positions(config, factory)
        self.types = Embedding(config.token_types, dim, init.std, **factory) if config.token_types else None
        self.embedding_norm = build_slot_norm(norm, "embedding", dim) if rule.embedding else None
        self.relative = build_relative(config, factory)
        self.layers = build_layers(config, factory)
        self.streams = build_streams(rule.streams, norm, dim, config.branches * config.depth)
        self.final_norm = build_slot_norm(norm, "final", dim) if rule.final else None
        self.head = Head(config, norm, **factory)
        self.encoder = Encoder(config.encoder(), **factory) if config.encoder_depth else None
        self.to(device=device, dtype=dtype)  # norm factories do not take them

    @classmethod
    def from_pretrained(cls, source: Any, dtype: Any = None) -> Transformer:
        """The network of a folder, or a new one of a configuration, of this package or of Hugging Face.

        Args:
            source: A folder or a configuration; see :func:`normplace.models.transformer.pretrained.from_pretrained`.
            dtype: Dtype of the weights; None for that of the file.

        Raises:
            UsageError: If there is no supported network.
        """
        from normplace.models.transformer.pretrained import from_pretrained

        return from_pretrained(source, dtype)

    def reset_parameters(self) -> None:
        """Reset every parameter to an initial value."""
        for child in self.children():
            reset_tree(child)

    def forward(
        self,
        ids: Tensor,
        mask: Tensor | None = None,
        types: Tensor | None = None,
        cache: Cache | None = None,
        source: Tensor | None = None,
        source_mask: Tensor | None = None,
    ) -> Tensor:
        """The logits of the next token, or of the token itself in an encoder: batch × length × vocab_size.

        Args:
            ids: Tokens, batch × length.
            mask: True for tokens that may be attended to, batch × length including the cache; None for all.
            types: The type of each token, if the network has types; None for the first type.
            cache: Earlier tokens, from :meth:`new_cache`; the new tokens are appended.
            source: Tokens of the encoder, batch × source length, if the network has one; with a cache, in the first
                call only.
            source_mask: True for tokens of the source that may be attended to; None for all.

        Raises:
            UsageError: If the tokens have a wrong shape or dtype, exceed the learned positions, or the source is
                missing or unexpected.
        """
        return self.head(self.hidden(ids, mask, types, cache, source, source_mask), self.embed.weight)

    def hidden(
        self,
        ids: Tensor,
        mask: Tensor | None = None,
        types: Tensor | None = None,
        cache: Cache | None = None,
        source: Tensor | None = None,
        source_mask: Tensor | None = None,
    ) -> Tensor:
        """The head's input, batch × length × dim, for the arguments of :meth:`forward`."""
        before = 0 if cache is None else cache.length
        self._check(ids, types, cache, before)
        memory = self._memory(source, source_mask, cache)
        x = self._embed(ids, types, before)
        return self.streams.run(x, layer_calls(self, x, mask, cache, memory), self.final_norm)

    def encode(self, source: Tensor, mask: Tensor | None = None) -> Tensor:
        """The encoder's output, batch × length × dim.

        Args:
            source: Tokens, batch × length.
            mask: True for tokens that may be attended to; None for all.

        Raises:
            UsageError: If there is no encoder, or the tokens are not valid.
        """
        if self.encoder is None:
            raise UsageError("the network has no encoder: leave the source out, or set encoder_depth in its config.")
        self._check(source, None, None, 0)
        return self.encoder(self._embed_tokens(source), source, mask)

    def _memory(
        self, source: Tensor | None, source_mask: Tensor | None, cache: Cache | None
    ) -> dict[str, Tensor | None]:
        """The arguments of cross-attention."""
        known = cache is not None and cache.layers[0].memory is not None
        if source is None:
            if self.encoder is not None and not known:
                raise UsageError("the network reads the output of its encoder: pass the encoder's tokens as source.")
            return {"memory": None, "memory_mask": cache.source_mask} if cache is not None and known else {}
        if known:
            raise UsageError("the cache already has the encoder's output: leave the source out, or make a new cache.")
        memory = self.encode(source, source_mask)
        if cache is not None:
            cache.source_mask = source_mask
        return {"memory": memory, "memory_mask": source_mask}

    def explain_fusion(self) -> str:
        """What is fused here, and why the rest is not; see :func:`normplace.explain_fusion`."""
        text = self.streams.explain_fusion([(layer, {}) for layer in self.layers], self.final_norm)
        return text if self.encoder is None else f"decoder: {text}\nencoder: {self.encoder.explain_fusion()}"

    def _embed(self, ids: Tensor, types: Tensor | None, before: int) -> Tensor:
        x = self._embed_tokens(ids)
        if self.positions is not None:
            x = x + position_rows(self.config, self.positions, ids, before)
        if self.types is not None:
            x = x + self.types(torch.zeros_like(ids) if types is None else types)
        return x if self.embedding_norm is None else self.embedding_norm(x)

    def _embed_tokens(self, ids: Tensor) -> Tensor:
        """The entries of the embedding table, without positions and types."""
        x = self.embed(ids)
        if self.config.embedding_scale != 1:
            x = x * self.config.embedding_scale
        return x if self.embed_in is None else self.embed_in(x)

    def _check(self, ids: Tensor, types: Tensor | None, cache: Cache | None, before: int) -> None:
        if ids.ndim != 2 or not ids.shape[1] or ids.is_floating_point():
            raise UsageError(
                f"tokens must be integers, batch × length, got {tuple(ids.shape)} of {ids.dtype}: "
                "pass a single sequence as ids[None]."
            )
        limit = self.config.positions.length
        if limit is not None and before + ids.shape[1] > limit:
            raise UsageError(
                f"the network has {limit} learned positions, but the sequence has {before + ids.shape[1]} tokens: "
                "shorten it, or build the network with more."
            )
        limit = self.config.positions.cache_limit
        if limit is not None and 0 < before <= limit < before + ids.shape[1]:
            raise UsageError(
                f"beyond {limit} tokens all keys have other rotary positions: read the whole sequence with a new cache."
            )
        if types is not None and self.types is None:
            raise UsageError("the network has no token types: leave types out, or set token_types in its config.")
        if cache is not None and not self.config.causal:
            raise UsageError("an encoder attends to later tokens, so it cannot use a cache: leave it out.")

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
        source: Tensor | None = None,
        source_mask: Tensor | None = None,
        window: int | None = None,
    ) -> Tensor:
        """The prompt followed by up to ``new`` generated tokens.

        Args:
            ids: The prompt, batch × length.
            new: Maximum number of new tokens.
            temperature: 0 for greedy decoding; higher for more uniform sampling.
            top_k: Sample among the k most likely tokens.
            top_p: Sample among the smallest set of likely tokens whose probabilities sum to this.
            stop: Token that ends a sequence; sequences that end early are padded with it.
            generator: Random generator.
            source: Tokens of the encoder, if the network has one.
            source_mask: True for tokens of the source that may be attended to; None for all.
            window: Most tokens that the network reads, such as the context length of its training: the last ones of a
                longer prompt, and the newest half whenever the window is full; None for all tokens.

        Raises:
            UsageError: If an argument is out of range, or the network is an encoder.
        """
        options = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "stop": stop, "generator": generator}
        encoded = {"source": source, "source_mask": source_mask}
        return append_tokens(ids, stream(self, ids, new, window=window, **encoded, **options))

    def extra_repr(self) -> str:
        """The equation of the placement."""
        return self.config.rule.equation()

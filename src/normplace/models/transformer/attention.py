"""The attention branch, with sites for the published norms inside it."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normplace.errors import UsageError
from normplace.models.transformer.cache import LayerCache
from normplace.models.transformer.init import Projection, WeightInit
from normplace.models.transformer.positions import ALiBi, HardALiBi, Rotary, Table
from normplace.residual import Branch, NormChoice


class NormOfEachHead(nn.ModuleList):
    """One norm for each head, of an input whose last dimensions are heads × features."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalize the features of each head."""
        return torch.stack([norm(head) for norm, head in zip(self, x.unbind(-2), strict=True)], -2)


class Attention(Branch):
    """Multi-head attention with grouped queries (Ainslie et al. 2023, arXiv 2305.13245), as a branch.

    Norm sites:

    ============================  ===============================================================================
    ``q``, ``k``, ``v``           queries, keys, values, each head separately, before the rotary embedding
    ``q_each``, ``k_each``, …     the same with a gain of its own for each head, as in Cohere
    ``q_full``, ``k_full``, …     the same over the full projection, as in OLMo 2
    ``pre_output``                the concatenated heads, before the output projection (sub-LN)
    ============================  ===============================================================================

    The scale site ``heads`` holds a learned multiplier of each head's output (NormFormer).

    Args:
        dim: Width of the stream.
        heads: Number of query heads.
        key_value_heads: Number of key and value heads, shared by groups of queries; by default ``heads``.
        head_dim: Width of a head; by default ``dim / heads``.
        causal: Whether a token attends only to itself and to earlier tokens.
        positions: :class:`Rotary`, :class:`ALiBi`, :class:`HardALiBi`, or None if positions are in the embedding or not
            used.
        bias: Whether the four projections have a bias.
        window: Number of tokens, including itself, that a token attends to on each side; None for all.
        score_scale: Multiplier of the scores; by default 1 / sqrt(head_dim).
        softcap: Bound of the scores, ``c tanh(score / c)``, as in Gemma 2.
        output_bias: Whether the output projection has a bias; by default as the others.
        clip: Bound of the projected queries, keys and values, as in OLMo 1.
        chunk: Size of the chunks of tokens that attend to each other only, as in Llama 4; None for all.
        temperature: The scores of the token at position p are multiplied by
            ``1 + temperature log(1 + floor((p + 1) / temperature_floor))`` (Nakanishi 2025, arXiv 2501.19399).
        temperature_floor: See ``temperature``.
        init: The initial weights.
        generator: Random generator of the initial values.
        device: Device of the parameters.
        dtype: Dtype of the parameters.

    Raises:
        UsageError: If the numbers of heads do not divide each other or the width, or a number is not positive.

    Examples:
        >>> from normplace import Residual
        >>> block = Residual(Attention(32, 4, positions=Rotary()), 32, "peri", norm="rms")
        >>> block(torch.randn(2, 5, 32)).shape
        torch.Size([2, 5, 32])
    """

    kind = "attention"
    accepts_rounded_input = True

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        key_value_heads: int | None = None,
        head_dim: int | None = None,
        causal: bool = True,
        positions: Rotary | ALiBi | HardALiBi | None = None,
        bias: bool = False,
        window: int | None = None,
        score_scale: float | None = None,
        softcap: float | None = None,
        output_bias: bool | None = None,
        clip: float | None = None,
        chunk: int | None = None,
        temperature: float = 0.0,
        temperature_floor: int = 8192,
        init: WeightInit | None = None,
        generator: torch.Generator | None = None,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        kv_heads = heads if key_value_heads is None else key_value_heads
        _check_numbers(dim, heads, kv_heads, head_dim, window, chunk, softcap)
        width = dim // heads if head_dim is None else head_dim
        if isinstance(positions, Rotary):
            _check_pairs(positions, width)
        self.heads, self.key_value_heads, self.head_dim = heads, kv_heads, width
        self.causal, self.positions, self.window, self.softcap = causal, positions, window, softcap
        self.clip = clip
        self.chunk, self.temperature, self.temperature_floor = chunk, temperature, temperature_floor
        self.score_scale = 1 / math.sqrt(width) if score_scale is None else score_scale
        self.norm_sites = {
            **dict.fromkeys(("q", "k", "v", "q_each", "k_each", "v_each"), width),
            "q_full": heads * width, "k_full": kv_heads * width, "v_full": kv_heads * width,
            "pre_output": heads * width,
        }  # fmt: skip
        self.scale_sites = {"heads": heads}
        init = WeightInit() if init is None else init

        def projection(fan_in: int, fan_out: int, last: bool = False) -> Projection:
            biased = output_bias if last and output_bias is not None else bias
            return Projection(fan_in, fan_out, biased, init.of(fan_in, fan_out, last), generator, device, dtype)

        self.query = projection(dim, heads * width)
        self.key = projection(dim, kv_heads * width)
        self.value = projection(dim, kv_heads * width)
        self.output = projection(heads * width, dim, last=True)

    def build_site_norm(self, name: str, norm: NormChoice) -> nn.Module:
        """Build the norm of a site, several norms for a site of each head."""
        if not name.endswith("_each"):
            return super().build_site_norm(name, norm)
        heads = self.heads if name == "q_each" else self.key_value_heads
        return NormOfEachHead(super(Attention, self).build_site_norm(name, norm) for _ in range(heads))

    def rescale_init(self, gain: float) -> None:
        """Scale the initial weights of the value and output projections, as DeepNorm and sub-LN do."""
        with torch.no_grad():
            for projection in (self.value, self.output):
                projection.weight.mul_(gain)

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        cache: LayerCache | None = None,
        table: Table | None = None,
        bias: Tensor | None = None,
    ) -> Tensor:
        """The attention output of each token.

        Args:
            x: Tokens, batch × length × dim.
            mask: True for tokens that may be attended to, batch × keys, including those in the cache; None for all.
            cache: Keys and values of earlier tokens; the new ones are appended.
            table: The rotations of these positions, if the network computes them once for all layers.
            bias: Added to the scores, heads × length × keys, such as a :class:`RelativeBias`.
        """
        before = 0 if cache is None else cache.length
        length = x.shape[1]
        q = self._heads("q", self.query(x), self.heads)
        k = self._heads("k", self.key(x), self.key_value_heads)
        v = self._heads("v", self.value(x), self.key_value_heads)
        if isinstance(self.positions, Rotary):
            if table is None:
                table = self.positions.table(before, length, self.head_dim, x.device, x.dtype)
            q, k = self.positions.rotate(q, table), self.positions.rotate(k, table)
        if self.temperature:
            q = self._growth(before, q) * q
        if cache is not None:
            k, v = cache.append(k, v)
        return self._output(self._attend(q, k, v, mask, before, bias))

    def _growth(self, before: int, q: Tensor) -> Tensor:
        """The multipliers of the queries, length × 1."""
        precise = torch.promote_types(q.dtype, torch.float32)
        count = torch.arange(before + 1, before + 1 + q.shape[2], device=q.device) // self.temperature_floor
        return (1 + self.temperature * count.to(precise).log1p()[:, None]).to(q.dtype)

    def _output(self, out: Tensor) -> Tensor:
        """The output of the branch, from batch × heads × length × features."""
        if (scale := self.site_scale("heads")) is not None:
            out = out * scale.to(out.dtype)[:, None, None]
        out = out.transpose(1, 2).flatten(2)
        return self.output(self.normalize_at("pre_output", out))

    def _heads(self, name: str, projected: Tensor, heads: int) -> Tensor:
        """A projection as batch × heads × length × features, after its norms."""
        projected = projected if self.clip is None else projected.clamp(-self.clip, self.clip)
        split = self.normalize_at(f"{name}_full", projected).unflatten(-1, (heads, self.head_dim))
        return self.normalize_at(name, self.normalize_at(f"{name}_each", split)).transpose(1, 2)

    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, before: int = 0, added: Tensor | None = None
    ) -> Tensor:
        limits = (mask, added, self.window, self.chunk, self.softcap)
        unmasked = all(limit is None for limit in limits) and not isinstance(self.positions, ALiBi | HardALiBi)
        # The kernel's causal mask skips half the work, but it assumes that queries start at the first key.
        single = not self.causal or q.shape[2] == 1
        unmasked = unmasked and (single or before == 0)
        shared = self.heads != self.key_value_heads
        # On a GPU, the only memory-efficient kernel with grouped queries is for half precision without a bias.
        if shared and not (unmasked and q.dtype in (torch.float16, torch.bfloat16)):
            k, v = (side.repeat_interleave(self.heads // self.key_value_heads, 1) for side in (k, v))
            shared = False
        if unmasked:
            return F.scaled_dot_product_attention(
                q, k, v, is_causal=not single, scale=self.score_scale, enable_gqa=shared
            )
        bias = self._bias(q, k, mask, before)
        bias = bias if added is None else bias + added.to(bias.dtype)
        if self.softcap is None:
            return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=self.score_scale)
        scores = self.softcap * torch.tanh(self.score_scale / self.softcap * (q @ k.transpose(-1, -2)))
        wide = torch.promote_types(scores.dtype, torch.float32)
        # A query without any key, as one of an empty source, gets zeros as in the kernel, not nan.
        alone = bias.isneginf().all(-1, keepdim=True)
        weights = (scores + bias.masked_fill(alone, 0)).softmax(-1, dtype=wide).masked_fill(alone, 0)
        return weights.to(v.dtype) @ v

    def _bias(self, q: Tensor, k: Tensor, mask: Tensor | None, before: int) -> Tensor:
        """The bias of the scores: minus infinity for masked tokens, plus that of the positions."""
        queries = torch.arange(before, before + q.shape[2], device=q.device)
        keys = torch.arange(k.shape[2], device=q.device)
        distance = queries[:, None] - keys[None, :]
        allowed = distance >= 0 if self.causal else torch.ones_like(distance, dtype=torch.bool)
        if self.window is not None:
            allowed = allowed & (distance.abs() < self.window)
        if self.chunk is not None:
            allowed = allowed & (queries[:, None] // self.chunk == keys // self.chunk)
        if mask is not None:
            check_mask(mask, q, k)
            # A masked token still attends to itself: the softmax of a fully masked row is undefined.
            allowed = (allowed & mask.bool()[:, None, None, :]) | (distance == 0)
        bias = as_bias(allowed, q.dtype)
        if isinstance(self.positions, ALiBi | HardALiBi):
            bias = bias + self.positions.bias(queries, keys, self.heads, q.dtype)
        return bias

    def extra_repr(self) -> str:
        """The main settings."""
        parts = [f"{self.heads} heads of {self.head_dim}"]
        parts += [f"{self.key_value_heads} of keys and values"] if self.key_value_heads != self.heads else []
        parts += ["causal"] if self.causal else []
        parts += [f"window {self.window}"] if self.window is not None else []
        parts += [f"chunks of {self.chunk}"] if self.chunk is not None else []
        parts += [repr(self.positions)] if self.positions is not None else []
        return ", ".join(parts)


def _check_pairs(rotary: Rotary, width: int) -> None:
    features = width if rotary.features is None else rotary.features
    if features % 2:
        owner = "the width of a head" if rotary.features is None else "the number of rotating features"
        raise UsageError(f"rotary positions rotate pairs of features, so {owner} must be even, got {features}.")
    if not 2 <= features <= width:
        raise UsageError(f"a head of {width} features cannot rotate {features} of them: choose 2 to {width}.")


def check_mask(mask: Tensor, q: Tensor, k: Tensor) -> None:
    """Check that a mask has one truth value for each key of each sequence.

    Raises:
        UsageError: If it has another shape, or floating-point numbers, which would be read the wrong way round if they
            are meant to be added to the scores.
    """
    if mask.shape != (q.shape[0], k.shape[2]):
        raise UsageError(
            f"mask must have the shape {(q.shape[0], k.shape[2])}, sequences × tokens, got {tuple(mask.shape)}."
        )
    if mask.is_floating_point():
        raise UsageError(
            f"mask must be true for tokens that may be attended to, got {mask.dtype}: pass mask.bool() if it has ones "
            "there, or mask == 0 if it has zeros there and minus infinity elsewhere."
        )


def as_bias(allowed: Tensor, dtype: torch.dtype) -> Tensor:
    """Zero where a score is allowed, and minus infinity elsewhere."""
    return torch.zeros(allowed.shape, dtype=dtype, device=allowed.device).masked_fill_(~allowed, -math.inf)


def _check_numbers(
    dim: int,
    heads: int,
    kv_heads: int,
    head_dim: int | None,
    window: int | None,
    chunk: int | None,
    softcap: float | None,
) -> None:
    if min(dim, heads, kv_heads, *(1 if number is None else number for number in (head_dim, window, chunk))) < 1:
        raise UsageError("dim, heads, key_value_heads, head_dim, window and chunk must be at least 1.")
    if head_dim is None and dim % heads:
        raise UsageError(f"{heads} heads cannot share a width of {dim}: choose a multiple of {heads} as the width.")
    if heads % kv_heads:
        raise UsageError(f"{heads} heads cannot share {kv_heads} keys and values: choose a divisor of {heads}.")
    if softcap is not None and not softcap > 0:
        raise UsageError(f"softcap must be positive, got {softcap}.")

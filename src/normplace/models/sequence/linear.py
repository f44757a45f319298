"""Linear attention with a state of fixed size, with or without a decay.

Both branches sum outer products of keys and values into a matrix, ``S_t = g_t S_(t-1) + k_t v_tᵀ``, and compute
``q_tᵀ S_t``. A whole sequence is processed chunk by chunk in linear time. The state is in float32.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from normplace.errors import UsageError
from normplace.models.transformer.cache import check_no_gradients
from normplace.models.transformer.init import Projection, WeightInit
from normplace.norms._precision import widen
from normplace.residual import Branch

CHUNK = 64
FEW_CHUNKS = 64
"""Decays of more chunks are added in float64: in float32 a large sum loses the small decays that follow."""


def decayed_sums(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None = None, state: Tensor | None = None, chunk: int = CHUNK
) -> tuple[Tensor, Tensor]:
    """``q_tᵀ S_t`` for every t, and the last S.

    Args:
        q: Queries, (batch, heads, length, features).
        k: Keys, of the same shape.
        v: Values, (batch, heads, length, other features).
        log_decay: Logarithms of the g_t, at most 0, (batch, heads, length); None for no decay.
        state: S before the first token, (batch, heads, features, other features); None for zero.
        chunk: Number of tokens per chunk.
    """
    length = q.shape[2]
    chunk = min(chunk, length)
    padding = -length % chunk

    def chunked(x: Tensor) -> Tensor:
        padded = F.pad(x, (0, 0, 0, padding)) if padding else x
        return padded.unflatten(2, (-1, chunk))

    log_decay = q.new_zeros(q.shape[:3]) if log_decay is None else log_decay
    q, k, v = chunked(q), chunked(k), chunked(v)
    # Cumulative within a chunk, including the token's own decay.
    passed = chunked(log_decay[..., None]).squeeze(-1).cumsum(-1)
    causal = torch.ones(chunk, chunk, dtype=torch.bool, device=q.device).tril()
    between = (passed[..., :, None] - passed[..., None, :]).masked_fill(~causal, -math.inf).exp()
    within = (q @ k.transpose(-1, -2) * between) @ v
    whole = passed[..., -1]
    added = (k * (whole[..., None] - passed).exp()[..., None]).transpose(-1, -2) @ v
    if state is not None:
        added = torch.cat([state[:, :, None].to(added.dtype), added], 2)
        whole = F.pad(whole, (1, 0))
    # S after chunk n is the sum over m <= n of what chunk m added, decayed by the chunks after it.
    precise = whole.shape[-1] > FEW_CHUNKS and q.device.type != "mps"  # which has no float64
    steps = (whole.double() if precise else whole).cumsum(-1)
    later = torch.ones(steps.shape[-1], steps.shape[-1], dtype=torch.bool, device=q.device).tril()
    kept = (steps[..., :, None] - steps[..., None, :]).to(whole.dtype).masked_fill(~later, -math.inf).exp()
    states = torch.einsum("bhnm,bhmde->bhnde", kept, added)
    before = states[:, :, :-1] if state is not None else F.pad(states[:, :, :-1], (0, 0, 0, 0, 1, 0))
    across = (q * passed.exp()[..., None]) @ before
    return (within + across).flatten(2, 3)[:, :, :length], states[:, :, -1]


class LinearCache:
    """The state of one linear branch: one matrix per head, independent of the number of tokens."""

    def __init__(self) -> None:
        self.length = 0
        self.state: Tensor | None = None

    @property
    def nbytes(self) -> int:
        """Size of the state in bytes."""
        return 0 if self.state is None else self.state.numel() * self.state.element_size()


class LinearAttention(Branch):
    """Linear attention with features elu + 1 (Katharopoulos et al. 2020, arXiv 2006.16236), as a branch.

    ``y_t = φ(q_t)ᵀ Σ φ(k_j) v_jᵀ / φ(q_t)ᵀ Σ φ(k_j)``, sums over j <= t. It has the projections of attention. The
    norm site ``pre_output`` is on the concatenated heads.

    Args:
        dim: Width of the stream.
        heads: Number of heads.
        bias: Whether the projections have a bias.
        init: The initial weights.
        generator: Random generator of the initial values.
        device: Device of the parameters.
        dtype: Dtype of the parameters.

    Raises:
        UsageError: If the heads do not divide the width.
    """

    def __init__(
        self,
        dim: int,
        heads: int = 1,
        *,
        bias: bool = False,
        init: WeightInit | None = None,
        generator: torch.Generator | None = None,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        if min(dim, heads) < 1 or dim % heads:
            raise UsageError(f"{heads} heads cannot share a width of {dim}: choose a multiple of {heads} as the width.")
        self.heads = heads
        self.norm_sites = {"pre_output": dim}
        init = WeightInit() if init is None else init

        def projection(last: bool = False) -> Projection:
            return Projection(dim, dim, bias, init.of(dim, dim, last), generator, device, dtype)

        self.query, self.key, self.value = projection(), projection(), projection()
        self.output = projection(last=True)

    def forward(self, x: Tensor, mask: Tensor | None = None, cache: LinearCache | None = None) -> Tensor:
        """The output of each token.

        Args:
            x: Tokens, batch × length × dim.
            mask: True for tokens that may be attended to, batch × length; None for all.
            cache: The state before the first token; it is updated.
        """
        q, k, v = (self._heads(projection(x)) for projection in (self.query, self.key, self.value))
        with torch.autocast(x.device.type, enabled=False):
            out = self._read(q, k, v, self._log_decay(x), mask, cache)
        out = out.transpose(1, 2).flatten(2).to(x.dtype)
        return self.output(self.normalize_at("pre_output", out))

    def _heads(self, projected: Tensor) -> Tensor:
        """(batch, heads, length, features), in at least float32."""
        return widen(projected).unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def _log_decay(self, x: Tensor) -> Tensor | None:
        return None

    def _read(
        self, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None, mask: Tensor | None, cache: LinearCache | None
    ) -> Tensor:
        k = F.elu(k) + 1
        # The sum of the keys is an additional column of the state, from a constant value of 1.
        sums = _sums_with_cache(F.elu(q) + 1, k, F.pad(v, (0, 1), value=1.0), log_decay, mask, cache)
        return sums[..., :-1] / sums[..., -1:].clamp(min=1e-20)


class GatedLinear(LinearAttention):
    """Linear attention with a decay: each token computes a gate that multiplies each head's state.

    ``S_t = g_t S_(t-1) + k_t v_tᵀ`` with one ``g_t = sigmoid(w x_t + c)^(1/16)`` per head, and ``q_tᵀ S_t / sqrt(d)``
    normalized over each head without gain or shift. The gate is that of gated linear attention (Yang et al. 2024, arXiv
    2312.06635), including its temperature of 16, with one number per head instead of one per feature, as in Mamba-2
    (Dao and Gu 2024, arXiv 2405.21060). It has no output gate and no convolution. This simplification is ours.

    Args:
        dim: Width of the stream.
        heads: Number of heads.
        bias: Whether the projections have a bias.
        init: The initial weights.
        generator: Random generator of the initial values.
        device: Device of the parameters.
        dtype: Dtype of the parameters.
    """

    TEMPERATURE = 16.0

    def __init__(
        self,
        dim: int,
        heads: int = 1,
        *,
        bias: bool = False,
        init: WeightInit | None = None,
        generator: torch.Generator | None = None,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(dim, heads, bias=bias, init=init, generator=generator, device=device, dtype=dtype)
        std = (WeightInit() if init is None else init).of(dim, heads)
        self.gate = Projection(dim, heads, True, std, generator, device, dtype)

    def _log_decay(self, x: Tensor) -> Tensor:
        gate = self.gate(x.to(self.gate.weight.dtype)).transpose(1, 2)
        return F.logsigmoid(widen(gate)) / self.TEMPERATURE

    def _read(
        self, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None, mask: Tensor | None, cache: LinearCache | None
    ) -> Tensor:
        out = _sums_with_cache(q / math.sqrt(q.shape[-1]), k, v, log_decay, mask, cache)
        return F.layer_norm(out, out.shape[-1:])


def _sums_with_cache(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None, mask: Tensor | None, cache: LinearCache | None
) -> Tensor:
    """Compute the sums of the new tokens, except masked ones, and update the cache."""
    if mask is not None:
        visible = mask[:, None].to(k.dtype)
        k = k * visible[..., None]
        log_decay = None if log_decay is None else log_decay * visible
    out, state = decayed_sums(q, k, v, log_decay, None if cache is None else cache.state)
    if cache is not None:
        check_no_gradients(state)
        cache.state, cache.length = state, cache.length + q.shape[2]
    return out

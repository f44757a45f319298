"""Mamba-2 (Dao and Gu 2024, arXiv 2405.21060) in plain PyTorch, as a branch.

``S_t = exp(-Δ_t A) S_(t-1) + Δ_t B_t x_tᵀ`` and ``y_t = C_tᵀ S_t + D x_t`` for each head, with one decay ``A`` and one
step ``Δ_t`` per head. ``x``, ``B`` and ``C`` come from one projection, a short causal convolution and SiLU; ``B`` and
``C`` are shared by all heads. The result is multiplied by a SiLU gate, normalized by its root mean square, and
projected.
The sums are those of :func:`normplace.models.sequence.linear.decayed_sums`, in float32.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normplace.errors import UsageError
from normplace.models.sequence.linear import decayed_sums
from normplace.models.transformer.cache import check_no_gradients
from normplace.models.transformer.init import Projection, WeightInit
from normplace.residual import Branch

KERNEL = 4
"""Tokens that the convolution reads, as published."""
STEPS = (0.001, 0.1)
"""Range of the initial steps Δ, as published."""
DECAYS = (1.0, 16.0)
"""Range of the initial decays A, as published."""


class MambaCache:
    """The state of one branch, independent of the number of tokens: one matrix per head and the last inputs."""

    def __init__(self) -> None:
        self.length = 0
        self.state: Tensor | None = None
        self.inputs: Tensor | None = None

    @property
    def nbytes(self) -> int:
        """Size of the state in bytes."""
        tensors = (self.state, self.inputs)
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors if tensor is not None)


class Mamba2(Branch):
    """Mamba-2's mixer with its gate and its norm. The norm site ``pre_output`` is after that norm.

    Args:
        dim: Width of the stream.
        heads: Number of heads, each with its own decay.
        hidden: Number of channels; by default 2 times ``dim``.
        state: Width of B and C, which is the number of entries of the state for each channel.
        init: The initial weights of the projections.
        eps: The eps of the norm.
        generator: Random generator of the initial values.
        device: Device of the parameters.
        dtype: Dtype of the parameters.

    Raises:
        UsageError: If a size is not positive, or the heads do not divide the channels.
    """

    def __init__(
        self,
        dim: int,
        heads: int = 1,
        hidden: int | None = None,
        *,
        state: int = 64,
        init: WeightInit | None = None,
        eps: float = 1e-5,
        generator: torch.Generator | None = None,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        hidden = 2 * dim if hidden is None else hidden
        if min(dim, heads, hidden, state) < 1 or hidden % heads:
            raise UsageError(f"{heads} heads cannot share {hidden} channels: choose a divisor of their number.")
        self.heads, self.hidden, self.state, self.eps = heads, hidden, state, eps
        self.norm_sites = {"pre_output": hidden}
        init = WeightInit(branches=1) if init is None else init
        mixed, factory = hidden + 2 * state, {"device": device, "dtype": dtype}
        width = hidden + mixed + heads
        self.input = Projection(dim, width, False, init.of(dim, width), generator, device, dtype)
        self.output = Projection(hidden, dim, False, init.of(hidden, dim, True), generator, device, dtype)
        self.filter = nn.Parameter(torch.empty(mixed, KERNEL, **factory))
        self.filter_bias = nn.Parameter(torch.empty(mixed, **factory))
        self.step_bias, self.log_decay, self.skip = (nn.Parameter(torch.empty(heads, **factory)) for _ in range(3))
        self.gain = nn.Parameter(torch.empty(hidden, **factory))
        self._reset(generator)

    def reset_parameters(self) -> None:
        """Draw new initial values."""
        self.input.reset_parameters()
        self.output.reset_parameters()
        self._reset(None)

    def _reset(self, generator: torch.Generator | None) -> None:
        """Draw the parameters that are not projections, as published."""
        bound = 1 / math.sqrt(KERNEL)  # that of nn.Conv1d
        with torch.no_grad():
            self.filter.uniform_(-bound, bound, generator=generator)
            self.filter_bias.uniform_(-bound, bound, generator=generator)
            low, high = (math.log(step) for step in STEPS)
            steps = torch.empty_like(self.step_bias).uniform_(low, high, generator=generator).exp()
            self.step_bias.copy_(steps + torch.log(-torch.expm1(-steps)))  # the inverse of softplus
            self.log_decay.uniform_(*DECAYS, generator=generator).log_()
            self.skip.fill_(1)
            self.gain.fill_(1)

    def forward(self, x: Tensor, mask: Tensor | None = None, cache: MambaCache | None = None) -> Tensor:
        """The output of each token.

        Args:
            x: Tokens, batch × length × dim.
            mask: True for real tokens, batch × length; None for all.
            cache: The state after earlier tokens; it is updated.

        Raises:
            UsageError: If a cache is given and the result would require gradients.
        """
        if mask is None:
            return self._mix(x, cache)
        # Real tokens first: the convolution of a token then reads the real tokens before it.
        order = (~mask).sort(dim=1, stable=True).indices[..., None].expand_as(x)
        return torch.empty_like(x).scatter(1, order, self._mix(x.gather(1, order), cache).to(x.dtype))

    def _mix(self, x: Tensor, cache: MambaCache | None) -> Tensor:
        gate, mixed, step = self.input(x).split((self.hidden, self.hidden + 2 * self.state, self.heads), -1)
        with torch.autocast(x.device.type, enabled=False):
            wide = torch.promote_types(x.dtype, torch.float32)
            mixed = F.silu(self._convolve(mixed.to(wide), cache))
            values, keys, queries = mixed.split((self.hidden, self.state, self.state), -1)
            out = self._read(values, keys, queries, F.softplus(step.to(wide) + self.step_bias), cache)
            out = F.rms_norm(out * F.silu(gate.to(wide)), (self.hidden,), self.gain.to(wide), self.eps)
        return self.output(self.normalize_at("pre_output", out.to(x.dtype)))

    def _convolve(self, mixed: Tensor, cache: MambaCache | None) -> Tensor:
        """Each channel's weighted sum of its last inputs, batch × length × channels."""
        earlier = None if cache is None else cache.inputs
        past = mixed.new_zeros(len(mixed), KERNEL - 1, mixed.shape[-1]) if earlier is None else earlier
        inputs = torch.cat([past, mixed], 1)
        if cache is not None:
            cache.inputs = inputs[:, 1 - KERNEL :]
        weight, length = self.filter.to(mixed.dtype), mixed.shape[1]
        # As a sum of products: the gradient of a convolution of single channels is slow on GPUs.
        sums = sum(inputs[:, first : first + length] * weight[:, first] for first in range(KERNEL))
        return sums + self.filter_bias.to(mixed.dtype)

    def _read(self, values: Tensor, keys: Tensor, queries: Tensor, step: Tensor, cache: MambaCache | None) -> Tensor:
        """The state of each head, read by the queries; batch × length × channels."""
        step = step.transpose(1, 2)
        values = values.unflatten(-1, (self.heads, -1)).transpose(1, 2)
        shared = (self.heads, -1, -1)
        keys, queries = (rows[:, None].expand(len(rows), *shared) for rows in (keys, queries))
        log_decay = -self.log_decay.to(step.dtype).exp()[:, None] * step
        before = None if cache is None else cache.state
        out, state = decayed_sums(queries, keys, values * step[..., None], log_decay, before)
        if cache is not None:
            check_no_gradients(state)
            cache.state, cache.length = state, cache.length + out.shape[2]
        return (out + self.skip.to(out.dtype)[:, None, None] * values).transpose(1, 2).flatten(2)

    def extra_repr(self) -> str:
        """The main settings."""
        return f"{self.heads} heads, {self.hidden} channels, state {self.state}"

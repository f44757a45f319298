"""How fast a run is, and which part of the device's arithmetic it uses (MFU, Chowdhery et al. 2022, arXiv 2204.02311).

A token costs ``6 N + 12 Σ_l h d min(T, w_l)`` floating-point operations: N weights of matrices that every token is
multiplied with, the head's among them even where it is the embedding; h heads of width d, T positions, and w_l the
window of layer l. As in that paper, causal attention is counted as if all pairs were computed, and what is computed
twice is counted once.
"""

from __future__ import annotations

import statistics
import time

import torch
from torch import nn

from normplace.models.transformer import Transformer

SIZES = {"cpu": 512, "cuda": 8192}
REPEATS = 5


def flops_per_token(model: nn.Module, context: int) -> float:
    """Operations a token costs in training, by the module's formula; of other networks only ``6 N``.

    Args:
        model: The network.
        context: Positions of a row.
    """
    weights = sum(module.weight.numel() for module in model.modules() if isinstance(module, nn.Linear))
    if not isinstance(model, Transformer):
        return 6.0 * weights
    config = model.config
    if config.head.tied:
        weights += config.vocab_size * config.dim
    windows = (config.attention.window(layer) or context for layer in range(1, config.depth + 1))
    reach = sum(min(context, window) for window in windows)
    return 6.0 * weights + 12.0 * config.attention.heads * config.head_dim * reach


def measured_peak(device: torch.device, precision: str) -> float:
    """Operations a second of the fastest of a few products of square matrices.

    Args:
        device: Where.
        precision: ``float32`` or ``bfloat16``.
    """
    size = SIZES.get(device.type, 1024)
    matrix = torch.ones(size, size, device=device, dtype=getattr(torch, precision))
    best = float("inf")
    for _ in range(REPEATS + 1):
        begin = time.perf_counter()
        product = matrix @ matrix
        float(product[0, 0])  # waits for the device
        best = min(best, time.perf_counter() - begin)
    return 2.0 * size**3 / best


class ThroughputMeter:
    """Times steps; what happens between two of them, such as a checkpoint, is left out.

    Args:
        tokens: Of a step.
        flops: Of a token.
        peak: Operations a second of all devices together.
    """

    def __init__(self, tokens: int, flops: float, peak: float) -> None:
        self.tokens, self.flops, self.peak = tokens, flops, peak
        self.seconds: list[float] = []
        self._since: float | None = None

    def begin(self) -> None:
        """The next step starts now."""
        self._since = time.perf_counter()

    def step(self) -> float:
        """A step has ended, and the next starts; the seconds it took."""
        now = time.perf_counter()
        assert self._since is not None
        taken, self._since = now - self._since, now
        self.seconds.append(taken)
        return taken

    @property
    def usual(self) -> float | None:
        """Seconds of the median step of the last hundred; None before the first."""
        return statistics.median(self.seconds[-100:]) if self.seconds else None

    @property
    def tokens_per_second(self) -> float | None:
        """By the median step."""
        return self.tokens / self.usual if self.usual else None

    @property
    def utilisation(self) -> float | None:
        """The part of the peak that the formula's operations are."""
        return self.tokens_per_second * self.flops / self.peak if self.tokens_per_second else None

"""Throughput of a run and its model FLOPs utilization (MFU, Chowdhery et al. 2022, arXiv 2204.02311).

A token costs ``6 N + 12 Σ_l h d min(T, w_l)`` floating-point operations in training. N is the number of matrix weights,
including the output head even if it shares the embedding; h heads of width d; T tokens of context; w_l is the attention
window of layer l. As in that paper, causal attention counts as if all pairs were computed, and recomputed activations
count once.
"""

from __future__ import annotations

import statistics
import time

import torch
from torch import nn

from normplace.models.transformer import Transformer

MATRIX_SIZES = {"cpu": 512, "cuda": 8192}
REPEATS = 5
RECENT_STEPS = 100


def flops_per_token(model: nn.Module, context: int) -> float:
    """Return the operations per token in training, by the formula above; only ``6 N`` for other networks.

    Args:
        model: The network.
        context: Context length in tokens.
    """
    weights = sum(module.weight.numel() for module in model.modules() if isinstance(module, nn.Linear))
    if not isinstance(model, Transformer):
        return 6.0 * weights
    config = model.config
    if config.head.tied:
        weights += config.vocab_size * config.dim
    windows = (config.attention.window(layer) or context for layer in range(1, config.depth + 1))
    attended = sum(min(context, window) for window in windows)
    return 6.0 * weights + 12.0 * config.attention.heads * config.head_dim * attended


def measure_peak(device: torch.device, precision: str) -> float:
    """Return the operations per second of the fastest of a few square matrix products.

    Args:
        device: The device.
        precision: ``float32`` or ``bfloat16``.
    """
    size = MATRIX_SIZES.get(device.type, 1024)
    matrix = torch.ones(size, size, device=device, dtype=getattr(torch, precision))
    best = float("inf")
    for _ in range(REPEATS + 1):
        start = time.perf_counter()
        product = matrix @ matrix
        float(product[0, 0])  # synchronizes
        best = min(best, time.perf_counter() - start)
    return 2.0 * size**3 / best


class ThroughputMeter:
    """Times steps; the time between two steps, such as for a checkpoint, can be left out.

    Args:
        tokens: Tokens per step.
        flops: Operations per token.
        peak: Operations per second of all devices together.
    """

    def __init__(self, tokens: int, flops: float, peak: float) -> None:
        self.tokens, self.flops, self.peak = tokens, flops, peak
        self.seconds: list[float] = []
        self._step_start: float | None = None

    def start_step(self) -> None:
        """Start the clock of the next step."""
        self._step_start = time.perf_counter()

    def end_step(self, excluded: float = 0.0) -> float:
        """Return the seconds of the step, and start the clock of the next one.

        Args:
            excluded: Seconds of the step that do not count, such as for compilation.
        """
        now = time.perf_counter()
        assert self._step_start is not None
        seconds, self._step_start = now - self._step_start - excluded, now
        self.seconds.append(seconds)
        return seconds

    @property
    def median_seconds(self) -> float | None:
        """Median over the last hundred steps; None before the first."""
        return statistics.median(self.seconds[-RECENT_STEPS:]) if self.seconds else None

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens per second of the median step."""
        return self.tokens / self.median_seconds if self.median_seconds else None

    @property
    def mfu(self) -> float | None:
        """Model FLOPs utilization: operations of the formula over the peak."""
        return self.tokens_per_second * self.flops / self.peak if self.tokens_per_second else None

"""Choosing the next token from logits."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from normplace.errors import UsageError


def choose(
    logits: Tensor,
    *,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """A token for each row.

    Args:
        logits: (rows, tokens).
        temperature: 0 for the likeliest token; else what the logits are divided by before one is drawn.
        top_k: Draw from that many likeliest tokens only.
        top_p: Draw from the likeliest tokens only that together reach this probability (Holtzman et al. 2020, arXiv
            1904.09751).
        generator: Source of the draw, on the device of the logits.

    Raises:
        UsageError: If a setting is out of range, or tokens are to be drawn and there is no generator.
    """
    if temperature == 0:
        return logits.argmax(-1)
    if not (temperature > 0 and math.isfinite(temperature)):
        raise UsageError(f"temperature must be zero or more, got {temperature}.")
    if generator is None:
        raise UsageError("tokens are drawn at random: pass the generator to draw them from, or temperature=0.")
    if top_k is not None and top_k < 1:
        raise UsageError(f"top_k must be at least 1, got {top_k}.")
    if top_p is not None and not 0 < top_p <= 1:
        raise UsageError(f"top_p must lie above 0 and at most at 1, got {top_p}.")
    scores = logits.float() / temperature
    if top_k is not None and top_k < scores.shape[-1]:
        least = scores.topk(top_k, dim=-1).values[..., -1:]
        scores = scores.masked_fill(scores < least, -math.inf)
    if top_p is not None:
        ordered, order = scores.softmax(-1).sort(dim=-1, descending=True)
        beyond = ordered.cumsum(-1) - ordered >= top_p
        scores = scores.masked_fill(torch.zeros_like(beyond).scatter(-1, order, beyond), -math.inf)
    return torch.multinomial(scores.softmax(-1), 1, generator=generator).squeeze(-1)

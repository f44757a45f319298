"""Continuing a text: one token at a time, each drawn from the scores of the last."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from normplace.errors import UsageError

if TYPE_CHECKING:
    from normplace.models.transformer.model import Transformer


def kept(scores: Tensor, top_k: int | None = None, top_p: float | None = None) -> Tensor:
    """The scores with minus infinity where a token is out of the running.

    Args:
        scores: batch × vocabulary.
        top_k: Keep this many of the highest.
        top_p: Keep the fewest of the highest whose probabilities add up to this (Holtzman et al. 2020, arXiv
            1904.09751); the highest is always kept.
    """
    if top_k is not None and top_k < scores.shape[-1]:
        least = scores.topk(top_k, -1).values[..., -1:]
        scores = scores.masked_fill(scores < least, -math.inf)
    if top_p is not None and top_p < 1:
        ranked, order = scores.sort(-1, descending=True)
        probability = ranked.softmax(-1)
        out = probability.cumsum(-1) - probability >= top_p
        scores = scores.masked_fill(torch.zeros_like(out).scatter(-1, order, out), -math.inf)
    return scores


def draw(
    scores: Tensor,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """One token for each row of scores.

    Args:
        scores: batch × vocabulary.
        temperature: 0 for the highest score; otherwise what the scores are divided by before one is drawn.
        top_k: As in :func:`kept`.
        top_p: As in :func:`kept`.
        generator: Source of the draw.
    """
    if temperature == 0:
        return scores.argmax(-1)
    probability = kept(scores.float() / temperature, top_k, top_p).softmax(-1)
    return torch.multinomial(probability, 1, generator=generator).squeeze(-1)


@torch.no_grad()
def generate(
    model: Transformer,
    ids: Tensor,
    new: int,
    *,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    stop: int | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """The tokens with up to ``new`` more behind them.

    Args:
        model: A decoder.
        ids: The tokens to start from, batch × length.
        new: How many more at most.
        temperature: 0 for the most likely token each time; higher for more even draws.
        top_k: Draw among this many of the most likely.
        top_p: Draw among the fewest of the most likely whose probabilities add up to this.
        stop: A token that ends a sequence; sequences that end early are filled with it.
        generator: Source of the draws.

    Raises:
        UsageError: If an argument is out of range, or the network is an encoder.
    """
    _check(model, ids, new, temperature, top_k, top_p)
    cache = model.new_cache()
    choose = functools.partial(draw, temperature=temperature, top_k=top_k, top_p=top_p, generator=generator)
    return extend(ids, new, lambda read: choose(model(read, cache=cache)[:, -1]), stop)


def extend(ids: Tensor, new: int, follow: Callable[[Tensor], Tensor], stop: int | None = None) -> Tensor:
    """The tokens with up to ``new`` more behind them, until every sequence has ended.

    Args:
        ids: The tokens to start from, batch × length.
        new: How many more at most.
        follow: From the tokens that it has not been given yet, batch × length, to the next of each sequence.
        stop: A token that ends a sequence; sequences that end early are filled with it.
    """
    done, read = torch.zeros(len(ids), dtype=torch.bool, device=ids.device), ids
    for _ in range(new):
        token = follow(read).to(ids.dtype)
        if stop is not None:
            token = token.masked_fill(done, stop)
            done |= token == stop
        read = token[:, None]
        ids = torch.cat((ids, read), 1)
        if stop is not None and bool(done.all()):
            break
    return ids


def _check(
    model: Transformer, ids: Tensor, new: int, temperature: float, top_k: int | None, top_p: float | None
) -> None:
    if not model.config.causal:
        raise UsageError("an encoder scores the tokens it reads, not the next one: build it with causal=True.")
    check_draws(new, temperature, top_k, top_p)
    limit = model.config.positions.length
    # The last token is written and not read, so it needs no position.
    if limit is not None and ids.shape[1] + new - 1 > limit:
        raise UsageError(
            f"the network has learned {limit} positions, so after {ids.shape[1]} tokens it can add at most "
            f"{max(0, limit - ids.shape[1] + 1)}, not {new}."
        )


def check_draws(new: int, temperature: float, top_k: int | None, top_p: float | None) -> None:
    """Refuse settings of generation that are out of range.

    Raises:
        UsageError: If one is.
    """
    if new < 1:
        raise UsageError(f"new says how many tokens to add, so it must be at least 1, got {new}.")
    if not (math.isfinite(temperature) and temperature >= 0):
        raise UsageError(f"temperature must be zero or more and finite, got {temperature}.")
    if temperature == 0 and (top_k is not None or top_p is not None):
        raise UsageError("top_k and top_p limit a draw, but temperature 0 draws none: set temperature=1.0, say.")
    if top_k is not None and top_k < 1:
        raise UsageError(f"top_k must be at least 1, got {top_k}.")
    if top_p is not None and not 0 < top_p <= 1:
        raise UsageError(f"top_p must lie above 0 and not above 1, got {top_p}.")

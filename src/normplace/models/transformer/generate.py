"""Text generation, one token at a time."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from normplace.errors import UsageError, expect_range

if TYPE_CHECKING:
    from normplace.models.transformer.model import Transformer


def filtered(scores: Tensor, top_k: int | None = None, top_p: float | None = None) -> Tensor:
    """The scores with minus infinity for tokens that must not be sampled.

    Args:
        scores: Logits, batch × vocabulary.
        top_k: Keep the k highest.
        top_p: Keep the smallest set of the highest whose probabilities sum to this (Holtzman et al. 2020, arXiv
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
    """Sample one token for each sequence.

    Args:
        scores: Logits, batch × vocabulary.
        temperature: 0 for the highest score; otherwise the scores are divided by it before sampling.
        top_k: As in :func:`filtered`.
        top_p: As in :func:`filtered`.
        generator: Random generator.
    """
    if temperature == 0:
        return scores.argmax(-1)
    probability = filtered(scores.float() / temperature, top_k, top_p).softmax(-1)
    return torch.multinomial(probability, 1, generator=generator).squeeze(-1)


def stream(
    model: Transformer,
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
) -> Iterator[Tensor]:
    """Yield the generated tokens one by one, each as one token per sequence.

    Args:
        model: A decoder.
        ids: The prompt, batch × length.
        new: Maximum number of new tokens.
        temperature: As in :meth:`Transformer.generate`.
        top_k: As in :meth:`Transformer.generate`.
        top_p: As in :meth:`Transformer.generate`.
        stop: As in :meth:`Transformer.generate`.
        generator: As in :meth:`Transformer.generate`.
        source: As in :meth:`Transformer.generate`.
        source_mask: As in :meth:`Transformer.generate`.

    Raises:
        UsageError: If an argument is out of range, or the network is an encoder.
    """
    _check(model, ids, new, temperature, top_k, top_p)
    cache = model.new_cache()
    choose = functools.partial(draw, temperature=temperature, top_k=top_k, top_p=top_p, generator=generator)

    encoded = {"source": source, "source_mask": source_mask}
    limit, seen = model.config.positions.cache_limit, ids[:, :0]

    @torch.no_grad()
    def follow(unread: Tensor) -> Tensor:
        nonlocal cache, seen
        seen = torch.cat((seen, unread), 1)
        if limit is not None and 0 < cache.length <= limit < seen.shape[1]:
            cache, unread = model.new_cache(), seen
        arguments = encoded if cache.length == 0 else {}
        return choose(model(unread, cache=cache, **arguments)[:, -1])

    return new_tokens(ids, new, follow, stop)


def append_tokens(ids: Tensor, tokens: Iterable[Tensor]) -> Tensor:
    """The prompt followed by the tokens, each of which is one token per sequence."""
    return torch.cat([ids, *(token[:, None] for token in tokens)], 1)


def new_tokens(ids: Tensor, new: int, follow: Callable[[Tensor], Tensor], stop: int | None = None) -> Iterator[Tensor]:
    """Yield up to ``new`` tokens of each sequence, until every sequence has ended.

    Args:
        ids: The prompt, batch × length.
        new: Maximum number of new tokens.
        follow: Maps the tokens since its last call, batch × length, to the next token of each sequence.
        stop: Token that ends a sequence; sequences that end early are padded with it.
    """
    done, unread = torch.zeros(len(ids), dtype=torch.bool, device=ids.device), ids
    for _ in range(new):
        token = follow(unread).to(ids.dtype)
        if stop is not None:
            token = token.masked_fill(done, stop)
            done |= token == stop
        yield token
        unread = token[:, None]
        if stop is not None and bool(done.all()):
            break


def _check(
    model: Transformer, ids: Tensor, new: int, temperature: float, top_k: int | None, top_p: float | None
) -> None:
    if not model.config.causal:
        raise UsageError("an encoder does not predict the next token: build it with causal=True.")
    check_draws(new, temperature, top_k, top_p)
    limit = model.config.positions.length
    # The last token is not an input, so it needs no position.
    if limit is not None and ids.shape[1] + new - 1 > limit:
        raise UsageError(
            f"the network has {limit} learned positions, so after {ids.shape[1]} tokens it can generate at most "
            f"{max(0, limit - ids.shape[1] + 1)}, not {new}."
        )


def check_draws(new: int, temperature: float, top_k: int | None, top_p: float | None) -> None:
    """Check the settings of generation.

    Raises:
        UsageError: If one is out of range.
    """
    expect_range("new", new, least=1)
    if not (math.isfinite(temperature) and temperature >= 0):
        raise UsageError(f"temperature must be zero or more and finite, got {temperature}.")
    if temperature == 0 and (top_k is not None or top_p is not None):
        raise UsageError("top_k and top_p need sampling, but temperature is 0: set, for example, temperature=1.0.")
    if top_k is not None:
        expect_range("top_k", top_k, least=1)
    if top_p is not None:
        expect_range("top_p", top_p, above=0, most=1)

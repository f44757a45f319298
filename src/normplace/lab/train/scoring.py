"""The log-probability that a trained network assigns to continuations of a text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from normplace.lab.train.run_folder import Run

Tokens = Sequence[int]
DEFAULT_CONTEXT = 1024
"""Context length of a model without a training run and without learned positions."""
TOKENS_AT_ONCE = 1 << 14
PREFIX = b"\n"
"""Text before a continuation without context."""


class Scorer:
    """Scores continuations with the model of a run.

    Args:
        run: The run.
        device: Where to compute.
    """

    def __init__(self, run: Run, device: torch.device) -> None:
        self.model, self.tokenizer, self.device = run.model.to(device), run.tokenizer, device
        self.context = run.context or DEFAULT_CONTEXT
        self.prefix = self.encode(PREFIX.decode())

    def encode(self, text: str) -> list[int]:
        """The tokens of a text."""
        return self.tokenizer.encode(text.encode("utf-8", "surrogateescape")).tolist()

    def score(self, pairs: Sequence[tuple[Tokens, Tokens]]) -> list[tuple[float, bool]]:
        """The log-probability of each continuation in nats, and whether greedy decoding gives it.

        Args:
            pairs: Tokens of context and continuation. A context that is too long loses its beginning; a continuation
                of more tokens than the context length is scored in parts.
        """
        parts = [(index, part) for index, pair in enumerate(pairs) for part in self._windows(*pair)]
        # Sequences of similar length share a batch.
        order = sorted(range(len(parts)), key=lambda index: len(parts[index][1][0]))
        totals, greedy = [0.0] * len(pairs), [True] * len(pairs)
        for batch in self._batches([len(parts[index][1][0]) for index in order]):
            chosen = [parts[index] for index in order[batch]]
            for (index, _), (value, is_greedy) in zip(chosen, self._score([part for _, part in chosen]), strict=True):
                totals[index] += value
                greedy[index] &= is_greedy
        return list(zip(totals, greedy, strict=True))

    @torch.no_grad()
    def token_losses(self, sequences: Tensor) -> tuple[Tensor, Tensor]:
        """The loss of each next token in nats, and whether it is the most likely one; both sequences × (length - 1).

        Args:
            sequences: Tokens, sequences × length, with a length of at most ``context + 1``.
        """
        losses, hits = [], []
        for part in sequences.split(max(1, TOKENS_AT_ONCE // sequences.shape[1])):
            ids = part.to(self.device)
            logits: Tensor = self.model(ids[:, :-1]).float()
            losses.append(-logits.log_softmax(-1).gather(-1, ids[:, 1:, None]).squeeze(-1).cpu())
            hits.append((logits.argmax(-1) == ids[:, 1:]).cpu())
        return torch.cat(losses), torch.cat(hits)

    def _windows(self, context: Tokens, continuation: Tokens) -> Iterator[tuple[list[int], int]]:
        """Yield sequences of at most ``context + 1`` tokens, and how many at their end are scored."""
        whole = [*(context or self.prefix), *continuation]
        first = len(whole) - len(continuation)
        while first < len(whole):
            last = min(len(whole), first + self.context)
            yield whole[max(0, last - self.context - 1) : last], last - first
            first = last

    def _batches(self, lengths: list[int]) -> Iterator[slice]:
        first = 0
        while first < len(lengths):
            last = first + 1
            while last < len(lengths) and (last + 1 - first) * lengths[last] <= TOKENS_AT_ONCE:
                last += 1
            yield slice(first, last)
            first = last

    def _score(self, windows: list[tuple[list[int], int]]) -> list[tuple[float, bool]]:
        longest = max(len(tokens) for tokens, _ in windows)
        # Padding is at the end, so causal attention does not read it.
        ids = torch.tensor([[*tokens, *[0] * (longest - len(tokens))] for tokens, _ in windows])
        losses, hits = self.token_losses(ids)
        scores = []
        for row, (tokens, count) in enumerate(windows):
            scored = slice(len(tokens) - 1 - count, len(tokens) - 1)
            scores.append((-float(losses[row, scored].sum()), bool(hits[row, scored].all())))
        return scores

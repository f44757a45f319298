"""Bytes of a text in some of its tokens, which convert nats per token to bits per byte."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from torch import Tensor

CHUNK = 1 << 22
"""Tokens that are looked up at once, so that a long text needs little memory."""


@dataclass(frozen=True, eq=False)
class ByteCounts:
    """Bytes of the tokens of a text.

    Args:
        by_token: Bytes of each token of the vocabulary, as :meth:`Tokenizer.byte_lengths` returns them.
        factor: Bytes of the text per byte of its tokens; 1 unless the tokenizer changes or drops parts of the text.
    """

    by_token: np.ndarray
    factor: float

    @classmethod
    def of(cls, by_token: np.ndarray, tokens: np.ndarray, size: float) -> ByteCounts:
        """Count a whole text.

        Args:
            by_token: Bytes of each token of the vocabulary.
            tokens: The tokens of the text.
            size: Its bytes.
        """
        total = sum(int(by_token[tokens[first : first + CHUNK]].sum()) for first in range(0, len(tokens), CHUNK))
        return cls(by_token, size / total)

    def mean(self, tokens: Tensor) -> float:
        """Mean number of bytes of some tokens of the text."""
        return self.factor * float(self.by_token[tokens.cpu().numpy()].mean())


def byte_lengths(vocabulary: Mapping[str, int], added: Mapping[int, str], in_bytes: bool) -> np.ndarray:
    """Bytes of each token of a vocabulary; a token is at least one byte.

    Args:
        vocabulary: The index of each token.
        added: Texts of tokens that are written as they are, such as special ones.
        in_bytes: Whether each character of a token is a byte; else ``▁`` is a space, ``##`` continues a word, and
            ``<0x0A>`` is a byte.
    """
    lengths = np.ones(max(vocabulary.values(), default=0) + 1, dtype=np.int64)
    for token, index in vocabulary.items():
        if index in added:
            lengths[index] = len(added[index].encode())
        elif in_bytes:
            lengths[index] = len(token)
        elif not (len(token) == 6 and token.startswith("<0x") and token.endswith(">")):
            lengths[index] = len(token.removeprefix("##").replace("▁", " ").encode())
    return np.maximum(lengths, 1)

from __future__ import annotations

import numpy as np
import pytest
import torch

from normplace.errors import UsageError
from normplace.lab.train.data import TokenWindows, held_out_sequences, shard

TOKENS = np.arange(103, dtype=np.uint8)


def test_every_epoch_has_every_window_once_in_a_new_order():
    windows = TokenWindows(TOKENS, context=10, seed=3)
    epochs = [windows.sequences(epoch * windows.per_epoch, windows.per_epoch) for epoch in range(3)]
    assert windows.per_epoch == 9
    for sequences in epochs:
        assert (sequences[:, 1:] - sequences[:, :-1] == 1).all()  # consecutive tokens of the text
        starts = sequences[:, 0].sort().values
        assert (starts.diff() == 10).all()
        assert 0 <= starts[0] < 10
    assert len({tuple(sequences[:, 0].tolist()) for sequences in epochs}) == 3


def test_the_order_depends_on_seed_and_index_only():
    whole = TokenWindows(TOKENS, 10, seed=1).sequences(0, 40)
    backwards = TokenWindows(TOKENS, 10, seed=1)
    pieces = [backwards.sequences(first, 4) for first in reversed(range(0, 40, 4))]
    assert torch.equal(torch.cat(pieces[::-1]), whole)
    assert not torch.equal(TokenWindows(TOKENS, 10, seed=2).sequences(0, 40), whole)


def test_processes_share_a_step_without_overlap():
    sequences = TokenWindows(TOKENS, 10, seed=1)
    parts = [sequences.sequences(*shard(24, 12, rank, 3)) for rank in range(3)]
    assert torch.equal(torch.cat(parts), sequences.sequences(24, 12))


def test_held_out_sequences_are_consecutive():
    sequences = held_out_sequences(TOKENS, 10, count=99)
    assert torch.equal(sequences, torch.arange(0, 100, 10)[:, None] + torch.arange(11))
    assert torch.equal(held_out_sequences(TOKENS, 10, count=3), sequences[:3])


def test_short_text_is_an_error():
    with pytest.raises(UsageError, match="needs 120 tokens of text, but there are 103"):
        TokenWindows(TOKENS, 60, seed=0)
    with pytest.raises(UsageError, match="longer than the held-out text"):
        held_out_sequences(TOKENS, 103, count=1)

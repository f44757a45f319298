"""Straight lines: their scale, and the autoregressive continuation."""

from __future__ import annotations

import pytest
import torch

from normplace.lab.tasks.sequences.straight_lines import SCALE, line_sequences, roll_out


def test_lines_are_straight_and_of_unit_size():
    lines = line_sequences(4000, 30, torch.Generator().manual_seed(0))
    torch.testing.assert_close(lines.diff(n=2), torch.zeros(4000, 28), atol=1e-5, rtol=0)
    assert float(lines.std()) == pytest.approx(1, abs=0.05)
    assert pytest.approx(17.78, abs=0.01) == SCALE


def test_roll_out_feeds_predictions_back():
    prompt = torch.tensor([[1.0, 2.0]])
    assert roll_out(lambda values: 2 * values, prompt, 5).tolist() == [[1, 2, 4, 8, 16]]

"""Standardization by the training set, hold-out, and R²."""

from __future__ import annotations

import pytest
import torch

from normplace import UsageError
from normplace.lab.tasks.regression import Regression, ShiftedRegression, Standardizer, hold_out, r_squared


def rows(n: int, shift: float) -> Regression:
    generator = torch.Generator().manual_seed(n)
    x = torch.randn(n, 3, generator=generator, dtype=torch.float64) * 5 + shift
    x[:, 2] = 7
    return Regression(x, x[:, :1] * 2 + 1)


def test_scaling_comes_from_the_training_rows_alone():
    split = ShiftedRegression(rows(50, 0), rows(20, 0), rows(20, 100))
    scaled, unit = split.standardized()
    assert scaled.train.x.dtype == torch.float32
    torch.testing.assert_close(scaled.train.x.mean(0), torch.zeros(3), atol=1e-6, rtol=0)
    torch.testing.assert_close(scaled.train.x.std(0, correction=0), torch.tensor([1.0, 1.0, 0.0]))
    assert float(scaled.outside.x[:, 0].min()) > 10
    torch.testing.assert_close(unit.undo(scaled.outside.y), split.outside.y, rtol=1e-6, atol=1e-4)
    assert Standardizer.of(split.train.x)(split.train.x).dtype == torch.float64


def test_r_squared():
    target = torch.tensor([1.0, 2.0, 3.0, 6.0])
    assert r_squared(target, target) == 1
    assert r_squared(torch.full((4,), 3.0), target) == pytest.approx(0)
    assert r_squared(target + 1, target) == pytest.approx(1 - 4 / 14)


def test_hold_out_takes_every_row_once():
    train, rest = hold_out(10, 7, torch.Generator().manual_seed(0))
    assert sorted(torch.cat([train, rest]).tolist()) == list(range(10))
    with pytest.raises(UsageError, match="both parts need at least one"):
        hold_out(3, 3, torch.Generator())

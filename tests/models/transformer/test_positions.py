"""Rotations and slopes."""

from __future__ import annotations

import pytest
import torch
from tests.models.transformer.reference import turned

from normplace.models.transformer.positions import ALiBi, Rotary, rotate


def test_rotation_is_that_of_complex_numbers():
    x = torch.randn(7, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    got = rotate(x, Rotary(50.0).table(3, 7, 6))
    wanted = torch.stack([turned(row, 3 + t, 50.0) for t, row in enumerate(x)])
    torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-12)


def test_scores_depend_on_the_distance_alone():
    q, k = torch.randn(2, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def score(at, distance):
        table = Rotary().table(at, distance + 1, 8)
        first, last = (tuple(part[row] for part in table) for row in (0, distance))
        return rotate(q, last) @ rotate(k, first)

    assert float(score(0, 5)) == pytest.approx(float(score(100_000, 5)), rel=1e-9)


def test_slopes_are_those_of_the_paper():
    assert ALiBi().slopes(8) == [2**-i for i in range(1, 9)]
    assert ALiBi().slopes(4) == [2**-2, 2**-4, 2**-6, 2**-8]
    assert ALiBi().slopes(6) == [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3]

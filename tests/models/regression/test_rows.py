"""Rows of a regression: merged, standardized and split."""

from __future__ import annotations

import numpy as np
import pytest

from normplace.models.regression.rows import Scaler, WeightedRows


def test_equal_rows_are_merged_and_their_weights_added():
    x, y = np.array([[2.0], [1.0], [2.0], [2.0], [9.0]]), np.array([[0.0], [0.0], [0.0], [5.0], [9.0]])
    rows = WeightedRows.merged(x, y, np.array([1.0, 2.0, 3.0, 2.0, 0.0]))
    assert rows.x.tolist() == [[1], [2], [2]]
    assert rows.y.tolist() == [[0], [0], [5]]
    assert rows.weight.tolist() == pytest.approx([0.75, 1.5, 0.75])


def test_weighted_statistics_are_those_of_repeated_rows():
    random = np.random.RandomState(0)
    values, counts = random.randn(10, 3), random.randint(1, 4, 10)
    scaler = Scaler.of(values, counts.astype(float))
    repeated = values.repeat(counts, axis=0)
    np.testing.assert_allclose(scaler.mean, repeated.mean(0), rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(scaler.scale, repeated.std(0), rtol=1e-12)


@pytest.mark.parametrize("size", [1e-200, 1e-8, 1.0, 1e200])
def test_statistics_of_any_magnitude(size):
    values = np.array([[1.0], [2.0], [4.0]])
    scaler = Scaler.of(size * values, np.ones(3))
    # Squares of 1e±200 would overflow or vanish; relative rounding is a few times 1e-16.
    assert scaler.scale / size == pytest.approx(values.std(0), rel=1e-12)


def test_a_constant_column_has_the_scale_one():
    assert Scaler.of(np.full((5, 2), 0.1), np.ones(5)).scale.tolist() == [1, 1]


def test_the_split_is_disjoint_and_depends_on_the_seed():
    rows = WeightedRows(np.arange(50.0)[:, None], np.zeros((50, 1)), np.ones(50))
    fitted, held_out = rows.split(0.2, np.random.RandomState(0))
    assert held_out is not None and (len(fitted), len(held_out)) == (40, 10)
    assert sorted([*fitted.x[:, 0], *held_out.x[:, 0]]) == list(range(50))
    other = rows.split(0.2, np.random.RandomState(1))[1]
    assert other is not None and set(other.x[:, 0]) != set(held_out.x[:, 0])


def test_few_rows_are_not_split():
    rows = WeightedRows(np.arange(19.0)[:, None], np.zeros((19, 1)), np.ones(19))
    assert rows.split(0.2, np.random.RandomState(0)) == (rows, None)

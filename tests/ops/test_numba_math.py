"""Vectorized exponentials and logarithms against float64."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("numba")

from normplace.ops import numba_math
from normplace.ops.numba_lanes import access, compiled

LANES = 16


def applied(name: str, values: np.ndarray) -> np.ndarray:
    """A function of many numbers, lane by lane."""
    function = getattr(numba_math, name)
    load, store, *_ = access(np.dtype(np.float32), LANES, False)

    @compiled
    def run(given, out):
        for column in range(0, given.shape[1], LANES):
            store(out, 0, column, function(load(given, 0, column)))

    out = np.full_like(values[None], np.nan)
    run(values[None], out)
    return out[0]


def units(found: np.ndarray, exact: np.ndarray) -> float:
    """The largest error, in units in the last place of the exact result."""
    return float((np.abs(found - exact) / np.spacing(np.abs(exact).astype(np.float32))).max())


@pytest.mark.parametrize(
    ("name", "low", "high"), [("weight32", -86.9, 5.0), ("exp32", -86.9, 88.7228), ("weight32", -1e-3, 1e-3)]
)
def test_exponential(name, low, high):
    x = np.linspace(low, high, 200_003, dtype=np.float32)
    assert units(applied(name, x), np.exp(x.astype(np.float64))) <= 2


def test_power_of_two():
    x = np.linspace(-125.9, 126.9, 200_003, dtype=np.float32)
    assert units(applied("power_of_two32", x), np.exp2(x.astype(np.float64))) <= 1
    # Any bits of a nan give a nan.
    bits = np.array([0x7FC00000, 0x7F800001, 0x7FFFFFFF, 0xFFC00000, 0xFF8000FF], np.uint32)
    assert np.isnan(applied("power_of_two32", bits.view(np.float32))).all()


@pytest.mark.parametrize(("low", "high"), [(-37.9, 38.5), (-0.5, 0.5), (-1e-4, 1e-4)])
def test_logarithm(low, high):
    x = (10.0 ** np.linspace(low, high, 200_003)).astype(np.float32)
    assert units(applied("log32", x), np.log(x.astype(np.float64))) <= 2


def test_ends_of_the_range():
    infinity, nan = np.inf, np.nan
    for name in ("exp32", "weight32"):
        found = applied(name, np.array([-infinity, -1e30, -104, -88, 0, nan], np.float32))
        assert (found[:4] == 0).all()
        assert found[4] == 1
        assert np.isnan(found[5])
    assert (applied("exp32", np.array([88.73, 1e30, infinity], np.float32)) == infinity).all()
    logs = applied("log32", np.array([0, -1, -infinity, nan, 1], np.float32))
    assert np.isnan(logs[:4]).all()
    assert logs[4] == 0

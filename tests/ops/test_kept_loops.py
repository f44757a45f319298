"""Another process loads the machine code of the loops; it computes the same bits."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from tests.ops.aggregate.cases import Inputs
from tests.ops.relation.cases import Case

pytest.importorskip("numba")

from normplace.ops.aggregate import numba_kernels
from normplace.ops.numba_lanes import access
from normplace.ops.relation import numba_pair_kernels, numba_scan_kernels

RUNS = {
    "aggregation": (numba_kernels, functools.partial(Inputs("power", 1.5, "linear").results, "numba")),
    "scan": (numba_scan_kernels, functools.partial(Case((2, 20, 36), "separate").results, "scan", "numba")),
    "pairs": (numba_pair_kernels, functools.partial(Case((2, 20, 36), "joint").results, "pairwise", "numba")),
}


@pytest.mark.parametrize("op", RUNS)
def test_the_second_process_compiles_nothing(op, monkeypatch):
    module, run = RUNS[op]
    keep_code, kept, results = module.keep_code, [], []

    def noted(loops: Any, *arguments: Any) -> None:
        kept.append(loops)
        keep_code(loops, *arguments)

    monkeypatch.setattr(module, "keep_code", noted)
    for _ in range(2):  # without the functions that the first process made
        module.kernels.cache_clear()
        access.cache_clear()
        results.append(run())
    before, after = kept
    used = [name for name in before._fields if getattr(before, name).signatures]
    assert len(used) >= 3
    for name in used:
        stats = getattr(after, name).stats
        assert (len(stats.cache_hits), len(stats.cache_misses)) == (1, 0)
    assert all(torch.equal(value, results[1][name]) for name, value in results[0].items())

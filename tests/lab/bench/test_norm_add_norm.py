"""The boundary's cases: every method computes the same results."""

from __future__ import annotations

import pytest

from normplace.lab.bench import norm_add_norm
from normplace.lab.bench.case import FORWARD, TRAINING, Case
from normplace.lab.bench.check import WrongKernel, check


@pytest.mark.parametrize("norm", ["rms", "layer"])
def test_every_method_computes_the_same(norm):
    problem = norm_add_norm.problem("cpu", norm, 9, 33, burst=1, quick=True)
    errors, failed = check(Case("norm_add_norm", norm, norm_add_norm.problem), problem)
    assert failed == {}
    assert errors.keys() == {"normplace", "PyTorch"}
    assert max(errors.values()) < 1e-6
    assert len(problem.normplace.values(problem.seeds)) == 2 + (6 if norm == "layer" else 4)
    # Nine rows of 33 floats: f and x read, the stream and y written; six more tensors with the backward pass.
    assert problem.floors[FORWARD].amount == 4 * 9 * 33 * 4
    assert problem.floors[TRAINING].amount == 10 * 9 * 33 * 4


def test_a_wrong_stream_raises(monkeypatch):
    problem = norm_add_norm.problem("cpu", "rms", 9, 33, burst=1, quick=True)
    gains = list(problem.normplace.learned.values())[2:]
    monkeypatch.setattr(norm_add_norm, "norm_add_norm", lambda x, f, **_: norm_add_norm.eager(x + 1e-3, f, *gains))
    with pytest.raises(WrongKernel, match="norm_add_norm, rms: the gradient of the next gain is wrong by"):
        check(Case("norm_add_norm", "rms", norm_add_norm.problem), problem)


def test_candidate_tiles_fit_a_program():
    tiles = [dict(tile) for tile in norm_add_norm.candidate_tiles(lambda **options: options.items(), 4096, (0, 2))]
    assert {"rows": 1, "warps": 8, "per_sm": 0, "stages": 1} in tiles
    for tile in tiles:
        assert 8 <= tile["rows"] * 4096 / (32 * tile["warps"]) <= 64
        assert tile["stages"] == 1 or tile["per_sm"]
    blocks = [
        dict(tile)
        for tile in norm_add_norm.candidate_tiles(lambda **options: options.items(), 4096, (0,), in_blocks=True)
    ]
    assert {"rows": 1, "warps": 8, "columns": 4096} in blocks
    assert all(tile["columns"] <= 4096 for tile in blocks)

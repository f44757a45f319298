"""The aggregation's cases: both libraries compute the same, and the minimal work is counted correctly."""

from __future__ import annotations

import pytest
import torch

from normplace.lab.bench import aggregate
from normplace.lab.bench.case import Case
from normplace.lab.bench.check import check

pytest.importorskip("torch_geometric", reason="needs PyG: pip install 'normplace[graphs]'")


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    monkeypatch.setitem(aggregate.GRAPHS, "tiny", (50, 400, 16, 0.3))


@pytest.mark.parametrize("edge", aggregate.EDGES)
def test_normplace_and_pyg_compute_the_same(edge):
    errors, failed = check(
        Case("aggregate", edge, aggregate.problem), aggregate.problem("cpu", "tiny", "softmax", edge)
    )
    assert failed == {}
    assert errors["normplace"] < 1e-5
    assert errors["PyG"] < 1e-4


def test_the_layer_equals_that_of_pyg():
    errors, failed = check(Case("aggregate", "layer", aggregate.layer), aggregate.layer("cpu", "tiny"))
    assert failed == {}
    assert max(errors.values()) < 1e-4


def test_checked_channels_match_the_reference():
    problem = aggregate.problem("cpu", "tiny", "power", "linear")
    whole, some = problem.normplace.values(problem.check_seeds), problem.truth.values(problem.truth_seeds)
    assert some["the result"].shape == (50, 2)
    for name, value in some.items():
        torch.testing.assert_close(problem.part(whole[name], value).double(), value, rtol=1e-4, atol=1e-4)


def test_minimal_work_counts_rows_and_indices():
    inputs = aggregate.Inputs("tiny", "none", "cpu", torch.float32)
    forward, training = aggregate.Inputs.floors(inputs, "softmax").values()
    # 400 rows of 16 floats and 400 indices read; two results of 50 × 16 written.
    assert forward.amount == 400 * 64 + 400 * 4 + 2 * 50 * 64
    # Backward three rows for each edge and its index; x read and its gradient written.
    assert training.amount - forward.amount == 3 * 400 * 64 + 400 * 4 + 2 * 50 * 64

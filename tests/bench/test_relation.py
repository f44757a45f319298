"""The relations' cases: every form computes the same, and the yardsticks run."""

from __future__ import annotations

import pytest
import torch

from normplace.bench import relation
from normplace.bench.case import FORWARD, TRAINING, Case
from normplace.bench.check import check


@pytest.mark.parametrize("build", [relation.scan, relation.pairs])
def test_every_form_computes_the_same(build):
    problem = build("cpu", (2, 13, 64, torch.float32), quick=True)
    errors, failed = check(Case("relation", "small", build), problem)
    assert failed == {}
    assert {"normplace", "logcumsumexp" if build is relation.scan else "PyTorch"} <= errors.keys()
    assert "SDPA" not in errors  # it computes something else
    assert max(errors.values()) < 1e-5


def test_floors():
    shape = (2, 13, 64, torch.float32)
    scan, pairs = (build("cpu", shape, quick=True).floors for build in (relation.scan, relation.pairs))
    assert scan[FORWARD].amount == 3 * 2 * 13 * 64 * 4
    assert pairs[FORWARD].amount == 2 * (13 * 14 / 2) * 64
    assert pairs[TRAINING].amount == 2 * pairs[FORWARD].amount
    assert (scan[FORWARD].ceiling, pairs[FORWARD].ceiling) == ("copy", "exp")

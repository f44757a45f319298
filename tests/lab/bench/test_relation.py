"""The relations' cases: every form computes the same, and the yardsticks run."""

from __future__ import annotations

import pytest
import torch

from normplace.lab.bench import relation
from normplace.lab.bench.case import FORWARD, TRAINING, Case
from normplace.lab.bench.check import check


@pytest.mark.parametrize("build", [relation.scan, relation.pairs])
def test_every_form_computes_the_same(build):
    problem = build("cpu", (2, 13, 64, torch.float32), quick=True)
    errors, failed = check(Case("relation", "small", build), problem)
    assert failed == {}
    assert {"normplace", "logcumsumexp" if build is relation.scan else "PyTorch"} <= errors.keys()
    assert "SDPA" not in errors  # it computes something else
    assert max(errors.values()) < 1e-5


def test_pieces_give_what_the_whole_gives(monkeypatch):
    drawn = torch.Generator().manual_seed(1)
    a, b = (torch.randn(2, 13, 8, generator=drawn, dtype=torch.float64).requires_grad_() for _ in range(2))
    whole = relation.pair_form(a, b)
    monkeypatch.setattr(relation, "PIECE", 5 * 2 * 13 * 8)
    pieces = relation.pair_form_in_pieces(a, b)
    expected = [torch.nn.functional.layer_norm(a[0, 3] + b[0, j], (8,), eps=relation.EPS).exp() for j in range(4)]
    torch.testing.assert_close(whole[0, 3], sum(expected) / 4)
    torch.testing.assert_close(pieces, whole)
    for one, other in zip(*(torch.autograd.grad(y.sin().sum(), (a, b)) for y in (whole, pieces)), strict=True):
        torch.testing.assert_close(one, other)


def test_floors():
    shape = (2, 13, 64, torch.float32)
    scan, pairs = (build("cpu", shape, quick=True).floors for build in (relation.scan, relation.pairs))
    assert scan[FORWARD].amount == 3 * 2 * 13 * 64 * 4
    assert pairs[FORWARD].amount == 2 * (13 * 14 / 2) * 64
    assert pairs[TRAINING].amount == 2 * pairs[FORWARD].amount
    assert (scan[FORWARD].ceiling, pairs[FORWARD].ceiling) == ("copy", "exp")

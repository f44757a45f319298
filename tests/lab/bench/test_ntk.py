"""The tangent kernel's cases."""

from __future__ import annotations

from normplace.lab.bench import ntk
from normplace.lab.bench.case import Case
from normplace.lab.bench.check import check


def test_every_method_computes_the_same_kernel():
    for norms in (True, False):
        problem = ntk.problem("cpu", 16, 30, norms)
        errors, failed = check(Case("ntk", "small", ntk.problem), problem)
        assert failed == {}
        assert {"normplace", "torch.func"} <= errors.keys()
        assert max(errors.values()) < 1e-5


def test_the_checked_entries_are_spread_over_the_kernel():
    problem = ntk.problem("cpu", 16, 30, norms=True)
    kernel, truth = problem.normplace.outputs()[0], problem.truth.outputs()[0]
    assert kernel.shape == (30, 30)
    corner = problem.part(kernel, truth)
    assert corner.shape == truth.shape == (ntk.CORNER, ntk.CORNER)
    assert corner[0, -1] == kernel[0, -1]


def test_norms_are_optional():
    assert len(ntk.network(8, True)) == 7
    assert len(ntk.network(8, False)) == 5

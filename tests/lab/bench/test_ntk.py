"""The tangent kernel's cases compare the corner they say they do."""

from __future__ import annotations

from normplace.lab.bench import ntk
from normplace.lab.bench.case import Case
from normplace.lab.bench.check import check


def test_both_sides_compute_the_same_kernel():
    for norms in (True, False):
        problem = ntk.problem("cpu", 16, 30, norms)
        errors, failed = check(Case("ntk", "small", ntk.problem), problem)
        assert failed == {}
        assert {"normplace", "torch.func"} <= errors.keys()
        assert max(errors.values()) < 1e-5


def test_the_corner_is_of_the_whole_kernel():
    problem = ntk.problem("cpu", 16, 30, norms=True)
    kernel, truth = problem.ours.outputs()[0], problem.truth.outputs()[0]
    assert kernel.shape == (30, 30)
    corner = problem.part(kernel, truth)
    assert corner.shape == truth.shape == (ntk.CORNER, ntk.CORNER)
    assert corner[0, -1] == kernel[0, -1]


def test_norms_are_there_when_asked_for():
    assert len(ntk.network(8, True)) == 7
    assert len(ntk.network(8, False)) == 5

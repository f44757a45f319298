"""Compare every method with float64 before it is timed."""

from __future__ import annotations

import math

from torch import Tensor

from normplace.lab.bench.case import Case, Method, Problem


class WrongKernel(Exception):
    """A result of normplace is wrong; the case is not measured."""


def check(case: Case, problem: Problem) -> tuple[dict[str, float], dict[str, str]]:
    """The error of every method that computes the op, and the failure of every method that does not run.

    An error is the largest difference from the truth over results and gradients, relative to the largest entry. Errors
    of peers are reported, not judged.

    Raises:
        WrongKernel: If normplace's error exceeds the tolerance.
    """
    truth = problem.truth.values(problem.truth_seeds or problem.seeds)
    what, worst = _worst(problem, problem.normplace, truth)
    if not worst <= problem.tolerance:
        raise WrongKernel(
            f"{case}: {what} is wrong by {worst:.1e} of its largest entry, where rounding explains "
            f"{problem.tolerance:.0e}; the case is not measured."
        )
    errors, failed = {problem.normplace.name: worst}, {}
    for peer in problem.peers:
        try:
            if peer.instead:
                peer.values(problem.check_seeds or problem.seeds)
            else:
                _, errors[peer.name] = _worst(problem, peer, truth)
        except Exception as error:  # such as out of memory, or an incompatible version
            failed[peer.name] = (str(error).strip() or type(error).__name__).splitlines()[0]
    return errors, failed


def _worst(problem: Problem, method: Method, truth: dict[str, Tensor]) -> tuple[str, float]:
    errors = {}
    for name, value in method.values(problem.check_seeds or problem.seeds).items():
        errors[name] = _error(problem.part(value, truth[name]), truth[name])
    if method.learned:  # a pass without gradients may use other code
        for name, value in method.results().items():
            errors[f"{name} without gradients"] = _error(problem.part(value, truth[name]), truth[name])
    worst = max(errors, key=lambda name: errors[name])
    return worst, errors[worst]


def _error(result: Tensor, expected: Tensor) -> float:
    if result.shape != expected.shape:
        return math.inf
    error = float((result.double() - expected.double()).abs().max() / expected.abs().max())
    return math.inf if math.isnan(error) else error  # comparisons with nan are always false

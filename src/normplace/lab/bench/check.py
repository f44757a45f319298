"""Correctness first: nothing is timed that was not compared with double precision."""

from __future__ import annotations

import math

from torch import Tensor

from normplace.lab.bench.case import Case, Method, Problem


class WrongKernel(Exception):
    """A kernel of ours that is wrong: nothing is reported of it."""


def check(case: Case, problem: Problem) -> tuple[dict[str, float], dict[str, str]]:
    """The error of every method that can be compared, and the reason of every one that cannot run.

    An error is the largest difference from the truth, relative to the largest entry there, of the result and of every
    gradient. A peer's is part of what is reported.

    Args:
        case: Where the problem comes from.
        problem: What to check.

    Raises:
        WrongKernel: If ours is wrong.
    """
    truth = problem.truth.values(problem.truth_seeds or problem.seeds)
    what, worst = _worst(problem, problem.ours, truth)
    if not worst <= problem.tolerance:
        raise WrongKernel(
            f"{case}: {what} is wrong by {worst:.1e} of its largest entry, where rounding explains "
            f"{problem.tolerance:.0e}; nothing is reported of it."
        )
    found, failed = {problem.ours.name: worst}, {}
    for peer in problem.peers:
        try:
            if peer.instead:
                peer.values(problem.check_seeds or problem.seeds)
            else:
                _, found[peer.name] = _worst(problem, peer, truth)
        except Exception as error:  # out of memory, another version's interface, whatever another library raises
            failed[peer.name] = (str(error).strip() or type(error).__name__).splitlines()[0]
    return found, failed


def _worst(problem: Problem, method: Method, truth: dict[str, Tensor]) -> tuple[str, float]:
    apart = {}
    for name, value in method.values(problem.check_seeds or problem.seeds).items():
        apart[name] = _apart(problem.part(value, truth[name]), truth[name])
    if method.learned:  # what is timed without gradients may be computed otherwise
        for name, value in method.results().items():
            apart[f"{name} without gradients"] = _apart(problem.part(value, truth[name]), truth[name])
    what = max(apart, key=lambda name: apart[name])
    return what, apart[what]


def _apart(found: Tensor, expected: Tensor) -> float:
    if found.shape != expected.shape:
        return math.inf
    apart = float((found.double() - expected.double()).abs().max() / expected.abs().max())
    return math.inf if math.isnan(apart) else apart  # a nan compares as neither larger nor smaller

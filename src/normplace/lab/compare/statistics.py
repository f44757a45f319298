"""Paired differences between edits: simultaneous intervals and verdicts.

Two families of differences are reported: every edit against the baseline, and the best edit against every other. Each
family covers all its true differences at once with a probability of 95%. The data chooses the best edit, so its family
counts every pair of edits.

The intervals are Student's with a Šidák correction. They are calibrated from three to ten seeds, also if one edit
varies much more between seeds than the others. Sign flips cannot reach 95% below six seeds, and bootstrap intervals are
too narrow. A variance pooled over edits is too small for an edit that varies more than the others.
``scripts/calibrate_compare.py`` measures all of these.

Student's interval is too narrow if few seeds have almost the same difference by chance. Three cases are widened:

- A coarse metric, such as an accuracy on few samples, gives some seeds the same difference. The step of such
  differences adds its variance as a rounding error.
- Seeds that all show the same difference did not measure their spread. They have no interval and no verdict if equal
  edits give them too often, see :func:`normplace.lab.compare.power.equal_seeds_needed`.
- Trainings that end in one of two ways, such as learned or stuck, give few seeds almost the same difference as often.
  With so few seeds, the spread of a difference counts as at least half the median spread of all pairs of edits; two
  edits have no other pair, and no interval.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations, pairwise
from statistics import fmean, median_low, stdev
from typing import Literal

from normplace.lab.compare.power import (
    HORIZON,
    LEVEL,
    critical_value,
    equal_seeds_needed,
    seeds_needed,
    seeds_range,
    sidak_level,
)

Better = Literal["smaller", "larger"]
Scores = Mapping[int, float | None]
"""The reported number of each seed; None if the trial diverged."""

_DISCORDANT = 0.25
"""Largest probability that a seed diverges with one of two equal edits only, if seeds do not correlate negatively."""
LEAST_SPREAD = 0.5
"""Smallest spread of a difference with few seeds, relative to the median spread of all pairs of edits."""
_ROUNDING = 2.0**-23
"""Differences that vary by less than this fraction of the scores are equal: float32 scores are rounded as coarsely."""


class Verdict(StrEnum):
    """What the seeds show about an edit and the one it is compared with."""

    BETTER = "better"
    WORSE = "worse"
    TIED = "tied"
    """The seeds cannot separate the two. This does not show that they are equal."""


@dataclass(frozen=True)
class Difference:
    """An edit minus another one, over paired seeds.

    Attributes:
        edit: The edit.
        other: The edit that is subtracted.
        estimate: Mean difference over the seeds with which neither diverged; NaN without such seeds.
        low: Lower end of the simultaneous 95% interval; unbounded with fewer than two seeds, or three of two edits, and
            with seeds that all show the same difference and are too few (``no_spread``).
        high: Upper end.
        deviation: Standard deviation of the difference over seeds, with that of rounding if differences repeat; NaN
            with fewer than two.
        seeds: Number of seeds with which neither diverged.
        diverged: Number of seeds with which only the edit diverged.
        other_diverged: Number of seeds with which only the other one diverged.
        comparisons: Number of differences that are covered simultaneously.
        verdict: Whether the edit is better or worse.
        seeds_needed: Seeds that separate a difference of this size with a probability of 80%; None if that takes more
            than ``most_seeds``.
        most_seeds: Eight times the seeds measured, beyond which noise dominates the estimate; 0 with fewer than two.
        no_spread: Whether all seeds show the same difference and are too few to measure how much it varies.
    """

    edit: str
    other: str
    estimate: float
    low: float
    high: float
    deviation: float
    seeds: int
    diverged: int
    other_diverged: int
    comparisons: int
    verdict: Verdict
    seeds_needed: int | None
    most_seeds: int
    no_spread: bool = False

    @property
    def seeds_range(self) -> tuple[int | None, int | None]:
        """Numbers of seeds needed at the ends of an 80% interval of the true effect; None above ``most_seeds``."""
        ends = seeds_range(self.estimate, self.deviation, self.seeds, self.most_seeds, self.comparisons)
        fewest = equal_seeds_needed(self.comparisons)
        low, high = (None if end is None else max(end, fewest) for end in ends)
        return low, high


def against_baseline(scores: Mapping[str, Scores], baseline: str, *, better: Better) -> dict[str, Difference]:
    """Every other edit minus the baseline."""
    edits, typical = [edit for edit in scores if edit != baseline], typical_deviation(scores)
    return {edit: difference(edit, baseline, scores, better, len(edits), typical) for edit in edits}


def best_against_each(scores: Mapping[str, Scores], best: str, *, better: Better) -> dict[str, Difference]:
    """The best edit minus every other; the intervals hold whichever edit is the best."""
    pairs, typical = math.comb(len(scores), 2), typical_deviation(scores)
    return {other: difference(best, other, scores, better, pairs, typical) for other in scores if other != best}


def typical_deviation(scores: Mapping[str, Scores]) -> float | None:
    """Median standard deviation of the differences of two edits; None if there are only two edits."""
    pairs = [_differences(first, second) for first, second in combinations(scores.values(), 2)]
    deviations = [_deviation(differences) for differences in pairs if len(differences) > 1]
    return median_low(deviations) if len(deviations) > 1 else None


def difference(
    edit: str,
    other: str,
    scores: Mapping[str, Scores],
    better: Better,
    comparisons: int,
    typical: float | None = None,
) -> Difference:
    """Compare two edits over the seeds that both have.

    If some seed diverged with one of them only, two tests share the level: Student's test of the other seeds, and a
    test of the number of divergences. Scores do not make an edit better that diverged more often. An edit that always
    diverged is worse than one that never did if there are enough seeds: for two equal edits this has a probability of
    at most 2 · 4⁻ⁿ, see :func:`normplace.lab.compare.power.equal_seeds_needed`.
    """
    pairs = [(scores[edit][seed], scores[other][seed]) for seed in scores[edit] if seed in scores[other]]
    differences = _differences(scores[edit], scores[other])
    diverged = sum(own is None and their is not None for own, their in pairs)
    other_diverged = sum(own is not None and their is None for own, their in pairs)
    balance = other_diverged - diverged
    level = LEVEL / 2 if (diverged or other_diverged) and len(differences) > 1 else LEVEL
    fewest = equal_seeds_needed(comparisons, level)
    largest = max((abs(score) for pair in pairs for score in pair if score is not None), default=0.0)
    estimate = fmean(differences) if differences else math.nan
    deviation = _deviation(differences, _ROUNDING * largest)
    no_spread = deviation == 0 and len(differences) < fewest
    half = math.inf
    if len(differences) > 1 and not no_spread:
        half = critical_value(len(differences), comparisons, level) * deviation / math.sqrt(len(differences))
        if len(differences) < fewest:
            half *= math.inf if typical is None else max(1.0, LEAST_SPREAD * typical / deviation)
    by_scores = int(math.copysign(1, estimate)) * (-1 if better == "smaller" else 1) if abs(estimate) > half else 0
    decides = _divergence_decides(balance, len(pairs), sidak_level(comparisons, level))
    by_divergence = int(math.copysign(1, balance)) if decides else 0
    most_seeds = HORIZON * len(differences) if len(differences) > 1 else 0
    needed = seeds_needed(estimate, deviation, most_seeds, comparisons)
    if needed is not None and len(differences) < fewest:
        needed = max(needed, fewest)
    return Difference(
        edit=edit,
        other=other,
        estimate=estimate,
        low=estimate - half if math.isfinite(half) else -math.inf,
        high=estimate + half if math.isfinite(half) else math.inf,
        deviation=deviation,
        seeds=len(differences),
        diverged=diverged,
        other_diverged=other_diverged,
        comparisons=comparisons,
        verdict=_verdict(by_scores, by_divergence, balance),
        seeds_needed=needed,
        most_seeds=most_seeds,
        no_spread=no_spread,
    )


def ranking(scores: Mapping[str, Scores], *, better: Better) -> list[str]:
    """The edits from best to worst: by the share of seeds that diverged, then by the mean of the others.

    A trial that diverged is worse than any that did not, so one divergence outweighs every difference of means. Means
    are of differences from the edit with the most scores, seed by seed: after an interruption, edits have different
    seeds, and some are harder than others. Without a common seed they are of the scores.
    """
    sign = 1 if better == "smaller" else -1
    finite = {edit: {seed: score for seed, score in own.items() if score is not None} for edit, own in scores.items()}
    reference = max(finite.values(), key=len, default={})

    def key(edit: str) -> tuple[float, float]:
        own = finite[edit]
        if not own:
            return 1.0, math.inf
        common = own.keys() & reference.keys()
        differences = [own[seed] - reference[seed] for seed in common]
        mean = fmean(differences or [fmean(own.values()) - fmean(reference.values())])
        return 1 - len(own) / len(scores[edit]), sign * mean

    return sorted(scores, key=key)


def _differences(own: Scores, other: Scores) -> list[float]:
    """The differences with the seeds with which neither diverged."""
    pairs = [(own[seed], other[seed]) for seed in own if seed in other]
    return [one - two for one, two in pairs if one is not None and two is not None]


def _deviation(differences: Sequence[float], rounding: float = 0.0) -> float:
    """Standard deviation, with that of the step between differences if some are equal; NaN with fewer than two.

    Args:
        differences: The differences.
        rounding: Differences that are closer than this are equal.
    """
    if len(differences) < 2:
        return math.nan
    deviation = stdev(differences)
    if deviation <= rounding:
        return 0.0
    steps = [second - first for first, second in pairwise(sorted(differences))]
    step = min((step for step in steps if step > rounding), default=0.0) if min(steps) <= rounding else 0.0
    return math.hypot(deviation, step / math.sqrt(12))


def _divergence_decides(balance: int, seeds: int, level: float) -> bool:
    """Whether two equal edits would rarely differ this much in their number of divergences."""
    from scipy.special import bdtrc

    return balance != 0 and 2 * float(bdtrc(abs(balance) - 1, seeds, _DISCORDANT)) <= level


def _verdict(by_scores: int, by_divergence: int, balance: int) -> Verdict:
    """Combine both tests; scores do not decide for the edit that diverged more often.

    Args:
        by_scores: 1 if the scores of the edit are better, -1 if they are worse, 0 if they do not decide.
        by_divergence: The same of its divergences.
        balance: Divergences of the other edit minus those of this one.
    """
    decision = by_divergence or (by_scores if by_scores * balance >= 0 else 0)
    return Verdict.TIED if not decision else Verdict.BETTER if decision > 0 else Verdict.WORSE

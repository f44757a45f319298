"""Claims made before the runs, and verdicts computed from result lines."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from normplace.lab.results import Line

Values = Mapping[int, float]
Measure = Callable[[Sequence[Line]], Values]


class Verdict(enum.StrEnum):
    """What the lines say of a claim."""

    REPRODUCED = "reproduced"
    PARTLY = "partly reproduced"
    NOT_REPRODUCED = "not reproduced"
    UNDECIDED = "undecided"
    NOT_TESTED = "not tested at this scale"


@dataclass(frozen=True)
class Check:
    """One number that decides a claim, and the threshold it must pass.

    The check holds when the whole 95% interval of the mean over seeds lies on the right side of the threshold, fails
    when it lies on the wrong side, and is open in between: noise can neither make nor refute a reproduction.

    Args:
        label: What is measured, for people.
        measure: From the lines of a study to one value per seed.
        at_least: The least value that supports the claim.
        at_most: The greatest.
    """

    label: str
    measure: Measure
    at_least: float = -math.inf
    at_most: float = math.inf

    def __post_init__(self) -> None:
        assert math.isfinite(self.at_least) != math.isfinite(self.at_most), "a check has exactly one threshold"

    @property
    def threshold(self) -> str:
        """The threshold as text."""
        return f"≥ {self.at_least:g}" if math.isfinite(self.at_least) else f"≤ {self.at_most:g}"


@dataclass(frozen=True)
class Claim:
    """What a paper says, and the checks that would show it.

    Args:
        id: Short name, unique in its study.
        paper: Where the claim is made, such as ``arXiv 2505.14512, Theorem 3.1``.
        statement: The claim in a sentence.
        checks: All must hold.
        seeds: Seeds each check needs; with fewer the claim counts as not tested.
        note: What a reader should know of how it was measured, choices of ours included.
    """

    id: str
    paper: str
    statement: str
    checks: tuple[Check, ...]
    seeds: int
    note: str = ""


@dataclass(frozen=True)
class Measurement:
    """Mean over seeds with its 95% interval, and what that says of the check."""

    check: Check
    n: int
    mean: float
    low: float
    high: float

    @property
    def holds(self) -> bool:
        """Whether the whole interval is on the right side of the threshold."""
        return self.low >= self.check.at_least and self.high <= self.check.at_most

    @property
    def fails(self) -> bool:
        """Whether the whole interval is on the wrong side, or a value was not finite."""
        return math.isnan(self.mean) or self.high < self.check.at_least or self.low > self.check.at_most

    @property
    def state(self) -> str:
        """``holds``, ``fails``, ``open`` or, without results, ``untested``."""
        return "untested" if not self.n else "holds" if self.holds else "fails" if self.fails else "open"

    def __str__(self) -> str:
        if self.n == 0:
            return "no results"
        interval = f" [{self.low:.3g}, {self.high:.3g}]" if self.n > 1 else ""
        return f"{self.mean:.3g}{interval}, n={self.n}"


@dataclass(frozen=True)
class Judgement:
    """A claim with what was measured and the verdict."""

    claim: Claim
    measurements: tuple[Measurement, ...]
    verdict: Verdict


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean and 95% Student interval; unbounded for fewer than two values."""
    from scipy.stats import t

    n = len(values)
    if n == 0:
        return math.nan, -math.inf, math.inf
    mean = math.fsum(values) / n
    if n == 1 or not math.isfinite(mean):
        return mean, -math.inf, math.inf
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1))
    half = float(t.ppf(0.975, n - 1)) * deviation / math.sqrt(n)
    return mean, mean - half, mean + half


def judge(claim: Claim, lines: Sequence[Line]) -> Judgement:
    """The verdict that the successful lines among ``lines`` give."""
    done = [line for line in lines if line.status == "ok"]
    measurements = tuple(_measured(check, done) for check in claim.checks)
    if any(measurement.n < claim.seeds for measurement in measurements):
        verdict = Verdict.NOT_TESTED
    elif all(measurement.holds for measurement in measurements):
        verdict = Verdict.REPRODUCED
    elif any(measurement.holds for measurement in measurements):
        verdict = Verdict.PARTLY
    elif any(measurement.fails for measurement in measurements):
        verdict = Verdict.NOT_REPRODUCED
    else:
        verdict = Verdict.UNDECIDED
    return Judgement(claim, measurements, verdict)


def _measured(check: Check, lines: Sequence[Line]) -> Measurement:
    values = [value for _, value in sorted(check.measure(lines).items())]
    mean, low, high = interval(values)
    return Measurement(check, len(values), mean, low, high)


def pick(lines: Sequence[Line], part: str, **fields: object) -> list[Line]:
    """The lines of one part whose configuration has these values."""
    chosen = [line for line in lines if line.part == part]
    for key, value in fields.items():
        chosen = [line for line in chosen if line.config.get(key) == value]
    return chosen


def by_seed(lines: Sequence[Line], metric: str) -> dict[int, float]:
    """One metric per seed; a number that was not finite counts as NaN, which fails every check.

    Two lines of one seed mean that the selection mixes variants, so that is refused.
    """
    values: dict[int, float] = {}
    for line in lines:
        assert line.seed not in values, f"two lines of seed {line.seed} match one check: it selects too little"
        value = line.metrics.get(metric)
        values[line.seed] = math.nan if value is None else value
    return values

"""Claims declared before the runs, and verdicts computed from the recorded trials."""

from __future__ import annotations

import enum
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from normplace.lab.trials.intervals import STUDENT, Interval
from normplace.lab.trials.per_seed import SuccessfulRecords
from normplace.lab.trials.record import FUNCTIONAL_SCALE
from normplace.lab.trials.results import TrialRecord

__all__ = [
    # declared before the runs
    "Check",
    "Claim",
    "sign_and_size",
    # computed from the records
    "Judgement",
    "Measurement",
    "State",
    "Verdict",
    "judge",
    "judge_all",
]

MOST_SEEDS = 1000
"""Largest number of seeds that is reported as enough to decide a check."""


class State(enum.StrEnum):
    """The outcome of one check."""

    PASSED = "passed"
    OPEN = "open"
    FAILED = "failed"
    VOID = "void"
    UNTESTED = "not tested"


class Verdict(enum.StrEnum):
    """The outcome of a claim."""

    REPRODUCED = "reproduced"
    MIXED = "mixed"
    PARTLY = "partly"
    NOT_REPRODUCED = "not reproduced"
    UNDECIDED = "undecided"
    VOID = "void"
    NOT_TESTED = "not tested"


@dataclass(frozen=True)
class Check:
    """One statistic and its threshold.

    A check passes when its 95% confidence interval clears the threshold, fails when the interval is entirely on the
    wrong side, and is open otherwise.

    Args:
        label: What is measured.
        measure: From the successful records of a study to one number per seed.
        at_least: Smallest value that supports the claim.
        at_most: Largest value that supports the claim; with ``at_least``, an equivalence.
        above: For a claim about a direction: the value of no effect, which the statistic must exceed.
        below: The same where the statistic must be smaller.
        interval: Kind of confidence interval, chosen for the kind of number.
        size: Whether the threshold is a margin that the claim itself does not name, in addition to a check of the sign.
        gates: Preconditions, such as a baseline that learned its task. The check is void unless every gate passes.
        added_after: Why the check was added after its result was known; such a check is shown but does not count.
    """

    label: str
    measure: Callable[[Sequence[TrialRecord]], Mapping[int, float]]
    at_least: float = -math.inf
    at_most: float = math.inf
    above: float = -math.inf
    below: float = math.inf
    interval: Interval = STUDENT
    size: bool = False
    gates: tuple[Check, ...] = ()
    added_after: str = ""

    def __post_init__(self) -> None:
        inclusive = math.isfinite(self.at_least) or math.isfinite(self.at_most)
        strict = math.isfinite(self.above) + math.isfinite(self.below)
        assert inclusive + strict == 1, "a check has one threshold, or a lower and an upper one"
        assert self.at_least < self.at_most, "the lower threshold is not below the upper one"

    @property
    def threshold(self) -> str:
        """The threshold as text."""
        if math.isfinite(self.above):
            return f"> {self.above:g}"
        if math.isfinite(self.below):
            return f"< {self.below:g}"
        if math.isfinite(self.at_least) and math.isfinite(self.at_most):
            return f"{self.at_least:g} to {self.at_most:g}"
        return f"≥ {self.at_least:g}" if math.isfinite(self.at_least) else f"≤ {self.at_most:g}"

    def state(self, estimate: float, low: float, high: float) -> State:
        """Outcome for a statistic with this interval; NaN fails."""
        if math.isnan(estimate):
            return State.FAILED
        if low >= self.at_least and high <= self.at_most and low > self.above and high < self.below:
            return State.PASSED
        wrong = high < self.at_least or low > self.at_most or high <= self.above or low >= self.below
        return State.FAILED if wrong else State.OPEN


def sign_and_size(
    label: str,
    measure: Callable[[Sequence[TrialRecord]], Mapping[int, float]],
    *,
    no_effect: float = 0.0,
    **margin: Any,
) -> tuple[Check, Check]:
    """Two checks of a claim about a direction: the sign, and a margin that the claim does not name.

    Args:
        label: What is measured.
        measure: From the successful records of a study to one number per seed.
        no_effect: The value of no effect: 0 for a difference, 1 for a ratio.
        **margin: ``at_least`` or ``at_most``, and other fields of both checks.
    """
    side = "above" if "at_least" in margin else "below"
    shared = {key: value for key, value in margin.items() if key not in {"at_least", "at_most"}}
    return (
        Check(f"{label}, sign", measure, **{side: no_effect}, **shared),
        Check(f"{label}, size", measure, size=True, **margin),
    )


@dataclass(frozen=True)
class Claim:
    """A claim of a paper, and the checks that test it.

    Args:
        id: Short name, unique in its study.
        paper: Source of the claim, such as ``arXiv 2505.14512, Theorem 3.1``.
        statement: The claim in one sentence.
        checks: All must pass.
        seeds: Number of seeds that each check needs; with fewer the claim is not tested.
        note: How it was measured, and which choices are ours.
        gates: Preconditions of all checks.
        published: The published numbers, if they are known.
    """

    id: str
    paper: str
    statement: str
    checks: tuple[Check, ...]
    seeds: int
    note: str = ""
    gates: tuple[Check, ...] = ()
    published: str = ""

    def __post_init__(self) -> None:
        assert any(not check.added_after for check in self.checks), "a claim has a check declared before its result"


@dataclass(frozen=True)
class Measurement:
    """A check with the numbers measured for it.

    Args:
        check: The check.
        values: One number per seed.
        kind: Kind of interval; that of the check, adapted to the records.
        gates: Measurements of its preconditions.
        decides: Whether the check has an outcome; at scale ``smoke`` it has none.
    """

    check: Check
    values: tuple[float, ...]
    kind: Interval
    gates: tuple[Measurement, ...] = ()
    decides: bool = True

    @property
    def n(self) -> int:
        """Number of seeds."""
        return len(self.values)

    @cached_property
    def interval(self) -> tuple[float, float, float]:
        """The statistic and both ends of its interval."""
        return self.kind(self.values)

    @property
    def estimate(self) -> float:
        """The statistic."""
        return self.interval[0]

    @property
    def low(self) -> float:
        """Lower end of the interval."""
        return self.interval[1]

    @property
    def high(self) -> float:
        """Upper end of the interval."""
        return self.interval[2]

    @property
    def ungated(self) -> State:
        """Outcome of the check without its gates."""
        return self.check.state(*self.interval) if self.n and self.decides else State.UNTESTED

    @property
    def state(self) -> State:
        """Outcome of the check; void unless every gate passes."""
        if self.n and self.decides and any(gate.state is not State.PASSED for gate in self.gates):
            return State.VOID
        return self.ungated

    @cached_property
    def seeds_to_decide(self) -> int | None:
        """Number of seeds that would decide an open check if they scattered like those measured; None if too many."""
        if not self.n or not all(map(math.isfinite, self.values)):
            return None

        def decides(n: int) -> bool:
            return self.check.state(*self.kind.expected(self.values, n)) is not State.OPEN

        tried = [max(self.n + 1, self.kind.least)]
        while not decides(tried[-1]):
            if tried[-1] >= MOST_SEEDS:
                return None
            tried.append(min(2 * tried[-1], MOST_SEEDS))
        enough, too_few = tried[-1], tried[-2] if len(tried) > 1 else tried[-1] - 1
        while enough - too_few > 1:
            middle = (enough + too_few) // 2
            enough, too_few = (middle, too_few) if decides(middle) else (enough, middle)
        return enough

    def __str__(self) -> str:
        if self.n == 0:
            return "no results"
        bounded = self.n >= self.kind.least and math.isfinite(self.low)
        ends = f" [{self.low:.3g}, {self.high:.3g}]" if bounded else ""
        return f"{self.estimate:.3g}{ends}, n={self.n}"


@dataclass(frozen=True)
class Judgement:
    """A claim with its measurements and the verdict."""

    claim: Claim
    measurements: tuple[Measurement, ...]
    verdict: Verdict

    @property
    def measured(self) -> bool:
        """Whether the records have results for at least one check."""
        return any(measurement.n for measurement in self.measurements)

    @property
    def counted(self) -> list[Measurement]:
        """The checks that determine the verdict."""
        return [measurement for measurement in self.measurements if not measurement.check.added_after]

    @property
    def later(self) -> list[Measurement]:
        """The checks that were added after their result was known, which do not count."""
        return [measurement for measurement in self.measurements if measurement.check.added_after]

    @property
    def gates(self) -> list[Measurement]:
        """The distinct gates of all checks."""
        gates = [gate for measurement in self.measurements for gate in measurement.gates]
        return list({(gate.check.label, gate.check.threshold): gate for gate in gates}.values())

    @property
    def counts(self) -> Counter[State]:
        """Number of counted checks with each outcome."""
        return Counter(measurement.state for measurement in self.counted)

    @property
    def tested_counts(self) -> Counter[State]:
        """The counts for totals over claims: a claim that is not tested, such as for lack of seeds, has no outcome."""
        if self.verdict is Verdict.NOT_TESTED:
            return Counter({State.UNTESTED: len(self.counted)})
        return self.counts


def judge(claim: Claim, records: Sequence[TrialRecord]) -> Judgement:
    """Compute the verdict on a claim from the successful trials; those of scale ``smoke`` have no verdict.

    Args:
        claim: The claim.
        records: Records of the study; pass one :class:`SuccessfulRecords` to judge several claims faster.
    """
    successful = records if isinstance(records, SuccessfulRecords) else SuccessfulRecords(records)
    decides = not any(record.scale == FUNCTIONAL_SCALE for record in successful[:1])  # a run has one scale
    gates: dict[int, Measurement] = {}
    values_of: dict[int, tuple[float, ...]] = {}

    def measured(check: Check, preconditions: Sequence[Check] = ()) -> Measurement:
        if id(check.measure) not in values_of:
            values_of[id(check.measure)] = tuple(float(value) for _, value in sorted(check.measure(successful).items()))
        values = values_of[id(check.measure)]
        kind = check.interval.of(successful) if values else check.interval
        for gate in preconditions:
            if id(gate) not in gates:
                gates[id(gate)] = measured(gate)
        return Measurement(check, values, kind, tuple(gates[id(gate)] for gate in preconditions), decides)

    measurements = tuple(measured(check, (*claim.gates, *check.gates)) for check in claim.checks)
    return Judgement(claim, measurements, _verdict(claim, measurements))


def judge_all(claims: Iterable[Claim], records: Sequence[TrialRecord]) -> list[Judgement]:
    """Compute the verdict on each claim from the successful trials."""
    successful = records if isinstance(records, SuccessfulRecords) else SuccessfulRecords(records)
    return [judge(claim, successful) for claim in claims]


def _verdict(claim: Claim, measurements: Sequence[Measurement]) -> Verdict:
    counted = [measurement for measurement in measurements if not measurement.check.added_after]
    unmeasured = any(gate.n == 0 for measurement in counted for gate in measurement.gates)
    states = {measurement.state for measurement in counted}
    if unmeasured or any(measurement.n < claim.seeds or not measurement.decides for measurement in counted):
        return Verdict.NOT_TESTED
    if states == {State.VOID}:
        return Verdict.VOID
    if states == {State.PASSED}:
        return Verdict.REPRODUCED
    if State.PASSED in states:
        return Verdict.MIXED if State.FAILED in states else Verdict.PARTLY
    return Verdict.NOT_REPRODUCED if State.FAILED in states else Verdict.UNDECIDED

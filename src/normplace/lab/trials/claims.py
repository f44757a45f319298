"""Claims declared before the runs, and verdicts computed from result lines."""

from __future__ import annotations

import enum
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from normplace.lab.trials.intervals import STUDENT, Interval, interval
from normplace.lab.trials.per_seed import PerSeed, SuccessfulRecords, pick
from normplace.lab.trials.results import TrialRecord

__all__ = [
    # what is declared
    "Check",
    "Claim",
    "sign_and_size",
    # what comes out
    "Judgement",
    "Measurement",
    "State",
    "SuccessfulLines",
    "Verdict",
    "judge",
    # measures
    "Values",
    "by_seed",
    "interval",
    "pick",
]

SuccessfulLines = SuccessfulRecords
Values = Mapping[int, float]
Measure = Callable[[Sequence[TrialRecord]], Values]
MOST_SEEDS = 1000
"""Beyond this many seeds a check counts as out of reach."""


class State(enum.StrEnum):
    """The outcome of one check."""

    HELD = "held"
    OPEN = "open"
    FAILED = "failed"
    VOID = "void"
    UNTESTED = "not measured"


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
    """One number, and the threshold that its 95% confidence interval must clear.

    The check is held when the whole interval lies on the right side of the threshold, failed when it lies on the wrong
    side, and open otherwise.

    Args:
        label: What is measured, for people.
        measure: From the lines of a study to one value per seed.
        at_least: The least value that supports the claim.
        at_most: The greatest; with ``at_least``, the number must lie between the two: an equivalence is one check.
        above: For a claim of direction: the value of no effect, which the number must exceed.
        below: The same where the number must be smaller.
        interval: The kind of interval, chosen for the kind of number and not for the result.
        size: Whether the threshold is a margin that the claim itself does not name, beside a check of the sign.
        gates: Preconditions, without which the number means nothing, such as a baseline that learned its task. Unless
            every gate is held the check is void.
        added_after: Why the check was added after its result was known; such a check is shown and does not count.
    """

    label: str
    measure: Measure
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
        """The outcome that a statistic with this interval gives; a statistic that is not finite fails."""
        if math.isnan(estimate):
            return State.FAILED
        if low >= self.at_least and high <= self.at_most and low > self.above and high < self.below:
            return State.HELD
        wrong = high < self.at_least or low > self.at_most or high <= self.above or low >= self.below
        return State.FAILED if wrong else State.OPEN


def sign_and_size(label: str, measure: Measure, *, no_effect: float = 0.0, **margin: Any) -> tuple[Check, Check]:
    """A claim of direction as two checks: the sign, which it is judged by, and a margin of ours, which is its size.

    Args:
        label: What is measured.
        measure: From lines to one value per seed.
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
    """A paper's claim, and the checks that would show it.

    Args:
        id: Short name, unique in its study.
        paper: Where the claim is made, such as ``arXiv 2505.14512, Theorem 3.1``.
        statement: The claim in a sentence.
        checks: All must hold.
        seeds: Seeds each check needs; with fewer the claim counts as not tested.
        note: What a reader should know of how it was measured, choices of ours included.
        gates: Preconditions of all checks.
    """

    id: str
    paper: str
    statement: str
    checks: tuple[Check, ...]
    seeds: int
    note: str = ""
    gates: tuple[Check, ...] = ()

    def __post_init__(self) -> None:
        assert any(not check.added_after for check in self.checks), "a claim has a check declared before its result"


@dataclass(frozen=True)
class Measurement:
    """A check with the values measured for it.

    Args:
        check: What was measured.
        values: One per seed.
        kind: The check's kind of interval, for the lines that were measured.
        gates: The measurements of its preconditions.
    """

    check: Check
    values: tuple[float, ...]
    kind: Interval
    gates: tuple[Measurement, ...] = ()

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
        """The lower end of its interval."""
        return self.interval[1]

    @property
    def high(self) -> float:
        """The upper end."""
        return self.interval[2]

    @property
    def ungated(self) -> State:
        """The outcome of the check alone, whatever its gates."""
        return self.check.state(*self.interval) if self.n else State.UNTESTED

    @property
    def state(self) -> State:
        """The outcome: void unless every gate is held."""
        if self.n and any(gate.state is not State.HELD for gate in self.gates):
            return State.VOID
        return self.ungated

    @cached_property
    def seeds_to_decide(self) -> int | None:
        """How many seeds would decide an open check if they scattered like those measured; None if too many."""
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
        shown = f" [{self.low:.3g}, {self.high:.3g}]" if bounded else ""
        return f"{self.estimate:.3g}{shown}, n={self.n}"


@dataclass(frozen=True)
class Judgement:
    """A claim with its measurements and the verdict."""

    claim: Claim
    measurements: tuple[Measurement, ...]
    verdict: Verdict

    @property
    def counted(self) -> list[Measurement]:
        """The checks that the verdict is formed from."""
        return [measured for measured in self.measurements if not measured.check.added_after]

    @property
    def later(self) -> list[Measurement]:
        """The checks that were added after their result, which do not count."""
        return [measured for measured in self.measurements if measured.check.added_after]

    @property
    def gates(self) -> list[Measurement]:
        """The distinct gates of all checks."""
        gates = [gate for measured in self.measurements for gate in measured.gates]
        return list({(gate.check.label, gate.check.threshold): gate for gate in gates}.values())

    @property
    def counts(self) -> Counter[State]:
        """How many of the counted checks have each outcome."""
        return Counter(measured.state for measured in self.counted)


def judge(claim: Claim, lines: Sequence[TrialRecord]) -> Judgement:
    """The verdict that the successful lines among ``lines`` give.

    Args:
        claim: What to judge.
        lines: Result lines; several claims are judged faster by one :class:`SuccessfulLines`.
    """
    done = lines if isinstance(lines, SuccessfulLines) else SuccessfulLines(lines)
    gates: dict[int, Measurement] = {}
    measures: dict[int, tuple[float, ...]] = {}

    def measured(check: Check, preconditions: Sequence[Check] = ()) -> Measurement:
        if id(check.measure) not in measures:
            measures[id(check.measure)] = tuple(float(value) for _, value in sorted(check.measure(done).items()))
        values = measures[id(check.measure)]
        kind = check.interval.of(done) if values else check.interval
        for gate in preconditions:
            if id(gate) not in gates:
                gates[id(gate)] = measured(gate)
        return Measurement(check, values, kind, tuple(gates[id(gate)] for gate in preconditions))

    measurements = tuple(measured(check, (*claim.gates, *check.gates)) for check in claim.checks)
    return Judgement(claim, measurements, _verdict(claim, measurements))


def _verdict(claim: Claim, measurements: Sequence[Measurement]) -> Verdict:
    counted = [measured for measured in measurements if not measured.check.added_after]
    unmeasured = any(gate.n == 0 for measured in counted for gate in measured.gates)
    states = {measured.state for measured in counted}
    if unmeasured or any(measured.n < claim.seeds for measured in counted):
        return Verdict.NOT_TESTED
    if states == {State.VOID}:
        return Verdict.VOID
    if states == {State.HELD}:
        return Verdict.REPRODUCED
    if State.HELD in states:
        return Verdict.MIXED if State.FAILED in states else Verdict.PARTLY
    return Verdict.NOT_REPRODUCED if State.FAILED in states else Verdict.UNDECIDED


def by_seed(lines: Sequence[TrialRecord], metric: str) -> dict[int, float]:
    """One metric per seed; use :meth:`PerSeed.of`."""
    return dict(PerSeed.of(lines, metric))

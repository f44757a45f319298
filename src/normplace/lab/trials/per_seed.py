"""From the records of a study to one number per seed: selection, arithmetic, and measures that claims declare.

Examples:
    A claim declares ``metric("social", "test", slot="after") - metric("social", "test", slot="none")``; the difference
    is a :class:`Measure`, which computes a :class:`PerSeed` when it is called with records.
"""

from __future__ import annotations

import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import wraps
from statistics import median
from typing import Any, Concatenate, ParamSpec, Self

from normplace.lab.trials.results import TrialRecord

__all__ = [
    # selection
    "SuccessfulRecords",
    "config_values",
    "pick",
    # numbers
    "PerSeed",
    "mean",
    "quotient",
    # measures
    "Measure",
    "measure",
    "metric",
]

Records = Sequence[TrialRecord]
P = ParamSpec("P")


class SuccessfulRecords(list[TrialRecord]):
    """The records of successful trials. Selections are cached, because many checks select the same records."""

    def __init__(self, records: Iterable[TrialRecord]) -> None:
        super().__init__(record for record in records if record.status == "ok")
        self._selections: dict[tuple[object, ...], list[TrialRecord]] = {}
        for record in self:
            self._selections.setdefault((record.part,), []).append(record)

    def pick(self, part: str, fields: Mapping[str, object]) -> list[TrialRecord]:
        """Select the records of one part whose configuration has these values."""
        selection, key = self._selections.get((part,), []), (part,)
        for field in sorted(fields.items(), key=lambda field: field[0]):
            key = (*key, field)  # selections that start with the same fields share them
            if key not in self._selections:
                self._selections[key] = _pick(selection, dict([field]))
            selection = self._selections[key]
        return selection


def pick(records: Records, part: str, /, **fields: object) -> list[TrialRecord]:
    """Select the records of one part whose configuration has these values."""
    if isinstance(records, SuccessfulRecords):
        return records.pick(part, fields)
    return _pick([record for record in records if record.part == part], fields)


def _pick(records: Records, fields: Mapping[str, object]) -> list[TrialRecord]:
    for key, value in fields.items():
        records = [record for record in records if record.config.get(key) == value]
    return list(records)


def config_values(records: Records, part: str, field: str, /, **fields: object) -> list[Any]:
    """Distinct values of a configuration field among the selected records, sorted."""
    return sorted({record.config[field] for record in pick(records, part, **fields)})


class Arithmetic(ABC):
    """Operators that act on the numbers of each seed; the other operand is of the same class, or one number."""

    @abstractmethod
    def map(self, function: Callable[..., float], *others: Any) -> Self:
        """Apply a function to the numbers of each seed; a seed that one operand lacks is dropped."""

    def __sub__(self, other: Self | float) -> Self:
        return self.map(operator.sub, other)

    def __mul__(self, other: Self | float) -> Self:
        return self.map(operator.mul, other)

    __rmul__ = __mul__

    def __truediv__(self, other: Self | float) -> Self:
        return self.map(quotient, other)

    def __abs__(self) -> Self:
        return self.map(math.fabs)

    def log(self, base: float) -> Self:
        """Logarithm; NaN for numbers that are not positive."""
        return self.map(lambda value: math.log(value, base) if value > 0 else math.nan)


class PerSeed(Arithmetic, Mapping[int, float]):
    """One number per seed.

    NaN is used for a missing or infinite number and for a division by zero; a check of a NaN fails.

    Args:
        values: Numbers by seed.

    Examples:
        >>> PerSeed({0: 3.0, 1: 5.0}) - PerSeed({0: 1.0, 1: 1.0, 2: 1.0})
        PerSeed({0: 2.0, 1: 4.0})
    """

    def __init__(self, values: Mapping[int, float] | None = None) -> None:
        self._values = dict(values or {})

    @classmethod
    def of(cls, records: Iterable[TrialRecord], value: str | Callable[[TrialRecord], float]) -> PerSeed:
        """One number of each record.

        Args:
            records: At most one per seed; two mean that the selection mixes variants.
            value: Name of a metric, or a function of the record.
        """
        values: dict[int, float] = {}
        for record in records:
            assert record.seed not in values, f"two records of seed {record.seed}: select by more fields"
            number = record.metrics.get(value) if isinstance(value, str) else value(record)
            values[record.seed] = math.nan if number is None else number
        return cls(values)

    @classmethod
    def over(cls, cells: Iterable[PerSeed], function: Callable[[Sequence[float]], float]) -> PerSeed:
        """Reduce cells, such as one per sequence length, to one number per seed.

        Args:
            cells: Numbers of each cell; seeds that a cell lacks are dropped.
            function: From the numbers of one seed, one per cell, to one number, such as ``min`` or :func:`mean`.
        """
        first, *rest = [*cells] or [cls()]
        return first.map(lambda *values: function(values), *rest)

    def map(self, function: Callable[..., float], *others: Self | float) -> Self:
        """Apply a function to the numbers of each seed; a seed that one operand lacks is dropped."""
        columns = [other if isinstance(other, PerSeed) else dict.fromkeys(self, other) for other in others]
        seeds = [seed for seed in self if all(seed in column for column in columns)]
        return type(self)({seed: function(self[seed], *(column[seed] for column in columns)) for seed in seeds})

    def mean(self) -> float:
        """Mean over seeds; NaN without seeds."""
        return mean([*self.values()]) if self else math.nan

    def median(self) -> float:
        """Median over seeds; NaN without seeds."""
        return median(self.values()) if self else math.nan

    def __getitem__(self, seed: int) -> float:
        return self._values[seed]

    def __iter__(self) -> Iterator[int]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"PerSeed({self._values})"


def mean(values: Sequence[float]) -> float:
    """Sum of the numbers divided by how many there are."""
    return sum(values) / len(values)


def quotient(numerator: float, denominator: float) -> float:
    """Quotient; NaN where the denominator is 0."""
    return numerator / denominator if denominator else math.nan


class Measure(Arithmetic):
    """A rule that computes one number per seed from the successful records of a study.

    Args:
        compute: From records to numbers.
    """

    def __init__(self, compute: Callable[[Records], PerSeed]) -> None:
        self._compute = compute

    def __call__(self, records: Records) -> PerSeed:
        """Compute the numbers."""
        return self._compute(records)

    def map(self, function: Callable[..., float], *others: Self | float) -> Self:
        """Apply a function to the numbers of each seed; a seed that one operand lacks is dropped."""

        def compute(records: Records) -> PerSeed:
            operands = [other(records) if isinstance(other, Measure) else other for other in others]
            return self(records).map(function, *operands)

        return type(self)(compute)


def metric(part: str, name: str, /, **fields: object) -> Measure:
    """A metric of the trials of one part whose configuration has these values."""
    return Measure(lambda records: PerSeed.of(pick(records, part, **fields), name))


def measure(function: Callable[Concatenate[Records, P], PerSeed]) -> Callable[P, Measure]:
    """Decorator for measures that ``metric`` and arithmetic cannot express.

    The decorated function takes records and further arguments. Calling it with the further arguments alone returns a
    :class:`Measure`.

    Examples:
        >>> @measure
        ... def at_longest(records, part):
        ...     return PerSeed.of(pick(records, part, length=config_values(records, part, "length")[-1]), "accuracy")
        >>> isinstance(at_longest("recall") - at_longest("copying"), Measure)
        True
    """

    @wraps(function)
    def bind(*arguments: P.args, **options: P.kwargs) -> Measure:
        return Measure(lambda records: function(records, *arguments, **options))

    return bind

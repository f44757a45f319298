"""Where predictions leave the range of the targets, along lines that leave the data.

A distance t counts ranges of the data: 0 is the edge of the data's range, and 1 is one more range away. Two kinds of
line start at the edge: each feature is moved alone, from several rows, beyond its largest and below its smallest value;
and all features are moved together, away from the centre through several rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Predict = Callable[[Array], Array]

DISTANCES = np.concatenate([[0.0], np.geomspace(0.01, 1000, 51)])
TOGETHER = "all features together"
_MOST_LINES = 2048
_THROUGH = 128
_BISECTIONS = 12
_BATCH = 65_536


@dataclass(frozen=True)
class Lines:
    """Lines ``start + t step``.

    Attributes:
        start: Points at the edge of the data's range (lines, features).
        step: The move of one range (lines, features).
        labels: What each line moves: a feature and ``above`` or ``below``, or all features.
    """

    start: Array
    step: Array
    labels: tuple[str, ...]

    def at(self, t: Array | float) -> Array:
        """The points at one distance, or at one distance for each line."""
        return self.start + np.reshape(t, (-1, 1)) * self.step


def digits_of(low: float, high: float) -> int:
    """How many digits show where a number is in a range: four, and as many as its two ends have in common."""
    return 4 + max(0, math.floor(math.log10(max(abs(low), abs(high)) / (high - low))))


def lines_beyond(x: Array, features: tuple[str, ...], random: np.random.RandomState) -> Lines:
    """Lines that leave the range of some rows."""
    low, high = x.min(0), x.max(0)
    span = high - low
    moving = np.flatnonzero(span > 0)
    starts, steps, labels = [], [], []
    count = max(1, min(len(x), _MOST_LINES // max(1, 2 * len(moving))))
    for feature in moving:
        digits = digits_of(low[feature], high[feature])
        for edge, sign, side in ((high, 1.0, "above"), (low, -1.0, "below")):
            start = x[random.choice(len(x), count, replace=False)].copy()
            start[:, feature] = edge[feature]
            step = np.zeros_like(start)
            step[:, feature] = sign * span[feature]
            starts.append(start)
            steps.append(step)
            labels += [f"{features[feature]} {side} {edge[feature]:.{digits}g}"] * count
    centre = (low + high) / 2
    rows = x[random.choice(len(x), min(len(x), _THROUGH), replace=False)]
    away = np.divide(rows - centre, span, out=np.zeros_like(rows), where=span > 0)
    farthest = np.abs(away).max(1, keepdims=True)
    away = away[farthest[:, 0] > 0] / farthest[farthest[:, 0] > 0]
    starts.append(centre + away / 2 * span)
    steps.append(away * span)
    labels += [TOGETHER] * len(away)
    return Lines(np.vstack(starts), np.vstack(steps), tuple(labels))


@dataclass(frozen=True)
class Departure:
    """The nearest point at which a prediction leaves the range of its target.

    Attributes:
        along: What is moved.
        distance: In ranges of the data beyond its edge; 0 is at the edge or inside it.
        target: The target's column.
        prediction: The prediction there.
    """

    along: str
    distance: float
    target: int
    prediction: float


@dataclass(frozen=True)
class Search:
    """Predictions of one model along the lines.

    Attributes:
        low: Smallest prediction of each target at each of ``DISTANCES``.
        high: The largest.
        departures: The nearest departure along each kind of line, nearest first.
        stays: The kinds of line along which no prediction leaves the range.
    """

    low: Array
    high: Array
    departures: tuple[Departure, ...]
    stays: tuple[str, ...]

    @property
    def first(self) -> Departure | None:
        """The nearest departure of all."""
        return self.departures[0] if self.departures else None


def search(predict: Predict, lines: Lines, allowed: Array) -> Search:
    """Follow the lines, and find where predictions leave the allowed range."""
    values = np.stack([_in_batches(predict, lines.at(t)) for t in DISTANCES])
    outside = _overshoot(values, allowed) > 0  # (distances, lines)
    leaves: NDArray[np.bool_] = np.any(outside, axis=0)
    index = outside.argmax(0)
    near = DISTANCES[np.maximum(index - 1, 0)]
    far = DISTANCES[index]
    chosen = np.flatnonzero(leaves & (index > 0))
    some = Lines(lines.start[chosen], lines.step[chosen], ())
    inner, outer = near[chosen], far[chosen]
    for _ in range(_BISECTIONS if len(chosen) else 0):
        middle = (inner + outer) / 2
        gone = _overshoot(_in_batches(predict, some.at(middle)), allowed) > 0
        inner, outer = np.where(gone, inner, middle), np.where(gone, middle, outer)
    distance = np.where(leaves, 0.0, np.inf)
    distance[chosen] = outer
    departures, stays = [], []
    for label in dict.fromkeys(lines.labels):
        own = [line for line, other in enumerate(lines.labels) if other == label]
        best = own[int(distance[own].argmin())]
        if not leaves[best]:
            stays.append(label)
            continue
        point = predict(lines.start[best : best + 1] + distance[best] * lines.step[best : best + 1])[0]
        target = int(_excess(point, allowed).argmax())
        departures.append(Departure(label, float(distance[best]), target, float(point[target])))
    departures.sort(key=lambda departure: departure.distance)
    return Search(values.min(1), values.max(1), tuple(departures), tuple(stays))


def _in_batches(predict: Predict, x: Array) -> Array:
    return np.vstack([predict(x[start : start + _BATCH]) for start in range(0, len(x), _BATCH)])


def _excess(values: Array, allowed: Array) -> Array:
    """How far each prediction is outside the range of its target, in ranges; not a number counts as outside."""
    span = np.maximum(allowed[:, 1] - allowed[:, 0], np.finfo(np.float64).tiny)
    excess = np.maximum(values - allowed[:, 1], allowed[:, 0] - values) / span
    return np.where(np.isnan(excess), np.inf, excess)


def _overshoot(values: Array, allowed: Array) -> Array:
    return _excess(values, allowed).max(-1)

"""The answer: two sentences, the numbers behind them, and a page with a picture."""

from __future__ import annotations

import json
import textwrap
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from normplace._shared.output import write_atomic
from normplace._shared.text_table import text_table
from normplace.lab.extrapolate.boundedness import Boundedness
from normplace.lab.extrapolate.search import DISTANCES, Departure, Search, digits_of
from normplace.lab.extrapolate.table import Table

FAR = 100.0
"""Distance, in ranges of the data, within which a sentence states the predictions."""
SHOWN = 10
"""Rows of the table in a terminal."""
FARTHEST = f"{DISTANCES[-1]:g} ranges"


@dataclass(frozen=True)
class ModelReport:
    """What was found about one model.

    Attributes:
        name: Its name in sentences.
        boundedness: Whether it is bounded, and why.
        search: Its predictions along the lines.
        r2: R² averaged over targets: of networks trained here, by cross-validation; of a given model, on all rows.
        trained_here: Whether it was trained on these rows here, so that ``r2`` is cross-validated.
        bound: Proven lowest and highest prediction of each target, if the model has such a bound.
    """

    name: str
    boundedness: Boundedness
    search: Search
    r2: float
    bound: tuple[tuple[float, float], ...] | None = None
    trained_here: bool = True

    def extreme(self, target: int, distance: float, low: float, high: float) -> float:
        """The prediction farthest outside the range from ``low`` to ``high``, up to a distance."""
        near = distance * (1 + 1e-9) >= DISTANCES
        values = np.concatenate([self.search.low[near, target], self.search.high[near, target]])
        return float(values[np.maximum(values - high, low - values).argmax()])


@dataclass(frozen=True)
class Extrapolation:
    """Whether a regression model stays in range outside its data, and what one LayerNorm changes.

    Attributes:
        table: The data.
        margin: The part of a target's range by which predictions may leave it.
        model: The model.
        normed: The network with one LayerNorm that was trained on the same rows; None without scikit-learn.
        layer: The linear layer of the model behind which a LayerNorm would bound it, if the model is an unbounded
            module and there is one.
        notes: Further sentences.
    """

    table: Table
    margin: float
    model: ModelReport
    normed: ModelReport | None
    layer: str | None
    notes: tuple[str, ...] = ()

    @property
    def sentences(self) -> tuple[str, str]:
        """What the model does outside its data, and what one LayerNorm changes."""
        return self._about_model(), self._about_norm()

    def _about_model(self) -> str:
        model, first = self.model, self.model.search.first
        start = {
            "bounded": f"{model.name} is bounded by proof",
            "unbounded": f"{model.name} is unbounded",
            "unknown": f"Whether {_lower(model.name)} is bounded is unknown",
        }[model.boundedness.verdict]
        by = f" by more than {100 * self.margin:g}%" if self.margin else ""
        if first is None:
            return f"{start}: no prediction leaves the range of its target{by} up to {FARTHEST} beyond the data."
        extreme = self._extreme(model, first.target, FAR)
        return (
            f"{start}: its prediction of {self._target(first.target)} leaves the range of the targets "
            f"({self._range(first.target)}){by}, {_place(first)}, and reaches {self._number(extreme, first.target)} "
            f"within {FAR:g} ranges beyond the data."
        )

    def _about_norm(self) -> str:
        if self.normed is None:
            return self._about_layer() or "The effect of one LayerNorm was not measured."
        own = self.normed.search.first
        if own is None:
            where = f"leaves the range nowhere up to {FARTHEST} beyond the data"
        else:
            extreme = self._extreme(self.normed, own.target, DISTANCES[-1])
            where = f"leaves the range {_place(own)} and reaches {self._number(extreme, own.target)} within {FARTHEST}"
        verdict = {"bounded": "bounded by proof"}.get(self.normed.boundedness.verdict, "not proven bounded")
        text = f"A network with one LayerNorm, trained on the same rows, is {verdict}, {where}, and has " + (
            f"an R² of {self.normed.r2:.2f} against {self.model.r2:.2f}"
            if self.model.trained_here
            else f"a cross-validated R² of {self.normed.r2:.2f}"
        )
        layer = self._about_layer()
        return f"{text}." if layer is None else f"{text}; {_lower(layer)}"

    def _about_layer(self) -> str | None:
        if self.layer is None:
            return None
        return f"One LayerNorm after its layer {self.layer!r} would bound the model at any weights."

    def _target(self, target: int) -> str:
        return self.table.targets[target]

    def _extreme(self, model: ModelReport, target: int, distance: float) -> float:
        column = self.table.y[:, target]
        return model.extreme(target, distance, column.min(), column.max())

    def _range(self, target: int) -> str:
        column = self.table.y[:, target]
        digits = digits_of(column.min(), column.max())
        return f"{column.min():.{digits}g} to {column.max():.{digits}g}"

    def _number(self, value: float, target: int) -> str:
        """A prediction with a digit less than its range; without an exponent from a thousand up to ten million."""
        column = self.table.y[:, target]
        digits = digits_of(column.min(), column.max()) - 1
        if not 1e3 <= abs(value) < 1e7:
            return f"{value:.{digits}g}"
        rounded = float(f"{value:.{digits}g}")
        return f"{rounded:,.0f}" if rounded.is_integer() else f"{rounded:,}"

    def __str__(self) -> str:
        return self.text()

    __repr__ = __str__  # what a notebook shows

    def text(self, width: int | None = None) -> str:
        """Format the sentences and the nearest departures.

        Args:
            width: Width of the terminal; None for any.
        """
        headings, *rows = self.departure_table()
        sentences = [*self.sentences, *self.notes]
        if width is not None:
            sentences = [textwrap.fill(sentence, width, break_long_words=False) for sentence in sentences]
        more = [f"and {len(rows) - SHOWN} more, which the page and --json list"] if len(rows) > SHOWN else []
        return "\n".join([*sentences, "", text_table(headings, rows[:SHOWN], width=width), *more])

    def departure_table(self) -> list[list[str]]:
        """For each kind of line, where each model leaves the range: a header and rows."""
        models = [self.model] if self.normed is None else [self.model, self.normed]
        labels = [*(departure.along for departure in self.model.search.departures), *self.model.search.stays]
        rows = [["moved", *(f"{_lower(model.name)} leaves the range" for model in models)]]
        for label in labels:
            cells = [next((d for d in model.search.departures if d.along == label), None) for model in models]
            rows.append([label, *(_distance(cell) for cell in cells)])
        return rows

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "sentences": list(self.sentences),
            "notes": list(self.notes),
            "features": list(self.table.features),
            "targets": {
                name: [float(column.min()), float(column.max())]
                for name, column in zip(self.table.targets, self.table.y.T, strict=True)
            },
            "rows": len(self.table.x),
            "margin": self.margin,
            "layer_that_would_bound": self.layer,
            "models": [self._model_dict(model) for model in (self.model, self.normed) if model is not None],
        }

    def _model_dict(self, model: ModelReport) -> dict[str, Any]:
        search = model.search
        return {
            "name": model.name,
            **asdict(model.boundedness),
            "r2": model.r2,
            "bound": model.bound,
            "departures": [
                {**asdict(departure), "target": self._target(departure.target)} for departure in search.departures
            ],
            "stays": list(search.stays),
            "distances": DISTANCES.tolist(),
            "lowest": _finite(search.low),
            "highest": _finite(search.high),
        }

    def to_json(self) -> str:
        """The plain values as JSON."""
        return json.dumps(self.to_dict(), indent=1)

    def save_html(self, path: str | Path) -> None:
        """Write the page; without vl-convert its figure is a table.

        Args:
            path: The file.

        Raises:
            UsageError: If it cannot be written.
        """
        from normplace.lab.extrapolate.page import render

        write_atomic(path, render(self))


def _finite(values: np.ndarray) -> list[list[float | None]]:
    return [[value if np.isfinite(value) else None for value in row] for row in values.tolist()]


def _lower(name: str) -> str:
    return name[0].lower() + name[1:]


def _place(departure: Departure) -> str:
    if departure.distance == 0:
        return f"at the edge of the data already ({departure.along})"
    return f"{_ranges(departure)} ranges beyond the data ({departure.along})"


def _distance(departure: Departure | None) -> str:
    if departure is None:
        return "nowhere"
    return "at the edge" if departure.distance == 0 else f"{_ranges(departure)} ranges beyond"


def _ranges(departure: Departure) -> str:
    """Two digits, without an exponent from a hundred on."""
    return f"{departure.distance:.0f}" if departure.distance >= 100 else f"{departure.distance:.2g}"

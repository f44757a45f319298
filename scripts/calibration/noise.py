"""Noise between seeds as in the committed results of the Peri-LN study, for simulated comparisons.

A score is a mean of the edit, plus an effect of the seed that all edits share, plus a residual. Residuals are in units
of their root mean square over all placements of a size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from normplace.lab.compare.statistics import Scores
from normplace.lab.studies.rate_grid import best_rate
from normplace.lab.trials.per_seed import config_values, pick
from normplace.lab.trials.record import TrialRecord
from normplace.lab.trials.results import read_records

RESULTS = Path(__file__).parents[2] / "src/normplace/lab/studies/periln/results"
PART = "training"
FEWEST_SEEDS = 5
KINDS = ("measured", "normal", "heavy tails", "two ways", "noisy edit", "noisy baseline", "diverging")
NOISY = 5.0
"""Spread of a noisy edit relative to the others."""
APART = 20.0
"""Distance between the scores of two ways in which a training ends."""
DIVERGING = 0.15
"""Share of trials that diverge in simulations of that kind."""


@dataclass(frozen=True)
class Noise:
    """Noise between seeds.

    Attributes:
        residuals: Pooled residuals of all placements and sizes, with a root mean square of 1.
        spreads: Root mean square of the residuals of each placement, relative to that of its size.
        shared: Standard deviation of the effect of the seed, in the same unit.
    """

    residuals: NDArray[np.float64]
    spreads: NDArray[np.float64]
    shared: float

    def draw(self, kind: str, edits: int, seeds: int, rng: np.random.Generator) -> NDArray[np.float64]:
        """Scores of edits with equal means, one row per edit; NaN for trials that diverged.

        Two edits have the same spread, as the same edit under two names has.

        Args:
            kind: ``measured``: residuals and spreads as measured; ``equal spreads``: residuals as measured, and equal
                spreads; ``normal``: normal with equal spreads; ``heavy
                tails``: Student's distribution with 3 degrees of freedom; ``two ways``: normal, and half of the
                trials end far above the others; ``noisy edit`` and ``noisy baseline``: normal, and one edit varies
                five times as much; ``diverging``: measured, and trials diverge.
            edits: Number of edits.
            seeds: Number of seeds.
            rng: Source of randomness.
        """
        shape = (edits, seeds)
        if kind in {"normal", "noisy edit", "noisy baseline"}:
            spreads = np.ones((edits, 1))
            if kind != "normal":
                spreads[0 if kind == "noisy baseline" else -1] = NOISY
            return rng.normal(size=shape) * spreads
        if kind == "two ways":
            return rng.normal(size=shape) + APART * rng.integers(0, 2, shape)
        if kind == "heavy tails":
            return rng.standard_t(3, size=shape)
        drawn = rng.choice(self.residuals, shape) * rng.choice([-1.0, 1.0], shape)
        if kind != "equal spreads":
            drawn *= rng.choice(self.spreads, (edits, 1) if edits > 2 else 1)
        drawn += self.shared * rng.normal(size=(1, seeds))
        if kind == "diverging":
            drawn[rng.random(shape) < DIVERGING] = np.nan
        return drawn


def measured_noise() -> Noise:
    """The noise of the committed trials, every placement at its best learning rate."""
    paths = [next(RESULTS.glob(f"periln-{name}.jsonl*")) for name in ("laptop", "full")]
    records = [record for path in paths for record in read_records(path)]
    residuals: list[NDArray[np.float64]] = []
    spreads: list[float] = []
    shared: list[float] = []
    for size in config_values(records, PART, "size"):
        scores = _matrix(records, size)
        placements, seeds = scores.shape
        if seeds < FEWEST_SEEDS:
            continue
        centred = scores - scores.mean(1, keepdims=True)
        effect = centred.mean(0)
        # The residuals of a table have fewer degrees of freedom than entries.
        rest = (centred - effect) * np.sqrt(placements * seeds / ((placements - 1) * (seeds - 1)))
        scale = float(np.sqrt((rest**2).mean()))
        residuals.append(rest.ravel() / scale)
        spreads += list(np.sqrt((rest**2).mean(1)) / scale)
        shared.append(float(np.std(effect, ddof=1)) / scale)
    return Noise(np.concatenate(residuals), np.array(spreads), float(np.mean(shared)))


def _matrix(records: Sequence[TrialRecord], size: str) -> NDArray[np.float64]:
    """Bits per byte by placement and seed, without placements that did not learn."""
    rows = []
    for placement in config_values(records, PART, "placement", size=size):
        rate = best_rate(records, PART, size=size, placement=placement)
        trials = pick(records, PART, size=size, placement=placement, learning_rate=rate)
        if not any(trial.metrics["stuck"] or trial.metrics["diverged"] for trial in trials):
            rows.append([trial.metrics["bits_per_byte"] for trial in sorted(trials, key=lambda one: one.seed)])
    return np.array(rows, dtype=float)


def as_scores(drawn: NDArray[np.float64]) -> Mapping[str, Scores]:
    """Scores by edit and seed, for the statistics of a comparison."""
    return {
        f"edit {number}": {seed: None if np.isnan(value) else float(value) for seed, value in enumerate(row)}
        for number, row in enumerate(drawn)
    }

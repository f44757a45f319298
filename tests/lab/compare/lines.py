"""Result lines of comparisons, made for tests."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from normplace.lab.trials.record import TrialRecord, trial_hash

RATES = (3e-4, 1e-3, 3e-3)


def line(
    edit: str,
    seed: int,
    report: float | None,
    *,
    part: str = "final",
    rate: float = 1e-3,
    steps: int = 200,
    rung: int = 2,
    choose: float | None = None,
    metrics: Mapping[str, float | None] | None = None,
    series: Mapping[str, Sequence[float | None]] | None = None,
    **fields: Any,
) -> TrialRecord:
    """One trial; a report of None is a trial that diverged."""
    config = {"task": "notes", "edit": edit, "learning_rate": rate, "steps": steps, "rung": rung, "seed": seed}
    config |= {"start": "fresh"} | fields.pop("config", {})
    values = {"choose": report if choose is None else choose, "report": report, "diverged": float(report is None)}
    return TrialRecord(
        study="compare",
        part=part,
        scale="full",
        hash=trial_hash("compare", part, config),
        config=config,
        seed=seed,
        seconds=2.0,
        metrics={**values, **(metrics or {})},
        series={name: list(numbers) for name, numbers in (series or {}).items()},
        **{"status": "ok", "finished": "2026-01-02T03:04:05+00:00", **fields},
    )


def comparison_lines(
    scores: Mapping[str, Sequence[float | None]], rates: Sequence[float] = RATES, **fields: Any
) -> list[TrialRecord]:
    """A search over learning rates with one seed, then the reported seeds of each edit."""
    lines = []
    for number, (edit, reports) in enumerate(scores.items()):
        base = next((report for report in reports if report is not None), 3.0)
        for rate in rates:
            worse = 0.2 * (number + 1) * abs(math.log(rate / 1e-3))
            start = {"held_out": [5.5, base + worse], "held_out_step": [0, 100]}
            lines.append(line(edit, 0, base + worse, part="search", rate=rate, steps=100, rung=0, series=start))
        curve = {"loss_step": [1, 100, 200], "held_out_step": [0, 100, 200]}
        signals = {"spikes_per_1000": 1.0, "stream_peak": 20.0 + number, "stream_growth": 2.0, "step_ms": 3.5}
        for seed, report in enumerate(reports):
            end = None if report is None else report + 0.1
            series = {**curve, "loss": [5.5, 4.0, end], "held_out": [5.5, 4.1, report]}
            lines.append(line(edit, seed, report, metrics=signals, series=series, **fields))
    return lines

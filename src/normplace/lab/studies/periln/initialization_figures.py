"""The figure of the initialization part: held-out loss of every initialization at every learning rate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Any

from normplace.lab.report.specs import cells
from normplace.lab.studies.periln.initialization import PLACEMENTS, STARTS
from normplace.lab.studies.periln.initialization_claims import trials
from normplace.lab.studies.periln.measures import cost
from normplace.lab.trials.results import TrialRecord
from normplace.lab.trials.study import Figure


def initialization_rows(lines: Sequence[TrialRecord]) -> list[dict[str, Any]]:
    """For each placement, initialization and learning rate the means over seeds that the figure and the docs show."""
    rows = []
    for placement in PLACEMENTS:
        for start in STARTS:
            by_rate: dict[float, list[TrialRecord]] = {}
            for line in trials(lines, placement, start):
                by_rate.setdefault(line.config["learning_rate"], []).append(line)
            for rate, own in sorted(by_rate.items()):
                rows.append(
                    {
                        "network": f"{placement}, {start}",
                        "rate": f"{rate:g}",
                        "bits": fmean(cost(line) for line in own),
                        "seeds": len(own),
                        "peak": fmean(line.metrics.get("peak_end") or float("inf") for line in own),
                        "variance": fmean(line.series["variance_end"][-1] or float("inf") for line in own),
                    }
                )
    return rows


def initialization_figures(lines: Sequence[TrialRecord]) -> Iterator[Figure]:
    """One figure, if the part has lines."""
    rows = initialization_rows(lines)
    if not rows:
        return
    values = sorted(row["bits"] for row in rows)
    middle = values[len(values) // 2]
    yield Figure(
        title="Bits per byte by placement, initial weights and learning rate, 24 layers",
        caption="Mean over seeds on the validation text after 256 steps. depth: the last matrix of each branch divided "
        "by sqrt(48); fixed: standard deviation 0.02; xavier: Xavier's rule for every matrix. Peak and variance are of "
        "the stream behind the last layer after training.",
        rows=[{**row, "shown": f"{row['bits']:.2f}"} for row in rows],
        spec=cells(
            x="rate",
            columns=[f"{rate:g}" for rate in sorted({float(row["rate"]) for row in rows})],
            y="network",
            rows=list(dict.fromkeys(row["network"] for row in rows)),
            value="bits",
            text="shown",
            title="bits per byte",
            middle=middle,
            reach=max(middle - values[0], 0.05),
            good="low",
        ),
        alt="A table of placements and initial weights by learning rates, each cell with its bits per byte.",
    )

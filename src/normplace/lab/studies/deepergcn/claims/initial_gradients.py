"""Claims on the gradients of deep stacks before training."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any

from normplace.lab.studies.cases import Cases
from normplace.lab.studies.deepergcn.claims.graphs import GRID
from normplace.lab.studies.deepergcn.initial_gradients import NORMS, PART, PUBLISHED, SEEDS
from normplace.lab.studies.deepergcn.published import PAPER
from normplace.lab.studies.notes import OURS
from normplace.lab.trials.claims import Check, Claim
from normplace.lab.trials.per_seed import Measure, metric

GRAPHS = Cases("graphs", PUBLISHED, "On four published graphs,", SEEDS)
REACH = "log10 of gradient norms, first quarter of the layers over last quarter"
NOTE = (
    "112 layers at their initial weights, float64. Declared before the runs, after a look at two seeds of Minesweeper, "
    "which had -9 without a norm, -3 with LayerNorm and +3 with BatchNorm in plain stacks, and at most 0.5 in res+. "
    "The thresholds, factors of 10, are our choices."
)


def _reach(data: str, order: str, norm: str) -> Measure:
    return metric(PART.name, "gradient_reach", data=data, order=order, norm=norm)


def _evened(data: str, norm: str) -> Measure:
    """Decades by which gradients differ along the depth, plain minus res+."""
    plain, residual = (_reach(data, order, norm).map(math.fabs) for order in ("plain", "res+"))
    return plain - residual


def _checks(graphs: Cases, norm: str, **threshold: Any) -> tuple[Check, ...]:
    return graphs.checks(f"{REACH}, plain, {NORMS[norm]}", partial(_reach, order="plain", norm=norm), **threshold)


def _claims(graphs: Cases) -> tuple[Claim, ...]:
    return (
        Claim(
            id=f"initial-vanishing-{graphs.name}",
            paper=f"{PAPER}, first sentence",
            statement=f"{graphs.place} gradients vanish on the way to the first layers of untrained plain stacks "
            "without a norm and with LayerNorm.",
            checks=tuple(check for norm in ("identity", "layer") for check in _checks(graphs, norm, at_most=-1.0)),
            seeds=graphs.seeds,
            note=NOTE,
        ),
        Claim(
            id=f"initial-exploding-{graphs.name}",
            paper=f"{OURS}, after arXiv 1902.08129",
            statement=f"{graphs.place} gradients grow on the way to the first layers of untrained plain stacks with "
            "BatchNorm.",
            checks=_checks(graphs, "batch", at_least=1.0),
            seeds=graphs.seeds,
            note=NOTE,
        ),
        Claim(
            id=f"initial-even-{graphs.name}",
            paper=PAPER,
            statement=f"{graphs.place} res+ makes the gradients of an untrained stack more even, whatever its norm.",
            checks=tuple(
                check
                for norm, title in NORMS.items()
                for check in graphs.checks(
                    f"decades by which gradients differ along the depth, plain minus res+, {title}",
                    partial(_evened, norm=norm),
                    at_least=1.0,
                )
            ),
            seeds=graphs.seeds,
            note=NOTE,
        ),
    )


CLAIMS = (*_claims(replace(GRID, seeds=SEEDS)), *_claims(GRAPHS))

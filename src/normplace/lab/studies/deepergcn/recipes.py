"""Recipes for the best published scores on Minesweeper and Tolokers, over their official splits.

Candidates come from some fifteen one-seed pilots on the first split, compared by validation score, with another seed
than those of the trials. The pilots had fewer epochs, gradient clipping and a short learning-rate warm-up, which the
trials do not have, and several settings changed from one to the next, so they do not tell which setting helps. The best
had separate weights for a node's own features, as tuned networks have, blocks that append their channels (``dense``),
and averaged weights; on Minesweeper also dropout of the node features. The candidates with 20 layers, and with res and
9 layers for 500 epochs, had no pilot of their own. The candidate with the best mean validation score counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from normplace.lab.studies.deepergcn.networks import OWN_WEIGHTS
from normplace.lab.studies.deepergcn.node import label, why_unavailable
from normplace.lab.studies.deepergcn.node_seeds import SeedsTrial, run, run_seeds
from normplace.lab.trials.study import Part

SPLITS = 10
APPENDING: dict[str, Any] = {"order": "dense", "epochs": 2000, "learning_rate": 5e-3, "average": 0.99}
SHORT: dict[str, Any] = {"epochs": 500, "learning_rate": 3e-3, "schedule": "cosine", "average": 0.98, "dropout": 0.3}
CANDIDATES: dict[str, tuple[dict[str, Any], ...]] = {
    "minesweeper": (
        {**APPENDING, "depth": 12, "growth": 24, "dropout": 0.2, "input_dropout": 0.2},
        {**APPENDING, "depth": 12, "growth": 24, "dropout": 0.4, "input_dropout": 0.3},
        {**APPENDING, "depth": 20, "growth": 16, "dropout": 0.3, "input_dropout": 0.2},
    ),
    "tolokers": (
        {**SHORT, "order": "res+", "depth": 5},
        {**SHORT, "order": "res", "depth": 9},
        {**SHORT, "order": "dense", "depth": 5},
    ),
}
"""Settings by graph; the aggregation is the mean, with separate weights for a node's own features."""


def plan(scale: str) -> Iterator[SeedsTrial]:
    """The candidates of each graph on its ten splits, at ``full`` only."""
    if scale != "full":
        return
    for data, candidates in CANDIDATES.items():
        for settings in candidates:
            for seed in range(SPLITS):
                yield SeedsTrial(data, seed=seed, aggregation=f"mean{OWN_WEIGHTS}", evaluations=100, **settings)


def candidate_name(settings: Mapping[str, Any]) -> str:
    """Short name of a candidate."""
    return f"{settings['order']}, {settings['depth']} layers, dropout {settings['dropout']:g}"


PART = Part(
    name="recipes",
    config=SeedsTrial,
    plan=plan,
    run=run,
    label=label,
    unavailable_reason=why_unavailable,
    most_seeds=SPLITS,
    run_seeds=run_seeds,
)

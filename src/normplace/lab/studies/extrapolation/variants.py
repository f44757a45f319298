"""The toy networks with other activations, and with BatchNorm instead of LayerNorm (Figures 5 and 6)."""

from __future__ import annotations

from collections.abc import Iterator

from normplace.lab.studies.extrapolation.toy import ToyTrial, run
from normplace.lab.tasks.regression.toy import FUNCTIONS
from normplace.lab.trials.study import Part

ACTIVATIONS = ("gelu", "silu")
ONE_NORM = "first"


def plan(scale: str) -> Iterator[ToyTrial]:
    """Each activation without LN and with one, and ReLU with BatchNorm in every hidden layer.

    The position of the LN and of BatchNorm (every layer, its strongest use) are our choices; ``full`` has all
    positions.
    """
    seeds = 1 if scale == "smoke" else 5
    epochs = 30 if scale == "smoke" else 3000
    places = ("none", "first", "last", "every") if scale == "full" else ("none", ONE_NORM)
    batch_places = ("first", "last", "every") if scale == "full" else ("every",)
    for seed in range(seeds):
        for data in FUNCTIONS:
            for activation in ACTIVATIONS:
                for norm_at in places:
                    yield ToyTrial(data, norm_at, seed, epochs=epochs, activation=activation)
            for norm_at in batch_places:
                yield ToyTrial(data, norm_at, seed, epochs=epochs, norm="batch")


def label(trial: ToyTrial) -> str:
    """Short description for progress output."""
    kind = "BN" if trial.norm == "batch" else "LN"
    return f"{trial.data}, {trial.activation}, {kind} {trial.norm_at}, seed {trial.seed}"


PART = Part(name="variants", config=ToyTrial, plan=plan, run=run, label=label)

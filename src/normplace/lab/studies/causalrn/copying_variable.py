"""Copying strings of varying length, also beyond the trained lengths."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from normplace.errors import UsageError, expect_choice
from normplace.lab.studies.causalrn.copying_fixed import SEEDS
from normplace.lab.studies.causalrn.networks import NETWORKS, TITLES, build
from normplace.lab.studies.causalrn.training import TrainedTrial, train_on_strings
from normplace.lab.tasks.sequences import StringTask
from normplace.lab.trials.study import Outcome, Part
from normplace.models.sequence import count_parameters

COPIED = 0.9
"""Character accuracy from which a length counts as copied, for the reach."""
VARIANTS = (
    ("pairwise", "none"),
    ("pairwise", "sinusoidal"),
    ("scan", "none"),
    ("transformer", "none"),
    ("transformer", "rotary"),
    ("transformer", "alibi"),
)
MAIN = VARIANTS[0], VARIANTS[2], VARIANTS[3]
SIZES: dict[str, dict[str, Any]] = {
    "smoke": {"shortest": 2, "longest": 3, "context": 16, "tested": (3, 6), "dim": 16, "depth": 1, "steps": 3}
    | {"batch_size": 4, "exam": 4, "heads": 2},
    "laptop": {"shortest": 2, "longest": 4, "context": 24, "tested": (2, 4, 6, 8, 16), "dim": 48, "depth": 3}
    | {"steps": 600, "batch_size": 16, "learning_rate": 3e-3, "warm_up": 20, "exam": 64, "heads": 2},
    "full": {},
}


@dataclass(frozen=True, kw_only=True)
class VariableTrial(TrainedTrial):
    """One network on packed strings of varying length.

    Args:
        network: Name of the network, at CausalRN's parameter count.
        positions: Kind of position; learned positions do not extend beyond training and are not supported.
        shortest: Shortest trained length.
        longest: Longest trained length.
        context: Context length in training, in tokens.
        tested: Lengths to test.
        heads: Number of attention heads.
        exam: Strings per tested length.
    """

    network: str
    positions: str
    shortest: int = 5
    longest: int = 50
    context: int = 220
    tested: tuple[int, ...] = (10, 25, 50, 60, 75, 100, 150, 200, 300, 500, 1000)
    heads: int = 4
    exam: int = 64
    steps: int = 2500

    def __post_init__(self) -> None:
        super().__post_init__()
        expect_choice("network", self.network, NETWORKS)
        if self.positions == "learned":
            raise UsageError("learned positions do not extend beyond training: choose none or sinusoidal.")
        if self.longest not in self.tested:
            raise UsageError(f"tested must include the longest trained length, {self.longest}: add it.")


def plan(scale: str) -> Iterator[VariableTrial]:
    """The main networks; more kinds of position at ``full``."""
    for seed in range(min(3, SEEDS[scale])):
        for network, positions in VARIANTS if scale == "full" else MAIN:
            yield VariableTrial(network=network, positions=positions, seed=seed, **SIZES[scale])


def run(trial: VariableTrial) -> Outcome:
    """Train on packed strings, then test on single strings of each length."""
    task = StringTask("copy", trial.shortest, trial.longest, trial.context)
    shape: dict[str, Any] = {"heads": trial.heads, "positions": trial.positions}
    model = trial.initialize(lambda: build(trial.network, task.vocab_size, trial.dim, trial.depth, **shape))
    losses, accuracy = train_on_strings(trial, model, task, trial.tested, trial.exam, batch_size=16)
    longest = trial.tested.index(trial.longest)
    copied = [length for length, right in zip(trial.tested, accuracy["character"], strict=True) if right >= COPIED]
    return Outcome(
        metrics={
            **{name: values[longest] for name, values in accuracy.items()},
            "reach": max(copied, default=0) / trial.longest,
            "parameters": count_parameters(model),
            "loss": losses.loss[-1],
        },
        series={"length": trial.tested, **accuracy, "step": losses.steps, "loss": losses.loss},
    )


PART = Part(
    name="copying-variable",
    config=VariableTrial,
    plan=plan,
    run=run,
    label=lambda trial: f"varying lengths, {TITLES[trial.network]}, positions {trial.positions}, seed {trial.seed}",
)

"""Copying strings of many lengths, and of lengths that training never showed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from normplace._shared.device import pick_device
from normplace.errors import UsageError
from normplace.lab.studies.causalrn.fixed import SEEDS
from normplace.lab.studies.causalrn.networks import NETWORKS, TITLES, build
from normplace.lab.studies.causalrn.trained import Trained
from normplace.lab.tasks.sequences import StringTask
from normplace.lab.train.sequence import fit_sequence, predict_tokens
from normplace.lab.trials.study import Outcome, Part
from normplace.models.sequence import count_parameters

COPIED = 0.9
"""The share of right characters from which a length counts as copied, for the reach."""
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
class VariableTrial(Trained):
    """One network on packed strings of varying length.

    Args:
        network: Which; at CausalRN's number of parameters.
        positions: Kind of position; learned ones cannot be told beyond training, so they are not offered.
        shortest: Least trained length.
        longest: Greatest trained length.
        context: Positions of a training row.
        tested: Lengths to judge by.
        heads: Of attention.
        exam: Strings of each tested length.
        steps: Of training.
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
        self.choose("network", self.network, NETWORKS)
        if self.positions == "learned":
            raise UsageError("learned positions end with training, and this tests beyond: choose none or sinusoidal.")
        if self.longest not in self.tested:
            raise UsageError(f"the longest trained length, {self.longest}, must be among those tested: add it.")


def plan(scale: str) -> Iterator[VariableTrial]:
    """The main networks, and at ``full`` more kinds of position."""
    for seed in range(min(3, SEEDS[scale])):
        for network, positions in VARIANTS if scale == "full" else MAIN:
            yield VariableTrial(network=network, positions=positions, seed=seed, **SIZES[scale])


def run(trial: VariableTrial) -> Outcome:
    """Train on packed rows, then judge by single strings of each length."""
    device = pick_device(trial.device)
    task = StringTask("copy", trial.shortest, trial.longest, trial.context)
    with torch.random.fork_rng(list(range(torch.cuda.device_count()))):
        torch.manual_seed(trial.seed)
        shape: dict[str, Any] = {"heads": trial.heads, "positions": trial.positions}
        model = build(trial.network, task.vocab_size, trial.dim, trial.depth, **shape).to(device)
    train, exam = (torch.Generator(device).manual_seed(2 * trial.seed + n) for n in range(2))
    course = fit_sequence(model, task, trial.training(schedule="cosine"), train)
    series: dict[str, list[float]] = {"length": [], "string": [], "character": []}
    for length in trial.tested:
        batch = task.exam(trial.exam, length, exam)
        scores = task.judge(predict_tokens(model, batch.inputs, precision=trial.precision, batch_size=16), batch)
        series["length"].append(length)
        for name, value in scores._asdict().items():
            series[name].append(float(value.mean()))
    at_longest = trial.tested.index(trial.longest)
    copied = [n for n, right in zip(trial.tested, series["character"], strict=True) if right >= COPIED]
    return Outcome(
        metrics={
            "string": series["string"][at_longest],
            "character": series["character"][at_longest],
            "reach": max(copied, default=0) / trial.longest,
            "parameters": count_parameters(model),
            "loss": course.loss[-1],
        },
        series={**series, "step": course.steps, "loss": course.loss},
    )


PART = Part(
    name="copying-variable",
    config=VariableTrial,
    plan=plan,
    run=run,
    label=lambda trial: f"varying lengths, {TITLES[trial.network]}, positions {trial.positions}, seed {trial.seed}",
)

"""Look-up of the characters after an n-gram, asked for before the string or after it, at equal parameter counts.

The tasks of Jelassi et al. 2024 (arXiv 2402.01032). If the n-gram comes first, a network can wait for it and needs
little memory; if it comes last, the network must remember the whole string.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from normplace._shared.device import pick_device
from normplace.errors import UsageError, expect_choice
from normplace.lab.studies.causalrn.networks import NETWORKS, TITLES, build
from normplace.lab.studies.causalrn.training import TrainedTrial
from normplace.lab.tasks.sequences import StringTask
from normplace.lab.train.sequence import fit_sequence
from normplace.lab.trials.study import Outcome, Part
from normplace.models.sequence import count_parameters

TASKS = {"prefix": "n-gram first", "suffix": "n-gram last"}
VARIANTS = {
    "pairwise": "none",
    "scan": "none",
    "transformer": "rotary",
    "linear-attention": "none",
    "gated-linear": "none",
}
"""Positions of each network. A Transformer without positions did not learn to copy strings of varying length."""
SEEDS = {"smoke": 1, "laptop": 0, "full": 5}
"""No seeds at ``laptop``, where training would take too long."""
SMOKE: dict[str, Any] = {"shortest": 5, "longest": 6, "context": 16, "tested": (6, 8), "ngram": 1, "answer": 1}
SMOKE |= {"dim": 16, "depth": 1, "heads": 2, "steps": 3, "batch_size": 4, "exam": 4}


@dataclass(frozen=True, kw_only=True)
class LookupTrial(TrainedTrial):
    """One network on one look-up task.

    Args:
        network: Name of the network, at CausalRN's parameter count.
        task: ``prefix`` or ``suffix``.
        positions: Kind of position; learned positions do not extend beyond training and are not supported.
        ngram: Length of the n-gram, which occurs once in its string.
        answer: Length of the answer; 0 for the rest of the string.
        shortest: Shortest trained string.
        longest: Longest trained string.
        context: Context length in training, in tokens.
        tested: Lengths to test.
        heads: Number of attention heads.
        exam: Strings per tested length.
        every: Steps between evaluations.
        stop_when_perfect: Whether to stop when an evaluation has no error.
    """

    network: str
    task: str
    positions: str
    ngram: int = 3
    answer: int = 4
    shortest: int = 8
    longest: int = 20
    context: int = 96
    tested: tuple[int, ...] = (10, 20, 30, 40, 80)
    heads: int = 4
    exam: int = 128
    steps: int = 15_000
    warm_up: int = 100
    every: int = 250
    stop_when_perfect: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        expect_choice("network", self.network, NETWORKS)
        expect_choice("look-up task", self.task, TASKS)
        if self.positions == "learned":
            raise UsageError("learned positions do not extend beyond training: choose none or sinusoidal.")
        if self.longest not in self.tested:
            raise UsageError(f"tested must include the longest trained length, {self.longest}: add it.")


def plan(scale: str) -> Iterator[LookupTrial]:
    """Every network on both tasks."""
    sizes = SMOKE if scale == "smoke" else {}
    for task in TASKS:
        for seed in range(SEEDS[scale]):
            for network, positions in VARIANTS.items():
                yield LookupTrial(network=network, task=task, positions=positions, seed=seed, **sizes)


def string_task(trial: LookupTrial) -> StringTask:
    """The trial's task."""
    lengths = trial.shortest, trial.longest, trial.context
    return StringTask(trial.task, *lengths, ngram=trial.ngram, answer=trial.answer)


def run(trial: LookupTrial) -> Outcome:
    """Train on packed strings until a test without errors, then test on single strings of each length."""
    device, task = pick_device(trial.device), string_task(trial)
    shape: dict[str, Any] = {"heads": trial.heads, "positions": trial.positions}
    model = trial.initialize(lambda: build(trial.network, task.vocab_size, trial.dim, trial.depth, **shape))
    train, evaluation, test = (torch.Generator(device).manual_seed(3 * trial.seed + n) for n in range(3))
    during: list[float] = []

    def accuracies(length: int, generator: torch.Generator) -> dict[str, float]:
        return trial.accuracies(model, task.evaluation_batch(trial.exam, length, generator), task.score)

    def watch(_: int) -> bool:
        during.append(accuracies(trial.longest, evaluation)["string"])
        return trial.stop_when_perfect and during[-1] == 1

    training = trial.training(schedule="cosine", every=trial.every)
    losses = fit_sequence(model, task, training, train, watch)
    tested = [accuracies(length, test) for length in trial.tested]
    return Outcome(
        metrics={
            **tested[trial.tested.index(trial.longest)],
            "string_farthest": tested[-1]["string"],
            "steps": losses.steps_taken,
            "parameters": count_parameters(model),
        },
        series={"length": trial.tested, **{name: [one[name] for one in tested] for name in ("string", "character")}}
        | {"step": losses.steps, "loss": losses.loss, "during": during},
    )


PART = Part(
    name="lookup",
    config=LookupTrial,
    plan=plan,
    run=run,
    label=lambda trial: f"look-up, {TASKS[trial.task]}, {TITLES[trial.network]}, seed {trial.seed}",
)

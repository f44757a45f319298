"""Multi-query associative recall at equal parameter counts.

The first setting, 16 pairs and four layers without a curriculum, was too hard: no network learned it. In the
second, pairs and context grow during training. Pilots of one seed on a CPU, with seeds that are not reported, chose it
so that a Transformer learns it; with a single head, it does so with some seeds only. The third gives networks of
attention four heads.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from normplace._shared.device import pick_device
from normplace.errors import expect_choice
from normplace.lab.studies.causalrn.networks import NETWORKS, TITLES, build
from normplace.lab.studies.causalrn.training import TrainedTrial
from normplace.lab.tasks.sequences import Recall, RecallCurriculum
from normplace.lab.train.sequence import fit_sequence
from normplace.lab.trials.config import ADDED_LATER
from normplace.lab.trials.study import Outcome, Part
from normplace.models.sequence import count_parameters

EXAM = 256
"""Test sequences."""
HARD_PAIRS, HARD_DEPTH = 16, 4
HARD_NETWORKS = NETWORKS[:3]
"""Networks of the first setting; its claim needs no other."""
FIRST_PAIRS = 4
"""Pairs that the curriculum starts with."""
SHAPE: dict[str, Any] = {"dim": 64, "depth": 2, "learning_rate": 2e-3, "warm_up": 100, "steps": 12_000}
SHAPE |= {"first_pairs": FIRST_PAIRS, "held_steps": 2000, "growing_steps": 4000, "every": 250, "enough": 0.995}
LEARNABLE: dict[int, dict[str, Any]] = {
    8: {"context": 32, "vocab": 64, **SHAPE},
    16: {"context": 64, "vocab": 128, **SHAPE},
}
"""The second setting by number of pairs."""
HEADS = 4
MULTI_HEAD = ("transformer", "linear-attention", "gated-linear")
"""Networks of the third setting. CausalRN has a single head, so its trials are those of the second."""
SEEDS = 5
SMOKE: dict[str, Any] = {"context": 8, "vocab": 16, "dim": 16, "depth": 1, "steps": 3, "batch_size": 4}
SMOKE |= {"first_pairs": 1, "growing_steps": 2, "enough": 0.995}


@dataclass(frozen=True, kw_only=True)
class RecallTrial(TrainedTrial):
    """One network on key-value pairs and queries.

    Args:
        network: Name of the network, at CausalRN's parameter count.
        pairs: Number of key-value pairs.
        context: Context length in tokens.
        vocab: Vocabulary size.
        heads: Number of attention heads.
        first_pairs: Number of pairs at the start of training, with a context in proportion; 0 for the same as at the
            end.
        held_steps: Steps with that number.
        growing_steps: Steps over which it grows.
        every: Steps between evaluations.
        enough: Accuracy at which training stops; 0 to take all steps without evaluations.
    """

    network: str
    pairs: int
    context: int = 64
    vocab: int = 256
    heads: int = 1
    first_pairs: int = field(default=0, metadata=ADDED_LATER)
    held_steps: int = field(default=0, metadata=ADDED_LATER)
    growing_steps: int = field(default=0, metadata=ADDED_LATER)
    every: int = field(default=100, metadata=ADDED_LATER)
    enough: float = field(default=0.0, metadata=ADDED_LATER)

    def __post_init__(self) -> None:
        super().__post_init__()
        expect_choice("network", self.network, NETWORKS)


def title(network: str, heads: int) -> str:
    """Title of a network, with its number of heads if there are several."""
    return TITLES[network] if heads == 1 else f"{TITLES[network]}, {heads} heads"


def plan(scale: str) -> Iterator[RecallTrial]:
    """Every network with a curriculum, then without; nothing at ``laptop``, where it takes too long."""
    if scale == "smoke":
        for network in NETWORKS:
            yield RecallTrial(network=network, pairs=2, seed=0, **SMOKE)
    elif scale == "full":
        for pairs, sizes in LEARNABLE.items():
            for seed in range(SEEDS):
                for network in NETWORKS:
                    yield RecallTrial(network=network, pairs=pairs, seed=seed, **sizes)
                for network in MULTI_HEAD:
                    yield RecallTrial(network=network, pairs=pairs, seed=seed, heads=HEADS, **sizes)
        for seed in range(3):
            for network in HARD_NETWORKS:
                yield RecallTrial(network=network, pairs=HARD_PAIRS, seed=seed)


def run(trial: RecallTrial) -> Outcome:
    """Train, until an evaluation is good enough if the trial stops early, and test on new sequences."""
    device = pick_device(trial.device)
    task = Recall(trial.pairs, trial.context, trial.vocab)
    shape: dict[str, Any] = {"heads": trial.heads, "context": task.context}
    model = trial.initialize(lambda: build(trial.network, task.vocab_size, trial.dim, trial.depth, **shape))
    # Generators 0 and 1 of a seed are those of the trials that were recorded before there was an evaluation.
    train, test = (torch.Generator(device).manual_seed(2 * trial.seed + n) for n in range(2))
    evaluation = torch.Generator(device).manual_seed(1_000_000 + trial.seed)
    during: list[float] = []

    def accuracy(generator: torch.Generator) -> float:
        return trial.accuracies(model, task.draw(EXAM, generator), task.score)["character"]

    def watch(_: int) -> bool:
        during.append(accuracy(evaluation))
        return during[-1] >= trial.enough

    sequences = trial.held_steps * trial.batch_size, trial.growing_steps * trial.batch_size
    drawn = RecallCurriculum(task, trial.first_pairs, *sequences) if trial.first_pairs else task
    training = trial.training(every=trial.every)
    losses = fit_sequence(model, drawn, training, train, watch if trial.enough else None)
    metrics = {"accuracy": accuracy(test), "parameters": count_parameters(model)}
    series: dict[str, list[Any]] = {"step": losses.steps, "loss": losses.loss}
    if trial.enough:
        metrics, series = {**metrics, "steps": losses.steps_taken}, {**series, "during": during}
    return Outcome(metrics, series)


PART = Part(
    name="recall",
    config=RecallTrial,
    plan=plan,
    run=run,
    label=lambda trial: f"recall of {trial.pairs} pairs, {title(trial.network, trial.heads)}, seed {trial.seed}",
)

"""Multi-query associative recall, by networks of equal size."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from normplace.errors import unknown
from normplace.lab.study import Outcome, Part
from normplace.models.sequence import count_parameters
from normplace.studies.causalrn.networks import NETWORKS, TITLES, build
from normplace.tasks.sequences import Recall
from normplace.train.fit import pick_device
from normplace.train.sequence import SequenceTraining, fit_sequence, likeliest

EXAM = 256
PAIRS: dict[str, tuple[int, ...]] = {"smoke": (2,), "laptop": (), "full": (16,)}
"""Two cores would take too long to learn it."""
SIZES: dict[str, dict[str, Any]] = {
    "smoke": {"context": 8, "vocab": 16, "dim": 16, "depth": 1, "steps": 3, "batch_size": 4},
    "laptop": {},
    "full": {},
}


@dataclass(frozen=True, kw_only=True)
class RecallTrial:
    """One network on pairs and queries.

    Args:
        network: Which; at CausalRN's number of parameters.
        pairs: Keys with their values.
        seed: Of the initial weights and the rows.
        context: Positions of a row.
        vocab: Tokens.
        dim: Width of CausalRN.
        depth: Blocks.
        heads: Of attention.
        steps: Of training.
        batch_size: Rows in a step.
        learning_rate: AdamW's.
        warm_up: Steps in which it rises.
        precision: ``float32`` or ``bfloat16``, of matrix products.
        device: Where it trains: ``auto``, ``cpu`` or ``cuda``.
        cuda_graph: Whether a GPU replays one recorded step.
    """

    network: str
    pairs: int
    seed: int
    context: int = 64
    vocab: int = 256
    dim: int = 128
    depth: int = 4
    heads: int = 1
    steps: int = 2000
    batch_size: int = 64
    learning_rate: float = 1e-3
    warm_up: int = 50
    precision: str = "float32"
    device: str = "auto"
    cuda_graph: bool = True

    def __post_init__(self) -> None:
        if self.network not in NETWORKS:
            raise unknown("network", self.network, NETWORKS)


def plan(scale: str) -> Iterator[RecallTrial]:
    """Every network."""
    for pairs in PAIRS[scale][::-1]:
        for seed in range(2 if scale == "smoke" else 3):
            for network in NETWORKS:
                yield RecallTrial(network=network, pairs=pairs, seed=seed, **SIZES[scale])


def run(trial: RecallTrial) -> Outcome:
    """Train, and judge by new rows."""
    device = pick_device(trial.device)
    task = Recall(trial.pairs, trial.context, trial.vocab)
    with torch.random.fork_rng(list(range(torch.cuda.device_count()))):
        torch.manual_seed(trial.seed)
        shape: dict[str, Any] = {"heads": trial.heads, "context": task.context}
        model = build(trial.network, task.vocab_size, trial.dim, trial.depth, **shape).to(device)
    train, exam = (torch.Generator(device).manual_seed(2 * trial.seed + n) for n in range(2))
    training = SequenceTraining(
        trial.steps,
        trial.batch_size,
        trial.learning_rate,
        warm_up=trial.warm_up,
        precision=trial.precision,
        cuda_graph=trial.cuda_graph,
    )
    course = fit_sequence(model, task, training, train)
    batch = task.draw(EXAM, exam)
    scores = task.judge(likeliest(model, batch.inputs, precision=trial.precision), batch)
    metrics = {"accuracy": float(scores.character.mean()), "parameters": count_parameters(model)}
    return Outcome(metrics, series={"step": course.steps, "loss": course.loss})


PART = Part(
    name="recall",
    config=RecallTrial,
    plan=plan,
    run=run,
    label=lambda trial: f"recall of {trial.pairs} pairs, {TITLES[trial.network]}, seed {trial.seed}",
)

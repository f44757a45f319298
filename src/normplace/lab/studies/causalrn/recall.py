"""Multi-query associative recall, by networks of equal size."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from normplace._shared.device import pick_device
from normplace.lab.studies.causalrn.networks import NETWORKS, TITLES, build
from normplace.lab.studies.causalrn.trained import Trained
from normplace.lab.tasks.sequences import Recall
from normplace.lab.train.sequence import fit_sequence, predict_tokens
from normplace.lab.trials.study import Outcome, Part
from normplace.models.sequence import count_parameters

EXAM = 256
SHOWN = NETWORKS[:4]
"""All but gated linear attention, which trains ten times slower than the others."""
PAIRS: dict[str, tuple[int, ...]] = {"smoke": (2,), "laptop": (), "full": (16,)}
"""Two cores would take too long to learn it."""
SIZES: dict[str, dict[str, Any]] = {
    "smoke": {"context": 8, "vocab": 16, "dim": 16, "depth": 1, "steps": 3, "batch_size": 4},
    "laptop": {},
    "full": {},
}


@dataclass(frozen=True, kw_only=True)
class RecallTrial(Trained):
    """One network on pairs and queries.

    Args:
        network: Which; at CausalRN's number of parameters.
        pairs: Keys with their values.
        context: Positions of a row.
        vocab: Tokens.
        heads: Of attention.
    """

    network: str
    pairs: int
    context: int = 64
    vocab: int = 256
    heads: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        self.choose("network", self.network, NETWORKS)


def plan(scale: str) -> Iterator[RecallTrial]:
    """Every network that is shown."""
    for pairs in PAIRS[scale][::-1]:
        for seed in range(2 if scale == "smoke" else 3):
            for network in SHOWN:
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
    course = fit_sequence(model, task, trial.training(), train)
    batch = task.draw(EXAM, exam)
    scores = task.judge(predict_tokens(model, batch.inputs, precision=trial.precision), batch)
    metrics = {"accuracy": float(scores.character.mean()), "parameters": count_parameters(model)}
    return Outcome(metrics, series={"step": course.steps, "loss": course.loss})


PART = Part(
    name="recall",
    config=RecallTrial,
    plan=plan,
    run=run,
    label=lambda trial: f"recall of {trial.pairs} pairs, {TITLES[trial.network]}, seed {trial.seed}",
)

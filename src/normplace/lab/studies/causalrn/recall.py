"""Multi-query associative recall at equal parameter counts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from normplace._shared.device import pick_device
from normplace.lab.studies.causalrn.networks import NETWORKS, TITLES, build
from normplace.lab.studies.causalrn.training import TrainedTrial
from normplace.lab.tasks.sequences import Recall
from normplace.lab.train.sequence import fit_sequence, predict_tokens
from normplace.lab.trials.study import Outcome, Part
from normplace.models.sequence import count_parameters

EXAM = 256
"""Test sequences."""
SHOWN = NETWORKS[:4]
"""All networks except gated linear attention, which trains ten times slower."""
PAIRS: dict[str, tuple[int, ...]] = {"smoke": (2,), "laptop": (), "full": (16,)}
"""Numbers of pairs by scale; none at ``laptop``, where training would take too long."""
SIZES: dict[str, dict[str, Any]] = {
    "smoke": {"context": 8, "vocab": 16, "dim": 16, "depth": 1, "steps": 3, "batch_size": 4},
    "laptop": {},
    "full": {},
}


@dataclass(frozen=True, kw_only=True)
class RecallTrial(TrainedTrial):
    """One network on key-value pairs and queries.

    Args:
        network: Name of the network, at CausalRN's parameter count.
        pairs: Number of key-value pairs.
        context: Context length in tokens.
        vocab: Vocabulary size.
        heads: Number of attention heads.
    """

    network: str
    pairs: int
    context: int = 64
    vocab: int = 256
    heads: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_choice("network", self.network, NETWORKS)


def plan(scale: str) -> Iterator[RecallTrial]:
    """Every network of :data:`SHOWN`."""
    for pairs in PAIRS[scale][::-1]:
        for seed in range(2 if scale == "smoke" else 3):
            for network in SHOWN:
                yield RecallTrial(network=network, pairs=pairs, seed=seed, **SIZES[scale])


def run(trial: RecallTrial) -> Outcome:
    """Train and test on new sequences."""
    device = pick_device(trial.device)
    task = Recall(trial.pairs, trial.context, trial.vocab)
    shape: dict[str, Any] = {"heads": trial.heads, "context": task.context}
    model = trial.initialize(lambda: build(trial.network, task.vocab_size, trial.dim, trial.depth, **shape))
    train, test = (torch.Generator(device).manual_seed(2 * trial.seed + n) for n in range(2))
    losses = fit_sequence(model, task, trial.training(), train)
    batch = task.draw(EXAM, test)
    scores = task.score(predict_tokens(model, batch.inputs, precision=trial.precision), batch)
    metrics = {"accuracy": float(scores.character.mean()), "parameters": count_parameters(model)}
    return Outcome(metrics, series={"step": losses.steps, "loss": losses.loss})


PART = Part(
    name="recall",
    config=RecallTrial,
    plan=plan,
    run=run,
    label=lambda trial: f"recall of {trial.pairs} pairs, {TITLES[trial.network]}, seed {trial.seed}",
)

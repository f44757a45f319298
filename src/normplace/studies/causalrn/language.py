"""Bits per byte of text, by networks with equal numbers of parameters that have read equally many bytes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from normplace.errors import unknown
from normplace.lab.study import Outcome, Part
from normplace.models.sequence import SequenceModel, count_parameters, matched_width
from normplace.studies.causalrn.networks import NETWORKS, TITLES, mixer_of
from normplace.tasks.sequences import load_text
from normplace.tasks.sequences.text import STANDARD_LIBRARY
from normplace.tasks.sequences.text import obstacle as text_obstacle
from normplace.train.fit import pick_device
from normplace.train.sequence import SequenceTraining, bits_per_token, fit_sequence

BYTES = 256
SIZES: dict[str, dict[str, Any]] = {
    "smoke": {"context": 8, "dim": 16, "depth": 1, "heads": 2, "steps": 3, "batch_size": 2, "exam": 4},
    "laptop": {"context": 32, "dim": 32, "depth": 2, "heads": 2, "steps": 300, "batch_size": 8, "exam": 128}
    | {"learning_rate": 5e-3, "warm_up": 20},
    "full": {},
}
SHOWN = {"smoke": NETWORKS[:4], "laptop": NETWORKS[:4], "full": NETWORKS}


@dataclass(frozen=True, kw_only=True)
class LanguageTrial:
    """One network on bytes.

    Args:
        network: Which; the Transformer's number of parameters is the measure.
        seed: Of the initial weights and the windows.
        text: What :func:`load_text` reads.
        context: Positions of a row.
        dim: Width of every stream.
        depth: Blocks.
        heads: Of attention.
        steps: Of training.
        batch_size: Rows in a step.
        learning_rate: AdamW's; it falls to a tenth along a cosine.
        warm_up: Steps in which it rises.
        exam: Rows of the validation part that are judged.
        precision: ``float32`` or ``bfloat16``, of matrix products.
        device: Where it trains: ``auto``, ``cpu`` or ``cuda``.
        cuda_graph: Whether a GPU replays one recorded step.
    """

    network: str
    seed: int
    text: str = STANDARD_LIBRARY
    context: int = 256
    dim: int = 128
    depth: int = 4
    heads: int = 4
    steps: int = 2000
    batch_size: int = 32
    learning_rate: float = 1e-3
    warm_up: int = 100
    exam: int = 512
    precision: str = "float32"
    device: str = "auto"
    cuda_graph: bool = True

    def __post_init__(self) -> None:
        if self.network not in NETWORKS:
            raise unknown("network", self.network, NETWORKS)


def plan(scale: str) -> Iterator[LanguageTrial]:
    """Every network that is shown at this scale."""
    for seed in range(2 if scale == "smoke" else 3):
        for network in SHOWN[scale]:
            yield LanguageTrial(network=network, seed=seed, **SIZES[scale])


def build(trial: LanguageTrial) -> SequenceModel:
    """The trial's network: of one width, CausalRN's pairs with as many channels as make up the parameters."""
    make = partial(SequenceModel, BYTES, trial.dim, trial.depth, context=trial.context)
    if trial.network not in ("pairwise", "scan"):
        return make(mixer=mixer_of(trial.network, trial.heads))
    measure = count_parameters(make(mixer=mixer_of("transformer", trial.heads), device="meta"))
    hidden = matched_width(lambda width: make(mixer=mixer_of(trial.network, hidden=width)), measure)
    return make(mixer=mixer_of(trial.network, hidden=hidden))


def run(trial: LanguageTrial) -> Outcome:
    """Train, and judge by the validation part."""
    device = pick_device(trial.device)
    text = load_text(trial.text, trial.context).to(device)
    with torch.random.fork_rng(list(range(torch.cuda.device_count()))):
        torch.manual_seed(trial.seed)
        model = build(trial).to(device)
    generator = torch.Generator(device).manual_seed(trial.seed)
    training = SequenceTraining(
        trial.steps,
        trial.batch_size,
        trial.learning_rate,
        warm_up=trial.warm_up,
        schedule="cosine",
        precision=trial.precision,
        cuda_graph=trial.cuda_graph,
    )
    course = fit_sequence(model, text, training, generator)
    exam = text.exam(trial.exam)
    return Outcome(
        metrics={
            "bits_per_byte": bits_per_token(model, *exam, precision=trial.precision),
            "parameters": count_parameters(model),
            "digest": int(text.digest[:12], 16),
        },
        series={"step": course.steps, "loss": course.loss},
    )


PART = Part(
    name="language",
    config=LanguageTrial,
    plan=plan,
    run=run,
    label=lambda trial: f"bytes of {trial.text}, {TITLES[trial.network]}, seed {trial.seed}",
    ready=lambda trial: text_obstacle(trial.text),
)

"""Language modeling on bytes, at equal parameter counts and equal numbers of bytes read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from normplace._shared.device import pick_device
from normplace.errors import expect_choice
from normplace.lab.studies.causalrn.networks import NETWORKS, TITLES, mixer_of
from normplace.lab.studies.causalrn.training import TrainedTrial
from normplace.lab.tasks.data_files import unavailable_reason
from normplace.lab.tasks.sequences import load_text
from normplace.lab.tasks.sequences.text import STANDARD_LIBRARY, find_text
from normplace.lab.train.sequence import bits_per_token, fit_sequence
from normplace.lab.trials.study import Outcome, Part
from normplace.models.sequence import SequenceModel, count_parameters, matched_width

BYTES = 256
SIZES: dict[str, dict[str, Any]] = {
    "smoke": {"context": 8, "dim": 16, "depth": 1, "heads": 2, "steps": 3, "batch_size": 2, "exam": 4},
    "laptop": {"context": 32, "dim": 32, "depth": 2, "heads": 2, "steps": 300, "batch_size": 8, "exam": 128}
    | {"learning_rate": 5e-3, "warm_up": 20},
    "full": {},
}
SHOWN = NETWORKS[:4]
"""All networks except gated linear attention, which trains ten times slower."""


@dataclass(frozen=True, kw_only=True)
class LanguageTrial(TrainedTrial):
    """One network on bytes.

    Args:
        network: Name of the network, at the Transformer's parameter count.
        text: Name of the text that :func:`load_text` reads.
        context: Context length in tokens.
        heads: Number of attention heads.
        exam: Number of validation sequences.
    """

    network: str
    text: str = STANDARD_LIBRARY
    context: int = 256
    heads: int = 4
    batch_size: int = 32
    warm_up: int = 100
    exam: int = 512

    def __post_init__(self) -> None:
        super().__post_init__()
        expect_choice("network", self.network, NETWORKS)


def plan(scale: str) -> Iterator[LanguageTrial]:
    """Every network of :data:`SHOWN`."""
    for seed in range(2 if scale == "smoke" else 3):
        for network in SHOWN:
            yield LanguageTrial(network=network, seed=seed, **SIZES[scale])


def matched_network(network: str, vocab_size: int, dim: int, depth: int, *, heads: int, context: int) -> SequenceModel:
    """Build a network with the parameter count of a Transformer, with initial weights from the global RNG.

    All networks have the same width; the number of pair channels of CausalRN matches the parameter counts.
    """
    make = partial(SequenceModel, vocab_size, dim, depth, context=context)
    if network not in ("pairwise", "scan"):
        return make(mixer=mixer_of(network, heads))
    target = count_parameters(make(mixer=mixer_of("transformer", heads), device="meta"))
    hidden = matched_width(lambda width: make(mixer=mixer_of(network, hidden=width)), target)
    return make(mixer=mixer_of(network, hidden=hidden))


def build(trial: LanguageTrial) -> SequenceModel:
    """The trial's network."""
    return matched_network(trial.network, BYTES, trial.dim, trial.depth, heads=trial.heads, context=trial.context)


def run(trial: LanguageTrial) -> Outcome:
    """Train and evaluate on the validation text."""
    device = pick_device(trial.device)
    text = load_text(trial.text, trial.context).to(device)
    model = trial.initialize(lambda: build(trial))
    generator = torch.Generator(device).manual_seed(trial.seed)
    losses = fit_sequence(model, text, trial.training(schedule="cosine"), generator)
    exam = text.evaluation_batch(trial.exam)
    return Outcome(
        metrics={
            "bits_per_byte": bits_per_token(model, *exam, precision=trial.precision),
            "parameters": count_parameters(model),
            "digest": int(text.digest[:12], 16),
        },
        series={"step": losses.steps, "loss": losses.loss},
    )


PART = Part(
    name="language",
    config=LanguageTrial,
    plan=plan,
    run=run,
    label=lambda trial: f"bytes of {trial.text}, {TITLES[trial.network]}, seed {trial.seed}",
    unavailable_reason=lambda trial: unavailable_reason(find_text, trial.text),
)

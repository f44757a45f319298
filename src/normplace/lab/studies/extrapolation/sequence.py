"""Train a small Transformer on short straight lines and continue them beyond the trained positions (Figure 7)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from normplace.errors import expect_choice, expect_ranges
from normplace.lab.studies.extrapolation.networks import SequenceRegressor
from normplace.lab.tasks.regression.toy import growth_exponent
from normplace.lab.tasks.sequences.straight_lines import (
    PROMPT_LENGTH,
    TEST_LENGTH,
    TRAIN_LENGTH,
    line_sequences,
    roll_out,
)
from normplace.lab.train.fit import fit
from normplace.lab.trials.study import Outcome, Part

PLACES = ("none", "embedding")
FAR, FARTHEST = 100.0, 1000.0
CEILING = 1e30
"""Predictions are clipped here, so that an overflow counts as large."""


@dataclass(frozen=True)
class SequenceTrial:
    """One Transformer on random lines.

    Args:
        norm_at: ``none``, or ``embedding`` for one LayerNorm after the input embedding.
        seed: Random seed of the lines, the initial weights and the batch order.
        width: Width of the stream.
        heads: Number of attention heads.
        layers: Number of pairs of attention and MLP.
        sequences: Number of training lines; as many test lines, up to 64.
        epochs: Number of epochs.
        batch_size: Lines per step.
        learning_rate: Adam's learning rate.
    """

    norm_at: str
    seed: int
    width: int = 64
    heads: int = 4
    layers: int = 2
    sequences: int = 1024
    epochs: int = 100
    batch_size: int = 64
    learning_rate: float = 1e-3

    def __post_init__(self) -> None:
        expect_choice("position of the LayerNorm", self.norm_at, PLACES)
        expect_ranges(self, "width", "heads", "layers", "sequences", "epochs", "batch_size", least=1)


def plan(scale: str) -> Iterator[SequenceTrial]:
    """Both networks. The sizes of data and training are our choices; the paper gives neither."""
    seeds = 2 if scale == "smoke" else 5
    for seed in range(seeds):
        for norm_at in PLACES:
            if scale == "smoke":
                yield SequenceTrial(norm_at, seed, sequences=8, epochs=2, batch_size=4)
            elif scale == "laptop":
                yield SequenceTrial(norm_at, seed, sequences=512, epochs=25, batch_size=32)
            else:
                yield SequenceTrial(norm_at, seed, epochs=400)


def run(trial: SequenceTrial) -> Outcome:
    """Train, continue new lines from their first values, and measure growth on scaled lines."""
    generator = torch.Generator().manual_seed(trial.seed)
    train = line_sequences(trial.sequences, TRAIN_LENGTH, generator)
    test = line_sequences(min(trial.sequences, 64), TEST_LENGTH, generator)
    model = SequenceRegressor(trial.width, trial.heads, trial.layers, trial.norm_at == "embedding", generator)
    loss = fit(
        model,
        train[:, :-1],
        train[:, 1:],
        epochs=trial.epochs,
        learning_rate=trial.learning_rate,
        batch_size=trial.batch_size,
        generator=generator,
    )
    continuation = roll_out(model, test[:, :PROMPT_LENGTH], TEST_LENGTH).nan_to_num(CEILING).clamp(-CEILING, CEILING)
    error = (continuation - test).abs()
    with torch.no_grad():
        guided = model(test[:, :-1])
        reach = {factor: float(model(factor * test[:, :TRAIN_LENGTH])[:, -1].abs().max()) for factor in (FAR, FARTHEST)}
    largest = float(train.abs().max())
    beyond = continuation[:, TRAIN_LENGTH:]
    return Outcome(
        metrics={
            "train_mse": loss,
            "error_trained": float(error[:, PROMPT_LENGTH:TRAIN_LENGTH].mean()),
            "error_beyond": float(error[:, TRAIN_LENGTH:].mean()),
            "guided_error_beyond": float((guided[:, TRAIN_LENGTH - 1 :] - test[:, TRAIN_LENGTH:]).abs().mean()),
            "reach_decades": math.log10(float(beyond.abs().max()) / largest),
            "truth_in_targets": float(test.abs().max()) / largest,
            "growth": growth_exponent(reach[FAR], reach[FARTHEST], FARTHEST / FAR),
        },
        series={
            "position": list(range(PROMPT_LENGTH + 1, TEST_LENGTH + 1)),
            "error": error[:, PROMPT_LENGTH:].mean(0).tolist(),
            "largest": continuation[:, PROMPT_LENGTH:].abs().amax(0).tolist(),
        },
    )


PART = Part(
    name="sequence",
    config=SequenceTrial,
    plan=plan,
    run=run,
    label=lambda trial: f"sequence, LN {trial.norm_at}, seed {trial.seed}",
)

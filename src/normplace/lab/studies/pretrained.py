"""What the pretraining parts of the studies have in common: their settings, their text and their held-out loss."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from normplace._shared.fields import check_types
from normplace.errors import expect_ranges
from normplace.lab.tasks.data_files import unavailable_reason
from normplace.lab.tasks.sequences.text import STANDARD_LIBRARY, find_text
from normplace.lab.train.config import TrainConfig
from normplace.lab.train.packages import PACKAGES
from normplace.lab.train.steps import token_loss


@dataclass(frozen=True, kw_only=True)
class PretrainedTrial:
    """One language model on one text; a study adds what its networks differ in, and its default shape.

    Args:
        learning_rate: AdamW's peak learning rate; a cosine schedule decays it to a tenth.
        seed: Random seed of the initial weights and the data order.
        tokens: Training tokens, rounded to whole steps.
        text: Name of the text: ``packages``, ``python``, or one that :func:`find_text` finds.
        dim: Width of the stream.
        depth: Number of layers.
        heads: Number of attention heads.
        context: Context length in tokens.
        batch_size: Sequences per step.
        accumulate: Gradient accumulation steps.
        warm_up: Fraction of the steps in which the learning rate rises.
        weight_decay: AdamW's weight decay of matrices.
        exam: Held-out sequences; every other one selects learning rates, the rest give the score.
        precision: ``float32`` or ``bfloat16``, of matrix products.
        device: Device to train on: ``auto``, ``cpu`` or ``cuda``.

    Raises:
        UsageError: If a value has the wrong type or is out of range.
    """

    learning_rate: float
    seed: int
    tokens: int
    text: str = PACKAGES
    dim: int
    depth: int
    heads: int
    context: int
    batch_size: int
    accumulate: int = 1
    warm_up: float = 0.05
    weight_decay: float = 0.1
    exam: int
    precision: str = "bfloat16"
    device: str = "auto"

    def __post_init__(self) -> None:
        check_types(self)
        expect_ranges(self, "exam", "tokens", least=2)
        expect_ranges(self, "dim", "depth", "heads", least=1)
        self.train_config()  # raises for the other fields

    @property
    def steps(self) -> int:
        """Number of optimizer steps."""
        return max(1, round(self.tokens / (self.context * self.batch_size)))

    def train_config(self) -> TrainConfig:
        """The settings of the training loop."""
        return TrainConfig(
            context=self.context,
            batch=self.batch_size,
            accumulate=self.accumulate,
            steps=self.steps,
            learning_rate=self.learning_rate,
            warm_up=self.warm_up,
            weight_decay=self.weight_decay,
            seed=self.seed,
            precision=self.precision,
        )


def text_source(name: str) -> str:
    """The text of a trial as a source of :func:`~normplace.lab.train.corpus.load_corpus`.

    Raises:
        UsageError: If there is no such text.
    """
    return name if name in {PACKAGES, STANDARD_LIBRARY} else str(find_text(name))


def missing_text(trial: PretrainedTrial) -> str | None:
    """Why the text of a trial cannot be read; None if it can."""
    return unavailable_reason(text_source, trial.text)


@torch.no_grad()
def held_out_loss(model: nn.Module, sequences: Tensor, trial: PretrainedTrial) -> float:
    """Nats per token of held-out sequences."""
    model.eval()
    parts = sequences.split(max(1, trial.batch_size // trial.accumulate))
    total = torch.stack([token_loss(model, part, trial.precision, "sum").double() for part in parts]).sum()
    return float(total) / (len(sequences) * trial.context)

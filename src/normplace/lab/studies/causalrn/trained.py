"""What every trial that trains a network says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from normplace.errors import expect_at_least, unknown
from normplace.lab.train.sequence import SequenceTraining


@dataclass(frozen=True, kw_only=True)
class Trained:
    """The size of a network and how it is trained.

    Args:
        seed: Of the initial weights and the data.
        dim: Width of CausalRN.
        depth: Blocks.
        steps: Of training, at most.
        batch_size: Rows in a step.
        learning_rate: AdamW's, at its highest.
        warm_up: Steps in which it rises.
        precision: ``float32`` or ``bfloat16``, of matrix products.
        device: Where it trains: ``auto``, ``cpu`` or ``cuda``.
        cuda_graph: Whether a GPU replays one recorded step.
    """

    seed: int
    dim: int = 128
    depth: int = 4
    steps: int = 2000
    batch_size: int = 64
    learning_rate: float = 1e-3
    warm_up: int = 50
    precision: str = "float32"
    device: str = "auto"
    cuda_graph: bool = True

    def __post_init__(self) -> None:
        expect_at_least(1, self, "dim", "depth", "steps", "batch_size")

    def choose(self, kind: str, choice: str, choices: Any) -> None:
        """Refuse a choice that is not offered.

        Raises:
            UsageError: If it is not.
        """
        if choice not in choices:
            raise unknown(kind, choice, choices)

    def training(self, **options: Any) -> SequenceTraining:
        """The plan of its training, with what else a part asks for."""
        return SequenceTraining(
            self.steps,
            self.batch_size,
            self.learning_rate,
            warm_up=self.warm_up,
            precision=self.precision,
            cuda_graph=self.cuda_graph,
            **options,
        )

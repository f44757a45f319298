"""A tiny network and text for the tests of training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from normplace.lab.train.config import TrainConfig
from normplace.lab.train.corpus import Corpus
from normplace.lab.train.distributed import ProcessGroup
from normplace.lab.train.observer import StepStats, TrainingObserver
from normplace.models.transformer import AttentionConfig, Transformer, TransformerConfig

ALONE = ProcessGroup(0, 1, torch.device("cpu"), is_distributed=False)


def corpus(tokens: int = 2000) -> Corpus:
    """Counting with random skips, which is learned in a few steps."""
    rng = np.random.default_rng(0)
    text = (np.arange(tokens) + rng.integers(2, size=tokens).cumsum()) % 31
    cut = tokens * 9 // 10
    return Corpus("counting", text[:cut].astype(np.uint8), text[cut:].astype(np.uint8), 31, 1.0, "0" * 64)


def network(placement: str = "peri", **changes: Any) -> Transformer:
    """Two layers."""
    config = TransformerConfig(31, 16, 2, placement, attention=AttentionConfig(heads=2), **changes)
    return Transformer(config, generator=torch.Generator().manual_seed(0))


def train_config(**changes: Any) -> TrainConfig:
    """A few steps of four sequences."""
    small = {
        "context": 8,
        "batch": 4,
        "steps": 8,
        "learning_rate": 1e-2,
        "evaluate_sequences": 8,
        "peak_tflops": 1.0,
        "device": "cpu",
    }
    return TrainConfig(**{**small, "evaluate_every": 4, "checkpoint_every": 4, **changes})


class StepObserver(TrainingObserver):
    """Calls a function with the numbers of every step."""

    def __init__(self, watch: Callable[[StepStats], object]) -> None:
        self.watch = watch

    def on_step(self, stats: StepStats) -> None:
        self.watch(stats)

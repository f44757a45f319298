"""Small runs for the tests of evaluation, without training."""

from __future__ import annotations

import torch

from normplace.lab.train.run_folder import Run
from normplace.lab.train.tokenizer import ByteTokenizer
from normplace.models.transformer import AttentionConfig, PositionConfig, Transformer, TransformerConfig


def untrained_run(
    context: int | None = 16, placement: str = "peri", positions: int | None = None, norm: str = "rms"
) -> Run:
    """A byte-level network with random weights, as if a run had trained it."""
    kind = PositionConfig("learned", length=positions) if positions else PositionConfig()
    config = TransformerConfig(256, 16, 1, placement, norm, attention=AttentionConfig(heads=2), positions=kind, std=0.5)
    model = Transformer(config, generator=torch.Generator().manual_seed(0)).eval()
    result = {} if context is None else {"config": {"context": context}}
    return Run(None, model, ByteTokenizer(), "bytes", result)

"""Tiny Hugging Face models with random weights, and the slot of each of their norms as their forward code has it.

Names are as the modules are called, with ``*`` for numbers. The comment beside a name that misleads says how.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

IDS = torch.arange(3, 9)[None]
IMAGE = torch.linspace(-1, 1, 3 * 32 * 32).view(1, 3, 32, 32)
TEXT = {
    "vocab_size": 40, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
    "max_position_embeddings": 32, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
GROUPED = {**TEXT, "num_key_value_heads": 2}
HEADS = {**GROUPED, "head_dim": 8}
GPT = {
    "vocab_size": 40,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 32,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
VISION = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48, "image_size": 32,
    "patch_size": 8,
}  # fmt: skip
SEQUENCES = {"input_ids": IDS, "decoder_input_ids": IDS}


@dataclass(frozen=True)
class Architecture:
    """A model class, its configuration, what to call it with, and the truth.

    A value of the configuration that is a configuration itself is a function that builds it. A norm that is used more
    than once in different slots has a tuple of them, in the order of its uses.
    """

    name: str
    config: Mapping[str, Any]
    truth: Mapping[str, str | tuple[str, ...]]
    placement: str | None
    inputs: Mapping[str, Any] = field(default_factory=lambda: {"input_ids": IDS})
    findings: frozenset[str] = frozenset()
    model: str = ""

    def build(self):
        import transformers

        values = {key: value() if callable(value) else value for key, value in self.config.items()}
        config = getattr(transformers, f"{self.name}Config")(**values)
        torch.manual_seed(0)
        return getattr(transformers, self.model or f"{self.name}Model")(config)

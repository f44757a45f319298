"""One model and the slots of its norms, and the small sizes that the cases share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

# A slot, or the slots of consecutive uses of one module, repeated as often as it is used.
Slots = str | tuple[str, ...]

IDS = torch.arange(3, 9)[None]
IMAGE = torch.linspace(-1, 1, 3 * 32 * 32).view(1, 3, 32, 32)
TEXT = {
    "vocab_size": 40, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
    "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
GROUPED = {**TEXT, "num_key_value_heads": 2}
HEADS = {**GROUPED, "head_dim": 8}
VISION = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48, "image_size": 32,
    "patch_size": 8,
}  # fmt: skip
SEQUENCES = {
    "vocab_size": 40, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48, "encoder_attention_heads": 4, "decoder_attention_heads": 4, "max_position_embeddings": 64,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1,
}  # fmt: skip
WAVES = {
    "vocab_size": 40, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
    "conv_dim": (8, 8), "conv_stride": (5, 2), "conv_kernel": (10, 3), "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2, "apply_spec_augment": False,
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A model, its inputs and the truth about its norms.

    Attributes:
        name: The model, by the name its library gives it.
        build: Returns the model.
        inputs: Returns the keyword arguments, or the tuple of positional ones, it is called with.
        truth: Patterns of module names, where ``*`` is any part of one component, and the slot of each norm that
            matches; the first match counts. A pattern that ends in a colon is a module that computes its norms itself.
        reason: The forward code that the truth was read from.
    """

    name: str
    build: Callable[[], nn.Module]
    inputs: Callable[[], Mapping[str, Any] | tuple[Any, ...]]
    truth: Mapping[str, Slots]
    reason: str


def hugging_face(
    name: str, config: Mapping[str, Any], truth: Mapping[str, Slots], reason: str, inputs: Any = None, model: str = ""
) -> Case:
    """A model of transformers, from its configuration."""

    def build() -> nn.Module:
        import transformers

        made = getattr(transformers, f"{name}Config")(**config)
        return getattr(transformers, model or f"{name}Model")(made)

    return Case(name, build, inputs or (lambda: {"input_ids": IDS}), truth, reason)


def noise(*shape: int) -> torch.Tensor:
    """Normal noise of a fixed seed."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))

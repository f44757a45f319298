"""Read the weights of the official CausalRN code (github.com/FrankCuiCN/causal-relation-networks).

Its models consist of ``pre_block`` (embeddings ``wte`` and ``wpe``), ``block_all`` (``fc_1``, ``fc_2``, ``fc_3`` of
each block) and ``post_block`` (``fc_cls``). Every norm has no gain and an eps of 0.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from normplace.errors import UsageError

COMPILED = "_orig_mod."
"""The prefix of names that a compiled model was saved with."""
BLOCK = re.compile(r"block_all\.(\d+)\.(fc_[123])\.(weight|bias)")
RENAMED = {
    "pre_block.wte.weight": "embed.weight",
    "pre_block.wpe.weight": "position_embedding.weight",
    "post_block.fc_cls.weight": "head.weight",
}
MATRICES = {"fc_1": "query", "fc_2": "key", "fc_3": "output"}
IGNORED = ("pre_block.pos",)
"""Buffers without learned numbers."""


def read_official(weights: str | Path | Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of an official model, without the prefix of compiled models.

    Raises:
        UsageError: If the file cannot be read, or holds something else.
    """
    if isinstance(weights, str | Path):
        try:
            weights = torch.load(weights, map_location="cpu", weights_only=True)
        except Exception as error:
            raise UsageError(
                f"cannot read a state dict from {weights} ({type(error).__name__}): pass a file of the official code's "
                "torch.save."
            ) from error
    if not isinstance(weights, Mapping) or not all(isinstance(value, Tensor) for value in weights.values()):
        raise UsageError("the official weights are a state dict, a mapping from names to tensors.")
    return {name.removeprefix(COMPILED): tensor for name, tensor in weights.items()}


def convert_official(tensors: Mapping[str, Tensor], pair_norm: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The arguments of a :class:`CausalRN` and its state dict.

    Raises:
        UsageError: If the tensors are not those of a relation network of the official code.
    """
    state: dict[str, Tensor] = {}
    biases: dict[str, Tensor] = {}
    depth = 0
    for name, tensor in tensors.items():
        block = BLOCK.fullmatch(name)
        if name in RENAMED:
            state[RENAMED[name]] = tensor
        elif block is not None:
            number, matrix, kind = int(block[1]), block[2], block[3]
            depth = max(depth, number + 1)
            target = f"layers.{number}.0.branch.{MATRICES[matrix]}.{kind}"
            (biases if (matrix, kind) == ("fc_2", "bias") else state)[target] = tensor
        elif name not in IGNORED:
            raise UsageError(f"{name!r} is not a weight of the official relation networks on text or copying.")
    missing = [name for name, target in RENAMED.items() if target not in state]
    missing += [
        f"block_all.{number}.{matrix}.weight"
        for number in range(depth)
        for matrix, target in MATRICES.items()
        if f"layers.{number}.0.branch.{target}.weight" not in state
    ]
    if missing or not depth:
        raise UsageError(f"the official weights have no {(missing or ['block_all.0.fc_1.weight'])[0]!r}.")
    _fill_biases(state, biases, depth, pair_norm)
    (vocab_size, dim), context = state["embed.weight"].shape, state["position_embedding.weight"].shape[0]
    hidden = state["layers.0.0.branch.query.weight"].shape[0]
    arguments = {"vocab_size": vocab_size, "dim": dim, "depth": depth, "context": context, "hidden": hidden}
    return arguments, state


def _fill_biases(state: dict[str, Tensor], biases: Mapping[str, Tensor], depth: int, pair_norm: str) -> None:
    """Add zeros for biases that are switched off, and the bias of ``fc_2``, which :class:`CausalRN` does not have."""
    for number in range(depth):
        prefix = f"layers.{number}.0.branch."
        for matrix in ("query", "output"):
            weight = state[f"{prefix}{matrix}.weight"]
            state.setdefault(f"{prefix}{matrix}.bias", weight.new_zeros(len(weight)))
        bias = biases.get(f"{prefix}key.bias")
        if bias is None or not bias.count_nonzero():
            continue
        if pair_norm == "separate":
            raise UsageError(
                f"block_all.{number}.fc_2 has a bias, which a CausalRN with separate norms does not have: only joint "
                "norms, or none, can be loaded."
            )
        state[f"{prefix}query.bias"] = state[f"{prefix}query.bias"] + bias  # a pair reads only their sum

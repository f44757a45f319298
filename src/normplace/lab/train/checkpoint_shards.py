"""Which rows of each tensor a process holds, and how they are read back from the files of any number of processes.

A sharded tensor is split along its first dimension; here a *row* is an index of that dimension.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from normplace.errors import UsageError
from normplace.lab.train.distributed import ProcessGroup, unwrap
from normplace.models.weights import DTYPES, Damage

RNG_STATE = "random/"
"""Prefix of the keys of RNG states."""
OPTIMIZER_STATE = ("exp_avg", "exp_avg_sq", "step")
"""Tensors that AdamW keeps per parameter."""


@dataclass(frozen=True)
class TensorShard:
    """The rows of a tensor that one process holds.

    Args:
        values: These rows; the whole tensor if it is not sharded.
        first: Index of the first row.
        total: Number of rows of the whole tensor.
    """

    values: Tensor
    first: int
    total: int


@dataclass(frozen=True)
class StoredShard:
    """Some rows of a tensor in a file.

    Args:
        reader: The open file.
        first: Index of the first row.
        count: Number of rows.
        total: Number of rows of the whole tensor.
        inner_shape: The dimensions after the first; None for a scalar.
        dtype: Name of the dtype in safetensors.
    """

    reader: Any
    first: int
    count: int
    total: int
    inner_shape: tuple[int, ...] | None
    dtype: str


def own_shards(
    model: nn.Module, optimizer: torch.optim.Optimizer, group: ProcessGroup, replicated: bool = False
) -> dict[str, TensorShard]:
    """Return the shards of model and optimizer that this process writes, by key.

    Args:
        model: The distributed model.
        optimizer: Its optimizer.
        group: The processes.
        replicated: Whether to include unsharded tensors in every process; by default only the first one writes them.
    """
    from torch.distributed.tensor import DTensor, Shard

    shards = {}
    for key, value in named_tensors(model, optimizer):
        if isinstance(value, DTensor):
            assert value.placements == (Shard(0),)
            total = value.shape[0]
            first = min(total, group.rank * -(-total // group.size))
            shards[key] = TensorShard(value.to_local().detach(), first, total)
        elif replicated or group.is_first:
            shards[key] = TensorShard(value.detach(), 0, value.shape[0] if value.ndim else 1)
    return shards


def named_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of model and optimizer with the keys they have in a checkpoint."""
    for name, value in unwrap(model).state_dict().items():
        yield f"model/{name}", value
    for name, parameter in unwrap(model).named_parameters():
        for kind, value in optimizer.state.get(parameter, {}).items():
            yield f"optimizer/{kind}/{name}", value


def shard_metadata(shards: dict[str, TensorShard]) -> dict[str, str]:
    """Return the metadata of a file: first row and number of rows of each tensor."""
    return {"rows": json.dumps({key: [shard.first, shard.total] for key, shard in shards.items()})}


def stored_shards(readers: list[Any]) -> dict[str, list[StoredShard]]:
    """Return the shards of every tensor in a checkpoint, in the order of their rows.

    Raises:
        Damage: If rows of a tensor are missing, duplicated, or do not belong together.
    """
    stored: dict[str, list[StoredShard]] = {}
    for reader in readers:
        row_ranges = _row_ranges(reader)
        for key in reader.keys():  # noqa: SIM118 (not a mapping)
            if key.startswith(RNG_STATE):
                continue
            if key not in row_ranges:
                raise Damage(f"the rows of {key!r} in a file are not recorded")
            tensor = reader.get_slice(key)
            shape, (first, total) = tuple(tensor.get_shape()), row_ranges[key]
            count, inner_shape = (shape[0], shape[1:]) if shape else (1, None)
            shard = StoredShard(reader, first, count, total, inner_shape, tensor.get_dtype())
            stored.setdefault(key, []).append(shard)
    for key, shards in stored.items():
        shards.sort(key=lambda shard: (shard.first, shard.count))
        end = 0
        for shard in shards:
            if shard.first != end:
                raise Damage(f"rows {end} to {shard.first} of {key!r} are missing or duplicated")
            end += shard.count
        if len({(shard.total, shard.inner_shape, shard.dtype) for shard in shards}) != 1 or end != shards[0].total:
            raise Damage(f"the parts of {key!r} do not make one tensor")
    return stored


def _row_ranges(reader: Any) -> dict[str, tuple[int, int]]:
    """Return the first row of each tensor in a file and the number of rows of the whole tensor."""
    try:
        ranges = json.loads((reader.metadata() or {})["rows"])
        return {key: (int(first), int(total)) for key, (first, total) in ranges.items()}
    except (KeyError, ValueError, TypeError, AttributeError):
        return {}  # every tensor in the file then counts as damaged


def allocate_optimizer_state(model: nn.Module, optimizer: torch.optim.Optimizer, keys: set[str]) -> None:
    """Allocate the optimizer tensors that a checkpoint has; a new optimizer would allocate them at its first step.

    Raises:
        Damage: If the checkpoint has only some of a parameter's tensors.
    """
    for name, parameter in unwrap(model).named_parameters():
        stored = [kind for kind in OPTIMIZER_STATE if f"optimizer/{kind}/{name}" in keys]
        if len(stored) not in (0, len(OPTIMIZER_STATE)):
            raise Damage(f"the optimizer state of {name!r} is incomplete")
        for kind in stored:
            empty = torch.zeros((), device=parameter.device) if kind == "step" else torch.zeros_like(parameter)
            optimizer.state[parameter][kind] = empty


def check_same_tensors(checkpoint: Path, shards: dict[str, TensorShard], stored: dict[str, list[StoredShard]]) -> None:
    """Check that a checkpoint has the tensors of this network, with the same shapes and dtypes.

    Raises:
        UsageError: If not; the message names the first mismatch.
    """
    in_checkpoint = {key: (_shape_text(parts[0].total, parts[0].inner_shape), parts[0].dtype)
                     for key, parts in stored.items()}  # fmt: skip
    in_network = {}
    for key, shard in shards.items():
        inner_shape = tuple(shard.values.shape[1:]) if shard.values.ndim else None
        in_network[key] = (_shape_text(shard.total, inner_shape), DTYPES.get(shard.values.dtype, "?"))
    for key in sorted(in_checkpoint.keys() | in_network.keys()):
        saved, expected = (tensors.get(key, ("absent", "")) for tensors in (in_checkpoint, in_network))
        if saved != expected:
            only_dtype_differs = saved[0] == expected[0]
            texts = [" ".join(kind).strip() if only_dtype_differs else kind[0] for kind in (saved, expected)]
            raise UsageError(
                f"{checkpoint} is of another network: its {key.partition('/')[2]!r} is {texts[0]}, here it is "
                f"{texts[1]}; build the same network, or choose another output folder."
            )


def _shape_text(total: int, inner_shape: tuple[int, ...] | None) -> str:
    return "a number" if inner_shape is None else "×".join(map(str, (total, *inner_shape)))


def fill(key: str, shard: TensorShard, stored: list[StoredShard]) -> None:
    """Copy the rows of a shard from the files that have them."""
    if not shard.values.ndim:
        shard.values.copy_(stored[0].reader.get_tensor(key))
        return
    end = shard.first + len(shard.values)
    for part in stored:
        low, high = max(shard.first, part.first), min(end, part.first + part.count)
        if low < high:
            rows = part.reader.get_slice(key)[low - part.first : high - part.first]
            shard.values[low - shard.first : high - shard.first].copy_(rows)

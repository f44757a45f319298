"""Selection policies in files: weights and settings in one safetensors file, with a hash of both."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from normplace._shared.fields import check_types
from normplace._shared.output import write_atomic
from normplace._shared.seeding import seeded
from normplace.errors import UsageError, expect_choice, expect_ranges, first_line
from normplace.models.convolutions import convolution
from normplace.models.policy import Policy
from normplace.models.weights import Damage, check_tensors, content_hash, packed, read_tensors
from normplace.placement.scale import Scale

SETTINGS_KEY, TRAINING_KEY, HASH_KEY = "normplace.policy", "normplace.training", "normplace.sha256"
LARGEST = 4096
"""Largest width and depth that a file may ask for."""


@dataclass(frozen=True)
class PolicySettings:
    """What a policy is built from.

    Args:
        aggregation: ``softmax`` (GAT), ``mean`` or ``sum`` (GraphSAGE).
        features: Node features, as in :class:`Policy`.
        dim: Width of the residual stream.
        depth: Number of blocks.
        placement: Name of the placement.
        norm: Name of the norm.
        scale: Name of the scalar after the norms; empty for none. PostDeg is ``degree`` with power -1.
        power: Its exponent.

    Raises:
        UsageError: If a setting is invalid.

    Examples:
        >>> policy = PolicySettings(aggregation="mean", features="degree", dim=8, depth=1).build(seed=0)
        >>> sum(weight.numel() for weight in policy.parameters())
        177
    """

    aggregation: str = "mean"
    features: str = "degree"
    dim: int = 32
    depth: int = 3
    placement: str = "post"
    norm: str = "layer"
    scale: str = ""
    power: float = -1.0

    def __post_init__(self) -> None:
        check_types(self)
        expect_ranges(self, "dim", "depth", least=1, most=LARGEST)

    def build(self, seed: int = 0) -> Policy:
        """An untrained policy.

        Args:
            seed: Random seed of the weights.

        Raises:
            UsageError: If a name is unknown, or PyG is not installed.
        """
        scale = Scale(self.scale, self.power) if self.scale else None
        with seeded(seed):
            return Policy(
                convolution(self.aggregation),
                self.dim,
                self.depth,
                features=self.features,
                placement=self.placement,
                norm=self.norm,
                scale=scale,
            )


def save_policy(
    policy: Policy, settings: PolicySettings, path: str | Path, training: Mapping[str, Any] | None = None
) -> None:
    """Save a policy.

    Args:
        policy: The policy.
        settings: What it was built from.
        path: Output file, by convention ``.safetensors``.
        training: How it was trained, as JSON values; the file keeps it.

    Raises:
        UsageError: If the settings describe another network, or the file cannot be written.
    """
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in policy.state_dict().items()}
    try:
        check_tensors(tensors, settings.build().state_dict())
    except Damage as difference:
        raise UsageError(
            f"the settings do not fit the policy ({difference}): pass those it was built from."
        ) from difference
    texts = {
        SETTINGS_KEY: json.dumps(dataclasses.asdict(settings), sort_keys=True),
        TRAINING_KEY: json.dumps(dict(training or {}), sort_keys=True),
    }
    metadata = {**texts, HASH_KEY: content_hash(tensors, "".join(texts.values()))}
    write_atomic(path, packed(tensors, metadata)[0])


@dataclass(frozen=True)
class SavedPolicy:
    """A policy from a file.

    Attributes:
        policy: The policy, in float32 and evaluation mode.
        settings: What it was built from.
        training: How it was trained.
    """

    policy: Policy
    settings: PolicySettings
    training: Mapping[str, Any]


def load_policy(path: str | Path) -> SavedPolicy:
    """The policy that :func:`save_policy` wrote.

    Raises:
        UsageError: If the file does not exist, is damaged, or does not hold a policy.
    """
    path = Path(path)
    try:
        tensors, metadata = read_tensors(path)
        if not {SETTINGS_KEY, TRAINING_KEY, HASH_KEY} <= metadata.keys():
            raise UsageError(f"{path} is not a selection policy of normplace: give a file of save_policy.")
        if content_hash(tensors, metadata[SETTINGS_KEY] + metadata[TRAINING_KEY]) != metadata[HASH_KEY]:
            raise Damage("it does not match its SHA-256")
        settings = _settings(path, metadata[SETTINGS_KEY])
        policy = settings.build()
        check_tensors(tensors, policy.state_dict())
    except Damage as damage:
        raise UsageError(f"{path} is damaged ({damage}): save the policy again, or take a backup.") from damage
    policy.load_state_dict(tensors)
    return SavedPolicy(policy.eval(), settings, json.loads(metadata[TRAINING_KEY]))


def _settings(path: Path, text: str) -> PolicySettings:
    """The settings in a file.

    Raises:
        UsageError: If they do not describe a policy.
    """
    known = [field.name for field in dataclasses.fields(PolicySettings)]
    try:
        values = json.loads(text)
        for key in values:
            expect_choice("setting", key, known)
        return PolicySettings(**values)
    except (UsageError, TypeError, ValueError, AttributeError) as error:
        raise UsageError(f"{path} does not describe a policy ({first_line(error)}).") from error

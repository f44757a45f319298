"""Checks before a run starts or resumes: settings, text, network, memory and checkpoint must fit together."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from torch import nn

from normplace._shared.resources import available_memory, in_words
from normplace.errors import UsageError
from normplace.lab.train.config import TrainConfig
from normplace.lab.train.corpus import Corpus
from normplace.lab.train.distributed import ProcessGroup
from normplace.models.transformer import Transformer, TransformerConfig

WEIGHT_BYTES = 4
LAYER_BYTES = 20_000
"""Memory of a layer's Python modules, without its weights."""
SETTINGS = "network_settings"
"""Field of the manifest with the settings of the network; checkpoints of earlier versions lack it."""


def check_fit(model: nn.Module, corpus: Corpus, config: TrainConfig, group: ProcessGroup) -> None:
    """Check that text, network, settings and processes fit together.

    Raises:
        UsageError: If they do not; the message names the first mismatch.
    """
    divisor = config.accumulate * group.size
    if config.batch % divisor:
        processes = f"{group.size} processes" if group.size > 1 else "one process"
        raise UsageError(
            f"a batch of {config.batch} sequences cannot be split evenly over {processes} and {config.accumulate} "
            f"accumulation steps: make it a multiple of {divisor}."
        )
    if isinstance(model, Transformer):
        limit = model.config.positions.length
        if limit is not None and config.context > limit:
            raise UsageError(
                f"a context of {config.context} tokens is longer than the {limit} learned positions: lower context, or "
                "raise learned_positions."
            )
        if corpus.vocab_size > model.config.vocab_size:
            raise UsageError(
                f"the text has {corpus.vocab_size} distinct tokens, but the network has a vocabulary of "
                f"{model.config.vocab_size}: build it with more."
            )
    available = (len(corpus.held_out) - 1) // config.context
    evaluated = min(available, config.evaluate_sequences)
    if 0 < evaluated < group.size:
        raise UsageError(
            f"{evaluated} held-out sequences cannot be shared by {group.size} processes: give more text, lower "
            "context, or raise evaluate_sequences."
        )


def check_folder(folder: Path) -> None:
    """Check that the output folder exists and is writable, or can be created.

    Raises:
        UsageError: If not.
    """
    remedy = "choose another --out"
    try:
        existing = next(path for path in (folder, *folder.resolve().parents) if path.exists())
        is_folder, is_writable = existing.is_dir(), os.access(existing, os.W_OK | os.X_OK)
    except (OSError, RuntimeError) as error:  # a loop of symbolic links is a RuntimeError
        raise UsageError(f"cannot write {folder}: {getattr(error, 'strerror', None) or error}; {remedy}.") from error
    except ValueError as error:  # a null byte, or text that the file system cannot encode
        raise UsageError(f"cannot write {str(folder)!r}: this is not a possible file name; {remedy}.") from error
    if not is_folder or not is_writable:
        reason = "is not writable" if is_folder else "is not a folder"
        raise UsageError(f"cannot write {folder}: {existing} {reason}; {remedy}.")


def check_memory(model_config: TransformerConfig, config: TrainConfig, group: ProcessGroup) -> None:
    """Check that network and batch can fit into memory, before anything is allocated.

    The estimate is a lower bound: the embedding and two square matrices per layer; on a CPU also their gradients, two
    optimizer moments, and the logits of the sequences that a process computes at once.

    Raises:
        UsageError: If they cannot fit.
    """
    available = available_memory()
    if available is None:
        return
    weights = model_config.vocab_size * model_config.dim + 2 * model_config.depth * model_config.dim**2
    on_cpu = group.device.type == "cpu"
    needed = WEIGHT_BYTES * weights * (1 + on_cpu * 3) + LAYER_BYTES * model_config.depth
    if needed > available:
        raise UsageError(
            f"a network of at least {weights:,} parameters needs at least {in_words(needed)} of memory, but only "
            f"{in_words(available)} are available: lower dim or depth."
        )
    sequences = -(-config.batch // (config.accumulate * group.size))
    needed = WEIGHT_BYTES * sequences * config.context * model_config.vocab_size
    if on_cpu and needed > available:
        raise UsageError(
            f"{sequences:,} sequences of {config.context:,} tokens need at least {in_words(needed)} of memory, but "
            f"only {in_words(available)} are available: lower batch or context, or raise accumulate."
        )


def describe_model(model: nn.Module) -> str:
    """Return what a resumed run must have in common with its checkpoint, besides parameter names and shapes."""
    if isinstance(model, Transformer):
        rule = model.config.rule
        return f"a Transformer with placement {rule.name or 'of its own'}, {rule.equation()}"
    return f"a {type(model).__name__}"


def network_settings(model: nn.Module) -> dict[str, Any]:
    """Return every setting of a Transformer as JSON has it: parameters of the same shapes do not show, say, the heads.

    Examples:
        >>> network_settings(Transformer(TransformerConfig(9, 16, 1), device="meta"))["attention.heads"]
        8
    """
    parts = json.loads(json.dumps(model.config.to_dict())) if isinstance(model, Transformer) else {}
    settings: dict[str, Any] = {}
    for name, part in parts.items():
        settings |= {f"{name}.{key}": value for key, value in part.items()} if isinstance(part, dict) else {name: part}
    return settings


def check_same_run(path: Path, manifest: dict[str, Any], identity: dict[str, Any]) -> None:
    """Check that a checkpoint belongs to this run, which may have more steps.

    Args:
        path: The checkpoint.
        manifest: Its manifest.
        identity: Network, text and settings of this run.

    Raises:
        UsageError: If it belongs to another run; the message names the first mismatch.
    """
    remedy = "use the same settings, or choose another --out"
    absent = [key for key in (*identity, "divergence", "losses") if key not in (*manifest, SETTINGS)]
    if absent:
        raise UsageError(f"{path} has no field {absent[0]!r} of a training run: choose another --out.")
    if manifest["network"] != identity["network"]:
        raise UsageError(f"{path} is of {manifest['network']}, but this is {identity['network']}: {remedy}.")
    recorded = manifest.get(SETTINGS, {})
    for key, value in identity[SETTINGS].items():
        if key in recorded and recorded[key] != value:
            raise UsageError(f"{path} is of a network with {key}={recorded[key]}, not {value}: {remedy}.")
    if manifest["text"] != identity["text"]:
        digests = f"SHA-256 {manifest['text'][:12]}…, now {identity['text'][:12]}…"
        raise UsageError(f"{path} was trained on different text ({digests}): {remedy}.")
    for key, value in identity["config"].items():
        before = manifest["config"].get(key)
        if before != value and not (key == "steps" and isinstance(before, int) and before < value):
            raise UsageError(f"{path} was trained with {key}={before}, not {value}: {remedy}.")
    if manifest["step"] > identity["config"]["steps"]:
        raise UsageError(f"{path} is past the last step, {identity['config']['steps']}: choose another --out.")

"""What must fit together before a run starts, and be the same before it goes on."""

from __future__ import annotations

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
"""What the modules of a layer take beside their weights."""


def check_fit(model: nn.Module, corpus: Corpus, recipe: TrainConfig, group: ProcessGroup) -> None:
    """Refuse to train when text, network, recipe and processes do not fit together.

    Raises:
        UsageError: If so, by the first thing that does not fit.
    """
    rows = recipe.accumulate * group.size
    if recipe.batch % rows:
        shared = f"{group.size} processes" if group.size > 1 else "one process"
        raise UsageError(
            f"a batch of {recipe.batch} rows cannot be shared by {shared} in {recipe.accumulate} equal parts each: "
            f"make it a multiple of {rows}, or start another number of processes."
        )
    if isinstance(model, Transformer):
        limit = model.config.positions.length
        if limit is not None and recipe.context > limit:
            raise UsageError(
                f"rows of {recipe.context} positions are longer than the {limit} the network has learned: lower "
                "context, or raise length."
            )
        if corpus.vocab_size > model.config.vocab_size:
            raise UsageError(
                f"the text has {corpus.vocab_size} different tokens, but the network knows {model.config.vocab_size}: "
                "build it with more."
            )
    held_out = (len(corpus.held_out) - 1) // recipe.context
    judged = min(held_out, recipe.evaluate_rows)
    if 0 < judged < group.size:
        raise UsageError(
            f"{judged} rows of held-out text cannot be shared by {group.size} processes: give more text, lower "
            "context, or raise evaluate_rows."
        )


def check_memory(config: TransformerConfig, recipe: TrainConfig, group: ProcessGroup) -> None:
    """Refuse a network or batch that cannot fit into memory, before anything of it is built.

    What is counted is a lower bound: two square matrices a layer and the embedding; on a CPU their gradients and two
    moments too, and the scores of the rows that a process computes at once.

    Raises:
        UsageError: If it cannot.
    """
    left = available_memory()
    if left is None:
        return
    weights = config.vocab_size * config.dim + 2 * config.depth * config.dim**2
    on_cpu = group.device.type == "cpu"
    needed = WEIGHT_BYTES * weights * (1 + on_cpu * 3) + LAYER_BYTES * config.depth
    if needed > left:
        raise UsageError(
            f"a network of {weights:,} parameters or more needs at least {in_words(needed)} of memory, of which "
            f"{in_words(left)} are left: lower dim or depth."
        )
    rows = -(-recipe.batch // (recipe.accumulate * group.size))
    needed = WEIGHT_BYTES * rows * recipe.context * config.vocab_size
    if on_cpu and needed > left:
        raise UsageError(
            f"{rows:,} rows of {recipe.context:,} positions need at least {in_words(needed)} of memory at once, of "
            f"which {in_words(left)} are left: lower batch or context, or raise accumulate."
        )


def describe(model: nn.Module) -> str:
    """What must be the same in a checkpoint beside names and shapes."""
    if isinstance(model, Transformer):
        rule = model.config.rule
        return f"a Transformer with placement {rule.name or 'of its own'}, {rule.equation()}"
    return f"a {type(model).__name__}"


def check_same(path: Path, said: dict[str, Any], identity: dict[str, Any]) -> None:
    """Refuse to go on with another run.

    Args:
        path: Its checkpoint.
        said: What the checkpoint says of it.
        identity: What this run would say.

    Raises:
        UsageError: If it is another, by the first thing in which they differ.
    """
    remedy = "ask for the same, or choose another --out"
    absent = [key for key in (*identity, "divergence", "losses") if key not in said]
    if absent:
        raise UsageError(f"{path} does not hold the {absent[0]} of a training run: choose another --out.")
    if said["network"] != identity["network"]:
        raise UsageError(f"{path} is of {said['network']}, but this is {identity['network']}: {remedy}.")
    if said["text"] != identity["text"]:
        digests = f"{said['text'][:12]} and not {identity['text'][:12]}"
        raise UsageError(f"{path} was learned from other text, of digest {digests}: {remedy}.")
    for key, value in identity["recipe"].items():
        if said["recipe"].get(key) != value:
            raise UsageError(f"{path} was trained with {key}={said['recipe'].get(key)}, not {value}: {remedy}.")
    if said["step"] > identity["recipe"]["steps"]:
        raise UsageError(f"{path} is past the last step, {identity['recipe']['steps']}: choose another --out.")

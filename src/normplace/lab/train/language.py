"""Train a Transformer on text from a few words: what ``normplace train`` does."""

from __future__ import annotations

import dataclasses
import json
import platform
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from normplace._shared.output import write_atomic
from normplace._version import __version__
from normplace.lab.tasks.sequences.text import STANDARD_LIBRARY
from normplace.lab.train.agreement import check_memory
from normplace.lab.train.config import NetworkConfig, TrainConfig
from normplace.lab.train.corpus import BYTES, Corpus, Sources, load_corpus
from normplace.lab.train.distributed import ProcessGroup, full_state_dict, join
from normplace.lab.train.log import check_sinks
from normplace.lab.train.loop import Step, fit
from normplace.models.transformer import Transformer, save
from normplace.models.transformer.config import TransformerConfig
from normplace.models.weights import safetensors

RESULT, MODEL = "result.json", "model"


def train_language(
    network: NetworkConfig | None = None,
    recipe: TrainConfig | None = None,
    out: str | Path = "runs/train",
    *,
    text: Sources = STANDARD_LIBRARY,
    tokenizer: str = BYTES,
    log: str | Sequence[str] = (),
    watch: Callable[[Step], None] | None = None,
    begun: Callable[[Transformer, Corpus, ProcessGroup], None] | None = None,
) -> dict[str, Any]:
    """Train, judge by held-out text, and write the result; the same call goes on where an earlier one ended.

    Args:
        network: The network's shape; None for the default.
        recipe: How to train; None for the default.
        out: Folder of ``log.jsonl``, ``checkpoints``, ``result.json`` and, in the end, ``model``.
        text: A source, or a list of them; see :mod:`normplace.lab.train.corpus`.
        tokenizer: ``bytes``, a ``tokenizer.json``, or a name at Hugging Face.
        log: Names of further logs: ``tensorboard``, ``wandb``.
        watch: Called in the first process with every step.
        begun: Called in the first process with network and text before the first step.

    Returns:
        What ``result.json`` holds.

    Raises:
        UsageError: If what is asked for does not fit together, or the disk is full.
    """
    network, recipe, out = network or NetworkConfig(), recipe or TrainConfig(), Path(out)
    log = [log] if isinstance(log, str) else log
    check_sinks(log)
    safetensors()  # which the weights will be written with: better refused now than in the end
    with join(recipe.device) as group:
        corpus = load_corpus(text, tokenizer)
        config = network.config(corpus.vocab_size, recipe.context)
        check_memory(config, recipe, group)
        model = Transformer(config, generator=torch.Generator().manual_seed(recipe.seed))
        if begun is not None and group.first:
            begun(model, corpus, group)
        parameters = sum(parameter.numel() for parameter in model.parameters())
        course = fit(model, corpus, recipe, out, group, log=log, watch=watch)
        held_out = course.held_out
        result = {
            **dataclasses.asdict(course),
            "bits_per_byte": None if held_out is None else corpus.bits_per_byte(held_out),
            "parameters": parameters,
            "processes": group.size,
            "equation": config.rule.equation(),
            "text": {"sources": corpus.name, "tokenizer": tokenizer, "sha256": corpus.digest},
            "network": dataclasses.asdict(network),
            "recipe": dataclasses.asdict(recipe),
            "versions": {"normplace": __version__, "torch": torch.__version__, "python": platform.python_version()},
            "device": _name(group.device),
        }
        weights = full_state_dict(model, group) if course.status == "finished" else None
        if group.first:
            _write(out, result, config, weights)
    return result


def _write(out: Path, result: dict[str, Any], config: TransformerConfig, weights: Any) -> None:
    write_atomic(out / RESULT, json.dumps(result) + "\n", "free space and run the same command to resume")
    if weights is not None:
        model = Transformer(config, device="meta")
        model.load_state_dict(weights, assign=True)
        save(model, out / MODEL)


def _name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()

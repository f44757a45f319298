"""Train a Transformer on text: what ``normplace train`` runs."""

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
from normplace.lab.train.checks import check_memory
from normplace.lab.train.config import NetworkConfig, TrainConfig
from normplace.lab.train.corpus import BYTES, Corpus, Sources, load_corpus
from normplace.lab.train.distributed import ProcessGroup, full_state_dict, join_process_group
from normplace.lab.train.log import check_trackers
from normplace.lab.train.loop import StepStats, fit
from normplace.models.transformer import Transformer, save
from normplace.models.transformer.config import TransformerConfig

RESULT, MODEL = "result.json", "model"


def train_language(
    network: NetworkConfig | None = None,
    config: TrainConfig | None = None,
    out: str | Path = "runs/train",
    *,
    text: Sources = STANDARD_LIBRARY,
    tokenizer: str = BYTES,
    log: str | Sequence[str] = (),
    on_start: Callable[[Transformer, Corpus, ProcessGroup], None] | None = None,
    on_step: Callable[[StepStats], None] | None = None,
) -> dict[str, Any]:
    """Train a Transformer, evaluate it on held-out text and write the result; resume if the folder has a checkpoint.

    Args:
        network: Shape of the network; None for the default.
        config: How to train; None for the default.
        out: Folder of ``log.jsonl``, ``checkpoints``, ``result.json`` and, at the end, ``model``.
        text: A source, or a list of them; see :mod:`normplace.lab.train.corpus`.
        tokenizer: ``bytes``, a ``tokenizer.json``, or a name on the Hugging Face Hub.
        log: Names of trackers: ``tensorboard``, ``wandb``.
        on_start: Called in the first process before the first step.
        on_step: Called in the first process after every step.

    Returns:
        The content of ``result.json``.

    Raises:
        UsageError: If the arguments do not fit together, or the disk is full.
    """
    network, config, out = network or NetworkConfig(), config or TrainConfig(), Path(out)
    trackers = [log] if isinstance(log, str) else log
    check_trackers(trackers)
    with join_process_group(config.device) as group:
        corpus = load_corpus(text, tokenizer)
        model_config = network.transformer_config(corpus.vocab_size, config.context)
        check_memory(model_config, config, group)
        model = Transformer(model_config, generator=torch.Generator().manual_seed(config.seed))
        if on_start is not None and group.is_first:
            on_start(model, corpus, group)
        parameters = sum(parameter.numel() for parameter in model.parameters())
        training = fit(model, corpus, config, out, group, trackers=trackers, on_step=on_step)
        loss = training.held_out_loss
        result = {
            **dataclasses.asdict(training),
            "bits_per_byte": None if loss is None else corpus.bits_per_byte(loss),
            "parameters": parameters,
            "processes": group.size,
            "equation": model_config.rule.equation(),
            "text": {
                "sources": corpus.name,
                "tokenizer": tokenizer,
                "sha256": corpus.sha256,
                "packages": [dataclasses.asdict(package) for package in corpus.packages],
            },
            "network": dataclasses.asdict(network),
            "config": dataclasses.asdict(config),
            "versions": {"normplace": __version__, "torch": torch.__version__, "python": platform.python_version()},
            "device": _device_name(group.device),
        }
        weights = full_state_dict(model, group) if training.status == "finished" else None
        if group.is_first:
            _write(out, result, model_config, weights)
    return result


def _write(out: Path, result: dict[str, Any], model_config: TransformerConfig, weights: Any) -> None:
    write_atomic(out / RESULT, json.dumps(result) + "\n", "free space and run the same command to resume")
    if weights is not None:
        model = Transformer(model_config, device="meta")
        model.load_state_dict(weights, assign=True)
        save(model, out / MODEL)


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()

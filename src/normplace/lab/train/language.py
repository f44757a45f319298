"""Train a Transformer on text: what ``normplace train`` runs."""

from __future__ import annotations

import dataclasses
import platform
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from normplace._shared.modules import count_parameters
from normplace._version import __version__
from normplace.lab.tasks.sequences.text import STANDARD_LIBRARY
from normplace.lab.train.checks import check_folder, check_memory
from normplace.lab.train.config import NetworkConfig, TrainConfig
from normplace.lab.train.corpus import Corpus, Sources, absolute_sources, load_corpus
from normplace.lab.train.data import evaluated_sequences, held_out_sequences
from normplace.lab.train.distributed import full_state_dict, join_process_group
from normplace.lab.train.log import check_trackers
from normplace.lab.train.loop import fit
from normplace.lab.train.observer import TrainingObserver
from normplace.lab.train.run_folder import MODEL, has_finished, keep_earlier, read_result, write_model, write_result
from normplace.lab.train.signal_log import SignalsConfig
from normplace.lab.train.tokenizer import BYTES, load_tokenizer
from normplace.models.transformer import Transformer


def train_language(
    network: NetworkConfig | None = None,
    config: TrainConfig | None = None,
    out: str | Path = "runs/train",
    *,
    text: Sources = STANDARD_LIBRARY,
    tokenizer: str = BYTES,
    log: str | Sequence[str] = (),
    signals: SignalsConfig | None = None,
    observer: TrainingObserver | None = None,
) -> dict[str, Any]:
    """Train a Transformer, evaluate it on held-out text and write the result; resume if the folder has a checkpoint.

    A run that has finished is not changed: its result is returned again. With more steps than before, a run whose
    schedule is ``constant`` or ``wsd`` is extended.

    Args:
        network: Shape of the network; None for the default.
        config: How to train; None for the default.
        out: Folder of ``log.jsonl``, ``checkpoints``, ``result.json`` and, at the end, ``model``.
        text: A source, or a list of them; see :mod:`normplace.lab.train.corpus`.
        tokenizer: ``bytes``, a ``tokenizer.json``, or a name on the Hugging Face Hub.
        log: Names of trackers: ``tensorboard``, ``wandb``, ``mlflow``.
        signals: When to measure stream and gradients at every depth; None for never.
        observer: Receives the events of the run, in the first process.

    Returns:
        The content of ``result.json``.

    Raises:
        UsageError: If the arguments do not fit together, or the disk is full.
    """
    network, config, out = network or NetworkConfig(), config or TrainConfig(), Path(out)
    observer = observer or TrainingObserver()
    trackers = check_trackers(log)
    check_folder(out)
    earlier = read_result(out)
    with join_process_group(config.device) as group:
        start = time.perf_counter()
        corpus, tokens = load_corpus(text, tokenizer), load_tokenizer(tokenizer)
        if group.is_first:
            observer.on_read(corpus, time.perf_counter() - start)
        model_config = network.transformer_config(corpus.vocab_size, config.context)
        check_memory(model_config, config, group)
        model = Transformer(model_config, generator=torch.Generator().manual_seed(config.seed))
        parameters = count_parameters(model)
        training = fit(model, corpus, config, out, group, trackers=trackers, signals=signals, observer=observer)
        loss = training.held_out_loss
        held_out = held_out_sequences(corpus.held_out, config.context, config.evaluate_sequences)
        scored = evaluated_sequences(held_out, group.size)[:, 1:]
        result = {
            **dataclasses.asdict(training),
            "bits_per_byte": None if loss is None else corpus.bits_per_byte(loss, scored),
            "parameters": parameters,
            "processes": group.size,
            "equation": model_config.rule.equation(),
            "text": _describe_text(corpus, text, tokenizer),
            "network": dataclasses.asdict(network),
            "config": dataclasses.asdict(config),
            "signals": None if signals is None else dataclasses.asdict(signals),
            "versions": {"normplace": __version__, "torch": torch.__version__, "python": platform.python_version()},
            "device": _device_name(group.device),
        }
        is_new = not (training.resumed_from == config.steps and has_finished(earlier, config.steps))
        weights = full_state_dict(model, group) if training.status == "finished" else None
        if group.is_first:
            if is_new:
                keep_earlier(out)
            if weights is not None and (is_new or not (out / MODEL).is_dir()):
                write_model(out, model_config, weights, tokens)
            if is_new:
                write_result(out, result)
    return result if is_new or earlier is None else earlier


def _describe_text(corpus: Corpus, sources: Sources, tokenizer: str) -> dict[str, Any]:
    return {
        "sources": corpus.name,
        "inputs": absolute_sources(sources),
        "tokenizer": tokenizer,
        "sha256": corpus.sha256,
        "packages": [dataclasses.asdict(package) for package in corpus.packages],
    }


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()

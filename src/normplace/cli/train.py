"""``normplace train``."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Group, Parameter

from normplace.cli.options import Assignments, File, Folder, Words
from normplace.lab.train.config import OLD_NAMES, NetworkConfig, TrainConfig

Signals = Annotated[tuple[str, ...] | None, Parameter(consume_multiple=True)]


def train(
    *,
    config: File | None = None,
    text: Words = ("python",),
    tokenizer: str = "bytes",
    network: Annotated[NetworkConfig, Parameter(name="*", group=Group("Network", sort_key=1))] = NetworkConfig(),  # noqa: B008 (frozen)
    training: Annotated[TrainConfig, Parameter(name="*", group=Group("Training", sort_key=2))] = TrainConfig(),  # noqa: B008 (frozen)
    short_learning_rate: Annotated[float | None, Parameter(name=("--lr", "--rate"), show=False)] = None,
    out: Folder = Path("runs/train"),
    signals: Signals = None,
    log: Words = (),
    settings: Assignments = (),
    json: bool = False,
) -> int:
    """Train a Transformer on text, or resume an interrupted run.

    Prints loss and remaining time; writes a log, checkpoints and the result to a folder. The same command resumes from
    the newest checkpoint, with bit-identical results. Start several processes with torchrun:
    `torchrun --nproc-per-node 2 -m -- normplace train`.

    Args:
        config: TOML file with these options; the command line has priority.
        text: Files, folders, hf:NAME, python for the sources of Python's standard library, or packages for those of
            the installed packages.
        tokenizer: bytes, a tokenizer.json, or a name on the Hugging Face Hub.
        network: Shape of the network.
        training: How to train.
        short_learning_rate: Same as --learning-rate.
        out: Output folder.
        signals: Measure stream and gradients at every depth, such as every=200.
        log: Further logs: tensorboard, wandb, mlflow.
        settings: Network and training settings by name, such as warm_up=0.1.
        json: Print only the result.
    """
    from normplace.cli.train_console import ConsoleLog
    from normplace.lab.train.distributed import exit_now
    from normplace.lab.train.language import train_language
    from normplace.lab.train.signal_log import SignalsConfig
    from normplace.lab.trials.config import parse_overrides

    overrides = parse_overrides([NetworkConfig, TrainConfig], map(_with_present_name, settings))
    if short_learning_rate is not None:
        overrides = {"learning_rate": short_learning_rate, **overrides}
    network, training = _replace(network, overrides), _replace(training, overrides)
    measured = None if signals is None else SignalsConfig(**parse_overrides([SignalsConfig], signals))
    with ConsoleLog(training, quiet=json) as console:
        result = train_language(
            network, training, out, text=text, tokenizer=tokenizer, log=log, signals=measured, observer=console
        )
    if os.environ.get("RANK", "0") == "0":
        console.end(result, out)
    if "WORLD_SIZE" in os.environ:
        exit_now()
    return 0


def _with_present_name(assignment: str) -> str:
    key, equals, value = assignment.partition("=")
    return OLD_NAMES.get(key, key) + equals + value


def _replace(config: Any, overrides: Mapping[str, Any]) -> Any:
    names = {field.name for field in dataclasses.fields(config)}
    return dataclasses.replace(config, **{name: value for name, value in overrides.items() if name in names})

"""``normplace train``."""

from __future__ import annotations

import dataclasses
import os
import sys
import time
from collections.abc import Mapping
from datetime import timedelta
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Group, Parameter

from normplace.cli.options import Assignments, Folder, Words
from normplace.lab.train.config import OLD_NAMES, NetworkConfig, TrainConfig

if TYPE_CHECKING:
    from normplace.lab.train.corpus import Corpus
    from normplace.lab.train.distributed import ProcessGroup
    from normplace.lab.train.loop import StepStats
    from normplace.models.transformer import Transformer

SECONDS_BETWEEN_LINES = 1.0


def train(
    *,
    text: Words = ("python",),
    tokenizer: str = "bytes",
    network: Annotated[NetworkConfig, Parameter(name="*", group=Group("Network", sort_key=1))] = NetworkConfig(),  # noqa: B008 (frozen)
    config: Annotated[TrainConfig, Parameter(name="*", group=Group("Training", sort_key=2))] = TrainConfig(),  # noqa: B008 (frozen)
    short_learning_rate: Annotated[float | None, Parameter(name=("--lr", "--rate"), show=False)] = None,
    out: Folder = Path("runs/train"),
    log: Words = (),
    settings: Assignments = (),
    json: bool = False,
) -> int:
    """Train a Transformer on text, or resume an interrupted run.

    Prints loss and remaining time; writes a log, checkpoints and the result to a folder. The same command resumes from
    the newest checkpoint, with bit-identical results. Start several processes with torchrun:
    `torchrun --nproc-per-node 2 -m normplace train`.

    Args:
        text: Files, folders, hf:NAME, python for the sources of Python's standard library, or packages for those of
            the installed packages.
        tokenizer: bytes, a tokenizer.json, or a name on the Hugging Face Hub.
        network: Shape of the network.
        config: How to train.
        short_learning_rate: Same as --learning-rate.
        out: Output folder.
        log: Further logs: tensorboard, wandb.
        settings: Network and training settings by name, such as warm_up=0.1.
        json: Print only the result.
    """
    from normplace.lab.train.distributed import exit_now
    from normplace.lab.train.language import train_language
    from normplace.lab.trials.config import parse_overrides

    overrides = parse_overrides([NetworkConfig, TrainConfig], map(_with_present_name, settings))
    if short_learning_rate is not None:
        overrides = {"learning_rate": short_learning_rate, **overrides}
    network, config = _replace(network, overrides), _replace(config, overrides)
    console = ConsoleLog(config, quiet=json)
    result = train_language(
        network, config, out, text=text, tokenizer=tokenizer, log=log, on_start=console.start, on_step=console.step
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


class ConsoleLog:
    """Progress of a run on standard error, and its result on standard output.

    Args:
        config: Settings of the run.
        quiet: Whether to print only the result.
    """

    def __init__(self, config: TrainConfig, quiet: bool = False) -> None:
        self.steps, self.tokens_per_step = config.steps, config.batch * config.context
        self.quiet = quiet
        self._last_line = -SECONDS_BETWEEN_LINES

    def start(self, model: Transformer, corpus: Corpus, group: ProcessGroup) -> None:
        """Print the network, the text and the processes."""
        count = sum(parameter.numel() for parameter in model.parameters())
        processes = f"{group.size} processes" if group.size > 1 else "one process"
        self._print(
            f"{count:,} parameters, {model.config.rule.equation()}; {len(corpus.train):,} tokens of {corpus.name}; "
            f"{processes} on {group.device.type}"
        )

    def step(self, step: StepStats) -> None:
        """Print a step, at most one line per second, except for evaluations and the last step."""
        now = time.monotonic()
        is_due = now - self._last_line >= SECONDS_BETWEEN_LINES
        if not is_due and step.held_out_loss is None and step.number < self.steps:
            return
        self._last_line = now
        words = [f"step {step.number}/{self.steps}", f"loss {step.loss:.4f}", f"gradient norm {step.gradient_norm:.3f}"]
        if step.tokens_per_second and step.mfu:
            left = (self.steps - step.number) * self.tokens_per_step / step.tokens_per_second
            words += [f"{step.tokens_per_second:,.0f} tokens/s", f"MFU {step.mfu:.1%}"]
            words += [f"{timedelta(seconds=round(left))} left"]
        if step.held_out_loss is not None:
            words.append(f"held-out loss {step.held_out_loss:.4f}")
        self._print("  ".join(words))

    def end(self, result: Mapping[str, Any], out: Path) -> None:
        """Print a summary, and the result as one JSON line."""
        from normplace.lab.train.language import MODEL, RESULT
        from normplace.lab.train.log import FILE

        if result["status"] == "diverged":
            self._print(f"The run diverged at step {result['step']}: {result['reason']}.")
        else:
            self._print(f"{result['bits_per_byte']:.4f} bits per byte of held-out text; weights in {out / MODEL}")
        self._print(f"The log is {out / FILE}, the result {out / RESULT}:")
        print(dumps(result))

    def _print(self, text: str) -> None:
        if not self.quiet:
            print(text, file=sys.stderr, flush=True)

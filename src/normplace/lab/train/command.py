"""The command ``normplace train``: its options, and what a person sees."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import time
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from normplace.errors import UsageError
from normplace.lab.tasks.sequences.text import STANDARD_LIBRARY
from normplace.lab.train.config import NetworkConfig, TrainConfig
from normplace.lab.train.corpus import BYTES, Corpus
from normplace.lab.train.distributed import ProcessGroup, exit_now
from normplace.lab.train.language import MODEL, RESULT, train_language
from normplace.lab.train.log import FILE
from normplace.lab.train.loop import Step
from normplace.models.transformer import Transformer

EVERY = 1.0
"""Seconds between two lines."""
GRACE = 3.0
"""Seconds the other processes leave the first to say what was wrong."""

OPTIONS = {
    "placement": "where the norms stand",
    "norm": "rms, layer, dyt or identity",
    "dim": "width of the stream",
    "depth": "layers",
    "heads": "of attention",
    "context": "positions of a row",
    "batch": "rows of a step, over all processes",
    "accumulate": "parts a step is computed in",
    "steps": "of AdamW",
    "rate": "highest learning rate",
    "schedule": "cosine, wsd or constant, after a warm-up",
    "seed": "of weights and order",
    "precision": "float32, or bfloat16 under autocast",
    "device": "auto, cpu or cuda",
    "parallel": "under torchrun: fsdp or ddp",
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Give the parser the options of this command: the settings people change most, and ``--set`` for all."""
    parser.usage = "normplace train [options]"
    parser.add_argument(
        "--text", nargs="+", default=[STANDARD_LIBRARY], metavar="SOURCE",
        help="files, folders, hf:NAME, or python: Python's own sources (default)",
    )  # fmt: skip
    parser.add_argument("--tokenizer", default=BYTES, help="bytes (default), a tokenizer.json, or a name of the Hub")
    defaults = _defaults()
    for name, text in OPTIONS.items():
        value = defaults[name]
        parser.add_argument(
            f"--{name}", type=type(value), default=value, metavar=name[0].upper(), help=f"{text} (default: {value})"
        )
    parser.add_argument("--compile", action="store_true", help="compile the network")
    parser.add_argument("--deterministic", action="store_true", help="the same numbers in every run, also on a GPU")
    parser.add_argument("--out", type=Path, default=Path("runs/train"), help="folder (default: %(default)s)")
    parser.add_argument("--log", nargs="+", default=[], metavar="L", help="also tensorboard, wandb")
    parser.add_argument(
        "--set", nargs="+", default=[], metavar="KEY=VALUE", help="other settings, such as checkpoint_every=50"
    )


def execute(arguments: argparse.Namespace, overrides: Mapping[str, Any]) -> int:
    """Train, with a line every second, and print the result; the exit code is 0 also where the run diverged.

    Args:
        arguments: What the options of :func:`add_options` were given.
        overrides: What ``--set`` says, which goes before.
    """
    asked = {name: getattr(arguments, name) for name in (*OPTIONS, "compile", "deterministic")} | dict(overrides)
    try:
        network, recipe = NetworkConfig(**_chosen(NetworkConfig, asked)), TrainConfig(**_chosen(TrainConfig, asked))
        screen = ConsoleLog(recipe)
        result = train_language(
            network,
            recipe,
            arguments.out,
            text=arguments.text,
            tokenizer=arguments.tokenizer,
            log=arguments.log,
            watch=screen.step,
            begun=screen.begin,
        )
    except UsageError:
        if os.environ.get("RANK", "0") != "0":  # the first process says it for all, before torchrun ends it
            time.sleep(GRACE)
            return 2
        raise
    if os.environ.get("RANK", "0") == "0":
        screen.end(result, arguments.out)
    if "WORLD_SIZE" in os.environ:
        exit_now()
    return 0


class ConsoleLog:
    """What a person sees of a run, on stderr.

    Args:
        recipe: What was asked for.
    """

    def __init__(self, recipe: TrainConfig) -> None:
        self.steps, self.tokens = recipe.steps, recipe.batch * recipe.context
        self._shown = -EVERY

    def begin(self, model: Transformer, corpus: Corpus, group: ProcessGroup) -> None:
        """Say what is about to be trained."""
        count = sum(parameter.numel() for parameter in model.parameters())
        processes = f"{group.size} processes" if group.size > 1 else "one process"
        self._say(
            f"{count:,} parameters, {model.config.rule.equation()}; {len(corpus.train):,} tokens of {corpus.name}; "
            f"{processes} on {group.device.type}"
        )

    def step(self, step: Step) -> None:
        """Show a step, unless one was shown just now."""
        now = time.monotonic()
        if now - self._shown < EVERY and step.held_out is None and step.number < self.steps:
            return
        self._shown = now
        words = [f"step {step.number}/{self.steps}", f"loss {step.loss:.4f}", f"gradient {step.gradient:.3f}"]
        if step.tokens_per_second and step.utilisation:
            left = (self.steps - step.number) * self.tokens / step.tokens_per_second
            words += [f"{step.tokens_per_second:,.0f} tokens/s", f"MFU {step.utilisation:.1%}"]
            words += [f"{timedelta(seconds=round(left))} left"]
        if step.held_out is not None:
            words.append(f"held-out loss {step.held_out:.4f}")
        self._say("  ".join(words))

    def end(self, result: Mapping[str, Any], out: Path) -> None:
        """The result: one JSON line on stdout, one sentence before it."""
        if result["status"] == "diverged":
            self._say(f"The run diverged at step {result['step']}: {result['reason']}.")
        else:
            self._say(f"{result['bits_per_byte']:.4f} bits per byte of held-out text; the weights are in {out / MODEL}")
        self._say(f"The log is {out / FILE}, the result {out / RESULT}:")
        print(json.dumps(result))

    def _say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)


def _chosen(kind: type[NetworkConfig] | type[TrainConfig], asked: Mapping[str, Any]) -> dict[str, Any]:
    return {field.name: asked[field.name] for field in dataclasses.fields(kind) if field.name in asked}


def _defaults() -> dict[str, Any]:
    return {field.name: field.default for kind in (NetworkConfig, TrainConfig) for field in dataclasses.fields(kind)}

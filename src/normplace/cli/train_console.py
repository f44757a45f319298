"""Progress of ``normplace train``: a live bar on a terminal, otherwise one line per second."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from datetime import timedelta
from json import dumps
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from torch import nn

from normplace._shared.modules import count_parameters
from normplace._shared.sparkline import sparkline
from normplace.lab.train.config import TrainConfig
from normplace.lab.train.log import FILE
from normplace.lab.train.observer import StepStats, TrainingObserver
from normplace.lab.train.run_folder import MODEL, RESULT
from normplace.models.transformer import Transformer

if TYPE_CHECKING:
    from normplace.analysis.signal_probe.results import Signals
    from normplace.lab.train.corpus import Corpus
    from normplace.lab.train.distributed import ProcessGroup

SECONDS_BETWEEN_LINES = 1.0
BAR_WIDTH = 24
"""Characters of the bar; with the numbers next to it, it fits into 80 columns."""
SLOW_READING = 1.0
"""Seconds of reading from which on they are reported."""


class ConsoleLog(TrainingObserver):
    """Progress of a run on standard error, and its result on standard output; used in a ``with`` block.

    Args:
        config: Settings of the run.
        quiet: Whether to print only the result.
    """

    def __init__(self, config: TrainConfig, quiet: bool = False) -> None:
        self.config, self.quiet = config, quiet
        self._console = Console(file=sys.stderr, highlight=False)
        self._is_live = self._console.is_terminal and not quiet
        self._stack = ExitStack()
        self._bar: Progress | None = None
        self._last_line = -SECONDS_BETWEEN_LINES

    def __enter__(self) -> ConsoleLog:
        """Show that the text is being read."""
        if self._is_live:
            self._stack.enter_context(self._console.status("reading the text"))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove the bar."""
        self._stack.close()

    def on_read(self, corpus: Corpus, seconds: float) -> None:
        """Report how long reading took."""
        self._stack.close()
        if seconds >= SLOW_READING:
            is_cached = isinstance(corpus.train, np.memmap)
            note = "; the next run reads the tokens from the cache" if is_cached else ""
            self._print(f"Reading and tokenizing the text took {seconds:.1f} s{note}.")

    def on_start(self, model: nn.Module, corpus: Corpus, group: ProcessGroup) -> None:
        """Print the network, the text and the processes, and show the bar."""
        count = count_parameters(model)
        processes = f"{group.size} processes" if group.size > 1 else "one process"
        assert isinstance(model, Transformer)
        self._print(
            f"{count:,} parameters, {model.config.rule.equation()}; {len(corpus.train):,} tokens of {corpus.name}; "
            f"{processes} on {group.device.type}"
        )
        if self._is_live:
            count, note = TextColumn("step {task.completed:.0f}/{task.total:.0f}"), TextColumn("{task.fields[note]}")
            self._bar = Progress(
                count, BarColumn(BAR_WIDTH), note, console=self._console, transient=True, refresh_per_second=4
            )
            self._bar.add_task("", total=self.config.steps, note="compiling" if self.config.compile else "")
            self._stack.enter_context(self._bar)

    def on_resume(self, step: int) -> None:
        """Print the step that the run resumes from."""
        if step == self.config.steps:
            self._print(f"The run had finished at step {step}; nothing is left to do.")
        else:
            self._print(f"Resumed at step {step}.")
        self._move_bar(step, "")

    def on_compile(self, seconds: float) -> None:
        """Print the time of the compilation."""
        self._print(f"Compilation took {seconds:.1f} s.")

    def on_step(self, stats: StepStats) -> None:
        """Move the bar, or print at most one line per second; evaluations and the last step are always printed."""
        now = time.monotonic()
        is_evaluated = stats.held_out_loss is not None or stats.number == self.config.steps
        loss, speed, left = f"loss {stats.loss:.4f}", *self._speed(stats)
        self._move_bar(stats.number, "  ".join(filter(None, (loss, speed, left))))
        if not is_evaluated and (self._is_live or now - self._last_line < SECONDS_BETWEEN_LINES):
            return
        self._last_line = now
        mfu = f"MFU {stats.mfu:.1%}" if stats.mfu else ""
        held_out = "" if stats.held_out_loss is None else f"held-out loss {stats.held_out_loss:.4f}"
        words = f"step {stats.number}/{self.config.steps}", loss, f"gradient norm {stats.gradient_norm:.3f}"
        self._print("  ".join(filter(None, (*words, speed, mfu, left, held_out))))

    def on_signals(self, step: int, signals: Signals) -> None:
        """Print the measured quantities over depth as bars."""
        words = [f"signals at step {step}"]
        for name in ("variance", "peak", "gradient"):
            values = [value for depth in signals.depths if (value := getattr(depth, name)) is not None]
            if values:
                words.append(f"{name} {sparkline(values)} {_short(values[0])} to {_short(values[-1])}")
        headrooms = [depth.fp16_headroom for depth in signals.depths]
        headroom = math.nan if any(map(math.isnan, headrooms)) else min(headrooms)
        self._print("  ".join([*words, f"fp16 headroom {headroom:.1f} doublings"]))

    def end(self, result: Mapping[str, Any], out: Path) -> None:
        """Print a summary, and the result as one JSON line unless a person reads it."""
        if result["status"] == "diverged":
            self._print(f"The run diverged at step {result['step']}: {result['reason']}.")
        else:
            self._print(f"{result['bits_per_byte']:.4f} bits per byte of held-out text; weights in {out / MODEL}")
        self._print(f"The log is {out / FILE}, the result {out / RESULT}")
        if self.quiet or not sys.stdout.isatty():
            print(dumps(result))

    def _speed(self, stats: StepStats) -> tuple[str, str]:
        """The throughput and the remaining time in words; empty before they are known."""
        if not stats.tokens_per_second:
            return "", ""
        tokens_left = (self.config.steps - stats.number) * self.config.batch * self.config.context
        left = timedelta(seconds=round(tokens_left / stats.tokens_per_second))
        return f"{stats.tokens_per_second:,.0f} tokens/s", f"{left} left"

    def _move_bar(self, step: int, note: str) -> None:
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=step, note=note)

    def _print(self, text: str) -> None:
        if self._is_live:
            self._console.print(text, markup=False, highlight=False, soft_wrap=True)
        elif not self.quiet:
            print(text, file=sys.stderr, flush=True)


def _short(value: float) -> str:
    return f"{value:.3g}"

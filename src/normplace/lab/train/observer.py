"""What a training run reports while it runs and at its end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import nn

if TYPE_CHECKING:
    from normplace.analysis.signal_probe.results import Signals
    from normplace.lab.train.corpus import Corpus
    from normplace.lab.train.distributed import ProcessGroup


@dataclass(frozen=True)
class StepStats:
    """The numbers of a completed step.

    Args:
        number: Counted from 1.
        loss: Mean over all sequences, in nats per token.
        gradient_norm: Norm of the gradient before clipping.
        learning_rate: Learning rate of the step.
        seconds: Duration of the step, without compilation.
        tokens_per_second: Throughput of the median step.
        mfu: Model FLOPs utilization.
        held_out_loss: Loss on held-out text, if the step was followed by an evaluation.
    """

    number: int
    loss: float
    gradient_norm: float
    learning_rate: float
    seconds: float
    tokens_per_second: float | None
    mfu: float | None
    held_out_loss: float | None = None


@dataclass(frozen=True)
class TrainResult:
    """The outcome of a run.

    Args:
        status: ``finished`` or ``diverged``.
        reason: Why it diverged.
        step: The last step taken.
        loss: Mean of the last hundred losses.
        held_out_loss: Loss on held-out text at the end, in nats per token; None if it diverged.
        spikes: Number of loss spikes.
        tokens: Number of training tokens.
        tokens_per_second: Throughput of the median step.
        mfu: Model FLOPs utilization.
        peak_tflops: Peak of one device, which the MFU is relative to.
        seconds: Wall time of this process.
        compile_seconds: The part of it in which code was compiled.
        resumed_from: The step that the run resumed from; 0 for a new run.
    """

    status: str
    reason: str | None
    step: int
    loss: float | None
    held_out_loss: float | None
    spikes: int
    tokens: int
    tokens_per_second: float | None
    mfu: float | None
    peak_tflops: float
    seconds: float
    compile_seconds: float
    resumed_from: int


class TrainingObserver:
    """Receives the events of a run in its first process; a subclass overrides the methods of interest."""

    def on_read(self, corpus: Corpus, seconds: float) -> None:
        """Called after the text has been read and tokenized, with the time that it took."""

    def on_start(self, model: nn.Module, corpus: Corpus, group: ProcessGroup) -> None:
        """Called before the first step, after all checks and after a checkpoint has been loaded."""

    def on_resume(self, step: int) -> None:
        """Called after :meth:`on_start` if the run resumes from the checkpoint of a step."""

    def on_compile(self, seconds: float) -> None:
        """Called after a step or evaluation in which code was compiled, with the seconds of the compilation."""

    def on_step(self, stats: StepStats) -> None:
        """Called after every step."""

    def on_signals(self, step: int, signals: Signals) -> None:
        """Called after a measurement of the network, with the number of steps taken before it."""

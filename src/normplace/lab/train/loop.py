"""The training loop of language models: the same steps on one process or many, resumable after every checkpoint.

The host never waits for the step that it has just launched: loss and gradient norm of a step are read while the next
one computes. So divergence is detected one step late, but always before a checkpoint is written.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normplace.lab.train import checkpoint
from normplace.lab.train.checks import SETTINGS, check_fit, describe_model, network_settings
from normplace.lab.train.compiling import CompileTimer
from normplace.lab.train.config import MAY_DIFFER, TrainConfig
from normplace.lab.train.corpus import Corpus
from normplace.lab.train.cuda_graph import set_learning_rate
from normplace.lab.train.data import TokenWindows, evaluated_sequences, held_out_sequences, shard
from normplace.lab.train.distributed import ProcessGroup, distribute, full_tensor, gradient_sync, unwrap
from normplace.lab.train.divergence import DivergenceDetector
from normplace.lab.train.extend import WARM_UP_STEPS, find_checkpoint
from normplace.lab.train.log import Log
from normplace.lab.train.observer import StepStats, TrainingObserver, TrainResult
from normplace.lab.train.optimizer import parameter_groups
from normplace.lab.train.sequence import autocast
from normplace.lab.train.signal_log import SignalMonitor, SignalsConfig, log_fields
from normplace.lab.train.throughput import ThroughputMeter, flops_per_token, measure_peak

CHECKPOINTS = "checkpoints"
RECENT_LOSSES = 100


@dataclass
class _PendingStep:
    """A launched step; on a GPU, ``numbers`` is valid after the event ``ready``."""

    number: int
    learning_rate: float
    numbers: Tensor
    ready: Any = None


class Diverged(Exception):
    """The run has diverged; ends the loop and is recorded."""


def fit(
    model: nn.Module,
    corpus: Corpus,
    config: TrainConfig,
    out: Path,
    group: ProcessGroup,
    *,
    trackers: str | Sequence[str] = (),
    signals: SignalsConfig | None = None,
    observer: TrainingObserver | None = None,
) -> TrainResult:
    """Train on next-token prediction with AdamW; resume from the newest checkpoint in the folder, if there is one.

    Args:
        model: Maps tokens to logits, with the same parameters in every process; trained in place.
        corpus: Training and held-out text.
        config: How to train.
        out: Folder of the log and the checkpoints.
        group: The processes, from :func:`normplace.lab.train.distributed.join_process_group`.
        trackers: Names of further logs; see :mod:`normplace.lab.train.log`.
        signals: When to measure the network, see :mod:`normplace.lab.train.signal_log`; None for never.
        observer: Receives the events of the run.

    Raises:
        UsageError: If the arguments and the checkpoint do not fit together, or the disk is full.
    """
    check_fit(model, corpus, config, group)
    with ExitStack() as stack:
        stack.enter_context(_deterministic_algorithms(config.deterministic))
        devices = [group.device.index or 0] if group.device.type == "cuda" else []
        stack.enter_context(torch.random.fork_rng(devices))
        torch.manual_seed(config.seed + group.rank)  # for dropout
        log = None
        if group.is_first:
            log = Log(out, trackers, dataclasses.asdict(config))
            stack.callback(log.close)
        timer = CompileTimer()
        if config.compile:
            stack.enter_context(timer.running())
        return _Loop(model, corpus, config, out, group, log, signals, timer, observer or TrainingObserver()).run()


class _Loop:
    """The state of one call of :func:`fit`."""

    def __init__(
        self,
        model: nn.Module,
        corpus: Corpus,
        config: TrainConfig,
        out: Path,
        group: ProcessGroup,
        log: Log | None,
        signals: SignalsConfig | None,
        timer: CompileTimer,
        observer: TrainingObserver,
    ) -> None:
        self.corpus, self.config, self.group = corpus, config, group
        self.log, self.timer, self.observer = log, timer, observer
        self.checkpoints = out / CHECKPOINTS
        self.identity = {
            "network": describe_model(model),
            SETTINGS: network_settings(model),
            "text": corpus.sha256,
            "config": {key: value for key, value in dataclasses.asdict(config).items() if key not in MAY_DIFFER},
        }
        self.peak = config.peak_tflops * 1e12 or measure_peak(group.device, config.precision)
        flops = flops_per_token(model, config.context)
        self.meter = ThroughputMeter(config.batch * config.context, flops, self.peak * group.size)
        self.windows = TokenWindows(corpus.train, config.context, config.seed)
        self.held_out = held_out_sequences(corpus.held_out, config.context, config.evaluate_sequences)
        self.monitor = None
        if signals is not None:
            is_sharded = group.is_distributed and config.parallel == "fsdp"
            self.monitor = SignalMonitor(signals, model, self.held_out, config.precision, group, is_sharded)
        self.model = distribute(model, group, config.parallel, config.compile)
        self.optimizer = torch.optim.AdamW(
            parameter_groups(unwrap(self.model), config.weight_decay),
            lr=config.learning_rate,
            betas=(config.beta1, config.beta2),
            fused=group.device.type in ("cpu", "cuda"),
        )
        self.schedule = config.learning_rate_schedule()
        self.divergence = DivergenceDetector(config.spike, config.patience)
        self.pending: _PendingStep | None = None
        self.losses: list[float] = []

    def run(self) -> TrainResult:
        """Train to the last step, or until the run diverges."""
        start, config = time.perf_counter(), self.config
        resumed_from = taken = self._resume()
        if self.group.is_first:
            self.observer.on_start(unwrap(self.model), self.corpus, self.group)
            if resumed_from:
                self.observer.on_resume(resumed_from)
        status, reason, held_out_loss = "finished", None, None
        self.model.train()
        if taken == 0:
            self._measure(taken)
        self.meter.start_step()
        try:
            while taken < config.steps:
                launched = self._launch_step(taken)
                self._complete_step()
                self.pending, taken = launched, taken + 1
                last = taken == config.steps
                evaluate = last or taken % config.evaluate_every == 0
                decays_next = config.schedule == "wsd" and taken == self.schedule.decay_start
                save = last or decays_next or taken % config.checkpoint_every == 0
                measure = self.monitor is not None and self.monitor.is_due(taken, config.steps)
                if evaluate or save or measure or launched.ready is None:  # on a CPU the step is already complete
                    held_out_loss = self._complete_step(evaluate)
                if measure:
                    self._measure(taken)
                if save:
                    self._save(taken)
                if evaluate or save or measure:
                    self.meter.start_step()
            held_out_loss = self._evaluate() if held_out_loss is None else held_out_loss
        except Diverged as error:
            status, reason, held_out_loss = "diverged", str(error), None
            taken = self.pending.number if self.pending else taken
        recent = self.losses[-RECENT_LOSSES:]
        return TrainResult(
            status=status,
            reason=reason,
            step=taken,
            loss=sum(recent) / len(recent) if recent else None,
            held_out_loss=held_out_loss,
            spikes=self.divergence.spikes,
            tokens=taken * self.meter.tokens,
            tokens_per_second=self.meter.tokens_per_second,
            mfu=self.meter.mfu,
            peak_tflops=self.peak / 1e12,
            seconds=time.perf_counter() - start,
            compile_seconds=self.timer.seconds,
            resumed_from=resumed_from,
        )

    def _launch_step(self, taken: int) -> _PendingStep:
        """Launch forward, backward and optimizer step without reading their results."""
        config, group = self.config, self.group
        learning_rate = self.schedule.learning_rate(taken)
        set_learning_rate(self.optimizer, learning_rate)
        self.optimizer.zero_grad(set_to_none=True)
        count = config.batch // config.accumulate
        losses = []
        for part in range(config.accumulate):
            own_part = shard(taken * config.batch + part * count, count, group.rank, group.size)
            with gradient_sync(self.model, enabled=part == config.accumulate - 1):
                loss = self._loss(self.windows.sequences(*own_part)) / config.accumulate
                loss.backward()
            losses.append(loss.detach())
        loss = torch.stack(losses).sum()
        norm = full_tensor(nn.utils.clip_grad_norm_(self.model.parameters(), config.clip))
        self.optimizer.step()
        numbers = torch.stack([group.all_reduce(loss) / group.size, norm.to(loss.dtype)]).to("cpu", non_blocking=True)
        ready = None
        if group.device.type == "cuda":
            ready = torch.cuda.Event()
            ready.record()
        return _PendingStep(taken + 1, learning_rate, numbers, ready)

    def _loss(self, sequences: Tensor, reduction: str = "mean") -> Tensor:
        if self.group.device.type == "cuda":
            sequences = sequences.pin_memory().to(self.group.device, non_blocking=True)
        with autocast(self.config.precision, self.group.device):
            logits = self.model(sequences[:, :-1])
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return F.cross_entropy(logits.flatten(0, 1), sequences[:, 1:].flatten(), reduction=reduction)

    def _complete_step(self, evaluate: bool = False) -> float | None:
        """Read, check and log the numbers of the pending step; return the held-out loss if ``evaluate``.

        Raises:
            Diverged: If the run has diverged.
        """
        if self.pending is None:
            return None
        step = self.pending
        if step.ready is not None:
            step.ready.synchronize()
        loss, gradient_norm = step.numbers.tolist()
        compile_seconds = self.timer.take()
        seconds = self.meter.end_step(compile_seconds)
        spikes = self.divergence.spikes
        reason = self.divergence.update(loss, gradient_norm)
        stats = StepStats(
            step.number, loss, gradient_norm, step.learning_rate, seconds, self.meter.tokens_per_second, self.meter.mfu
        )
        self._log(
            "step",
            step.number,
            loss=loss,
            gradient_norm=gradient_norm,
            learning_rate=step.learning_rate,
            seconds=seconds,
        )
        if self.divergence.spikes > spikes:
            self._log("spike", step.number, loss=loss)
        if reason is not None:
            self._log("diverged", step.number, reason=reason)
            raise Diverged(reason)
        self.losses.append(loss)
        self.pending = None
        held_out_loss = self._evaluate() if evaluate else None
        if held_out_loss is not None:
            self._log("held-out", step.number, held_out_loss=held_out_loss)
        self._report(dataclasses.replace(stats, held_out_loss=held_out_loss), compile_seconds + self.timer.take())
        return held_out_loss

    def _report(self, stats: StepStats, compile_seconds: float) -> None:
        """Pass the numbers of a step on."""
        if not self.group.is_first:
            return
        if compile_seconds:
            self._log("compile", stats.number, seconds=compile_seconds)
            self.observer.on_compile(compile_seconds)
        self.observer.on_step(stats)

    def _measure(self, taken: int) -> None:
        """Measure and log the signals of the network, if they are wanted."""
        if self.monitor is None:
            return
        signals = self.monitor.measure(self.model, self.optimizer)
        if signals is not None:
            self._log("signals", taken, scalars=signals.scalars(), **log_fields(signals))
            self.observer.on_signals(taken, signals)

    @torch.no_grad()
    def _evaluate(self) -> float:
        """Return the mean loss on held-out text; each process evaluates its share of the sequences."""
        group, batch_size = self.group, self.config.batch // self.config.accumulate // self.group.size
        sequences = evaluated_sequences(self.held_out, group.size)
        first, count = shard(0, len(sequences), group.rank, group.size)
        self.model.eval()
        losses = [self._loss(part, "sum") for part in sequences[first : first + count].split(batch_size)]
        total = torch.stack(losses).sum()
        self.model.train()
        return float(group.all_reduce(total)) / (count * group.size * self.config.context)

    def _save(self, taken: int) -> None:
        state = {
            **self.identity,
            WARM_UP_STEPS: self.schedule.warm_up,
            "divergence": self.divergence.state_dict(),
            "losses": self.losses[-RECENT_LOSSES:],
        }
        keep = {self.schedule.decay_start} if self.schedule.kind == "wsd" else set()
        checkpoint.save(self.checkpoints, taken, self.model, self.optimizer, state, self.group, keep)
        self._log("checkpoint", taken)
        if self.log is not None:
            self.log.sync()

    def _resume(self) -> int:
        """Load the checkpoint to resume from, if there is one, and return its step."""
        with self.group.share_errors():
            path, manifest, self.schedule = find_checkpoint(self.checkpoints, self.config, self.identity)
        if path is None:
            return 0
        checkpoint.load(path, self.model, self.optimizer, self.group)
        self.divergence.load_state_dict(manifest["divergence"])
        self.losses = manifest["losses"]
        self._log("resume", manifest["step"], processes=self.group.size, before=manifest["processes"])
        return manifest["step"]

    def _log(self, event: str, step: int, **values: Any) -> None:
        if self.log is not None:
            self.log.write(event, step, **values)


@contextmanager
def _deterministic_algorithms(enabled: bool) -> Iterator[None]:
    """Use deterministic algorithms only, while the block runs."""
    before, benchmark = torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark
    if enabled:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.benchmark = False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
        torch.backends.cudnn.benchmark = benchmark

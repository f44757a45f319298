"""One training of a comparison: a pure function of its configuration."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from normplace.analysis.recording.passes import evaluating
from normplace.edit.verify.capture import Arguments
from normplace.errors import UsageError
from normplace.lab.compare.batches import BatchStream
from normplace.lab.compare.config import CompareTrial
from normplace.lab.compare.edits import Edit, parse_edit
from normplace.lab.compare.measures import count_spikes, final_loss, memory_megabytes, stream_signals, thinned
from normplace.lab.compare.rng import preserved_random_state, seed_all
from normplace.lab.compare.task import Start, Task, first_call, load_task
from normplace.lab.train.schedule import Schedule
from normplace.lab.trials.study import Outcome

WARM_UP = 0.1
"""Fraction of the steps in which the learning rate rises."""
FLOOR = 0.1
"""Learning rate at the end, as a fraction of the peak."""
CHUNK = 10
"""Steps between reading the losses, which waits for a GPU."""
MODEL_STREAM = 2_000_003
"""Added to the seed for what the model draws during training, such as dropout."""


@dataclass
class Training:
    """An edited model that is ready to train.

    Args:
        start: The task's start, with the edited model.
        stream: Its batches.
        batch: The first batch.
        inputs: Arguments with which the loss calls the model on that batch.
    """

    start: Start
    stream: BatchStream
    batch: Any
    inputs: Arguments


@dataclass
class History:
    """What a training records while it runs."""

    losses: list[float] = field(default_factory=list)
    chunks: list[tuple[int, float]] = field(default_factory=list)
    """Steps and seconds between readings of the loss."""
    held_out: list[float] = field(default_factory=list)
    held_out_step: list[float] = field(default_factory=list)

    def add_held_out(self, step: int, measure: float) -> None:
        """Record the choosing measure after a number of steps."""
        self.held_out.append(measure)
        self.held_out_step.append(float(step))

    @property
    def is_finite(self) -> bool:
        """Whether every loss and measure is a finite number."""
        return all(map(math.isfinite, self.losses)) and all(map(math.isfinite, self.held_out))


def prepare(task: Task, edit: Edit, seed: int) -> Training:
    """Build the model of a seed and edit it.

    Raises:
        UsageError: If the model cannot be edited so.
    """
    seed_all(seed)
    start = task.start(seed)
    stream = BatchStream(start.batches, seed)
    batch = stream.peek()
    inputs = start.inputs or first_call(start.model, start.loss, batch)
    start.model = edit.apply(start.model, inputs)
    start.model.train()
    if start.compiling is not None:
        start.compiling(start.model)
    seed_all(seed + MODEL_STREAM)
    return Training(start, stream, batch, inputs)


def run_search(trial: CompareTrial) -> Outcome:
    """Run a training that chooses a learning rate, in a worker process."""
    return train(trial, load_task(trial.reference), parse_edit(trial.recipe, trial.start))


def run_final(trial: CompareTrial) -> Outcome:
    """Run a training that is reported, in a worker process."""
    return train(trial, load_task(trial.reference), parse_edit(trial.recipe, trial.start), measure_all=True)


def train(trial: CompareTrial, task: Task, edit: Edit, measure_all: bool = False) -> Outcome:
    """Train and measure; the random state of the process is restored."""
    with preserved_random_state():
        training = prepare(task, edit, trial.seed)
        start = training.start
        _reset_peak_memory(start.model)
        optimizer = start.optimizer(start.model, trial.learning_rate)
        history = take_steps(training, optimizer, trial.steps, trial.evaluations)
        report = validated(start, "report") if history.is_finite else math.nan
        diverged = not math.isfinite(report)
        if trial.start == "fresh" and not (diverged or start.can_rise):
            diverged = _is_worse_than_untrained(history, task.better)
        metrics = {
            "choose": math.nan if diverged else history.held_out[-1],
            "report": math.nan if diverged else report,
            "diverged": float(diverged),
            "train_loss": final_loss(history.losses),
            "spikes_per_1000": 1000 * count_spikes(history.losses) / len(history.losses),
            "step_ms": 1000 * median(seconds / steps for steps, seconds in history.chunks),
            "train_seconds": sum(seconds for _, seconds in history.chunks),
        }
        if start.can_rise:
            metrics["can_rise"] = 1.0
        if measure_all:
            metrics["memory_mb"] = memory_megabytes(start.model, optimizer, start.loss, training.batch)
            metrics |= _signals(training) if history.is_finite else {}
    curve, curve_steps = thinned(history.losses)
    series = {
        "loss": curve,
        "loss_step": curve_steps,
        "held_out": history.held_out,
        "held_out_step": history.held_out_step,
    }
    return Outcome(metrics, series)


def take_steps(training: Training, optimizer: torch.optim.Optimizer, steps: int, evaluations: int) -> History:
    """Train for a number of steps with a complete schedule; stop when the loss is not finite.

    Args:
        training: The model and its data.
        optimizer: The model's optimizer; the schedule multiplies the learning rate of each group.
        steps: Number of steps.
        evaluations: Number of validations, evenly spaced, the last after the last step.
    """
    start, history = training.start, History()
    schedule = Schedule(1.0, steps, "cosine", warm_up=int(WARM_UP * steps), floor=FLOOR)
    peaks = [group["lr"] for group in optimizer.param_groups]
    ends = {round((k + 1) * steps / evaluations) for k in range(evaluations)}
    history.add_held_out(0, validated(start, "choose"))
    losses: list[Tensor] = []
    clock = time.perf_counter()
    for step in range(steps):
        factor = schedule.learning_rate(step)
        for group, peak in zip(optimizer.param_groups, peaks, strict=True):
            group["lr"] = peak * factor
        losses.append(take_step(start, optimizer, next(training.stream)))
        done = step + 1
        if len(losses) == CHUNK or done in ends or done == steps:
            history.losses += torch.stack(losses).tolist()  # waits for a GPU
            history.chunks.append((len(losses), time.perf_counter() - clock))
            losses = []
            if not all(map(math.isfinite, history.losses[-CHUNK:])):
                break
            if done in ends:
                # The last step may leave weights without a value although its loss had one.
                measure = validated(start, "choose") if has_finite_weights(start.model) else math.nan
                history.add_held_out(done, measure)
                if math.isnan(measure):
                    break
            clock = time.perf_counter()
    return history


def take_step(start: Start, optimizer: torch.optim.Optimizer, batch: Any) -> Tensor:
    """Take one optimizer step, and return the loss before it."""
    loss, scaler = start.loss(start.model, batch), start.scaler
    optimizer.zero_grad(set_to_none=True)
    (loss if scaler is None else scaler.scale(loss)).backward()
    if scaler is not None:
        scaler.unscale_(optimizer)
    if start.clip is not None:
        clip_grad_norm_(start.model.parameters(), start.clip)
    if scaler is None:
        optimizer.step()
    else:
        scaler.step(optimizer)
        scaler.update()
    return loss.detach().reshape(()).float()


def has_finite_weights(model: nn.Module) -> bool:
    """Whether every parameter is finite; a measure such as accuracy is finite also for a model that is not."""
    return all(bool(torch.isfinite(parameter).all()) for parameter in model.parameters())


def validated(start: Start, split: str) -> float:
    """The measure on a held-out split, in evaluation mode; the random state is restored."""
    with evaluating(start.model), torch.no_grad(), preserved_random_state():
        measure = start.validate(start.model, split)
    if isinstance(measure, Mapping | list | tuple):
        raise UsageError(f"validate returns a {type(measure).__name__}: return the one number that is compared.")
    return float(measure)


def _is_worse_than_untrained(history: History, better: str) -> bool:
    """Whether training ended with a larger loss than it began with, and with a worse measure.

    Wortsman et al. 2023 (arXiv 2309.14322) compare the losses. The loss of the first batch varies, so the measure on
    held-out data must be worse too.
    """
    sign = 1.0 if better == "smaller" else -1.0
    is_measure_worse = sign * history.held_out[-1] > sign * history.held_out[0]
    return is_measure_worse and final_loss(history.losses) > history.losses[0]


def _signals(training: Training) -> dict[str, float]:
    """Signals of the trained model; none if they cannot be measured, which the checks before the trials reported."""
    start, scaler = training.start, training.start.scaler

    def scaled_loss(model: nn.Module, batch: Any) -> Tensor:
        loss = start.loss(model, batch)
        return loss if scaler is None else scaler.scale(loss)  # the signals compare gradients with each other

    try:
        return stream_signals(start.model, training.inputs, scaled_loss, training.batch)
    except UsageError:
        return {}


def _reset_peak_memory(model: nn.Module) -> None:
    if torch.cuda.is_initialized():
        gc.collect()  # an edited model has reference cycles, so that of the last training may still be in memory
        torch.cuda.empty_cache()
    for device in {parameter.device for parameter in model.parameters() if parameter.device.type == "cuda"}:
        torch.cuda.reset_peak_memory_stats(device)

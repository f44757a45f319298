"""Train a sequence model on sequences that are drawn during training, without synchronizing with the device."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normplace._shared.fields import check_types
from normplace.errors import expect_choice, expect_ranges
from normplace.lab.tasks.sequences.batch import IGNORE, SequenceTask
from normplace.lab.train.config import PRECISIONS
from normplace.lab.train.cuda_graph import GraphedStep, set_learning_rate

SCHEDULES = ("constant", "cosine")
STEPS_PER_DRAW = 16
"""Steps whose sequences are drawn at once: a draw launches the same number of kernels for one step as for many."""
EVALUATION_BATCH = 64


@dataclass(frozen=True)
class SequenceTraining:
    """How to train.

    Args:
        steps: Largest number of optimizer steps.
        batch_size: Sequences per step.
        learning_rate: Peak learning rate of AdamW.
        warm_up: Steps of the linear warm-up.
        schedule: Learning rate after the warm-up: ``constant``, or ``cosine`` down to a tenth of the peak.
        weight_decay: Weight decay of AdamW.
        clip: Largest gradient norm.
        precision: ``bfloat16`` for matrix products under autocast; weights and residual stream stay in float32.
        every: Steps between two evaluations.
        cuda_graph: Whether to replay a recorded step instead of launching its kernels one by one; only on a GPU.

    Raises:
        UsageError: If a value has the wrong type, is out of range or is an unknown name.
    """

    steps: int
    batch_size: int
    learning_rate: float
    warm_up: int = 50
    schedule: str = "constant"
    weight_decay: float = 0.0
    clip: float = 1.0
    precision: str = "float32"
    every: int = 100
    cuda_graph: bool = True

    def __post_init__(self) -> None:
        check_types(self)
        expect_ranges(self, "steps", "batch_size", "every", least=1)
        expect_ranges(self, "learning_rate", "clip", above=0, below=math.inf)
        expect_ranges(self, "warm_up", "weight_decay", least=0, below=math.inf)
        expect_choice("schedule", self.schedule, SCHEDULES)
        expect_choice("precision", self.precision, PRECISIONS)

    def learning_rate_at(self, step: int) -> float:
        """Return the learning rate of a step, counted from 0."""
        if step < self.warm_up:
            return self.learning_rate * (step + 1) / self.warm_up
        if self.schedule == "constant":
            return self.learning_rate
        progress = (step - self.warm_up) / max(1, self.steps - self.warm_up)
        return self.learning_rate * (0.1 + 0.45 * (1 + math.cos(math.pi * progress)))


@dataclass
class LossHistory:
    """Training loss over time.

    Args:
        steps: Number of steps taken at each evaluation.
        loss: Mean loss since the evaluation before.
        seconds: Time of these steps, without evaluations. The first steps, in which kernels are compiled and recorded,
            count like the others.
    """

    steps: list[int] = field(default_factory=list)
    loss: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    @property
    def steps_taken(self) -> int:
        """Number of steps in all."""
        return self.steps[-1]


def fit_sequence(
    model: nn.Module,
    task: SequenceTask,
    training: SequenceTraining,
    generator: torch.Generator,
    watch: Callable[[int], bool | None] | None = None,
) -> LossHistory:
    """Minimise the cross-entropy of the target tokens with AdamW; the model ends in evaluation mode.

    A step whose gradient is not finite is skipped.

    Args:
        model: Maps tokens to logits; trained in place.
        task: Draws the sequences.
        training: How to train.
        generator: Random generator for the sequences, on the model's device.
        watch: Called at every evaluation with the number of steps taken, in evaluation mode. Training stops if it
            returns True.
    """
    device = generator.device
    on_gpu = device.type == "cuda"
    learning_rate = torch.tensor(training.learning_rate, device=device) if on_gpu else training.learning_rate
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=learning_rate, weight_decay=training.weight_decay, fused=True, capturable=on_gpu
    )
    step = _Step(model, optimizer, training, device)
    take_step = GraphedStep(step) if on_gpu and training.cuda_graph else step
    history, clock, steps_since, batches = LossHistory(), _Clock(device), 0, []
    model.train()
    for index in range(training.steps):
        if index == STEPS_PER_DRAW:
            clock.restart(index)
        if index % STEPS_PER_DRAW == 0:
            drawn = task.draw(STEPS_PER_DRAW * training.batch_size, generator)
            batches = list(zip(*(part.split(training.batch_size) for part in drawn), strict=True))
        set_learning_rate(optimizer, training.learning_rate_at(index))
        take_step(*batches[index % STEPS_PER_DRAW])
        steps_since += 1
        taken = index + 1
        if taken % training.every == 0 or taken == training.steps:
            history.steps.append(taken)
            history.loss.append(float(step.loss) / steps_since)
            history.seconds.append(clock.pause(taken))
            step.loss.zero_()
            steps_since = 0
            model.eval()
            if watch is not None and watch(taken):
                break
            model.train()
            clock.resume()
    model.eval()
    return history


class _Clock:
    """Measures the time of training steps, without the first ones and without evaluations."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.skipped, self.elapsed = 0, 0.0
        self.resume()

    def restart(self, steps: int) -> None:
        """Forget the time of the steps so far."""
        self.skipped, self.elapsed = steps, 0.0
        self.resume()

    def resume(self) -> None:
        """Continue after an evaluation."""
        self.started = self._now()

    def pause(self, steps: int) -> float:
        """The time of all steps so far, each counted with the mean of those measured."""
        self.elapsed += self._now() - self.started
        return self.elapsed * steps / (steps - self.skipped)

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()


class _Step:
    """One optimizer step; the loss accumulates on the device."""

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, training: SequenceTraining, device: torch.device
    ) -> None:
        self.model, self.optimizer, self.training = model, optimizer, training
        self.device = device
        self.loss = torch.zeros((), device=device)

    def __call__(self, inputs: Tensor, targets: Tensor) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        with autocast(self.training.precision, self.device):
            logits = self.model(inputs)
        loss = F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), ignore_index=IGNORE)
        loss.backward()
        gradient_norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.training.clip)
        # The fused optimizer reads this on the device, as under a gradient scaler, and skips the step.
        self.optimizer.found_inf = (~gradient_norm.isfinite()).float()  # pyright: ignore[reportAttributeAccessIssue]
        self.optimizer.step()
        self.loss += loss.detach()


def autocast(precision: str, device: torch.device) -> torch.autocast:
    """Return the autocast context of a precision; it is disabled for ``float32``."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision == "bfloat16")


def predict_tokens(
    model: nn.Module, inputs: Tensor, *, precision: str = "float32", batch_size: int = EVALUATION_BATCH
) -> Tensor:
    """Return the most likely next token at each position.

    Args:
        model: Maps tokens to logits.
        inputs: Tokens, (sequences, positions).
        precision: As in training.
        batch_size: Sequences per forward pass.
    """
    with torch.no_grad(), autocast(precision, inputs.device):
        return torch.cat([model(part).argmax(-1) for part in inputs.split(batch_size)])


def bits_per_token(model: nn.Module, inputs: Tensor, targets: Tensor, *, precision: str = "float32") -> float:
    """Return the mean cross-entropy of the target tokens in bits; bits per byte if tokens are bytes.

    Args:
        model: Maps tokens to logits.
        inputs: Tokens, (sequences, positions).
        targets: The next token at each position, or ``IGNORE``.
        precision: As in training.
    """
    total, count = torch.zeros((), device=inputs.device), (targets != IGNORE).sum()
    with torch.no_grad():
        for tokens, next_tokens in zip(inputs.split(EVALUATION_BATCH), targets.split(EVALUATION_BATCH), strict=True):
            with autocast(precision, inputs.device):
                logits = model(tokens)
            flat = logits.float().flatten(0, 1)
            total += F.cross_entropy(flat, next_tokens.flatten(), ignore_index=IGNORE, reduction="sum")
    return float(total / count) / math.log(2)

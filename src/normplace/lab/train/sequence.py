"""Train a sequence model on rows that are drawn as it goes, without waiting for the device between steps."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normplace._shared.fields import check_range, check_types
from normplace.errors import unknown
from normplace.lab.tasks.sequences.batch import IGNORE, SequenceTask
from normplace.lab.train.replay import GraphedStep, set_learning_rate

SCHEDULES = ("constant", "cosine")
PRECISIONS = ("float32", "bfloat16")
AHEAD = 16
"""Steps whose rows are drawn at once: drawing costs as many kernels for one step as for many."""


@dataclass(frozen=True)
class SequenceTraining:
    """How to train.

    Args:
        steps: Of the optimizer, at most.
        batch_size: Rows in a step.
        learning_rate: AdamW's, at its highest.
        warm_up: Steps in which it rises from 0.
        schedule: ``constant`` after them, or ``cosine``: down to a tenth.
        weight_decay: AdamW's.
        clip: Largest norm of the gradient.
        precision: ``bfloat16`` runs matrix products in it (autocast); weights and the stream stay in float32.
        every: Steps between two looks at the model.
        cuda_graph: Whether to replay one recorded step instead of launching its kernels one by one; on a GPU only.

    Raises:
        UsageError: If a number is out of range or of another type, or a name unknown.
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
        check_range(self, "steps", "batch_size", "every", least=1)
        check_range(self, "learning_rate", "clip", above=0, below=math.inf)
        check_range(self, "warm_up", "weight_decay", least=0, below=math.inf)
        if self.schedule not in SCHEDULES:
            raise unknown("schedule", self.schedule, SCHEDULES)
        if self.precision not in PRECISIONS:
            raise unknown("precision", self.precision, PRECISIONS)

    def rate(self, step: int) -> float:
        """The learning rate of a step, counted from 0."""
        if step < self.warm_up:
            return self.learning_rate * (step + 1) / self.warm_up
        if self.schedule == "constant":
            return self.learning_rate
        done = (step - self.warm_up) / max(1, self.steps - self.warm_up)
        return self.learning_rate * (0.1 + 0.45 * (1 + math.cos(math.pi * done)))


@dataclass
class LossHistory:
    """How training went: the mean loss between two looks at the model, and the step of each look."""

    steps: list[int] = field(default_factory=list)
    loss: list[float] = field(default_factory=list)

    @property
    def steps_taken(self) -> int:
        """Steps that were taken."""
        return self.steps[-1]


def fit_sequence(
    model: nn.Module,
    task: SequenceTask,
    training: SequenceTraining,
    generator: torch.Generator,
    watch: Callable[[int], bool | None] | None = None,
) -> LossHistory:
    """Minimise the cross-entropy of the asked-for tokens with AdamW, and leave the model in evaluation mode.

    A step whose gradient is not finite is left out.

    Args:
        model: From tokens to logits; changed in place.
        task: Where rows come from.
        training: How to train.
        generator: Source of the rows, on the model's device.
        watch: Called at every look with the steps done, in evaluation mode; it ends training by returning True.
    """
    device = generator.device
    on_gpu = device.type == "cuda"
    rate = torch.tensor(training.learning_rate, device=device) if on_gpu else training.learning_rate
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=rate, weight_decay=training.weight_decay, fused=True, capturable=on_gpu
    )
    step = _Step(model, optimizer, training, device)
    advance = GraphedStep(step) if on_gpu and training.cuda_graph else step
    course, since, rows = LossHistory(), 0, []
    model.train()
    for done in range(training.steps):
        if done % AHEAD == 0:
            drawn = task.draw(AHEAD * training.batch_size, generator)
            rows = list(zip(*(part.split(training.batch_size) for part in drawn), strict=True))
        set_learning_rate(optimizer, training.rate(done))
        advance(*rows[done % AHEAD])
        since += 1
        if (done + 1) % training.every == 0 or done + 1 == training.steps:
            course.steps.append(done + 1)
            course.loss.append(float(step.loss) / since)
            step.loss.zero_()
            since = 0
            model.eval()
            if watch is not None and watch(done + 1):
                break
            model.train()
    model.eval()
    return course


class _Step:
    """One step of the optimizer; the loss adds up on the device."""

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
        length = nn.utils.clip_grad_norm_(self.model.parameters(), self.training.clip)
        # The fused optimizer reads this on the device, as it does under a gradient scaler, and leaves the step out.
        self.optimizer.found_inf = (~length.isfinite()).float()  # pyright: ignore[reportAttributeAccessIssue]
        self.optimizer.step()
        self.loss += loss.detach()


def autocast(precision: str, device: torch.device) -> torch.autocast:
    """The context in which a model runs at that precision."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision == "bfloat16")


def predict_tokens(model: nn.Module, inputs: Tensor, *, precision: str = "float32", batch_size: int = 64) -> Tensor:
    """Return the most likely next token at each position.

    Args:
        model: From tokens to logits.
        inputs: Tokens, (sequences, positions).
        precision: As in training.
        batch_size: Sequences per forward pass.
    """
    with torch.no_grad(), autocast(precision, inputs.device):
        return torch.cat([model(part).argmax(-1) for part in inputs.split(batch_size)])


def bits_per_token(model: nn.Module, inputs: Tensor, targets: Tensor, *, precision: str = "float32") -> float:
    """Mean cross-entropy of the asked-for tokens in bits; bits per byte where tokens are bytes.

    Args:
        model: From tokens to logits.
        inputs: Tokens, (rows, positions).
        targets: What comes next, or ``IGNORE``.
        precision: As in training.
    """
    total, count = torch.zeros((), device=inputs.device), (targets != IGNORE).sum()
    with torch.no_grad():
        for tokens, wanted in zip(inputs.split(64), targets.split(64), strict=True):
            with autocast(precision, inputs.device):
                logits = model(tokens)
            flat = logits.float().flatten(0, 1)
            total += F.cross_entropy(flat, wanted.flatten(), ignore_index=IGNORE, reduction="sum")
    return float(total / count) / math.log(2)

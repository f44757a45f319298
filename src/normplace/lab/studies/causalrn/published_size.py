"""Trials at the published size: 12 layers of width 192, 320 strings per step, 2,000 steps, bfloat16 products.

The learning rate is constant after the warm-up, so a longer training contains the published one: its accuracy at
:data:`BUDGET` steps is that of a training of the published length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from normplace._shared.device import pick_device
from normplace.errors import expect_ranges
from normplace.lab.studies.causalrn.training import COPIES, CopyingTrial, train_to_copy
from normplace.lab.tasks.sequences import FixedCopy
from normplace.lab.trials.study import Outcome, Part
from normplace.models.sequence import SequenceModel

BUDGET = 2000
"""Published number of steps."""
LONGER = 3 * BUDGET
SEEDS = 5
HEADS = 6
"""Attention heads of the networks that need several; 192 and 96 channels give heads of 32 and 16."""
MAMBA_HEADS = 8
ALIGNMENT = 8
"""Multiple of widths that the kernels of a GPU need to be fast."""
TINY: dict[str, Any] = {"dim": 12, "depth": 1, "batch_size": 4, "letters": 3, "steps": 4, "every": 2, "budget": 2}
"""Networks that train in milliseconds, for scale ``smoke``."""


@dataclass(frozen=True, kw_only=True)
class PublishedTrial(CopyingTrial):
    """A trial at the published size.

    Args:
        budget: Steps after which the accuracy is also recorded.
    """

    dim: int = 192
    depth: int = 12
    steps: int = BUDGET
    batch_size: int = 320
    learning_rate: float = 5e-4
    precision: str = "bfloat16"
    every: int = 50
    decoded: int = 0
    budget: int = BUDGET

    def __post_init__(self) -> None:
        super().__post_init__()
        expect_ranges(self, "budget", least=self.every)


Published = TypeVar("Published", bound=PublishedTrial)
TIMES = ("seconds_to_copy", "step_seconds")
"""Metrics that are times."""


def published_outcome(trial: Published, build: Callable[[Published, FixedCopy], SequenceModel]) -> Outcome:
    """Train the network that ``build`` returns; record its accuracy along the training.

    Times are recorded on a GPU only, so that a trial on a CPU is reproducible to the last bit.
    """
    run = train_to_copy(trial, build)
    steps, strings = run.losses.steps, run.history["string"]
    first = first_copy(strings)
    metrics = {
        **run.metrics,
        **{f"{name}_in_budget": in_budget(steps, values, trial.budget) for name, values in run.history.items()},
        "copied": float(first is not None),
        "steps_to_copy": steps[-1 if first is None else first],
    }
    series = run.series
    if trial.decoded:
        metrics |= run.decoded(trial.decoded)
    if pick_device(trial.device).type == "cuda":
        seconds = run.losses.seconds
        times = (seconds[-1 if first is None else first], seconds[-1] / steps[-1])
        metrics |= dict(zip(TIMES, times, strict=True))
        series["seconds"] = seconds
    return Outcome(metrics, series)


def published_part(
    name: str,
    config: type[Published],
    plan: Callable[[str], Iterable[Published]],
    build: Callable[[Published, FixedCopy], SequenceModel],
    label: Callable[[Published], str],
) -> Part:
    """A part whose trials train the network that ``build`` returns at the published size."""
    return Part(name, config, plan, lambda trial: published_outcome(trial, build), label, machine_metrics=TIMES)


def alignment_of(dim: int) -> int:
    """The alignment of networks of CausalRN's width; tiny ones have none."""
    return ALIGNMENT if dim >= 96 else 1


def first_copy(strings: Sequence[float]) -> int | None:
    """Index of the first evaluation at which the network copies; None if it never does."""
    return next((index for index, accuracy in enumerate(strings) if accuracy >= COPIES), None)


def in_budget(steps: Sequence[int], values: Sequence[float], budget: int) -> float:
    """The value at the last evaluation within a number of steps; a training that stopped before keeps its last."""
    return [value for step, value in zip(steps, values, strict=True) if step <= budget][-1]

"""Deep Transformers that differ in placement, initial weights and learning rate.

A norm directly after a matrix makes the network invariant to the scale of that matrix, so the size of an update
relative to the matrix determines how fast its direction changes. Adam changes every weight by about the learning rate,
whatever its size: the smaller the initial matrix, the larger its effective learning rate.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from normplace.lab.studies.periln.training import BYTES, TrainingTrial, build, train_and_measure
from normplace.lab.tasks.data_files import unavailable_reason
from normplace.lab.tasks.sequences.text import find_text
from normplace.lab.trials.study import Outcome, Part
from normplace.models.transformer import AttentionConfig, Transformer, TransformerConfig
from normplace.models.transformer.init import WeightInit

PLACEMENTS = ("pre", "peri")
STARTS = ("depth", "fixed", "xavier")
RATES = (2.5e-4, 5e-4, 1e-3, 2e-3, 4e-3)
LOWER_RATES = {("peri", "depth"): (6.25e-5, 1.25e-4), ("peri", "fixed"): (1.25e-4,)}
SEEDS = 3
SHAPE = {"dim": 512, "depth": 24, "heads": 8, "context": 1024, "batch_size": 16, "steps": 256, "warm_up": 24}


@dataclass(frozen=True, kw_only=True)
class InitializationTrial(TrainingTrial):
    """One Transformer as ``normplace train`` builds it, with one kind of initial weights.

    Args:
        start: ``depth``, ``fixed`` or ``xavier``; see :class:`normplace.models.transformer.init.WeightInit`.

    Raises:
        UsageError: If the placement or the kind of initial weights is unknown, or the steps are not a multiple of 8.
    """

    start: str

    def __post_init__(self) -> None:
        super().__post_init__()
        WeightInit(self.start)


def plan(scale: str) -> Iterator[InitializationTrial]:
    """Two small trials at ``smoke``, the grid at ``full``, none at ``laptop``."""
    if scale == "smoke":
        small = {"dim": 16, "depth": 2, "heads": 2, "context": 8, "batch_size": 2, "steps": 8, "exam": 8, "probe": 2}
        for placement in PLACEMENTS:
            yield _trial(placement, "xavier", RATES[2], 0, warm_up=2, **small)
    elif scale == "full":
        for seed in range(SEEDS):
            for placement in PLACEMENTS:
                for start in STARTS:
                    for rate in _rates(placement, start, seed):
                        yield _trial(placement, start, rate, seed, precision="bfloat16", **SHAPE)


def _rates(placement: str, start: str, seed: int) -> tuple[float, ...]:
    """The learning rates of a variant.

    The grid was changed once, after the first seed: lower rates were added if the lowest was the best, and the other
    seeds leave out rates far above the best, except for the highest.
    """
    lower = LOWER_RATES.get((placement, start), ())
    if seed == 0:
        return lower + RATES
    return lower + tuple(rate for rate in RATES if rate <= 1e-3 or (rate == max(RATES) and start != "fixed"))


def _trial(placement: str, start: str, rate: float, seed: int, **shape: Any) -> InitializationTrial:
    return InitializationTrial(
        size="24 layers", placement=placement, start=start, learning_rate=rate, seed=seed, **shape
    )


def config_of(trial: InitializationTrial) -> TransformerConfig:
    """The trial's network: the defaults of ``normplace train``, except for the initial weights."""
    return TransformerConfig(
        BYTES,
        trial.dim,
        trial.depth,
        placement=trial.placement,
        norm=trial.norm,
        attention=AttentionConfig(heads=trial.heads),
        init=trial.start,
    )


def run(trial: InitializationTrial) -> Outcome:
    """Train as in the training part, and measure the size of the last matrix of each branch."""
    model = build(config_of(trial), trial)
    before = branch_output_rms(model)
    outcome = train_and_measure(trial, model)
    after = branch_output_rms(model)
    return Outcome(
        {
            **outcome.metrics,
            "matrix_rms_start": before,
            "matrix_rms_end": after,
            "matrix_grown": math.log2(after / before),
        },
        outcome.series,
    )


def branch_output_rms(model: Transformer) -> float:
    """RMS of the weights in the last matrix of each branch, geometric mean over branches."""
    last = ("attention.branch.output.weight", "mlp.branch.down.weight")
    matrices = [matrix.detach() for name, matrix in model.named_parameters() if name.endswith(last)]
    return math.exp(fmean(math.log(float(matrix.float().square().mean().sqrt())) for matrix in matrices))


PART = Part(
    name="initialization",
    config=InitializationTrial,
    plan=plan,
    run=run,
    label=lambda trial: f"{trial.placement}, {trial.start}, rate {trial.learning_rate:g}, seed {trial.seed}",
    unavailable_reason=lambda trial: unavailable_reason(find_text, trial.text),
)

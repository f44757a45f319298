"""Claims on the mean-field theory of the networks before pretraining.

The theory was written after the first lines of Pre-LN and Peri-LN, so their checks do not count; lines of Post-LN and
of the output norm did not exist. Thresholds were chosen after pilots of one seed with narrower networks on random
tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from normplace.lab.studies.notes import OURS
from normplace.lab.studies.periln.mean_field import Prediction, predict
from normplace.lab.studies.periln.pretraining import MAIN, NAMED, PART, SEEDS, PretrainingTrial, config_of
from normplace.lab.trials.claims import Check, Claim
from normplace.lab.trials.config import config_from_dict
from normplace.lab.trials.per_seed import PerSeed, Records, measure, pick
from normplace.lab.trials.results import TrialRecord

CLOSE = 1.25
"""Factor within which a prediction counts as right."""
_LATER = "the line of the first seed existed before the theory was written"
_KNOWN = ("pre", "peri")
_NOTE = (
    "24 layers of width 512, Xavier weights, on held-out text. Nothing is fitted: the prediction depends on the "
    "network and the entropy of its bytes."
)


def prediction(record: TrialRecord) -> Prediction:
    """The prediction for the network of a record before training."""
    trial = config_from_dict(PretrainingTrial, record.config)
    return predict(config_of(trial), float(record.metrics["byte_bits"] or math.nan))


def before_training(record: TrialRecord, name: str) -> list[float]:
    """The values of a series by depth at the first moment."""
    values = record.series[name]
    return [math.nan if value is None else value for value in values[: len(values) // len(record.series["moment"])]]


def largest_factor(predicted: Sequence[float], measured: Sequence[float], *, relative: bool = False) -> float:
    """The largest factor between predicted and measured values, in either direction; NaN if one is not positive.

    Args:
        predicted: Predicted values.
        measured: Measured values.
        relative: Whether both are first divided by their geometric means.

    Examples:
        >>> largest_factor([1.0, 2.0], [1.0, 4.0])
        2.0
        >>> round(largest_factor([1.0, 2.0], [3.0, 6.0], relative=True), 9)
        1.0
    """
    if not all(0 < value < math.inf for value in (*predicted, *measured)):
        return math.nan
    logs = [math.log(one / other) for one, other in zip(predicted, measured, strict=True)]
    middle = sum(logs) / len(logs) if relative else 0.0
    return math.exp(max(abs(value - middle) for value in logs))


def _variance_factor(record: TrialRecord) -> float:
    return largest_factor(prediction(record).variance[1:], before_training(record, "variance")[1:])


def _gradient_factor(record: TrialRecord) -> float:
    return largest_factor(prediction(record).gradient, before_training(record, "gradient"), relative=True)


FACTORS = {"variance": _variance_factor, "gradient": _gradient_factor}


@measure
def theory_factor(records: Records, name: str, placement: str) -> PerSeed:
    """The largest factor between theory and measurement over layers; runs of a seed have the same initial network."""
    selected = pick(records, PART.name, placement=placement, variant=MAIN)
    first = {record.seed: record for record in reversed(selected) if record.series.get("moment")}
    return PerSeed({seed: FACTORS[name](first[seed]) for seed in sorted(first)})


def _checks(name: str, label: str) -> tuple[Check, ...]:
    return tuple(
        Check(
            f"largest factor between predicted and measured {label}, {placement}",
            theory_factor(name, placement),
            at_most=CLOSE,
            added_after=_LATER if placement in _KNOWN else "",
        )
        for placement in NAMED
    )


CLAIMS = (
    Claim(
        id="pretraining-theory-variance",
        paper=OURS,
        statement="Before training, mean-field theory predicts the variance of the stream after every layer within a "
        "factor of 1.25.",
        checks=_checks("variance", "variance"),
        seeds=SEEDS,
        note=_NOTE,
    ),
    Claim(
        id="pretraining-theory-gradient",
        paper=OURS,
        statement="Before training, mean-field theory predicts the gradient norm of every layer relative to the other "
        "layers within a factor of 1.25.",
        checks=_checks("gradient", "gradient relative to the geometric mean over layers"),
        seeds=SEEDS,
        note=f"{_NOTE} The level of all gradients is not part of the claim: it depends on how alike the tokens are.",
    ),
)

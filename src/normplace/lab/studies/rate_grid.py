"""Learning-rate grids of language models.

A grid starts with three rates and is extended by a factor of 2 until the best rate has a lower and a higher neighbor,
or the range of rates ends. If no network of it learned, it is extended to lower rates, since too high a rate is the
usual reason.
"""

from __future__ import annotations

import math
from statistics import fmean

from normplace.lab.trials.per_seed import Records, config_values, pick
from normplace.lab.trials.results import TrialRecord

UNIFORM = 8.0
"""Bits per byte of a uniform guess."""
RATES = tuple(1e-3 * 2.0**power for power in range(-4, 5))
"""All learning rates that a grid may be extended to."""
FIRST_RATES = (1e-3, 2e-3, 5e-4)


def loss(record: TrialRecord, name: str = "bits_per_byte") -> float:
    """Bits per byte of a trial, at most those of a uniform guess, which also replace a number that is not finite."""
    value = record.metrics.get(name)
    return UNIFORM if value is None or not math.isfinite(value) else min(value, UNIFORM)


def best_rate(records: Records, part: str, **variant: object) -> float | None:
    """The best learning rate of a variant; None without records."""
    means = {
        rate: fmean(loss(record, "choosing_bits") for record in pick(records, part, learning_rate=rate, **variant))
        for rate in config_values(records, part, "learning_rate", **variant)
    }
    return min(means, key=lambda rate: means[rate], default=None)

"""Other ways to decide which edits differ from a baseline, to be measured against the one in use.

Each takes scores with one row per edit, the baseline first, and returns for each other edit whether it is separated.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from calibration.noise import as_scores
from normplace.lab.compare.power import sidak_level
from normplace.lab.compare.statistics import Verdict, against_baseline

LEVEL = 0.05
RESAMPLES = 999

Numbers = NDArray[np.float64]
Decision = Callable[[Numbers], NDArray[np.bool_]]


def in_use(scores: Numbers) -> NDArray[np.bool_]:
    """The method of :mod:`normplace.lab.compare.statistics`."""
    family = against_baseline(as_scores(scores), "edit 0", better="smaller")
    return np.array([one.verdict is not Verdict.TIED for one in family.values()])


def uncorrected(scores: Numbers) -> NDArray[np.bool_]:
    """Student's test of each edit at 5%."""
    differences = scores[1:] - scores[0]
    return np.abs(_statistics(differences)) > stdtrit(differences.shape[1] - 1, 1 - LEVEL / 2)


def pooled(scores: Numbers) -> NDArray[np.bool_]:
    """One variance for all edits, from the residuals of edits and seeds, with a Šidák correction."""
    edits, seeds = scores.shape
    residuals = scores - scores.mean(1, keepdims=True) - scores.mean(0) + scores.mean()
    degrees = (edits - 1) * (seeds - 1)
    error = np.sqrt(2 * (residuals**2).sum() / degrees / seeds)
    means = np.abs((scores[1:] - scores[0]).mean(1))
    return means / error > stdtrit(degrees, 1 - sidak_level(edits - 1) / 2)


def sign_flips(scores: Numbers) -> NDArray[np.bool_]:
    """Largest t over edits under every change of signs of the seeds."""
    differences = scores[1:] - scores[0]
    signs = np.array(list(itertools.product((1.0, -1.0), repeat=differences.shape[1])))
    flipped = np.abs(_statistics(differences[None] * signs[:, None])).max(1)
    observed = np.abs(_statistics(differences))
    return (flipped[:, None] >= observed - 1e-12).mean(0) <= LEVEL


def bootstrap(scores: Numbers) -> NDArray[np.bool_]:
    """Largest t over edits when seeds are resampled, with the standard error of the sample."""
    differences = scores[1:] - scores[0]
    seeds = differences.shape[1]
    chosen = np.random.default_rng(0).integers(0, seeds, (RESAMPLES, seeds))
    centred = differences - differences.mean(1, keepdims=True)
    errors = differences.std(1, ddof=1) / np.sqrt(seeds)
    largest = np.abs(centred[:, chosen].mean(2) / errors[:, None]).max(0)
    return np.abs(differences.mean(1) / errors) > np.quantile(largest, 1 - LEVEL)


METHODS: dict[str, Decision] = {
    "Student, Šidák (in use)": in_use,
    "Student, uncorrected": uncorrected,
    "pooled variance, Šidák": pooled,
    "max-t, sign flips": sign_flips,
    "max-t, bootstrap": bootstrap,
}


def _statistics(differences: Numbers) -> Numbers:
    """Student's t over the last axis."""
    with np.errstate(divide="ignore", invalid="ignore"):
        errors = differences.std(-1, ddof=1) / np.sqrt(differences.shape[-1])
        return np.nan_to_num(differences.mean(-1) / errors, posinf=np.inf, neginf=-np.inf)

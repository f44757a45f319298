"""Sensitivity to the learning rate (Wortsman et al. 2023, arXiv 2309.14322).

It is the mean over a range of learning rates of how much worse a trial ends than at the best of them, where no trial
counts as worse than the untrained network. Here the range is the learning rates that every edit was tried with on the
shortest rung, before any was pruned, and the trials are compared on the choosing split.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import fmean

from normplace.lab.compare.edit_trials import EditTrials, rate_scores, score
from normplace.lab.compare.statistics import Better
from normplace.lab.trials.record import TrialRecord


def unpruned(trials: EditTrials) -> list[TrialRecord]:
    """The trials of the shortest rung, on which every learning rate was tried."""
    records = (*trials.search, *trials.final)
    first = min((record.config.get("rung", 0) for record in records), default=0)
    return [record for record in records if record.config.get("rung", 0) == first]


def rate_sensitivity(edits: Mapping[str, EditTrials], *, better: Better) -> dict[str, float]:
    """Sensitivity of each edit over the learning rates that all edits were tried with.

    Returns:
        The sensitivity in the unit of the score, averaged over seeds; empty if the edits share fewer than two rates.
    """
    sign = 1 if better == "smaller" else -1
    grids = {edit: rate_scores(unpruned(trials)) for edit, trials in edits.items()}
    shared = set.intersection(*(set(grid) for grid in grids.values())) if grids else set()
    caps = [cap for trials in edits.values() if (cap := _untrained(unpruned(trials), sign)) is not None]
    cap = min(caps, default=None)  # the untrained model of an edit may explode
    if len(shared) < 2 or cap is None:
        return {}
    sensitivities: dict[str, float] = {}
    for edit, grid in grids.items():
        seeds = set.intersection(*(set(grid[rate]) for rate in shared))
        losses = [[_loss(grid[rate][seed], sign, cap) for rate in shared] for seed in seeds]
        losses = [own for own in losses if min(own) < cap]  # else no learning rate works, so that none is better
        if losses:
            sensitivities[edit] = fmean(fmean(own) - min(own) for own in losses)
    return sensitivities


def _loss(value: float | None, sign: int, cap: float) -> float:
    """The score as a number of which smaller is better, at most that of the untrained network."""
    return cap if value is None else min(sign * value, cap)


def _untrained(records: Iterable[TrialRecord], sign: int) -> float | None:
    """The held-out loss at step 0; without one, the worst among the trials that did not diverge."""
    starts: list[float] = []
    ends: list[float] = []
    for record in records:
        steps, values = record.series.get("held_out_step", []), record.series.get("held_out", [])
        if steps and steps[0] == 0 and values[0] is not None:
            starts.append(sign * values[0])
        if (end := score(record, "choose")) is not None:
            ends.append(sign * end)
    return max(starts or ends, default=None)

"""What claims read from the lines: scores, differences, and the learned numbers of layers, by seed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

from normplace.lab.studies.deepergcn import anchors
from normplace.lab.studies.deepergcn.depth import USUAL
from normplace.lab.studies.deepergcn.network import FIXED
from normplace.lab.trials.claims import by_seed, pick
from normplace.lab.trials.measures import quotient
from normplace.lab.trials.results import TrialRecord

TINY = 1e-12
PUBLISHED_ENDS = {"t": (-0.12, 0.93), "p": (0.92, 1.92)}
"""Smallest and largest of the layers' temperatures and powers, read off the repository's figures."""


def score(lines: Sequence[TrialRecord], part: str, name: str = "test", **fields: Any) -> dict[int, float]:
    """A metric of the trials whose configuration has these values, by seed."""
    return by_seed(pick(lines, part, **fields), name)


def deepest(lines: Sequence[TrialRecord], data: str) -> int:
    """The greatest depth at which every order was tried on a graph; 0 without lines."""
    depths = [{line.config["depth"] for line in pick(lines, "depth", data=data, order=o)} for o in ("res+", "plain")]
    return max(depths[0] & depths[1], default=0)


def less(ours: dict[int, float], theirs: dict[int, float]) -> dict[int, float]:
    """The difference of two measures, by seed."""
    return {seed: ours[seed] - theirs[seed] for seed in ours if seed in theirs}


def kept(lines: Sequence[TrialRecord], data: str) -> dict[int, float]:
    """Score of the deepest res+ stack less that of the usual depth."""
    of = partial(score, lines, "depth", data=data, order="res+")
    return less(of(depth=deepest(lines, data)), of(depth=USUAL))


def lead(lines: Sequence[TrialRecord], data: str, over: str) -> dict[int, float]:
    """Score of the deepest res+ stack less that of another order."""
    of = partial(score, lines, "depth", data=data, depth=deepest(lines, data))
    return less(of(order="res+"), of(order=over))


def energy_decades(lines: Sequence[TrialRecord], data: str) -> dict[int, float]:
    """Decades of the relative Dirichlet energy of the deepest res+ stack's last stream above that of plain layers."""
    of = partial(score, lines, "depth", name="energy", data=data, depth=deepest(lines, data))
    ours, theirs = of(order="res+"), of(order="plain")
    return {seed: math.log10(max(ours[seed], TINY) / max(theirs[seed], TINY)) for seed in ours if seed in theirs}


def dropout_cost(lines: Sequence[TrialRecord], data: str) -> dict[int, float]:
    """Score of res of the usual depth with dropout on its branch less that with dropout on the stream."""
    of = partial(score, lines, data=data, order="res", depth=USUAL)
    return less(of("depth"), of("dropout"))


def best_by_validation(lines: Sequence[TrialRecord], part: str, names: Sequence[str], **fields: Any) -> str | None:
    """The aggregation with the best mean validation score, of those that were tried."""
    means = {}
    for name in names:
        if values := score(lines, part, "val", aggregation=name, **fields):
            means[name] = sum(values.values()) / len(values)
    return max(means, key=lambda name: means[name], default=None)


def learned_lead(lines: Sequence[TrialRecord], data: str, aggregation: str) -> dict[int, float]:
    """Score of a learned aggregation less that of the fixed one which was best by validation."""
    of = partial(score, lines, "aggregation", data=data, msg_norm=False)
    best = best_by_validation(lines, "aggregation", FIXED, data=data, msg_norm=False)
    return less(of(aggregation=aggregation), of(aggregation=best))


def msg_norm_gain(lines: Sequence[TrialRecord], data: str, aggregation: str) -> dict[int, float]:
    """Score with MsgNorm less that without."""
    of = partial(score, lines, "aggregation", data=data, aggregation=aggregation)
    return less(of(msg_norm=True), of(msg_norm=False))


def best_fixed(lines: Sequence[TrialRecord], data: str) -> dict[int, float]:
    """Score of the fixed aggregation that was best by validation."""
    best = best_by_validation(lines, "aggregation", FIXED, data=data, msg_norm=False)
    return score(lines, "aggregation", data=data, msg_norm=False, aggregation=best)


def beyond_published(lines: Sequence[TrialRecord], data: str, aggregation: str, letter: str) -> dict[int, float]:
    """How far the layers' learned numbers end outside the published range, at the end that is farther out."""
    low, high = _learned_ends(lines, data, aggregation, letter)
    least, greatest = PUBLISHED_ENDS[letter]
    return {seed: max(least - low[seed], high[seed] - greatest, 0.0) for seed in low}


def learned_spread(lines: Sequence[TrialRecord], data: str, aggregation: str, letter: str) -> dict[int, float]:
    """By how much the learned numbers of the layers differ; all start alike."""
    low, high = _learned_ends(lines, data, aggregation, letter)
    return less(high, low)


def _learned_ends(
    lines: Sequence[TrialRecord], data: str, aggregation: str, letter: str
) -> tuple[dict[int, float], dict[int, float]]:
    of = partial(score, lines, "aggregation", data=data, aggregation=aggregation, msg_norm=False)
    return of(f"{letter}_low"), of(f"{letter}_high")


def anchor(lines: Sequence[TrialRecord], data: str) -> dict[int, float]:
    """Score of the candidate that was best by validation, by split."""
    best = best_by_validation(lines, "anchors", tuple(anchors.CANDIDATES[data]), data=data)
    return score(lines, "anchors", data=data, aggregation=best)


def growth(lines: Sequence[TrialRecord], memory: str) -> dict[int, float]:
    """Peak memory of the deepest step over that of the shallowest, over the ratio of their depths."""
    depths = {line.config["depth"] for line in pick(lines, "memory", memory=memory)}
    if not depths:
        return {}
    of = partial(score, lines, "memory", "peak_mb", memory=memory)
    deep, shallow = of(depth=max(depths)), of(depth=min(depths))
    return {seed: quotient(deep[seed], shallow[seed]) * min(depths) / max(depths) for seed in deep if seed in shallow}


def shallowest_plain(lines: Sequence[TrialRecord], data: str) -> dict[int, float]:
    """Score of the shallowest plain stack."""
    depths = [line.config["depth"] for line in pick(lines, "depth", data=data, order="plain")]
    return score(lines, "depth", data=data, order="plain", depth=min(depths, default=0))


def deepest_score(lines: Sequence[TrialRecord], data: str, order: str) -> dict[int, float]:
    """Score of the deepest stack of an order."""
    return score(lines, "depth", data=data, order=order, depth=deepest(lines, data))

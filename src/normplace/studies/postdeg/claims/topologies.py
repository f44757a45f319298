"""Whether a policy is any use beside the classical methods, on real graphs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from normplace.lab.claims import Check, Claim, pick
from normplace.lab.results import Line
from normplace.studies.postdeg.claims.gains import PAPER
from normplace.studies.postdeg.topologies import ADAPTIVE, GRAPHS, LEARNED, PART, titles

_NOTE = (
    "Ours: the paper compares with its own backbone. Policies are trained on random graphs of up to 300 nodes. "
    "Recorded before scores were computed in float64 with ties broken at random."
)


def _pairs(lines: Sequence[Line], measure: str, method: str, other: str) -> dict[int, list[tuple[float, float]]]:
    """A measure of a policy and of a classical method on every graph, by the policy's seed."""
    task = "influence" if measure == "spread" else "dismantling"
    base = pick(lines, PART.name, task=task, method=other)
    plain, suffix = method.removesuffix(ADAPTIVE), ADAPTIVE if method.endswith(ADAPTIVE) else ""
    return {
        line.seed: [
            (line.metrics[f"{measure}/{graph}{suffix}"] or math.nan, base[0].metrics[f"{measure}/{graph}"] or math.nan)
            for graph in GRAPHS
        ]
        for line in pick(lines, PART.name, task=task, method=plain)
        if base
    }


def mean_of_ratios(lines: Sequence[Line], measure: str, method: str, other: str) -> dict[int, float]:
    """The mean over graphs of a measure relative to a classical method's, by seed: every graph counts alike."""
    found = _pairs(lines, measure, method, other)
    return {seed: sum(ours / theirs for ours, theirs in pairs) / len(pairs) for seed, pairs in found.items()}


def ratio_of_means(lines: Sequence[Line], measure: str, method: str, other: str) -> dict[int, float]:
    """The mean of a measure over graphs relative to the mean of a classical method's, by seed."""
    found = _pairs(lines, measure, method, other)
    return {seed: sum(ours for ours, _ in pairs) / sum(theirs for _, theirs in pairs) for seed, pairs in found.items()}


MEANS = {"ratio of means": ratio_of_means, "mean of ratios": mean_of_ratios}


def _improvement(lines: Sequence[Line], mean: str) -> dict[int, float]:
    ours = MEANS[mean](lines, "AUC", "degree-postdeg" + ADAPTIVE, "corehd")
    theirs = MEANS[mean](lines, "AUC", "degree-input" + ADAPTIVE, "corehd")
    return {seed: ours[seed] / theirs[seed] for seed in ours if seed in theirs}


CLAIMS = (
    Claim(
        id="learned-dismantles-like-corehd",
        paper=f"{PAPER}, task of network dismantling",
        statement="On nine real graphs a policy that reads degree and rescores dismantles at least as fast as CoreHD.",
        checks=tuple(
            Check(
                f"AUC of {titles()['degree-input' + ADAPTIVE]} over CoreHD, {name}",
                partial(mean, measure="AUC", method="degree-input" + ADAPTIVE, other="corehd"),
                at_most=1.0,
            )
            for name, mean in MEANS.items()
        ),
        seeds=3,
        note=f"{_NOTE} Areas under the robustness curve. Which policy to name was settled by a pilot on three of the "
        "graphs. The first run was judged by the mean of ratios alone, which failed; the ratio of means, the usual "
        "summary, was added after it. The mean of ratios weighs the two graphs that fall apart after a few hubs as "
        "much as the others.",
    ),
    Claim(
        id="learned-spreads-like-ris",
        paper=f"{PAPER}, task of influence maximization",
        statement="On nine real graphs the policies' 50 seeds reach as many nodes as those of RIS greedy.",
        checks=tuple(
            Check(
                f"spread of {titles()[method]} over RIS greedy, mean of ratios",
                partial(mean_of_ratios, measure="spread", method=method, other="ris"),
                at_least=1.0,
            )
            for method in LEARNED
        ),
        seeds=3,
        note=f"{_NOTE} Under the weighted cascade.",
    ),
    Claim(
        id="postdeg-helps-on-real-graphs",
        paper=f"{PAPER}, reach of the claim",
        statement="On nine real graphs PostDeg improves the dismantling policy that reads degree.",
        checks=tuple(
            Check(f"AUC with PostDeg over without, {name}", partial(_improvement, mean=name), at_most=0.99)
            for name in MEANS
        ),
        seeds=3,
        note=f"{_NOTE} Adaptive; the margin of 1% is ours. The first run was judged by the mean of ratios alone, which "
        "held; the ratio of means was added after it.",
    ),
)

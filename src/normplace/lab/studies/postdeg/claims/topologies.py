"""Whether a policy is any use beside the classical methods, on real graphs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from normplace.lab.studies.notes import SIGN
from normplace.lab.studies.postdeg.claims.gains import PAPER
from normplace.lab.studies.postdeg.topologies import ADAPTIVE, GRAPHS, LEARNED, PART, titles
from normplace.lab.trials.claims import Check, Claim, pick, sign_and_size
from normplace.lab.trials.intervals import Counted
from normplace.lab.trials.measures import quotient
from normplace.lab.trials.results import TrialRecord

_NOTE = (
    "Ours: the paper compares with its own backbone. Policies are trained on random graphs of up to 300 nodes. "
    "Recorded before scores were computed in float64 with ties broken at random."
)


def _pairs(lines: Sequence[TrialRecord], measure: str, method: str, other: str) -> dict[int, list[tuple[float, float]]]:
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


def mean_of_ratios(lines: Sequence[TrialRecord], measure: str, method: str, other: str) -> dict[int, float]:
    """The mean over graphs of a measure relative to a classical method's, by seed: every graph counts alike."""
    found = _pairs(lines, measure, method, other)
    return {seed: sum(quotient(ours, theirs) for ours, theirs in pairs) / len(pairs) for seed, pairs in found.items()}


def ratio_of_means(lines: Sequence[TrialRecord], measure: str, method: str, other: str) -> dict[int, float]:
    """The mean of a measure over graphs relative to the mean of a classical method's, by seed."""
    found = _pairs(lines, measure, method, other)
    return {
        seed: quotient(sum(ours for ours, _ in pairs), sum(theirs for _, theirs in pairs))
        for seed, pairs in found.items()
    }


MEANS = {"mean of ratios": mean_of_ratios, "ratio of means": ratio_of_means}
DECLARED = "mean of ratios"
_LATER = "the first run had been judged by the mean of ratios alone"


def _improvement(lines: Sequence[TrialRecord], mean: str) -> dict[int, float]:
    ours = MEANS[mean](lines, "AUC", "degree-postdeg" + ADAPTIVE, "corehd")
    theirs = MEANS[mean](lines, "AUC", "degree-input" + ADAPTIVE, "corehd")
    return {seed: quotient(ours[seed], theirs[seed]) for seed in ours if seed in theirs}


_OPPONENTS = {
    "AUC": Check(
        "AUC of CoreHD over a random order, mean of ratios",
        partial(mean_of_ratios, measure="AUC", method="corehd", other="random"),
        at_most=0.9,
        interval=Counted(),
    ),
    "spread": Check(
        "spread of RIS greedy over random seeds, mean of ratios",
        partial(mean_of_ratios, measure="spread", method="ris", other="random"),
        at_least=1.1,
        interval=Counted(),
    ),
}

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
                added_after="" if name == DECLARED else _LATER,
            )
            for name, mean in MEANS.items()
        ),
        gates=(_OPPONENTS["AUC"],),
        seeds=3,
        note=f"{_NOTE} Areas under the robustness curve. Which policy to name was settled by a pilot on three of the "
        "graphs. The first run was judged by the mean of ratios alone, which failed; the ratio of means, the usual "
        "summary, was added after it and does not count. The mean of ratios weighs the two graphs that fall apart "
        "after a few hubs as much as the others.",
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
        gates=(_OPPONENTS["spread"],),
        seeds=3,
        note=f"{_NOTE} Under the weighted cascade. Policies choose a tenth of the nodes in training and 50 here. "
        "The one with a constant input and LayerNorm can tell no two nodes apart: its order comes from rounding, so "
        "that its number does not show what a policy learns.",
    ),
    Claim(
        id="postdeg-helps-on-real-graphs",
        paper=f"{PAPER}, reach of the claim",
        statement="On nine real graphs PostDeg improves the dismantling policy that reads degree.",
        checks=tuple(
            check
            for name in MEANS
            for check in sign_and_size(
                f"AUC with PostDeg over without, {name}",
                partial(_improvement, mean=name),
                no_effect=1,
                at_most=0.99,
                added_after="" if name == DECLARED else _LATER,
            )
        ),
        gates=(
            Check(
                "AUC of the policy without PostDeg over a random order, mean of ratios",
                partial(mean_of_ratios, measure="AUC", method="degree-input" + ADAPTIVE, other="random"),
                at_most=0.9,
            ),
        ),
        seeds=3,
        note=f"{_NOTE} Adaptive; the margin of 1% is ours. The first run was judged by the mean of ratios alone, which "
        f"held; the ratio of means, which fails, was added after it and does not count. {SIGN}",
    ),
)

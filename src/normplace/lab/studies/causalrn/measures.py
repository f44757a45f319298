"""What claims read from the lines: accuracies over lengths, leads over other networks, and growth of costs, by seed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from normplace.lab.trials.claims import by_seed, pick
from normplace.lab.trials.measures import difference, metric, quotient
from normplace.lab.trials.results import TrialRecord


def lengths(lines: Sequence[TrialRecord], part: str) -> list[int]:
    """The lengths a part was run at, in order."""
    return sorted({line.config["length"] for line in pick(lines, part)})


def worst(lines: Sequence[TrialRecord], name: str, **fields: Any) -> dict[int, float]:
    """The least value of a metric over the lengths of fixed copying, by seed."""
    each = [by_seed(pick(lines, "copying-fixed", length=n, **fields), name) for n in lengths(lines, "copying-fixed")]
    seeds = set.intersection(*map(set, each)) if each else set()
    return {seed: min(values[seed] for values in each) for seed in seeds}


def lead_at_shortest(lines: Sequence[TrialRecord], **other: Any) -> dict[int, float]:
    """The lead of the pairwise form over another network in string accuracy at the shortest length, by seed."""
    found = lengths(lines, "copying-fixed")[:1]
    return lead([line for line in lines if line.config.get("length") in found], **other)


def at_shortest(lines: Sequence[TrialRecord], **fields: Any) -> dict[int, float]:
    """String accuracy at the shortest length of fixed copying, by seed."""
    found = lengths(lines, "copying-fixed")[:1]
    return worst([line for line in lines if line.config.get("length") in found], "string", **fields)


def lead(lines: Sequence[TrialRecord], **other: Any) -> dict[int, float]:
    """The worst lead of the pairwise form over another network in string accuracy, over lengths, by seed."""
    ours = {"network": "pairwise", "size": "equal"}
    each = [
        difference(lines, "copying-fixed", "string", {**ours, "length": n}, {**other, "length": n})
        for n in lengths(lines, "copying-fixed")
    ]
    seeds = set.intersection(*map(set, each)) if each else set()
    return {seed: min(values[seed] for values in each) for seed in seeds}


def growth(lines: Sequence[TrialRecord], name: str, form: str) -> dict[int, float]:
    """The power of the length with which a cost grows, between the two longest, by seed."""
    found = lengths(lines, "scaling")[-2:]
    if len(found) < 2:
        return {}
    short, long = (metric(lines, "scaling", name, {"form": form, "length": n}) for n in found)
    ratios = {seed: quotient(long[seed], short[seed]) for seed in short if seed in long}
    return {seed: math.log(value, found[1] / found[0]) if value > 0 else math.nan for seed, value in ratios.items()}


def rows_per_token(lines: Sequence[TrialRecord], form: str) -> dict[int, float]:
    """Rows by which the memory of decoding grows with each token, between the shortest and the longest, by seed."""
    found = lengths(lines, "scaling")
    if len(found) < 2:
        return {}
    short, long = (metric(lines, "scaling", "state_rows", {"form": form, "length": n}) for n in (found[0], found[-1]))
    return {seed: (long[seed] - short[seed]) / (found[-1] - found[0]) for seed in short if seed in long}


def head_accuracy(lines: Sequence[TrialRecord], **fields: Any) -> dict[int, float]:
    """The accuracy of the hand-built head in its longest memory, by seed."""
    found = lengths(lines, "head")
    return metric(lines, "head", "accuracy", {**fields, "length": found[-1]}) if found else {}


def head_queries(lines: Sequence[TrialRecord]) -> int:
    """Queries that an accuracy of the hand-built head is a share of."""
    return min(line.config["queries"] for line in pick(lines, "head"))


def hardest_recall(lines: Sequence[TrialRecord], network: str) -> dict[int, float]:
    """Accuracy with the most pairs, by seed."""
    pairs = {line.config["pairs"] for line in pick(lines, "recall")}
    return metric(lines, "recall", "accuracy", {"network": network, "pairs": max(pairs)}) if pairs else {}


def recall_lead(lines: Sequence[TrialRecord], over: str) -> dict[int, float]:
    """Accuracy of the pairwise form with the most pairs less that of another network, by seed."""
    ours, theirs = hardest_recall(lines, "pairwise"), hardest_recall(lines, over)
    return {seed: ours[seed] - theirs[seed] for seed in ours if seed in theirs}

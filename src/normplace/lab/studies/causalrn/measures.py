"""Measures that claims of several parts share, and those that select records first."""

from __future__ import annotations

from collections.abc import Callable

from normplace.lab.trials.per_seed import Measure, PerSeed, Records, config_values, measure, metric, pick

FIXED = "copying-fixed"
AtLength = Callable[[int], Measure]
"""From a length to a measure at that length."""


def copying_accuracy(**fields: object) -> AtLength:
    """String accuracy of a network on strings of one length."""
    return lambda length: metric(FIXED, "string", length=length, **fields)


def copying_lead(**other: object) -> AtLength:
    """String accuracy of the pairwise form minus that of another network, on strings of one length."""
    pairwise = copying_accuracy(network="pairwise", size="equal")
    return lambda length: pairwise(length) - copying_accuracy(**other)(length)


@measure
def at_worst_length(records: Records, at_length: AtLength) -> PerSeed:
    """Least value over the lengths of fixed-length copying."""
    return PerSeed.over((at_length(n)(records) for n in config_values(records, FIXED, "length")), min)


@measure
def at_shortest_length(records: Records, at_length: AtLength) -> PerSeed:
    """Value at the shortest length of fixed-length copying."""
    return PerSeed.over((at_length(n)(records) for n in config_values(records, FIXED, "length")[:1]), min)


@measure
def cost_exponent(records: Records, name: str, form: str) -> PerSeed:
    """Exponent of the length in a cost, between the two greatest lengths."""
    lengths = config_values(records, "scaling", "length")[-2:]
    if len(lengths) < 2:
        return PerSeed()
    short, long = (metric("scaling", name, form=form, length=n)(records) for n in lengths)
    return (long / short).log(lengths[1] / lengths[0])


@measure
def state_rows_per_token(records: Records, form: str) -> PerSeed:
    """Rows by which the decoding state grows per token, between the shortest and the greatest length."""
    lengths = config_values(records, "scaling", "length")
    if len(lengths) < 2:
        return PerSeed()
    shortest, longest = (
        metric("scaling", "state_rows", form=form, length=n)(records) for n in (lengths[0], lengths[-1])
    )
    return (longest - shortest) / (lengths[-1] - lengths[0])


@measure
def head_accuracy(records: Records, **fields: object) -> PerSeed:
    """Accuracy of the hand-built head with the most keys."""
    lengths = config_values(records, "head", "length")
    return metric("head", "accuracy", **fields, length=lengths[-1])(records) if lengths else PerSeed()


def head_queries(records: Records) -> int:
    """Number of queries behind an accuracy of the hand-built head."""
    return min(record.config["queries"] for record in pick(records, "head"))

"""Measures of the study that select records first: by depth, and by validation score."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from normplace.lab.studies.deepergcn.networks import FIXED
from normplace.lab.trials.per_seed import Measure, PerSeed, Records, config_values, measure, metric

TINY = 1e-12
AtDepth = Callable[[int], Measure]
"""From a depth to a measure at that depth."""


def stack_score(order: str, data: str, name: str = "test") -> AtDepth:
    """A metric of the stacks of one block order on one graph."""
    return lambda depth: metric("depth", name, data=data, order=order, depth=depth)


def deepest(records: Records, data: str) -> int:
    """The greatest depth at which both res+ and plain were trained on a graph; 0 without records."""
    depths = [set(config_values(records, "depth", "depth", data=data, order=order)) for order in ("res+", "plain")]
    return max(depths[0] & depths[1], default=0)


@measure
def at_deepest(records: Records, data: str, at_depth: AtDepth) -> PerSeed:
    """Value at the greatest depth."""
    return at_depth(deepest(records, data))(records)


@measure
def shallowest_plain(records: Records, data: str) -> PerSeed:
    """Score of the shallowest plain stack."""
    depths = config_values(records, "depth", "depth", data=data, order="plain") or [0]
    return stack_score("plain", data)(depths[0])(records)


def energy_decades(data: str) -> Measure:
    """log10 of the ratio of relative Dirichlet energies in the last stream, deepest res+ over deepest plain."""
    residual, plain = (stack_score(order, data, "energy") for order in ("res+", "plain"))
    return at_deepest(data, lambda depth: residual(depth).map(_decades, plain(depth)))


def best_by_validation(records: Records, part: str, names: Iterable[str], **fields: object) -> str | None:
    """The aggregation with the best mean validation score; None without records."""
    scores = {name: metric(part, "val", aggregation=name, **fields)(records) for name in names}
    means = {name: values.mean() for name, values in scores.items() if values}
    return max(means, key=lambda name: means[name], default=None)


@measure
def best_score(records: Records, part: str, names: Iterable[str], **fields: object) -> PerSeed:
    """Test score of the aggregation with the best mean validation score."""
    best = best_by_validation(records, part, names, **fields)
    return metric(part, "test", aggregation=best, **fields)(records)


def best_fixed(data: str) -> Measure:
    """Test score of the best fixed aggregation on a graph."""
    return best_score("aggregation", FIXED, data=data, msg_norm=False)


@measure
def memory_growth(records: Records, mode: str) -> PerSeed:
    """Peak memory of the deepest step over that of the shallowest, divided by the ratio of their depths."""
    depths = config_values(records, "memory", "depth", memory=mode)
    if not depths:
        return PerSeed()
    shallow, deep = (metric("memory", "peak_mb", memory=mode, depth=n)(records) for n in (depths[0], depths[-1]))
    return deep / shallow * depths[0] / depths[-1]


@measure
def order_score(
    records: Records,
    order: str,
    data: str,
    depth: int | str,
    *,
    aggregation: str = "softmax learned",
    name: str = "test",
) -> PerSeed:
    """A metric of the stacks of one order and aggregation, at a depth or at the ``shallowest`` or ``deepest``."""
    fields = {"data": data, "order": order, "aggregation": aggregation}
    if isinstance(depth, str):
        depths = config_values(records, "orders", "depth", **fields) or [0]
        depth = depths[0] if depth == "shallowest" else depths[-1]
    return metric("orders", name, **fields, depth=depth)(records)


def change_with_depth(order: str, data: str, name: str, *, logarithm: bool = False) -> Measure:
    """A metric of the deepest stack of an order minus that of the shallowest, or log10 of their ratio."""
    deep, shallow = (order_score(order, data, end, name=name) for end in ("deepest", "shallowest"))
    return deep.map(_decades, shallow) if logarithm else deep - shallow


def change_with_depth_of(order: str, data: str, first: str, second: str) -> Measure:
    """Difference of two metrics of the deepest stack of an order minus that of the shallowest."""
    return change_with_depth(order, data, first) - change_with_depth(order, data, second)


def _decades(first: float, second: float) -> float:
    return math.log10(max(first, TINY) / max(second, TINY))


@measure
def best_candidate(records: Records, part: str, candidates: Sequence[Mapping[str, Any]], **fields: object) -> PerSeed:
    """Test score of the candidate with the best mean validation score, each given by its settings."""
    scores = [metric(part, "val", **candidate, **fields)(records) for candidate in candidates]
    tried = [index for index, values in enumerate(scores) if values]
    if not tried:
        return PerSeed()
    best = max(tried, key=lambda index: scores[index].mean())
    return metric(part, "test", **candidates[best], **fields)(records)

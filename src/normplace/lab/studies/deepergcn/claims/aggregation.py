"""Claims on learned aggregation and MsgNorm."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from normplace.lab.studies.cases import Cases
from normplace.lab.studies.deepergcn.claims.graphs import learned
from normplace.lab.studies.deepergcn.measures import best_fixed
from normplace.lab.studies.deepergcn.networks import LEARNED
from normplace.lab.studies.deepergcn.published import LEARNED_RANGE, PAPER
from normplace.lab.studies.notes import GATE, SIGN
from normplace.lab.trials.claims import Check, Claim
from normplace.lab.trials.per_seed import Measure, metric

SCALARS = (("temperatures", "softmax learned", "t"), ("powers", "power mean learned", "p"))
"""Learned scalars of the layers: label, aggregation and name."""


def _metric(data: str, aggregation: str, name: str = "test", msg_norm: bool = False) -> Measure:
    return metric("aggregation", name, data=data, aggregation=aggregation, msg_norm=msg_norm)


def _lead_over_fixed(data: str, aggregation: str) -> Measure:
    return _metric(data, aggregation) - best_fixed(data)


def _msg_norm_gain(data: str, aggregation: str) -> Measure:
    return _metric(data, aggregation, msg_norm=True) - _metric(data, aggregation)


def _distance_from_published(data: str, aggregation: str, scalar: str) -> Measure:
    """Distance of the layers' learned scalars from the published range, at the end that is farther out."""
    least, greatest = LEARNED_RANGE[scalar]
    low, high = (_metric(data, aggregation, f"{scalar}_{end}") for end in ("low", "high"))
    return low.map(lambda low, high: max(least - low, high - greatest, 0.0), high)


def _differ(label: str, aggregation: str, scalar: str) -> Callable[[str], Check]:
    """Gate: training has changed the layers' scalars, which all start at 1; published, they differ by about 1."""
    return lambda data: Check(
        f"largest minus smallest of the layers' {label}, {data}",
        _metric(data, aggregation, f"{scalar}_high") - _metric(data, aggregation, f"{scalar}_low"),
        at_least=0.1,
    )


def claims(graphs: Cases) -> tuple[Claim, ...]:
    """The claims on a set of graphs."""
    return (
        Claim(
            id=f"aggregation-{graphs.name}",
            paper=PAPER,
            statement=f"{graphs.place} learned aggregations are as good as the best fixed one.",
            checks=tuple(
                check
                for aggregation in LEARNED
                for check in graphs.checks(
                    f"ROC-AUC, {aggregation} minus the best fixed",
                    partial(_lead_over_fixed, aggregation=aggregation),
                    gates=(learned("the best fixed aggregation", best_fixed),),
                    at_least=-0.01,
                )
            ),
            seeds=graphs.seeds,
            note="The best fixed aggregation has the best mean validation score among mean, max, sum and softmax at "
            f"temperature 1. The margin is our choice. {GATE}",
        ),
        Claim(
            id=f"msgnorm-{graphs.name}",
            paper=PAPER,
            statement=f"{graphs.place} MsgNorm improves mean and sum aggregation, whose messages have the wrong scale.",
            checks=tuple(
                check
                for aggregation in ("mean", "sum")
                for check in graphs.checks(
                    f"ROC-AUC of {aggregation}, with minus without MsgNorm",
                    partial(_msg_norm_gain, aggregation=aggregation),
                    gates=(learned(f"{aggregation} without MsgNorm", partial(_metric, aggregation=aggregation)),),
                    signed=True,
                    at_least=0.005,
                )
            ),
            seeds=graphs.seeds,
            note="A mean does not depend on the number of neighbors, a sum grows with it. The margin is our choice. "
            f"{SIGN} {GATE}",
        ),
        Claim(
            id=f"learned-range-{graphs.name}",
            paper=f"{PAPER}, learned values of its 7-layer network",
            published="; ".join(
                f"{label} {low} to {high}" for label, _, scalar in SCALARS for low, high in (LEARNED_RANGE[scalar],)
            ),
            statement=f"{graphs.place} learned temperatures and powers end in the published ranges.",
            checks=tuple(
                check
                for label, aggregation, scalar in SCALARS
                for check in graphs.checks(
                    f"distance of the layers' {label} from the published range",
                    partial(_distance_from_published, aggregation=aggregation, scalar=scalar),
                    gates=(_differ(label, aggregation, scalar),),
                    at_most=0.05,
                )
            ),
            seeds=graphs.seeds,
            note="All start at 1. The published ranges are read off the repository's figures to about 0.05, after 1000 "
            "epochs with MsgNorm; here training is shorter and without MsgNorm. Void if the layers' values do not "
            "differ. When the results were computed, the ranges were -0.5 to 2.5 and 0.5 to 2.5. Values that never "
            "change pass these; the checks passed and were replaced.",
        ),
    )

"""The paper's headline, its four falsifiers in our definitions, and how far the headline reaches."""

from __future__ import annotations

from functools import partial
from typing import Any

from normplace.lab.studies.notes import GATE, SIGN
from normplace.lab.studies.postdeg.claims.gains import (
    BACKBONE,
    PAPER,
    PUBLISHED,
    gain,
    gains_at_all,
    learned,
    share_kept,
    wins,
)
from normplace.lab.studies.postdeg.selection import AGGREGATIONS, TASKS, TINY
from normplace.lab.trials.claims import Check, Claim, sign_and_size
from normplace.lab.trials.intervals import SeedShare

_MEASURES = (
    "The gain is the share by which R falls, or the spread or the set grows, paired by seed. The text available to us "
    "gives neither the paper's graphs, training and inputs nor its formulas: the definitions are ours. A pilot with "
    "two seeds preceded the runs."
)


_WINS = (
    "No number of seeds shows that every seed is won; the check asks whether a seed is more likely won than not, with "
    "an exact interval, where a share of 1 in Student's interval had been asked for when the results came in."
)
_NO_SOURCE = (
    "Void where the backbone has learned next to nothing: with softmax attention or a mean and a constant input no "
    "degree reaches it, and it orders nodes as chance does."
)


def _headline(features: str) -> tuple[Check, ...]:
    ours, backbone = {"features": features}, {"features": features, **BACKBONE}
    checks: list[Check] = []
    for task, title in TASKS.items():
        compared = {"task": task, "chosen": ours, "over": backbone}
        gates = (learned(task, f"the backbone with {features} input", features=features),)
        checks += sign_and_size(f"{title}: gain", partial(gain, **compared), at_least=PUBLISHED[task], gates=gates)
        won = partial(wins, **compared)
        checks.append(Check(f"{title}: share of seeds won", won, above=0.5, interval=SeedShare(), gates=gates))
    return tuple(checks)


def _shares(control: dict[str, Any], **limit: Any) -> tuple[Check, ...]:
    """What a control keeps of PostDeg's gain where nothing else carries degree."""
    return tuple(
        Check(
            f"{title}: share of PostDeg's gain",
            partial(share_kept, task=task, control=control, over=BACKBONE),
            gates=(gains_at_all(task),),
            **limit,
        )
        for task, title in TASKS.items()
    )


def _gains(
    cells: dict[str, tuple[dict[str, Any], dict[str, Any]]],
    gate: str = "learned",
    signed: bool = False,
    **limit: Any,
) -> tuple[Check, ...]:
    """Gains of some policies over others.

    Args:
        cells: By name, the policy and the one it is compared with.
        gate: ``learned`` if the other must have learned something, ``gains`` if PostDeg must gain over its backbone.
        signed: Whether the claim is one of direction, so that the sign is a check of its own.
        **limit: The threshold.
    """
    checks: list[Check] = []
    for task, title in TASKS.items():
        for name, (chosen, over) in cells.items():
            gates = (learned(task, f"the backbone, {name}", **over) if gate == "learned" else gains_at_all(task),)
            measure = partial(gain, task=task, chosen=chosen, over=over)
            if signed:
                checks += sign_and_size(f"{title}: {name}", measure, gates=gates, **limit)
            else:
                checks.append(Check(f"{title}: {name}", measure, gates=gates, **limit))
    return tuple(checks)


def _beside(**where: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """PostDeg and the backbone in the same place of the map."""
    return where, {**where, **BACKBONE}


CLAIMS = (
    Claim(
        id="gain-constant-input",
        paper=f"{PAPER}, abstract",
        statement="Inverse degree after LayerNorm improves the LayerNorm backbone on all three tasks and wins every "
        "paired seed, where nodes bring a constant.",
        checks=_headline("constant"),
        seeds=5,
        note=f"The sizes asked for are the published gains. {_NO_SOURCE} {GATE} {_WINS} {_MEASURES}",
    ),
    Claim(
        id="gain-degree-input",
        paper=f"{PAPER}, abstract",
        statement="The same where nodes bring their degree as an input feature.",
        checks=_headline("degree"),
        seeds=5,
        note=f"The sizes asked for are the published gains. {_NO_SOURCE} {GATE} {_WINS} {_MEASURES}",
    ),
    Claim(
        id="before-is-erased",
        paper=f"{PAPER}, abstract",
        statement="The same scale before LayerNorm is divided out up to eps, and its gain with it.",
        checks=_shares({"slot": "before"}, at_most=0.25),
        seeds=5,
        note="At LayerNorm's usual eps of 1e-5; the threshold of a quarter is ours. An earlier exploration and a "
        "pilot with two seeds, not part of these runs, had found most of the gain kept.",
    ),
    Claim(
        id="before-leaks-through-eps",
        paper=f"{PAPER}, abstract",
        statement="What a scale before LayerNorm gains, it gains through eps: with eps 1e-12 it gains nothing.",
        checks=_shares({"slot": "before", "eps": TINY}, at_most=0.25),
        seeds=5,
        note="'Divided out up to a stabilizer term' is the paper's; the test and its threshold are ours.",
    ),
    Claim(
        id="falsifier-graphwise",
        paper=f"{PAPER}, abstract",
        statement="One number for a whole graph in PostDeg's slot gains nothing.",
        checks=_shares({"source": "constant"}, at_most=0.25),
        seeds=5,
        note="The geometric mean of the graph's degrees, to the power -1. The definition and the threshold are ours.",
    ),
    Claim(
        id="falsifier-extra-norm",
        paper=f"{PAPER}, abstract",
        statement="One more LayerNorm between the last block and the head takes the gain away.",
        checks=_shares({"extra_norm": True}, at_most=0.25),
        seeds=5,
        note="The definition and the threshold are ours.",
    ),
    Claim(
        id="falsifier-capacity",
        paper=f"{PAPER}, abstract",
        statement="Trained capacity in the same slot does not beat the parameter-free scale.",
        checks=_gains(
            {f"{gate} gate over PostDeg": ({"gate": gate}, {}) for gate in ("learned", "mlp")},
            gate="gains",
            at_most=0.01,
        ),
        seeds=5,
        note="A learned exponent and gain, or a small MLP of the scalar, both starting as PostDeg. The margin of 1% is "
        "ours.",
    ),
    Claim(
        id="falsifier-source",
        paper=f"{PAPER}, abstract",
        statement="The slot, not degree or attention, makes the gain: other scalars and other backbones gain too.",
        checks=(
            *_gains(
                {"k-core": ({"source": "k-core"}, BACKBONE), "PageRank": ({"source": "pagerank"}, BACKBONE)},
                gate="gains",
                signed=True,
                at_least=0.01,
            ),
            *_gains({"sum aggregation": _beside(aggregation="sum")}, signed=True, at_least=0.01),
        ),
        seeds=5,
        note=f"{SIGN} {GATE} "
        "Each over the LayerNorm backbone of its own aggregation, constant input; the margin of 1% is ours. A "
        "pilot with two seeds had shown a loss with sum aggregation.",
    ),
    Claim(
        id="gain-only-without-degree",
        paper=f"{PAPER}, reach of the claim",
        statement="Where sum aggregation or an input feature already carries degree, PostDeg gains nothing.",
        checks=_gains(
            {"degree input": _beside(features="degree"), "sum aggregation": _beside(aggregation="sum")}, at_most=0.01
        ),
        seeds=5,
        note=f"{GATE} "
        "Ours, not the paper's. An earlier exploration and a pilot with two seeds, not part of these runs, "
        "suggested it; the margin of 1% is ours.",
    ),
    Claim(
        id="gain-map",
        paper=f"{PAPER}, reach of the claim",
        statement="PostDeg gains at least a tenth wherever nothing carries degree, whether attention or a mean joins "
        "the messages and whether nodes bring a constant or noise.",
        checks=_gains(
            {
                f"{AGGREGATIONS[aggregation]}, {features} input": _beside(aggregation=aggregation, features=features)
                for aggregation in ("softmax", "mean")
                for features in ("constant", "random")
            },
            at_least=0.1,
        ),
        seeds=10,
        note=f"{_NO_SOURCE} {GATE} "
        "Ours, not the paper's; tested with the whole map at full scale. A pilot with two seeds on a constant "
        "input preceded it.",
    ),
)

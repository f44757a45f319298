"""What the paper says of deep graph networks, and the numbers that would show it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from normplace.lab.claims import Check, Claim, by_seed, pick
from normplace.lab.results import Line
from normplace.studies.deepergcn import anchors, molhiv
from normplace.studies.deepergcn.depth import FEWER_SEEDS, SEEDS, USUAL
from normplace.studies.deepergcn.network import FIXED, LEARNED

PAPER = "arXiv 2006.07739"
TINY = 1e-12
GRAPHS = ("grid-mines", "minesweeper", "tolokers")
_PILOTS = (
    "The published tables of this comparison are not known to us, so the threshold is ours; single-seed pilots on the "
    "grid came before it. Three seeds of the grid were too few to decide, so they were raised to five, and its size "
    "and epochs were then lowered, over four runs, to what two cores do in a minute or two."
)


def score(lines: Sequence[Line], part: str, name: str = "test", **fields: Any) -> dict[int, float]:
    """A metric of the trials whose configuration has these values, by seed."""
    return by_seed(pick(lines, part, **fields), name)


def deepest(lines: Sequence[Line], data: str) -> int:
    """The greatest depth at which every order was tried on a graph; 0 without lines."""
    depths = [{line.config["depth"] for line in pick(lines, "depth", data=data, order=o)} for o in ("res+", "plain")]
    return max(depths[0] & depths[1], default=0)


def less(ours: dict[int, float], theirs: dict[int, float]) -> dict[int, float]:
    """The difference of two measures, by seed."""
    return {seed: ours[seed] - theirs[seed] for seed in ours if seed in theirs}


def kept(lines: Sequence[Line], data: str) -> dict[int, float]:
    """Score of the deepest res+ stack less that of the usual depth."""
    of = partial(score, lines, "depth", data=data, order="res+")
    return less(of(depth=deepest(lines, data)), of(depth=USUAL))


def lead(lines: Sequence[Line], data: str, over: str) -> dict[int, float]:
    """Score of the deepest res+ stack less that of another order."""
    of = partial(score, lines, "depth", data=data, depth=deepest(lines, data))
    return less(of(order="res+"), of(order=over))


def energy_decades(lines: Sequence[Line], data: str) -> dict[int, float]:
    """Decades of the relative Dirichlet energy of the deepest res+ stack's last stream above that of plain layers."""
    of = partial(score, lines, "depth", name="energy", data=data, depth=deepest(lines, data))
    ours, theirs = of(order="res+"), of(order="plain")
    return {seed: math.log10(max(ours[seed], TINY) / max(theirs[seed], TINY)) for seed in ours if seed in theirs}


def dropout_cost(lines: Sequence[Line], data: str) -> dict[int, float]:
    """Score of res of the usual depth with dropout on its branch less that with dropout on the stream."""
    of = partial(score, lines, data=data, order="res", depth=USUAL)
    return less(of("depth"), of("dropout"))


def best_by_validation(lines: Sequence[Line], part: str, names: Sequence[str], **fields: Any) -> str | None:
    """The aggregation with the best mean validation score, of those that were tried."""
    means = {}
    for name in names:
        if values := score(lines, part, "val", aggregation=name, **fields):
            means[name] = sum(values.values()) / len(values)
    return max(means, key=lambda name: means[name], default=None)


def learned_lead(lines: Sequence[Line], data: str, aggregation: str) -> dict[int, float]:
    """Score of a learned aggregation less that of the fixed one which was best by validation."""
    of = partial(score, lines, "aggregation", data=data, msg_norm=False)
    best = best_by_validation(lines, "aggregation", FIXED, data=data, msg_norm=False)
    return less(of(aggregation=aggregation), of(aggregation=best))


def msg_norm_gain(lines: Sequence[Line], data: str, aggregation: str) -> dict[int, float]:
    """Score with MsgNorm less that without."""
    of = partial(score, lines, "aggregation", data=data, aggregation=aggregation)
    return less(of(msg_norm=True), of(msg_norm=False))


def learned_end(lines: Sequence[Line], data: str, aggregation: str, name: str) -> dict[int, float]:
    """The smallest or largest of the layers' learned numbers after training."""
    return score(lines, "aggregation", name, data=data, aggregation=aggregation, msg_norm=False)


def anchor(lines: Sequence[Line], data: str) -> dict[int, float]:
    """Score of the candidate that was best by validation, by split."""
    best = best_by_validation(lines, "anchors", tuple(anchors.CANDIDATES[data]), data=data)
    return score(lines, "anchors", data=data, aggregation=best)


def growth(lines: Sequence[Line], memory: str) -> dict[int, float]:
    """Peak memory of the deepest step over that of the shallowest, over the ratio of their depths."""
    depths = {line.config["depth"] for line in pick(lines, "memory", memory=memory)}
    if not depths:
        return {}
    of = partial(score, lines, "memory", "peak_mb", memory=memory)
    deep, shallow = of(depth=max(depths)), of(depth=min(depths))
    return {seed: deep[seed] / shallow[seed] * min(depths) / max(depths) for seed in deep if seed in shallow}


def _checks(label: str, graphs: Sequence[str], measure: Callable[..., Any], **fields: Any) -> tuple[Check, ...]:
    """The same check on each of some graphs; ``fields`` are the threshold and what else the measure takes."""
    sides = {key: fields.pop(key) for key in ("at_least", "at_most") if key in fields}
    return tuple(Check(f"{label}, {data}", partial(measure, data=data, **fields), **sides) for data in graphs)


def _claims_on(name: str, graphs: tuple[str, ...], words: str, seeds: int) -> tuple[Claim, ...]:
    """The claims that any graph can test, on some of them.

    Args:
        name: What tells their ids from others.
        graphs: Which graphs.
        words: What a sentence calls them.
        seeds: How many each check needs.
    """
    return (
        Claim(
            id=f"depth-{name}",
            paper=PAPER,
            statement=f"{words} a res+ stack keeps its score as it deepens, where plain layers lose theirs.",
            checks=(
                *_checks(f"ROC-AUC, deepest res+ less res+ of {USUAL} layers", graphs, kept, at_least=-0.03),
                *_checks("ROC-AUC, deepest res+ less deepest plain", graphs, lead, over="plain", at_least=0.05),
            ),
            seeds=seeds,
            note=f"Dropout is on the branch in every order. {_PILOTS}",
        ),
        Claim(
            id=f"order-{name}",
            paper=PAPER,
            statement=f"{words} the pre-activation order res+ is at least as good as res in the deepest stacks.",
            checks=_checks("ROC-AUC, deepest res+ less deepest res", graphs, lead, over="res", at_least=-0.01),
            seeds=seeds,
            note=f"Dropout is on the branch in both orders; the published comparison has it on res's stream. {_PILOTS}",
        ),
        Claim(
            id=f"smoothing-{name}",
            paper="ours, after arXiv 2006.13318",
            statement=f"{words} the deepest plain layers leave nodes smoother than the deepest res+ stack does.",
            checks=_checks(
                "decades of relative Dirichlet energy of the last stream, res+ over plain",
                graphs,
                energy_decades,
                at_least=0.3,
            ),
            seeds=seeds,
            note=f"After training; 0.3 decades are a factor of 2. A pilot's ratios scattered over two decades, hence "
            f"the logarithm. {_PILOTS}",
        ),
        Claim(
            id=f"dropout-{name}",
            paper="ours",
            statement=f"{words} dropping elements of the stream, as the published res does, costs res score that "
            "dropping elements of its branch does not.",
            checks=_checks(
                f"ROC-AUC of res of {USUAL} layers, branch less stream dropout", graphs, dropout_cost, at_least=0.01
            ),
            seeds=seeds,
            note="A probability of 0.2 in both places. The claim and its threshold are ours.",
        ),
        Claim(
            id=f"aggregation-{name}",
            paper=PAPER,
            statement=f"{words} a learned aggregation is as good as the best fixed one.",
            checks=tuple(
                check
                for learned in LEARNED
                for check in _checks(
                    f"ROC-AUC, {learned} less the best fixed", graphs, learned_lead, aggregation=learned, at_least=-0.01
                )
            ),
            seeds=seeds,
            note="The best by mean validation score of mean, max, sum and softmax at temperature 1. Our margin.",
        ),
        Claim(
            id=f"msgnorm-{name}",
            paper=PAPER,
            statement=f"{words} MsgNorm helps aggregations whose scale is off.",
            checks=tuple(
                check
                for fixed in ("mean", "sum")
                for check in _checks(
                    f"ROC-AUC of {fixed}, with less without MsgNorm",
                    graphs,
                    msg_norm_gain,
                    aggregation=fixed,
                    at_least=0.005,
                )
            ),
            seeds=seeds,
            note="A mean hides the number of neighbours, a sum grows with it. The threshold is ours.",
        ),
        Claim(
            id=f"learned-range-{name}",
            paper=f"{PAPER}, learned values of its 7-layer network",
            statement=f"{words} learned temperatures and powers end in the published ranges.",
            checks=tuple(
                check
                for label, aggregation, end, side in (
                    ("smallest learned temperature", "softmax learned", "t_low", {"at_least": -0.5}),
                    ("largest learned temperature", "softmax learned", "t_high", {"at_most": 2.5}),
                    ("smallest learned power", "power mean learned", "p_low", {"at_least": 0.5}),
                    ("largest learned power", "power mean learned", "p_high", {"at_most": 2.5}),
                )
                for check in _checks(label, graphs, learned_end, aggregation=aggregation, name=end, **side)
            ),
            seeds=seeds,
            note="All start at 1. Read off the repository's figures, temperatures end between -0.1 and 0.9 after peaks "
            "of 2, powers between 0.9 and 1.9 within 0.65 to 2.4, after 1000 epochs with MsgNorm; a shorter training "
            "moves them less. The margins are ours.",
        ),
    )


_TRIED = {
    "minesweeper": " The first two networks reached 0.925. The third, with a matrix for a node's own row and the "
    "settings of that paper's code, was added after pilots of thirteen networks on the first split, which showed test "
    "scores too."
}

CLAIMS = (
    *_claims_on("grid", GRAPHS[:1], "On a generated grid of mines", SEEDS),
    *_claims_on("published", GRAPHS[1:], "On Minesweeper and Tolokers", FEWER_SEEDS),
    Claim(
        id="memory",
        paper="arXiv 2106.07476",
        statement="The memory of a training step grows with depth when activations are kept, and hardly when blocks "
        "are reversible.",
        checks=(
            Check("growth of peak memory per growth of depth, stored", partial(growth, memory="store"), at_least=0.5),
            Check(
                "growth of peak memory per growth of depth, reversible",
                partial(growth, memory="reversible"),
                at_most=0.15,
            ),
        ),
        seeds=2,
        note="Peak above parameters and their gradients; 1 is proportional to depth. The thresholds are ours, and "
        "pilots of both modes came before them.",
    ),
    Claim(
        id="molhiv",
        paper=f"{PAPER}, Table 6",
        statement="The published 7-layer network reaches its score on ogbg-molhiv.",
        checks=(
            Check(
                "test ROC-AUC after the best validation epoch",
                partial(score, part=molhiv.PART.name),
                at_least=round(molhiv.PUBLISHED_TEST - 2 * molhiv.PUBLISHED_DEVIATION, 4),
            ),
        ),
        seeds=FEWER_SEEDS,
        note="Published: 0.7858 ± 0.0117; the threshold is two deviations below. The graphs are rebuilt from the "
        "molecules with OGB's features; batch size, rate and the 100 epochs are ours.",
    ),
    *(
        Claim(
            id=f"anchor-{data}",
            paper=source,
            statement=f"Over the official splits of {data} a res+ stack is within 0.01 of the best published score "
            "we know.",
            checks=(
                Check("test ROC-AUC", partial(anchor, data=data), at_least=round(anchors.PUBLISHED[data][0] - 0.01, 4)),
            ),
            seeds=anchors.SPLITS,
            note=f"Published: {mean:.4f} ± {deviation:.4f}. Of the networks tried the one with the best mean "
            f"validation score counts. The margin is ours.{_TRIED.get(data, '')}",
        )
        for data, source in (("minesweeper", "arXiv 2406.08993"), ("tolokers", "arXiv 2302.11640"))
        for mean, deviation in (anchors.PUBLISHED[data],)
    ),
)

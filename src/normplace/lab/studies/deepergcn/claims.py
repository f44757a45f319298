"""What the paper says of deep graph networks, and the numbers that would show it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from normplace.lab.studies.deepergcn import anchors, molhiv
from normplace.lab.studies.deepergcn.depth import FEWER_SEEDS, SEEDS, USUAL
from normplace.lab.studies.deepergcn.measures import (
    anchor,
    best_fixed,
    beyond_published,
    deepest_score,
    dropout_cost,
    energy_decades,
    growth,
    kept,
    lead,
    learned_lead,
    learned_spread,
    msg_norm_gain,
    score,
    shallowest_plain,
)
from normplace.lab.studies.deepergcn.network import LEARNED
from normplace.lab.studies.notes import GATE, SIGN
from normplace.lab.trials.claims import Check, Claim, sign_and_size
from normplace.lab.trials.intervals import Counted

PAPER = "arXiv 2006.07739"
ABOVE_CHANCE = 0.6
GRAPHS = ("grid-mines", "minesweeper", "tolokers")
_PILOTS = (
    "The published tables of this comparison are not known to us, so the threshold is ours; single-seed pilots on the "
    "grid came before it. Three seeds of the grid were too few to decide, so they were raised to five, and its size "
    "and epochs were then lowered, over four runs, to what two cores do in a minute or two."
)


def _checks(
    label: str,
    graphs: Sequence[str],
    measure: Callable[..., Any],
    gate: Callable[[str], Check] | None = None,
    signed: bool = False,
    **fields: Any,
) -> tuple[Check, ...]:
    """The same check on each of some graphs.

    Args:
        label: What is measured.
        graphs: Which graphs.
        measure: From lines to one value per seed.
        gate: From a graph to a precondition.
        signed: Whether the claim is one of direction, so that the sign is a check of its own.
        **fields: The threshold, and what else the measure takes.
    """
    options = {key: fields.pop(key) for key in ("at_least", "at_most") if key in fields}
    checks: list[Check] = []
    for data in graphs:
        each = {**options, "gates": (gate(data),) if gate else ()}
        measured = partial(measure, data=data, **fields)
        checks += (sign_and_size if signed else _alone)(f"{label}, {data}", measured, **each)
    return tuple(checks)


def _alone(label: str, measure: Callable[..., Any], **options: Any) -> tuple[Check]:
    return (Check(label, measure, **options),)


def _learned(label: str, measure: Callable[..., Any], **fields: Any) -> Callable[[str], Check]:
    """The gate that a network learned a graph, whose ROC-AUC would be 0.5 by chance."""
    return lambda data: Check(f"ROC-AUC, {label}, {data}", partial(measure, data=data, **fields), at_least=ABOVE_CHANCE)


def _moved(label: str, aggregation: str, letter: str) -> Callable[[str], Check]:
    """The gate that training moved the layers' learned numbers; published, they end a whole unit apart."""
    return lambda data: Check(
        f"largest less smallest of the layers' {label}, {data}",
        partial(learned_spread, data=data, aggregation=aggregation, letter=letter),
        at_least=0.1,
    )


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
                *_checks(
                    f"ROC-AUC, deepest res+ less res+ of {USUAL} layers",
                    graphs,
                    kept,
                    gate=_learned(f"res+ of {USUAL} layers", score, part="depth", order="res+", depth=USUAL),
                    at_least=-0.03,
                ),
                *_checks(
                    "ROC-AUC, deepest res+ less deepest plain",
                    graphs,
                    lead,
                    gate=_learned("shallowest plain", shallowest_plain),
                    signed=True,
                    over="plain",
                    at_least=0.05,
                ),
            ),
            seeds=seeds,
            note=f"Dropout is on the branch in every order. {SIGN} {GATE} {_PILOTS}",
        ),
        Claim(
            id=f"order-{name}",
            paper=PAPER,
            statement=f"{words} the pre-activation order res+ is at least as good as res in the deepest stacks.",
            checks=_checks(
                "ROC-AUC, deepest res+ less deepest res",
                graphs,
                lead,
                gate=_learned("deepest res", deepest_score, order="res"),
                over="res",
                at_least=-0.01,
            ),
            seeds=seeds,
            note="Dropout is on the branch in both orders; the published comparison has it on res's stream. "
            f"{GATE} {_PILOTS}",
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
                f"ROC-AUC of res of {USUAL} layers, branch less stream dropout",
                graphs,
                dropout_cost,
                gate=_learned(f"res of {USUAL} layers", score, part="depth", order="res", depth=USUAL),
                at_least=0.01,
            ),
            seeds=seeds,
            note=f"{GATE} A probability of 0.2 in both places. The claim and its threshold are ours.",
        ),
        Claim(
            id=f"aggregation-{name}",
            paper=PAPER,
            statement=f"{words} a learned aggregation is as good as the best fixed one.",
            checks=tuple(
                check
                for learned in LEARNED
                for check in _checks(
                    f"ROC-AUC, {learned} less the best fixed",
                    graphs,
                    learned_lead,
                    gate=_learned("the best fixed aggregation", best_fixed),
                    aggregation=learned,
                    at_least=-0.01,
                )
            ),
            seeds=seeds,
            note="The best by mean validation score of mean, max, sum and softmax at temperature 1. Our margin. "
            f"{GATE}",
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
                    gate=_learned(
                        f"{fixed} without MsgNorm", score, part="aggregation", aggregation=fixed, msg_norm=False
                    ),
                    signed=True,
                    aggregation=fixed,
                    at_least=0.005,
                )
            ),
            seeds=seeds,
            note=f"A mean hides the number of neighbours, a sum grows with it. The margin is ours. {SIGN} {GATE}",
        ),
        Claim(
            id=f"learned-range-{name}",
            paper=f"{PAPER}, learned values of its 7-layer network",
            statement=f"{words} learned temperatures and powers end in the published ranges.",
            checks=tuple(
                check
                for label, aggregation, letter in (
                    ("temperatures", "softmax learned", "t"),
                    ("powers", "power mean learned", "p"),
                )
                for check in _checks(
                    f"distance of the layers' {label} from the published range",
                    graphs,
                    beyond_published,
                    gate=_moved(label, aggregation, letter),
                    aggregation=aggregation,
                    letter=letter,
                    at_most=0.05,
                )
            ),
            seeds=seeds,
            note="All start at 1. Read off the repository's figures to about 0.05, temperatures end between -0.12 and "
            "0.93, powers between 0.92 and 1.92, after 1000 epochs with MsgNorm; here training is shorter and without "
            "it. Void where the layers' numbers have not come to differ. When the results came in, the windows were "
            "-0.5 to 2.5 and 0.5 to 2.5, which numbers that never move pass: they held, and were replaced.",
        ),
    )


_TRIED = {
    "minesweeper": " The first two networks reached 0.925. The third, with a matrix for a node's own row and the "
    "settings of that paper's code, was added after pilots of thirteen networks on the first split, which showed test "
    "scores too."
}

_STORED = Check(
    "growth of peak memory per growth of depth, stored",
    partial(growth, memory="store"),
    at_least=0.5,
    interval=Counted(),
)

CLAIMS = (
    *_claims_on("grid", GRAPHS[:1], "On a generated grid of mines", SEEDS),
    *_claims_on("published", GRAPHS[1:], "On Minesweeper and Tolokers", FEWER_SEEDS),
    Claim(
        id="memory",
        paper="arXiv 2106.07476",
        statement="The memory of a training step grows with depth when activations are kept, and hardly when blocks "
        "are reversible.",
        checks=(
            _STORED,
            Check(
                "growth of peak memory per growth of depth, reversible",
                partial(growth, memory="reversible"),
                at_most=0.15,
                interval=Counted(),
                gates=(_STORED,),
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

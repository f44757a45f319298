"""Claims on block orders of deep stacks, and on over-smoothing."""

from __future__ import annotations

from normplace.lab.studies.cases import Cases
from normplace.lab.studies.deepergcn.claims.graphs import PILOTS, learned
from normplace.lab.studies.deepergcn.depth import USUAL
from normplace.lab.studies.deepergcn.measures import at_deepest, energy_decades, shallowest_plain, stack_score
from normplace.lab.studies.deepergcn.published import PAPER
from normplace.lab.studies.notes import GATE, SIGN
from normplace.lab.trials.claims import Claim
from normplace.lab.trials.per_seed import Measure


def _usual(data: str) -> Measure:
    return stack_score("res+", data)(USUAL)


def _lead(data: str, other: str) -> Measure:
    """Score of the deepest res+ stack minus that of another order."""
    return at_deepest(data, lambda depth: stack_score("res+", data)(depth) - stack_score(other, data)(depth))


def claims(graphs: Cases) -> tuple[Claim, ...]:
    """The claims on a set of graphs."""
    return (
        Claim(
            id=f"depth-{graphs.name}",
            paper=PAPER,
            statement=f"{graphs.place} deep res+ stacks keep their score, while deep plain stacks lose theirs.",
            checks=(
                *graphs.checks(
                    f"ROC-AUC, deepest res+ minus res+ of {USUAL} layers",
                    lambda data: at_deepest(data, stack_score("res+", data)) - _usual(data),
                    gates=(learned(f"res+ of {USUAL} layers", _usual),),
                    at_least=-0.03,
                ),
                *graphs.checks(
                    "ROC-AUC, deepest res+ minus deepest plain",
                    lambda data: _lead(data, "plain"),
                    gates=(learned("shallowest plain", shallowest_plain),),
                    signed=True,
                    at_least=0.05,
                ),
            ),
            seeds=graphs.seeds,
            note=f"Dropout is in the branch in every order. {SIGN} {GATE} {PILOTS}",
        ),
        Claim(
            id=f"order-{graphs.name}",
            paper=PAPER,
            statement=f"{graphs.place} the deepest res+ (pre-activation) stack is at least as good as the deepest res.",
            checks=graphs.checks(
                "ROC-AUC, deepest res+ minus deepest res",
                lambda data: _lead(data, "res"),
                gates=(learned("deepest res", lambda data: at_deepest(data, stack_score("res", data))),),
                at_least=-0.01,
            ),
            seeds=graphs.seeds,
            note="Dropout is in the branch in both orders; the published comparison has it in the stream of res. "
            f"{GATE} {PILOTS}",
        ),
        Claim(
            id=f"smoothing-{graphs.name}",
            paper="our question, after arXiv 2006.13318",
            statement=f"{graphs.place} the deepest plain stack smooths node features more than the deepest res+ stack.",
            checks=graphs.checks(
                "log10 of relative Dirichlet energy of the last stream, res+ over plain", energy_decades, at_least=0.3
            ),
            seeds=graphs.seeds,
            note="After training; 0.3 is a factor of 2. In a pilot the ratios varied over two orders of magnitude, so "
            f"the logarithm is used. {PILOTS}",
        ),
    )

"""The claim on the place of dropout."""

from __future__ import annotations

from normplace.lab.studies.cases import Cases
from normplace.lab.studies.deepergcn.claims.graphs import learned
from normplace.lab.studies.deepergcn.depth import USUAL
from normplace.lab.studies.notes import GATE, OURS
from normplace.lab.trials.claims import Claim
from normplace.lab.trials.per_seed import Measure, metric


def _score(part: str, data: str) -> Measure:
    return metric(part, "test", data=data, order="res", depth=USUAL)


def claims(graphs: Cases) -> tuple[Claim, ...]:
    """The claim on a set of graphs."""
    return (
        Claim(
            id=f"dropout-{graphs.name}",
            paper=OURS,
            statement=f"{graphs.place} stream dropout, which the published res has, lowers the score of res compared "
            "with branch dropout.",
            checks=graphs.checks(
                f"ROC-AUC of res of {USUAL} layers, branch minus stream dropout",
                lambda data: _score("depth", data) - _score("dropout", data),
                gates=(learned(f"res of {USUAL} layers", lambda data: _score("depth", data)),),
                at_least=0.01,
            ),
            seeds=graphs.seeds,
            note=f"{GATE} A probability of 0.2 in both places. Claim and threshold are ours.",
        ),
    )

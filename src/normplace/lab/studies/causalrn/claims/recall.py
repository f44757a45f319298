"""The claim on multi-query associative recall."""

from __future__ import annotations

from normplace.lab.studies.causalrn.claims.conventions import GATE, LEARNED, LEVEL, SEEDS
from normplace.lab.studies.causalrn.measures import recall_accuracy
from normplace.lab.studies.causalrn.recall import EXAM
from normplace.lab.studies.notes import OURS
from normplace.lab.trials.claims import Check, Claim
from normplace.lab.trials.intervals import TrialShare

_PAIRWISE, _TRANSFORMER, _SCAN = map(recall_accuracy, ("pairwise", "transformer", "scan"))

CLAIMS = (
    Claim(
        id="recalls",
        paper=OURS,
        statement="The pairwise form solves multi-query recall as well as a Transformer, and better than the scan.",
        checks=(
            Check("accuracy, pairwise minus Transformer", _PAIRWISE - _TRANSFORMER, at_least=LEVEL),
            Check("accuracy, pairwise minus scan", _PAIRWISE - _SCAN, at_least=0.2),
        ),
        gates=(Check("accuracy, Transformer", _TRANSFORMER, at_least=LEARNED, interval=TrialShare(EXAM)),),
        seeds=SEEDS,
        note=f"{GATE} The task is a smaller version of Zoology's, arXiv 2312.04927; all networks have equal parameter "
        "counts. In a pilot of one seed the pairwise form learned it before the Transformer did.",
    ),
)

"""The claim on networks that approach their infinite-width limit."""

from __future__ import annotations

from normplace.lab.studies.extrapolation.claims.linearized import shrinking
from normplace.lab.studies.extrapolation.published import PAPER
from normplace.lab.studies.extrapolation.wide import PART
from normplace.lab.studies.notes import SIGN
from normplace.lab.trials.claims import Claim

CLAIMS = (
    Claim(
        id="wide-networks-follow-the-kernel",
        paper=f"{PAPER}, Section 2, after Lee et al. 2019, arXiv 1902.06720",
        statement="As the width grows, trained networks approach the prediction of the infinite-width kernel.",
        checks=shrinking(PART.name, "distance"),
        seeds=5,
        note="RMS distance on three times the range of the data, over the RMS of the targets, after 200 gradient "
        "steps. Our choices: data, threshold, and biases of standard deviation 1; with the published 0.1, "
        "one-dimensional networks approach their limit very slowly. Pilots with the published biases and 1000 "
        "steps showed hardly any shrinkage, so biases, steps and normalization were changed before these runs. "
        f"After an open result the seeds at laptop scale were raised from 5 to 20; the threshold was kept. {SIGN}",
    ),
)

"""R² beside the paper's, and the error against how much a face resembles the training faces."""

from __future__ import annotations

from collections.abc import Sequence

from normplace.lab.report.rows import Group, mean_rows
from normplace.lab.report.specs import curves
from normplace.lab.studies.extrapolation.claims.published import FACES
from normplace.lab.studies.extrapolation.faces import PART
from normplace.lab.studies.extrapolation.figures.scores import score_figure
from normplace.lab.studies.extrapolation.network import NAMES
from normplace.lab.trials.claims import pick
from normplace.lab.trials.results import TrialRecord
from normplace.lab.trials.study import Figure


def figures(lines: Sequence[TrialRecord]) -> list[Figure]:
    """Both figures, from the lines of successful trials."""
    chosen = {norm_at: found for norm_at in NAMES if (found := pick(lines, PART.name, norm_at=norm_at))}
    if not chosen:
        return []
    groups: list[Group] = [({"network": NAMES[norm_at]}, found) for norm_at, found in chosen.items()]
    return [
        score_figure(
            "Faces: R² of age for an ethnicity code never seen, and for those seen",
            "Networks on frozen descriptors: the paper's backbone is an ImageNet ResNet-18, ours is the user's.",
            NAMES,
            chosen,
            FACES,
        ),
        Figure(
            title="Faces: error against resemblance to the training faces",
            caption="Mean absolute error in tenths of the test faces, ordered by the mean cosine of their descriptor "
            "to those of the training faces; the mean over seeds with its 95% interval.",
            rows=mean_rows(groups, "similarity", "error"),
            spec=curves(
                x={"field": "similarity", "title": "mean cosine to training faces", "scale": {"zero": False}},
                y={"field": "error", "title": "mean absolute error, years", "scale": {"zero": False}},
                series="network",
                order=list(NAMES.values()),
                low="low",
                high="high",
            ),
            alt="Mean absolute error of age against the mean cosine to the training faces, a line with its band for "
            "each of four networks.",
        ),
    ]

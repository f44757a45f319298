"""R² compared with the paper's, and error against similarity to the training faces."""

from __future__ import annotations

from normplace.lab.report.rows import Group, mean_rows
from normplace.lab.report.specs import curves
from normplace.lab.studies.extrapolation.faces import PART
from normplace.lab.studies.extrapolation.figures.scores import score_figure
from normplace.lab.studies.extrapolation.networks import NAMES
from normplace.lab.studies.extrapolation.published import FACES
from normplace.lab.trials.per_seed import Records, pick
from normplace.lab.trials.study import Figure


def figures(records: Records) -> list[Figure]:
    """Draw both figures."""
    by_place = {norm_at: selected for norm_at in NAMES if (selected := pick(records, PART.name, norm_at=norm_at))}
    if not by_place:
        return []
    groups: list[Group] = [({"network": NAMES[norm_at]}, selected) for norm_at, selected in by_place.items()]
    return [
        score_figure(
            "Faces: R² of age for the unseen ethnicity code and for the seen ones",
            "Networks on frozen descriptors: the paper's from an ImageNet ResNet-18, here from the user's backbone.",
            NAMES,
            by_place,
            FACES,
        ),
        Figure(
            title="Faces: error against similarity to the training faces",
            caption="Mean absolute error in deciles of the test faces by mean cosine similarity to the training "
            "faces; mean over seeds with its 95% interval.",
            rows=mean_rows(groups, "similarity", "error"),
            spec=curves(
                x={
                    "field": "similarity",
                    "title": "mean cosine similarity to training faces",
                    "scale": {"zero": False},
                },
                y={"field": "error", "title": "mean absolute error, years", "scale": {"zero": False}},
                series="network",
                order=list(NAMES.values()),
                band=True,
            ),
            alt="Mean absolute error of age against the mean cosine similarity to the training faces, a line with "
            "a band for each of four networks.",
        ),
    ]

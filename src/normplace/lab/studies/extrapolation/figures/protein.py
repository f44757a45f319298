"""R² compared with the paper's, the distribution of predictions, and their dependence on the surface area."""

from __future__ import annotations

from normplace.lab.report.rows import Group, mean_rows
from normplace.lab.report.specs import curves
from normplace.lab.studies.extrapolation.figures.scores import score_figure
from normplace.lab.studies.extrapolation.protein import PART, TITLES
from normplace.lab.studies.extrapolation.published import PROTEIN
from normplace.lab.tasks.regression.protein import LARGEST
from normplace.lab.trials.per_seed import Records, pick
from normplace.lab.trials.study import Figure

TRUTH = "measured RMSD"


def figures(records: Records) -> list[Figure]:
    """Draw the four figures."""
    by_learner = {learner: selected for learner in TITLES if (selected := pick(records, PART.name, learner=learner))}
    if not by_learner:
        return []
    groups: list[Group] = [({"model": TITLES[learner]}, selected) for learner, selected in by_learner.items()]
    truth: list[Group] = [({"model": TRUTH}, next(iter(by_learner.values())))]
    order = [*TITLES.values(), TRUTH]
    area = {"field": "area", "title": "surface area, Å²", "scale": {"zero": False}}
    scores = score_figure(
        "Protein: R² on proteins larger than those in training, and on proteins like them",
        f"Trained on proteins with a surface area under {LARGEST:,.0f} Å², predicting RMSD.",
        TITLES,
        by_learner,
        PROTEIN,
    )
    true_shares = [
        {**row, "share": row.pop("true_share")} for row in mean_rows(truth, "rmsd", "true_share", band=False)
    ]
    true_means = [{**row, "prediction": row.pop("target")} for row in mean_rows(truth, "area", "target", band=False)]
    return [
        scores,
        Figure(
            title="Protein: distribution of the predictions for larger proteins",
            caption="Share of the predictions in bins of 2 Å, mean over seeds; the outermost bins include all values "
            "beyond them. The vertical axis has a square-root scale, so that tails are visible.",
            rows=mean_rows(groups, "rmsd", "share", band=False) + true_shares,
            spec=curves(
                x={"field": "rmsd", "title": "predicted RMSD, Å"},
                y={"field": "share", "title": "share", "scale": {"type": "sqrt"}},
                series="model",
                order=order,
            ),
            alt="The distribution of predictions outside the data, a line for each model and one for the true values.",
        ),
        Figure(
            title="Protein: prediction against surface area",
            caption="Mean prediction in bins of 2,000 Å² with at least ten test proteins, mean over seeds with its "
            "95% interval; training stops at the dashed line.",
            rows=mean_rows(groups, "area", "prediction") + true_means,
            spec=curves(
                x=area,
                y={"field": "prediction", "title": "predicted RMSD, Å", "scale": {"zero": False}},
                series="model",
                order=order,
                band=True,
                rules=(LARGEST,),
            ),
            alt="Mean prediction against surface area, a line for each model and one for the true values.",
        ),
        Figure(
            title="Protein: error against surface area",
            caption="Mean absolute error in the same bins; training stops at the dashed line.",
            rows=mean_rows(groups, "area", "error"),
            spec=curves(
                x=area,
                y={"field": "error", "title": "mean absolute error, Å"},
                series="model",
                order=list(TITLES.values()),
                band=True,
                rules=(LARGEST,),
            ),
            alt="Mean absolute error against surface area, a line with a band for each model.",
        ),
    ]

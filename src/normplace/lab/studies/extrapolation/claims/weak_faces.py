"""Claims on faces with weaker descriptors."""

from __future__ import annotations

from normplace.lab.studies.extrapolation.networks import NAMES
from normplace.lab.studies.extrapolation.published import FACES, PAPER, scores_text
from normplace.lab.studies.extrapolation.weak_faces import COMPONENTS, PART
from normplace.lab.studies.notes import OURS
from normplace.lab.trials.claims import Check, Claim
from normplace.lab.trials.per_seed import Measure, metric


def _metric(name: str, norm_at: str, components: int) -> Measure:
    return metric(PART.name, name, norm_at=norm_at, components=components)


def _gap(components: int) -> Measure:
    return _metric("ood_r2", "first", components) - _metric("ood_r2", "none", components)


_WEAK = Check(
    f"ID R², {COMPONENTS} components, {NAMES['none']}",
    _metric("id_r2", "none", COMPONENTS),
    at_least=0.5,
    at_most=0.75,
)

CLAIMS = (
    Claim(
        id="weak-faces-norm-extrapolates",
        paper=f"{PAPER}, Table 2",
        published=scores_text(FACES, "ood_r2", NAMES, ("first", "none")),
        statement="With descriptors as weak as the published ones, LayerNorm improves the prediction of unseen faces.",
        checks=(Check(f"OOD R², {NAMES['first']} minus {NAMES['none']}", _gap(COMPONENTS), above=0),),
        gates=(_WEAK,),
        seeds=5,
        note=f"A claim of direction. The descriptors are {COMPONENTS} random projections of those of the part faces, "
        "new ones for each seed, so that the ID R² is near the published 0.66. Void if it is not. Paired by seed.",
    ),
    Claim(
        id="backbone-explains-faces",
        paper=OURS,
        statement="LayerNorm improves the prediction of unseen faces more with weaker descriptors.",
        checks=(
            Check(
                f"improvement of OOD R², {COMPONENTS} components minus all",
                _gap(COMPONENTS) - _gap(0),
                above=0,
            ),
        ),
        gates=(_WEAK,),
        seeds=5,
        note="Tests whether the backbone explains why the improvement with the whole descriptors is far smaller than "
        "the published one. Paired by seed.",
    ),
)

"""Claims on UTKFace, with thresholds derived from the paper's Table 2."""

from __future__ import annotations

from normplace.lab.studies.extrapolation.faces import PART
from normplace.lab.studies.extrapolation.networks import NAMES, NORMED
from normplace.lab.studies.extrapolation.published import FACES, PAPER, scores_text
from normplace.lab.studies.notes import GATE, SIGN
from normplace.lab.trials.claims import Check, Claim, sign_and_size
from normplace.lab.trials.per_seed import Measure, metric


def _metric(name: str, norm_at: str) -> Measure:
    return metric(PART.name, name, norm_at=norm_at)


def _gap(name: str, norm_at: str) -> Measure:
    return _metric(name, norm_at) - _metric(name, "none")


_LEARNED = Check(f"ID R², {NAMES['none']}", _metric("id_r2", "none"), at_least=0.3)
_BACKBONE = (
    "The result depends on the frozen backbone. The paper's ImageNet ResNet-18 has an ID R² of 0.66 to 0.68; here the "
    "user supplies the descriptors. A network trained on faces scores far higher and leaves less to extrapolate, so a "
    "failure with such descriptors does not refute the claim for the paper's."
)

CLAIMS = (
    Claim(
        id="faces-norm-extrapolates",
        paper=f"{PAPER}, Table 2",
        published=scores_text(FACES, "ood_r2", NAMES, (*NORMED, "none")),
        statement="For faces of an unseen ethnicity code, networks with LayerNorm predict age better than one without.",
        checks=tuple(
            check
            for norm_at in NORMED
            for check in sign_and_size(
                f"OOD R², {NAMES[norm_at]} minus {NAMES['none']}", _gap("ood_r2", norm_at), at_least=0.05
            )
        ),
        gates=(_LEARNED,),
        seeds=5,
        note="Paired by seed. The published differences are 0.09 to 0.20; the margin is our choice. "
        f"{SIGN} {GATE} {_BACKBONE}",
    ),
    Claim(
        id="faces-norm-costs-nothing",
        paper=f"{PAPER}, Table 2",
        published=scores_text(FACES, "id_r2", NAMES, (*NORMED, "none")),
        statement="For faces like those in training, networks with and without LayerNorm predict age equally well.",
        checks=tuple(
            Check(
                f"ID R², {NAMES[norm_at]} minus {NAMES['none']}",
                _gap("id_r2", norm_at),
                at_least=-0.03,
                at_most=0.03,
                gates=(Check(f"OOD R², {NAMES[norm_at]} minus {NAMES['none']}", _gap("ood_r2", norm_at), above=0),),
            )
            for norm_at in NORMED
        ),
        gates=(_LEARNED,),
        seeds=5,
        note="Paired by seed. The published means differ by up to 0.02; the margin of 0.03 is our choice. Void if the "
        f"norm improves nothing out of distribution. {GATE}",
    ),
)

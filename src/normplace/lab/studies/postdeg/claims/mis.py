"""Claims on independent sets of the usual benchmark graphs."""

from __future__ import annotations

from normplace.lab.studies.notes import OURS
from normplace.lab.studies.postdeg.mis import FAMILIES, LEARNED, PART
from normplace.lab.studies.postdeg.published import GAINS, PAPER
from normplace.lab.trials.claims import Check, Claim, sign_and_size
from normplace.lab.trials.per_seed import Measure, metric

_NOTE = (
    "Declared before the runs of this part, after pilots with graphs of seeds outside the plan. Sets are greedy "
    "passes over an order that is computed once; the minimum degree is recomputed, and KaMIS searches. The graphs "
    "are drawn by us with the published parameters; policies are trained on smaller graphs of the same family. Paired "
    "by seed, that is, by test graphs."
)


def _size(family: str, method: str) -> Measure:
    return metric(PART.name, "size", family=family, method=method)


def _ratio(family: str, method: str, reference: str) -> Measure:
    return _size(family, method) / _size(family, reference)


def _learned(family: str, method: str) -> Check:
    """Gate: a policy is better than a random order."""
    label = f"{FAMILIES[family].title}: set of {LEARNED[method]} over that of a random order"
    return Check(label, _ratio(family, method, "random"), at_least=1.01)


CLAIMS = (
    Claim(
        id="mis-kamis-published",
        paper="arXiv 2302.08224 and 2305.17010, tables of independent sets",
        published=", ".join(f"{family.title} {family.kamis:.2f}" for family in FAMILIES.values()),
        statement="KaMIS finds sets of the published size on our graphs.",
        checks=tuple(
            Check(
                f"{family.title}: mean size of KaMIS's sets over the published one",
                metric(PART.name, "size", family=name, method="kamis").map(lambda size, p=family.kamis: size / p),
                at_least=0.97,
                at_most=1.03,
            )
            for name, family in FAMILIES.items()
        ),
        seeds=5,
        note=f"Tests the graphs, not PostDeg. {_NOTE} In a pilot of 24 graphs, RB-[200-300] had sets of 21.6 when a "
        "constraint could forbid a pair twice and the published ranges were read as inclusive; the published generator "
        "has neither, and Model RB was changed to it before the runs. KaMIS has 10 seconds per graph. The margin of 3% "
        "is our choice.",
    ),
    Claim(
        id="mis-postdeg-beats-backbone",
        paper=f"{PAPER}, scope of the claim",
        published=f"independent-set +{100 * GAINS['independent-set']:.1f}%",
        statement="PostDeg finds larger independent sets of the benchmark graphs than the LayerNorm backbone.",
        checks=tuple(
            check
            for name, family in FAMILIES.items()
            for policy, backbone, title in (("postdeg", "ln", "constant"), ("degree-postdeg", "degree-ln", "degree"))
            for check in sign_and_size(
                f"{family.title}: set with PostDeg over the backbone's, {title} input",
                _ratio(name, policy, backbone),
                no_effect=1,
                at_least=1 + GAINS["independent-set"],
                gates=(_learned(name, backbone),),
            )
        ),
        seeds=5,
        note=f"{_NOTE} The size threshold is the published gain. Void where the backbone is close to a random order.",
    ),
    Claim(
        id="mis-policy-beats-minimum-degree",
        paper=OURS,
        statement="A policy that orders nodes once finds larger sets than the minimum degree.",
        checks=tuple(
            Check(
                f"{family.title}: set of {LEARNED[method]} over the minimum degree's",
                _ratio(name, method, "min-degree"),
                above=1.0,
            )
            for name, family in FAMILIES.items()
            for method in ("postdeg", "degree-ln")
        ),
        seeds=5,
        note=_NOTE,
    ),
    Claim(
        id="mis-policy-near-kamis",
        paper=OURS,
        statement="A policy that orders nodes once finds sets of at least 95% of KaMIS's.",
        checks=tuple(
            Check(
                f"{family.title}: set of {LEARNED[method]} over KaMIS's",
                _ratio(name, method, "kamis"),
                at_least=0.95,
            )
            for name, family in FAMILIES.items()
            for method in ("postdeg", "degree-ln")
        ),
        seeds=5,
        note=f"{_NOTE} The margin of 5% is our choice.",
    ),
)

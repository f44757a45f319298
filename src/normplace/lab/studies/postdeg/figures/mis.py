"""Sizes of independent sets of the usual benchmark graphs."""

from __future__ import annotations

from normplace.lab.report.rows import Group, score_rows
from normplace.lab.report.specs import dots
from normplace.lab.studies.postdeg.mis import CLASSICAL, FAMILIES, LEARNED, PART
from normplace.lab.trials.per_seed import Records, pick
from normplace.lab.trials.study import Figure

POLICIES, METHODS = "policies", "classical methods"


def figures(records: Records) -> list[Figure]:
    """Draw one panel per family of graphs."""
    groups: list[Group] = [
        ({"graphs": family.title, "method": title, "kind": POLICIES if method in LEARNED else METHODS}, selected)
        for name, family in FAMILIES.items()
        for method, title in (LEARNED | CLASSICAL).items()
        if (selected := pick(records, PART.name, family=name, method=method))
    ]
    published = ", ".join(f"{family.kamis:.2f} on {family.title}" for family in FAMILIES.values())
    return [
        Figure(
            title="Independent sets of benchmark graphs",
            caption="Mean number of nodes in the set; mean over seeds with its 95% interval. Policies, by input and "
            "norm, have softmax attention and were trained on smaller graphs of the family. The graphs are drawn by "
            f"us; published sizes of KaMIS's sets are {published}.",
            rows=score_rows(groups, "size"),
            spec=dots(
                x={"field": "value", "title": "nodes in the set"},
                rows="method",
                order=[*LEARNED.values(), *CLASSICAL.values()],
                series="kind",
                sources=(POLICIES, METHODS),
                facet="graphs",
                panels=list(dict.fromkeys(columns["graphs"] for columns, _ in groups)),
            ),
            alt="One panel per family of graphs, with a point and interval for every policy and method.",
        )
    ]

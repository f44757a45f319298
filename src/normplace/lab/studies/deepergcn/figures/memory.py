"""Memory of a training step against depth."""

from __future__ import annotations

from normplace.lab.report.rows import Group, score_rows
from normplace.lab.report.specs import curves
from normplace.lab.studies.deepergcn.memory import PART
from normplace.lab.trials.per_seed import Records, config_values, pick
from normplace.lab.trials.study import Figure
from normplace.models.depth import MEMORY


def figures(records: Records) -> list[Figure]:
    """Draw peak memory against depth."""
    groups: list[Group] = [
        ({"memory": mode, "depth": depth}, pick(records, PART.name, memory=mode, depth=depth))
        for mode in MEMORY
        for depth in config_values(records, PART.name, "depth", memory=mode)
    ]
    rows = score_rows(groups, "peak_mb")
    return [
        Figure(
            title="Peak memory of a training step against depth",
            caption="Without parameters and gradients; the three modes compute the same network with two channel "
            "groups. Both axes logarithmic.",
            rows=rows,
            spec=curves(
                x={"field": "depth", "title": "blocks", "scale": {"type": "log", "base": 2}},
                y={"field": "value", "title": "MiB without parameters", "scale": {"type": "log"}},
                series="memory",
                order=MEMORY,
            ),
            alt="Peak memory against the number of blocks for stored, checkpointed and reversible networks.",
        )
    ]

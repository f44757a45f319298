"""Accuracy of multi-query recall, seed by seed."""

from __future__ import annotations

from normplace.lab.report.rows import Group, score_rows
from normplace.lab.report.specs import dots
from normplace.lab.studies.causalrn.networks import NETWORKS
from normplace.lab.studies.causalrn.recall import HEADS, PART, title
from normplace.lab.trials.per_seed import Records, config_values, pick
from normplace.lab.trials.study import Figure


def figures(records: Records) -> list[Figure]:
    """Draw the accuracy of every network, with and without a curriculum."""
    own = pick(records, PART.name)
    with_curriculum = [record for record in own if record.config.get("first_pairs")]
    without = [record for record in own if not record.config.get("first_pairs")]
    return [
        *_figures(
            with_curriculum,
            "Multi-query associative recall with a curriculum",
            "after training in which the number of pairs grows",
        ),
        *_figures(without, "Multi-query associative recall", "after training with all pairs from the start"),
    ]


def _figures(records: Records, name: str, training: str) -> list[Figure]:
    """A point for each seed: a network learns the task with some seeds and guesses with others."""
    panels = {pairs: f"{pairs} pairs" for pairs in config_values(records, PART.name, "pairs")}
    networks = {(network, heads): title(network, heads) for network in NETWORKS for heads in (1, HEADS)}
    groups: list[Group] = [
        ({"panel": panel, "network": networks[network, heads], "source": "measured"}, [record])
        for pairs, panel in panels.items()
        for network, heads in networks
        for record in pick(records, PART.name, network=network, heads=heads, pairs=pairs)
    ]
    rows = score_rows(groups, "accuracy")
    drawn = {row["network"] for row in rows}
    return [
        Figure(
            title=name,
            caption=f"Share of queries answered correctly {training}; a point for each seed, at equal parameter "
            "counts.",
            rows=rows,
            spec=dots(
                x={"field": "value", "title": "accuracy"},
                rows="network",
                order=[network for network in networks.values() if network in drawn],
                series="source",
                sources=["measured"],
                facet="panel",
                panels=list(panels.values()),
            ),
            alt="One panel for each number of pairs, with a point for every network and seed.",
        )
    ]

"""Loss of language models by tokens read, and at the end."""

from __future__ import annotations

from normplace.lab.report.rows import Group, mean_rows
from normplace.lab.report.specs import curves
from normplace.lab.studies.causalrn.figures.scores import score_figures
from normplace.lab.studies.causalrn.networks import NETWORKS, TITLES
from normplace.lab.studies.causalrn.pretraining import BYTE_VALUES, GRID_SEED, PART, grid_fields
from normplace.lab.studies.rate_grid import best_rate
from normplace.lab.trials.per_seed import Records, config_values, pick
from normplace.lab.trials.study import Figure


def figures(records: Records) -> list[Figure]:
    """Draw loss curves and final losses at the best learning rate of each network."""
    reported = [record for record in pick(records, PART.name) if record.seed != GRID_SEED]
    vocabularies = config_values(reported, PART.name, "vocab")
    own: Records = []
    for vocab in vocabularies:
        for network in NETWORKS:
            rate = best_rate(records, PART.name, **grid_fields(network, vocab))
            fields = {"network": network, "vocab": vocab, **({} if rate is None else {"learning_rate": rate})}
            own = [*own, *pick(reported, PART.name, **fields)]
    scores = score_figures(
        own,
        PART.name,
        "vocab",
        "vocabulary of {:,}",
        "bits_per_byte",
        "bits per byte",
        title="Pretraining: bits per byte by vocabulary",
        caption="On held-out files; mean over seeds with its 95% interval, at equal parameter counts and equal numbers "
        "of tokens read, each network at its best learning rate.",
    )
    return [*_curves(own, vocabularies), *scores]


def _curves(records: Records, vocabularies: list[int]) -> list[Figure]:
    panels = {vocab: "bytes" if vocab == BYTE_VALUES else f"{vocab:,} tokens" for vocab in vocabularies}
    groups: list[Group] = [
        ({"vocabulary": panel, "network": TITLES[network]}, selected)
        for vocab, panel in panels.items()
        for network in NETWORKS
        if (selected := pick(records, PART.name, network=network, vocab=vocab))
    ]
    rows = []
    for group in groups:
        config = group[1][0].config
        step = config["context"] * config["batch_size"] / 1e6
        points = mean_rows([group], "step", "loss")
        rows += [{"tokens": step * row.pop("step"), "bits": row.pop("loss"), **row} for row in points]
    return [
        Figure(
            title="Pretraining: loss against tokens",
            caption="Training loss, mean over seeds with its 95% interval; equal parameter counts, each network at its "
            "best learning rate.",
            rows=rows,
            spec=curves(
                x={"field": "tokens", "title": "million tokens"},
                y={"field": "bits", "title": "bits per byte", "scale": {"zero": False}},
                series="network",
                order=[TITLES[network] for network in NETWORKS],
                band=True,
                facet="vocabulary",
                panels=list(panels.values()),
            ),
            alt="One panel for each vocabulary: loss against tokens read, one line for each network.",
        )
    ]

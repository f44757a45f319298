"""Tables of the numbers behind each paper page, from the committed records."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import fmean, stdev

from normplace._shared.text_table import markdown_table
from normplace.lab.studies.causalrn.figures.published_copying import NETWORKS as COPIERS
from normplace.lab.studies.causalrn.images import DIGITS
from normplace.lab.studies.causalrn.lookup import TASKS
from normplace.lab.studies.causalrn.networks import NETWORKS as CAUSALRN_NETWORKS
from normplace.lab.studies.causalrn.networks import PAIR_NORMS
from normplace.lab.studies.causalrn.networks import TITLES as NETWORKS
from normplace.lab.studies.causalrn.opponents import LENGTH, OPPONENTS, SHORT_LENGTH
from normplace.lab.studies.causalrn.published_measures import chosen_rate
from normplace.lab.studies.causalrn.recall import FIRST_PAIRS, LEARNABLE
from normplace.lab.studies.causalrn.training import COPIES
from normplace.lab.studies.deepergcn.depth import ORDERS
from normplace.lab.studies.estimates import estimate_text
from normplace.lab.studies.extrapolation.networks import NAMES
from normplace.lab.studies.extrapolation.protein import TITLES as LEARNERS
from normplace.lab.studies.extrapolation.published import FACES, PROTEIN, Table
from normplace.lab.studies.periln.measures import best_records
from normplace.lab.studies.periln.training import MORE, NAMED, OTHERS, SIZES
from normplace.lab.studies.rate_grid import best_rate
from normplace.lab.trials.per_seed import Records, config_values, metric, pick
from normplace.lab.trials.results import TrialRecord
from papers import committed, deepergcn_tables, periln_tables, postdeg_tables, scaling_tables, selection_tables

NO_RESULTS = "No results yet."
SETTINGS = {"ood_r2": "out of distribution", "id_r2": "in distribution"}


def scores() -> str:
    """R² of the extrapolation study, normplace and paper."""
    records = committed.records("extrapolation", "full")
    tables = (("proteins", "protein", "learner", LEARNERS, PROTEIN), ("faces", "faces", "norm_at", NAMES, FACES))
    rows = [row for table in tables for row in _scores(records, *table)]
    return markdown_table(("R²", "source", *LEARNERS.values()), rows)


def _scores(
    records: Records, data: str, part: str, field: str, models: dict[str, str], published: Table
) -> Sequence[list[str]]:
    rows: list[list[str]] = []
    for name, setting in SETTINGS.items():
        measured = {key: metric(part, name, **{field: key})(records) for key in models}
        here = [estimate_text(values) if (values := measured.get(key)) else "" for key in LEARNERS]
        paper = ["{:.2f} ± {:.2f}".format(*published[name][key]) if key in models else "" for key in LEARNERS]
        rows += [[f"{data}, {setting}", "normplace", *here], ["", "paper", *paper]]
    return rows


def lengths() -> str:
    """Accuracy of copying strings of one length, by network."""
    networks = {NETWORKS[network]: {"network": network, "size": "equal"} for network in NETWORKS}
    networks["Transformer, published size"] = {"network": "transformer", "size": "published"}
    return _copying("copying-fixed", networks, "string", "character")


def ablation() -> str:
    """Accuracy of copying by pair norm and activation, with the norm after the sum."""
    records = committed.records("causalrn", "full")
    rows = [
        [name]
        + [
            f"{_mean(cell, 'string')} ({_mean(cell, 'character')})"
            for activation in ("exp", "relu", "gelu", "elu")
            for cell in [pick(records, "ablation", pair_norm=pair_norm, activation=activation, post_norm=True)]
        ]
        for pair_norm, name in PAIR_NORMS.items()
    ]
    return markdown_table(("pair norm", "exp", "ReLU", "GELU", "ELU"), rows)


def published_lengths() -> str:
    """Accuracy of copying at the published size, by network and length."""
    return _copying("published-copying", COPIERS, "string_in_budget", "character_in_budget")


def _copying(part: str, networks: Mapping[str, Mapping[str, str]], string: str, character: str) -> str:
    """Two accuracies of every network by the length of strings."""
    records = committed.records("causalrn", "full")
    lengths = config_values(records, part, "length")
    rows: list[list[str]] = []
    for name, fields in networks.items():
        cells = [pick(records, part, length=length, **fields) for length in lengths]
        if any(cells):
            numbers = [f"{_mean(cell, string)} ({_mean(cell, character)})" if cell else "" for cell in cells]
            rows.append([name, *numbers, str(max(map(len, cells)))])
    if not rows:
        return NO_RESULTS
    return markdown_table(("network", *(f"{length} characters" for length in lengths), "seeds"), rows)


def beyond_copying() -> str:
    """Recall, look-up and image classification by network."""
    records = committed.records("causalrn", "full")
    rows: list[list[str]] = []
    for network in CAUSALRN_NETWORKS:
        recalls = [
            [record.metrics["accuracy"] or 0.0 for record in pick(records, "recall", **fields, network=network)]
            for fields in ({"pairs": pairs, "first_pairs": FIRST_PAIRS} for pairs in LEARNABLE)
        ]
        learned = [f"{sum(value >= COPIES for value in values)} of {len(values)}" for values in recalls]
        found = [_mean(pick(records, "lookup", network=network, task=task), "string") for task in TASKS]
        seen = _mean(pick(records, "images", network=network, data=DIGITS), "accuracy")
        rows.append([NETWORKS[network], *learned, *found, seen])
    headings = (*(f"{pairs} pairs, seeds that learned" for pairs in LEARNABLE), *TASKS.values(), "digits")
    return markdown_table(("network", *headings), rows)


def opponents() -> str:
    """Accuracy, steps and time to copy of every opponent of CausalRN, at its better learning rate."""
    records = committed.records("causalrn", "full")
    rows: list[list[str]] = []
    for opponent in OPPONENTS:
        rate = chosen_rate(records, opponent)
        if rate is None:
            continue
        fields = {**opponent._asdict(), "learning_rate": rate}
        short, long = (pick(records, "opponents", **fields, length=length) for length in (SHORT_LENGTH, LENGTH))
        accuracy = [_mean(short, "string_in_budget"), _mean(long, "string_in_budget"), _mean(long, "string")]
        cost = [_mean(long, "steps_to_copy", ",.0f"), _mean(long, "seconds_to_copy", ".1f")]
        rows.append([opponent.title, f"{rate:g}", *accuracy, *cost, str(len(long))])
    if not rows:
        return NO_RESULTS
    headings = (f"{SHORT_LENGTH} characters", f"{LENGTH} characters", "all steps", "steps to copy", "seconds to copy")
    return markdown_table(("network", "learning rate", *headings, "seeds"), rows)


def depths() -> str:
    """ROC-AUC by depth, block order and graph."""
    records = committed.records("deepergcn", "full")
    depths = config_values(records, "depth", "depth", data="minesweeper")
    rows = [
        [data, f"`{order}`"]
        + [_mean(pick(records, "depth", data=data, order=order, depth=depth), "test", ".3f") for depth in depths]
        for data in ("minesweeper", "tolokers")
        for order in ORDERS
    ]
    return markdown_table(("graph", "order", *(f"{depth} layers" for depth in depths)), rows)


def placements(names: Sequence[str]) -> str:
    """Loss, growth, gradients and peak of placements at their best learning rates, by size."""
    rows: list[list[str]] = []
    for size in SIZES:
        records = committed.records("periln", "laptop" if size == "tiny" else "full")
        for placement in names:
            best = best_records(records, "training", size=size, placement=placement)
            if best:
                rate = best_rate(records, "training", size=size, placement=placement)
                rates = config_values(records, "training", "learning_rate", size=size, placement=placement)
                edge = "\\*" if rate in (rates[0], rates[-1]) else ""
                rows.append([size, f"`{placement}`", f"{rate:g}{edge}", *_signals(best)])
    headings = (
        "size",
        "placement",
        "learning rate",
        "bits per byte",
        "growth before, after",
        "unevenness before, after",
        "peak after",
    )
    return markdown_table(headings, rows)


def _signals(records: list[TrialRecord]) -> list[str]:
    """Loss with its standard deviation over seeds, and means of the signals."""
    losses = [record.metrics["bits_per_byte"] or float("nan") for record in records]
    spread = f" ± {stdev(losses):.2f}" if len(losses) > 1 else ""
    growth, uneven = (
        ", ".join(_number(base ** _average(records, f"{name}_{moment}")) for moment in ("start", "end"))
        for name, base in (("grown", 2), ("uneven", 10))
    )
    return [f"{fmean(losses):.2f}{spread}", growth, uneven, f"{_average(records, 'peak_end'):.0f}"]


def _number(value: float) -> str:
    return f"{value:.1f}" if value < 1e3 else f"{value:.1e}"


def _average(records: list[TrialRecord], name: str) -> float:
    return fmean(record.metrics[name] or 0.0 for record in records)


def _mean(records: list[TrialRecord], name: str, number: str = ".2f") -> str:
    return f"{_average(records, name):{number}}" if records else ""


TABLES: dict[str, dict[str, Callable[[], str]]] = {
    "postdeg": {
        "methods": selection_tables.methods,
        "known-degree": selection_tables.known_degree,
        "degree-input": postdeg_tables.degree_input,
        "constant": selection_tables.constant,
        "sets": postdeg_tables.sets,
        "plateaus": postdeg_tables.plateaus,
        "twitch": postdeg_tables.twitch,
    },
    "extrapolation": {"scores": scores},
    "causalrn": {
        "lengths": lengths,
        "ablation": ablation,
        "beyond": beyond_copying,
        "published": published_lengths,
        "opponents": opponents,
    },
    "deepergcn": {
        "depths": depths,
        "recipes": deepergcn_tables.recipe_scores,
        "causes": deepergcn_tables.causes,
        "orders": deepergcn_tables.order_scores,
    },
    "periln": {
        "placements": partial(placements, NAMED),
        "others": partial(placements, OTHERS + MORE),
        "published": periln_tables.published,
        "theory": periln_tables.theory,
        "throughputs": scaling_tables.throughputs,
        "scaling": scaling_tables.scaling,
        "processes": scaling_tables.processes,
    },
}
"""Functions that make the tables, by study and name."""

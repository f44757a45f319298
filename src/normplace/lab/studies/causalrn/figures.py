"""The study's figures: accuracy over length, ablation, the hand-built head, recall, and bits per byte."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from normplace.lab.report.rows import Group, mean_rows, score_rows
from normplace.lab.report.specs import curves, dots
from normplace.lab.studies.causalrn.ablation import ACTIVATIONS, NORMS
from normplace.lab.studies.causalrn.head import VARIANTS as HEADS
from normplace.lab.studies.causalrn.networks import NETWORKS, TITLES
from normplace.lab.studies.causalrn.variable import VARIANTS
from normplace.lab.trials.claims import pick
from normplace.lab.trials.results import TrialRecord
from normplace.lab.trials.study import Figure

PAIRS = {"joint": "norm of each pair", "separate": "norms of rows", "none": "no norm"}


def figures(lines: Sequence[TrialRecord]) -> list[Figure]:
    """The figures of every part that has lines of successful trials."""
    done = [line for line in lines if line.status == "ok"]
    return [
        figure
        for draw in (_fixed, _course, _variable, _ablation, _head, _recall, _language, _scaling)
        for figure in draw(done)
    ]


def _values(lines: Sequence[TrialRecord], part: str, field: str) -> list[Any]:
    return sorted({line.config[field] for line in pick(lines, part)})


def _contenders(lines: Sequence[TrialRecord]) -> dict[str, dict[str, str]]:
    """Networks of fixed copying by what to call them."""
    named = {TITLES[network]: {"network": network, "size": "equal"} for network in NETWORKS}
    named[f"{TITLES['transformer']}, published size"] = {"network": "transformer", "size": "published"}
    return {name: fields for name, fields in named.items() if pick(lines, "copying-fixed", **fields)}


def _fixed(lines: Sequence[TrialRecord]) -> list[Figure]:
    named = _contenders(lines)
    rows = []
    for measure in ("string", "character"):
        groups: list[Group] = [
            ({"measure": measure, "network": name, "length": n}, pick(lines, "copying-fixed", length=n, **fields))
            for name, fields in named.items()
            for n in _values(lines, "copying-fixed", "length")
        ]
        rows += score_rows(groups, measure)
    if not rows:
        return []
    return [
        Figure(
            title="Copying strings of one length: accuracy against the length",
            caption="Share of strings, and of characters, that are right under teacher forcing, after training on that "
            "length; a string whose end is misplaced has no character right. Mean over seeds with its 95% interval; "
            "equal numbers of parameters unless said.",
            rows=rows,
            spec=curves(
                x={"field": "length", "title": "characters", "scale": {"zero": False}},
                y={"field": "value", "title": "accuracy", "scale": {"domain": [0, 1]}},
                series="network",
                order=list(named),
                low="low",
                high="high",
                facet="measure",
                panels=("string", "character"),
            ),
            alt="Two panels, string and character accuracy over the length of strings, one line for each network.",
        )
    ]


def _course(lines: Sequence[TrialRecord]) -> list[Figure]:
    """Accuracy during training at the longest length; a seed that has stopped keeps its last value."""
    found = _values(lines, "copying-fixed", "length")
    if not found:
        return []
    named, rows = _contenders(lines), []
    for name, fields in named.items():
        chosen = pick(lines, "copying-fixed", length=found[-1], **fields)
        curves_of_seeds = [dict(zip(line.series["step"], line.series["character"], strict=True)) for line in chosen]
        last = dict.fromkeys(range(len(chosen)), 0.0)
        for step in sorted({step for curve in curves_of_seeds for step in curve if step is not None}):
            last |= {n: value for n, curve in enumerate(curves_of_seeds) if (value := curve.get(step)) is not None}
            rows.append({"network": name, "step": step, "character": sum(last.values()) / len(last)})
    return [
        Figure(
            title=f"Copying {found[-1]} characters: accuracy during training",
            caption="Character accuracy on new strings, the mean over seeds; a seed that ended because every string "
            "was right keeps its last value.",
            rows=rows,
            spec=curves(
                x={"field": "step", "title": "steps"},
                y={"field": "character", "title": "character accuracy", "scale": {"domain": [0, 1]}},
                series="network",
                order=list(named),
            ),
            alt="Character accuracy over training steps, one line for each network.",
        )
    ]


def _variable(lines: Sequence[TrialRecord]) -> list[Figure]:
    named = {
        f"{TITLES[network]}, {'no' if positions == 'none' else positions} positions": chosen
        for network, positions in VARIANTS
        if (chosen := pick(lines, "copying-variable", network=network, positions=positions))
    }
    if not named:
        return []
    longest = next(iter(named.values()))[0].config["longest"]
    rows = []
    for measure in ("string", "character"):
        groups: list[Group] = [({"measure": measure, "network": name}, chosen) for name, chosen in named.items()]
        rows += [
            {"accuracy" if key == measure else key: value for key, value in row.items()}
            for row in mean_rows(groups, "length", measure)
        ]
    return [
        Figure(
            title="Copying strings of varying length, within and beyond training",
            caption="Share of strings, and of characters, that are right under teacher forcing; trained on packed "
            f"strings of up to {longest} characters, the dashed line, at equal numbers of parameters. Mean over seeds "
            "with its 95% interval.",
            rows=rows,
            spec=curves(
                x={"field": "length", "title": "characters", "scale": {"type": "log", "nice": False}},
                y={"field": "accuracy", "title": "accuracy", "scale": {"domain": [0, 1]}},
                series="network",
                order=list(named),
                low="low",
                high="high",
                facet="measure",
                panels=("string", "character"),
                rules=(longest,),
            ),
            alt="Two panels, string and character accuracy over the length of strings, one line for each network.",
        )
    ]


def _ablation(lines: Sequence[TrialRecord]) -> list[Figure]:
    groups: list[Group] = [
        (
            {
                "after": "norm after the sum" if post_norm else "none after the sum",
                "pairs": PAIRS[pair_norm],
                "activation": activation,
            },
            pick(lines, "ablation", pair_norm=pair_norm, activation=activation, post_norm=post_norm),
        )
        for post_norm in (True, False)
        for pair_norm in NORMS
        for activation in ACTIVATIONS
    ]
    rows = score_rows(groups, "character")
    if not rows:
        return []
    return [
        Figure(
            title="CausalRN without its ingredients: character accuracy",
            caption="After training on strings of one length; mean over seeds with its 95% interval.",
            rows=rows,
            spec=dots(
                x={"field": "value", "title": "character accuracy", "scale": {"domain": [0, 1]}},
                rows="activation",
                order=ACTIVATIONS,
                low="low",
                high="high",
                series="pairs",
                sources=list(PAIRS.values()),
                facet="after",
                panels=("norm after the sum", "none after the sum"),
            ),
            alt="Two panels, with and without the norm after the sum; in each, a point with its interval for every "
            "activation and norm of pairs.",
        )
    ]


def _head(lines: Sequence[TrialRecord]) -> list[Figure]:
    named = {f"{PAIRS[norm]}, {activation}": (norm, activation) for norm, activation in HEADS}
    groups: list[Group] = [
        ({"head": name, "length": n}, pick(lines, "head", pair_norm=norm, activation=activation, length=n))
        for name, (norm, activation) in named.items()
        for n in _values(lines, "head", "length")
    ]
    rows = score_rows(groups, "accuracy")
    if not rows:
        return []
    return [
        Figure(
            title="A retrieval head built by hand: accuracy against the number of keys",
            caption="One layer, not trained: a query that cancels its key, values marked by small channels. Mean over "
            "seeds with its 95% interval.",
            rows=rows,
            spec=curves(
                x={"field": "length", "title": "keys", "scale": {"type": "log", "nice": False}},
                y={"field": "value", "title": "accuracy", "scale": {"domain": [0, 1]}},
                series="head",
                order=list(named),
                low="low",
                high="high",
            ),
            alt="Accuracy over the number of keys, one line for each norm of pairs and activation.",
        )
    ]


def _scores(
    lines: Sequence[TrialRecord], part: str, field: str, name: str, title: str, axis: str, caption: str
) -> list[Figure]:
    """A point with its interval for each network, one panel for each value of a field."""
    panels = _values(lines, part, field)
    groups: list[Group] = [
        ({"panel": f"{value} {field}", "network": TITLES[network], "source": "measured"}, chosen)
        for value in panels
        for network in NETWORKS
        if (chosen := pick(lines, part, network=network, **{field: value}))
    ]
    rows = score_rows(groups, name)
    if not rows:
        return []
    return [
        Figure(
            title=title,
            caption=caption,
            rows=rows,
            spec=dots(
                x={"field": "value", "title": axis},
                rows="network",
                order=[TITLES[network] for network in NETWORKS],
                low="low",
                high="high",
                series="source",
                sources=["measured"],
                facet="panel",
                panels=[f"{value} {field}" for value in panels],
            ),
            alt=f"One panel for each of the {field}, with a point and its interval for every network.",
        )
    ]


def _recall(lines: Sequence[TrialRecord]) -> list[Figure]:
    caption = (
        "Share of queries answered rightly; mean over seeds with its 95% interval, at equal numbers of parameters."
    )
    return _scores(lines, "recall", "pairs", "accuracy", "Multi-query associative recall", "accuracy", caption)


def _language(lines: Sequence[TrialRecord]) -> list[Figure]:
    caption = "On held-out files; mean over seeds with its 95% interval, at equal numbers of parameters and bytes read."
    return _scores(lines, "language", "text", "bits_per_byte", "Text, byte by byte", "bits per byte", caption)


def _scaling(lines: Sequence[TrialRecord]) -> list[Figure]:
    shown = {"elements": "numbers read, forward", "peak_bytes": "bytes, training step", "state_rows": "rows, decoding"}
    forms = [form for form in ("scan", "pairwise") if pick(lines, "scaling", form=form)]
    rows = []
    for name, panel in shown.items():
        groups: list[Group] = [
            ({"cost": panel, "form": TITLES[form], "length": n}, pick(lines, "scaling", form=form, length=n))
            for form in forms
            for n in _values(lines, "scaling", "length")
        ]
        rows += score_rows(groups, name)
    if not rows:
        return []
    spec = curves(
        x={"field": "length", "title": "tokens", "scale": {"type": "log", "nice": False}},
        y={"field": "value", "title": "cost", "scale": {"type": "log"}},
        series="form",
        order=[TITLES[form] for form in forms],
        facet="cost",
        panels=list(shown.values()),
    )
    return [
        Figure(
            title="What a sequence costs by its length",
            caption="Counted on a CPU: numbers that operations read, peak memory of a training step beyond weights and "
            "gradients, and rows that decoding remembers in each layer. Both axes are logarithmic.",
            rows=rows,
            spec={**spec, "resolve": {"scale": {"y": "independent"}}},
            alt="Three panels of cost over length, one line for the scan and one for the pairwise form.",
        )
    ]

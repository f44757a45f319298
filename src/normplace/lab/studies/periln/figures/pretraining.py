"""Loss, gradient norms and signals by depth in pretraining, and mean-field theory compared with measurement."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Any

from normplace.lab.report.rows import mean_columns
from normplace.lab.report.specs import curves
from normplace.lab.studies.periln.claims.theory import before_training, prediction
from normplace.lab.studies.periln.pretraining import EQUAL_RATE, FULL, LONG_PLACEMENTS, MAIN, NAMED, OTHERS, PART
from normplace.lab.studies.rate_grid import best_rate, loss
from normplace.lab.trials.per_seed import Records, config_values, pick
from normplace.lab.trials.results import TrialRecord
from normplace.lab.trials.study import Figure

PLACEMENTS = (*NAMED, *OTHERS)
MILLION = 1e6
LOG = {"type": "log"}
TIGHT_LOG = {**LOG, "nice": False}
BITS_SHOWN = [0.5, 0.6, 0.7, 0.8, 1, 1.5, 2, 3, 4, 6, 8]
"""Labels of a logarithmic axis of losses."""
SHOWN_MOMENTS = (0, 3, 5, -1)
"""Moments with a panel: before training, after a tenth, after two fifths, and at the end."""
_BEST = "Each placement at the best learning rate of its grid."


def figures(records: Records) -> list[Figure]:
    """Draw what the records allow; there may be one seed only, or few placements."""
    main = [record for record in pick(records, PART.name, variant=MAIN) if record.config["tokens"] >= FULL.short]
    if not main:
        return []
    return [*_loss(main), *_rates(main), *_by_depth(main), *_gradients(main), *_theory(main)]


def _best(records: Records, placement: str, tokens: int) -> list[TrialRecord]:
    """The records at the best learning rate of the placement's grid."""
    rate = best_rate(records, PART.name, placement=placement, tokens=FULL.grid, seed=0)
    return pick(records, PART.name, placement=placement, tokens=tokens, learning_rate=rate)


def _tokens(record: TrialRecord, step: float) -> float:
    """Millions of tokens read after a number of steps."""
    return step * record.config["context"] * record.config["batch_size"] / MILLION


def _over_tokens(records: Sequence[TrialRecord], name: str) -> Iterator[dict[str, Any]]:
    """Mean over seeds of a curve; a run that stopped early is left out."""
    longest = max(records, key=lambda record: record.series["step"][-1] or 0)
    complete = [record for record in records if record.series["step"] == longest.series["step"]]
    for index, step in enumerate(longest.series["step"]):
        if numbers := mean_columns(record.series[name][index] for record in complete):
            yield {"tokens": _tokens(longest, step or 0), **numbers}


def _loss(records: Records) -> Iterator[Figure]:
    for tokens in (FULL.grid, FULL.long):
        best = {name: selected for name in PLACEMENTS if (selected := _best(records, name, tokens))}
        rows = [{"placement": name, **row} for name, selected in best.items() for row in _over_tokens(selected, "loss")]
        if rows:
            size = f"{tokens / MILLION:.0f} million tokens"
            yield Figure(
                title=f"Pretraining: loss against tokens, {size}",
                caption=f"{_BEST} Training loss, mean over seeds ({_seeds(best)}), with the 95% interval if there are "
                "several.",
                rows=rows,
                spec=curves(
                    x={"field": "tokens", "title": "million tokens", "scale": TIGHT_LOG},
                    y={"field": "value", "title": "bits per byte", "scale": TIGHT_LOG, "axis": {"values": BITS_SHOWN}},
                    series="placement",
                    order=list(best),
                    band=True,
                ),
                alt=f"Loss against tokens up to {size}, a line for each placement.",
            )


def _seeds(groups: dict[str, list[TrialRecord]]) -> str:
    return ", ".join(f"{name} {len(selected)}" for name, selected in groups.items())


def _rates(records: Records) -> Iterator[Figure]:
    rows = []
    for name in PLACEMENTS:
        fields = {"placement": name, "tokens": FULL.grid}
        for rate in config_values(records, PART.name, "learning_rate", **fields):
            numbers = mean_columns(map(loss, pick(records, PART.name, learning_rate=rate, **fields)))
            rows.append({"placement": name, "rate": rate, **numbers})
    if rows:
        yield Figure(
            title="Pretraining: loss against learning rate",
            caption="Held-out loss after 60 million tokens, mean over seeds, with the 95% interval if there are "
            "several.",
            rows=rows,
            spec=curves(
                x={"field": "rate", "title": "learning rate", "scale": {"type": "log", "base": 2}}
                | {"axis": {"values": sorted({row["rate"] for row in rows}), "format": "g"}},
                y={"field": "value", "title": "bits per byte", "scale": {"zero": False}},
                series="placement",
                order=list(dict.fromkeys(row["placement"] for row in rows)),
                band=True,
            ),
            alt="Bits per byte against the learning rate, a line for each placement.",
        )


def _runs(records: Records) -> dict[str, list[TrialRecord]]:
    """Pre-LN and Peri-LN at their best and at the high learning rate, by label."""
    runs = {}
    for name in LONG_PLACEMENTS:
        high = pick(records, PART.name, placement=name, tokens=FULL.grid, learning_rate=EQUAL_RATE)
        for selected in (_best(records, name, FULL.grid), high):
            if selected:
                runs[f"{name}, {selected[0].config['learning_rate']:g}"] = selected
    return runs


def _at_moment(record: TrialRecord, name: str, index: int) -> Sequence[float | None]:
    """The values by depth at one moment."""
    moments = len(record.series["moment"])
    size = len(record.series[name]) // moments
    first = size * (index % moments)
    return record.series[name][first : first + size]


def _by_depth(records: Records) -> Iterator[Figure]:
    runs = _runs(records)
    for name, label in {"variance": "variance of the stream", "peak": "largest magnitude of the stream"}.items():
        rows, panels = [], []
        for run, selected in runs.items():
            complete = [record for record in selected if len(record.series["moment"]) > max(SHOWN_MOMENTS)]
            for index in SHOWN_MOMENTS if complete else ():
                read = _tokens(complete[0], complete[0].series["moment"][index] or 0)
                panel = f"after {read:.0f} million tokens" if index else "before training"
                panels += [panel] if panel not in panels else []
                by_depth = zip(*(_at_moment(record, name, index) for record in complete), strict=True)
                for depth, values in enumerate(by_depth):
                    known = [value for value in values if value is not None]
                    if known and depth:
                        rows.append({"run": run, "when": panel, "layer": depth, "value": fmean(known)})
        if rows:
            yield Figure(
                title=f"Pretraining: {label} by depth",
                caption="Pre-LN and Peri-LN at their best learning rates and at a high one, after each layer, mean "
                "over seeds; logarithmic.",
                rows=rows,
                spec=curves(
                    x={"field": "layer", "title": "layer"},
                    y={"field": "value", "title": name, "scale": LOG},
                    series="run",
                    order=list(runs),
                    facet="when",
                    panels=panels,
                    columns=4,
                ),
                alt=f"Panels for moments of training, each with lines of the {name} by layer.",
            )


def _gradients(records: Records) -> Iterator[Figure]:
    runs, names = _runs(records), {"gradient_norm": "median", "gradient_norm_most": "largest"}
    rows = []
    for run, selected in runs.items():
        first = min(selected, key=lambda record: record.seed)
        spikes = first.metrics.get("gradient_spikes") or 0.0
        for name, label in names.items():
            rows += [
                {"run": f"{run}: {spikes:.0f} spikes in 1000 steps", "of": label, **row}
                for row in _over_tokens([first], name)
            ]
    if rows:
        yield Figure(
            title="Pretraining: gradient norm and its spikes",
            caption="Median and largest gradient norm before clipping in each two-hundredth of the training, first "
            "seed, by placement and learning rate. A spike is above three times the median of the 64 steps before.",
            rows=rows,
            spec=curves(
                x={"field": "tokens", "title": "million tokens"},
                y={"field": "value", "title": "gradient norm", "scale": LOG},
                series="of",
                order=list(names.values()),
                facet="run",
                panels=list(dict.fromkeys(row["run"] for row in rows)),
                columns=2,
            ),
            alt="A panel for each placement and learning rate, with the median and the largest gradient norm.",
        )


def _theory(records: Records) -> Iterator[Figure]:
    panels = {"variance": "variance of the stream", "gradient": "gradient over its geometric mean"}
    rows = []
    for placement in NAMED:
        selected = [record for record in pick(records, PART.name, placement=placement) if record.series.get("moment")]
        first = list({record.seed: record for record in selected}.values())
        if not first:
            continue
        predicted = prediction(first[0])
        for name, panel in panels.items():
            measured = [
                fmean(values) for values in zip(*(before_training(record, name) for record in first), strict=True)
            ]
            for source, values in {"theory": getattr(predicted, name), "measured": measured}.items():
                layers = list(values[-first[0].config["depth"] :])
                middle = math.exp(fmean(map(math.log, layers))) if name == "gradient" else 1.0
                rows += [
                    {"curve": f"{placement}, {source}", "of": panel, "layer": layer, "value": value / middle}
                    for layer, value in enumerate(layers, 1)
                ]
    if rows:
        yield Figure(
            title="Pretraining: mean-field theory and measurement before training",
            caption="Variance of the stream after each layer, and gradient norm of each layer relative to the "
            "geometric mean over layers; the theory has no fitted numbers. Logarithmic.",
            rows=rows,
            spec=curves(
                x={"field": "layer", "title": "layer"},
                y={"field": "value", "title": None, "scale": LOG},
                series="curve",
                order=list(dict.fromkeys(row["curve"] for row in rows)),
                facet="of",
                panels=list(panels.values()),
                columns=2,
            )
            | {"resolve": {"scale": {"y": "independent"}}},
            alt="Two panels, variance and gradient by layer, with predicted and measured lines for each placement.",
        )

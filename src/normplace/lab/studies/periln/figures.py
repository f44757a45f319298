"""The study's figures: variance and gradients over depth and training, learning rates, loss, range, and the bound."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Any

from normplace.lab.report.rows import Group, mean_rows, score_rows
from normplace.lab.report.specs import cells, curves, dots
from normplace.lab.studies.periln import bound
from normplace.lab.studies.periln.initialization_figures import initialization_figures
from normplace.lab.studies.periln.measures import at_rate, best_lines, best_rate, cost, rates
from normplace.lab.studies.periln.training import MORE, NAMED, OTHERS, SIZES
from normplace.lab.trials.claims import pick
from normplace.lab.trials.results import TrialRecord
from normplace.lab.trials.study import Figure

PLACEMENTS = NAMED + OTHERS + MORE
WHEN = {"start": "before training", "quarter": "after a quarter of it", "end": "after training"}
_BEST = "Each placement at its own best learning rate, mean over seeds."
LOG = {"type": "log"}


def figures(lines: Sequence[TrialRecord]) -> list[Figure]:
    """The figures of every part and size that has lines of successful trials."""
    done = [line for line in lines if line.status == "ok"]
    found = []
    for size in SIZES:
        if pick(done, "training", size=size):
            found += _of_size(done, size)
    return [*found, *initialization_figures(done), *_bound(done)]


def _of_size(lines: Sequence[TrialRecord], size: str) -> Iterator[Figure]:
    shown = [name for name in PLACEMENTS if best_rate(lines, size, name) is not None]
    groups: list[Group] = [({"placement": name}, best_lines(lines, size, name)) for name in shown]
    yield _over_training(
        groups,
        shown,
        title=f"Variance of the stream over depth and training, {size}",
        caption=f"{_BEST} Variance over features behind each branch, two to a layer, logarithmic.",
        position={"field": "depth", "title": "branches passed"},
        value="variance",
    )
    yield _over_training(
        groups,
        shown,
        title=f"Gradient norm of each layer over training, {size}",
        caption=f"{_BEST} Norm of the loss's gradient in the parameters of the layer's branches, logarithmic.",
        position={"field": "layer", "title": "layer"},
        value="gradient",
    )
    yield _map(lines, size, shown)
    yield Figure(
        title=f"Training loss, {size}",
        caption=f"{_BEST} Bits per byte between two looks at the model, with the 95% interval.",
        rows=mean_rows(groups, "step", "loss"),
        spec=curves(
            x={"field": "step", "title": "step"},
            y={"field": "loss", "title": "bits per byte", "scale": {"zero": False}},
            series="placement",
            order=shown,
            low="low",
            high="high",
        ),
        alt="Loss over steps, a line with its band for each placement.",
    )
    yield _range(groups, shown, size)


def _over_training(
    groups: Sequence[Group], shown: Sequence[str], *, title: str, caption: str, position: dict[str, Any], value: str
) -> Figure:
    """One panel for each moment of training, a line for each placement."""
    rows = []
    for moment, words in WHEN.items():
        found = mean_rows(groups, position["field"], f"{value}_{moment}", band=False)
        rows += [{"when": words, value: row.pop(f"{value}_{moment}"), **row} for row in found]
    return Figure(
        title=title,
        caption=caption,
        rows=rows,
        spec=curves(
            x=position,
            y={"field": value, "title": value, "scale": LOG},
            series="placement",
            order=shown,
            facet="when",
            panels=list(WHEN.values()),
        ),
        alt=f"Three panels, {', '.join(WHEN.values())}, each with a line of the {value} for every placement.",
    )


def _map(lines: Sequence[TrialRecord], size: str, shown: Sequence[str]) -> Figure:
    """Bits per byte of every placement at every rate, with how many seeds diverged or learned next to nothing."""
    tried = rates(lines, size)
    rows = []
    for name in shown:
        for rate in tried:
            if not (found := at_rate(lines, size, name, rate)):
                continue
            bits = fmean(cost(line) for line in found)
            lost = sum(bool(line.metrics.get("diverged")) for line in found)
            stuck = sum(line.metrics.get("stuck") == 1 and not line.metrics.get("diverged") for line in found)
            words = [f"{n} of {len(found)} {word}" for n, word in ((lost, "diverged"), (stuck, "stuck")) if n]
            row = {"placement": name, "rate": f"{rate:g}", "bits": bits, "diverged": lost, "stuck": stuck}
            rows.append({**row, "shown": ", ".join([f"{bits:.2f}", *words])})
    values = sorted(row["bits"] for row in rows)
    middle = values[len(values) // 2]
    return Figure(
        title=f"Bits per byte by placement and learning rate, {size}",
        caption="Mean over seeds on the validation text; a trial worse than a blind guess counts as one, 8 bits. "
        "Diverged: not finite, no better than that guess, or risen by more than 1 bit above its lowest. Stuck: within "
        "0.05 bits of what the frequencies of bytes alone give.",
        rows=rows,
        spec=cells(
            x="rate",
            columns=[f"{rate:g}" for rate in tried],
            y="placement",
            rows=list(shown),
            value="bits",
            text="shown",
            title="bits per byte",
            middle=middle,
            reach=max(middle - values[0], 0.05),
            good="low",
            step=190,
        ),
        alt="A table of placements by learning rates, each cell with its bits per byte and its lost seeds.",
    )


def _range(groups: Sequence[Group], shown: Sequence[str], size: str) -> Figure:
    """How far the trained streams are from overflow, and how far their largest number stands out."""
    panels = {
        "doublings left in fp16": "headroom",
        "largest over median magnitude": "ratio",
        "massive activations": "massive",
    }
    rows = []
    for panel, name in panels.items():
        for moment in ("start", "end"):
            found = score_rows(groups, f"{name}_{moment}")
            rows += [{"measure": panel, "when": WHEN[moment], **row} for row in found]
    return Figure(
        title=f"Headroom and outliers of the stream, {size}",
        caption=f"{_BEST} Over all depths: the fewest doublings before fp16 overflows, the largest ratio of the "
        "largest to the median magnitude, and how many numbers are above 100 and 1000 times the median; 95% intervals.",
        rows=rows,
        spec=dots(
            x={"field": "value", "title": None},
            rows="placement",
            order=list(shown),
            low="low",
            high="high",
            series="when",
            sources=[WHEN["start"], WHEN["end"]],
            facet="measure",
            panels=list(panels),
        )
        | {"resolve": {"scale": {"x": "independent"}}},
        alt="Three panels with a row for each placement, before and after training.",
    )


def _bound(lines: Sequence[TrialRecord]) -> list[Figure]:
    kinds = {"pre": "Pre-LN", "peri": "Peri-LN", "bound": "bound of Peri-LN"}
    rows = []
    for norm in bound.NORMS:
        groups: list[Group] = [({"norm": norm}, pick(lines, bound.PART.name, norm=norm))]
        for kind, words in kinds.items():
            found = mean_rows(groups, "scale", kind, band=False)
            rows += [{"norm": norm, "network": words, "scale": row["scale"], "gradient": row[kind]} for row in found]
    if not rows:
        return []
    spec = curves(
        x={"field": "scale", "title": "size of the hidden features", "scale": {"type": "log", "base": 2}},
        y={"field": "gradient", "title": "gradient", "scale": LOG},
        series="network",
        order=list(kinds.values()),
        facet="norm",
        panels=list(bound.NORMS),
    )
    return [
        Figure(
            title="Gradient of an MLP's last matrix against the size of its hidden features",
            caption="The largest element of each row's own gradient, mean over rows and seeds, and the bound of "
            "Proposition 3.1; both axes logarithmic.",
            rows=rows,
            spec=spec,
            alt="Two panels, RMSNorm and LayerNorm, each with lines for Pre-LN, Peri-LN and the bound.",
        )
    ]

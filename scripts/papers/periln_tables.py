"""Tables on Peri-LN: published facts and pretraining, starts of each placement, and theory against measurement."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

from orders.periln_pretraining import settled_rate

from normplace._shared.text_table import markdown_table
from normplace.lab.report.text import count
from normplace.lab.studies.estimates import estimate_text
from normplace.lab.studies.periln import initialization
from normplace.lab.studies.periln.claims.initialization import loss_gap
from normplace.lab.studies.periln.claims.pretraining import at_best
from normplace.lab.studies.periln.claims.theory import before_training, largest_factor, prediction
from normplace.lab.studies.periln.figures.initialization import initialization_rows
from normplace.lab.studies.periln.measures import at_best_rate, best_records
from normplace.lab.studies.periln.pretraining import EQUAL_RATE, FULL, LONG_PLACEMENTS, MAIN, NAMED, PART
from normplace.lab.studies.periln.published import BENCHMARK_SPREAD, BENCHMARKS, DIVERGED, HALF_PRECISION, LOSS
from normplace.lab.studies.rate_grid import best_rate
from normplace.lab.trials.per_seed import config_values, pick
from normplace.lab.trials.results import TrialRecord
from papers import committed

SIZE = "400M"
REFERENCE = "xavier"
"""The start that the others are compared with, seed by seed."""
COLUMNS = {"post": "Post-LN", "pre": "Pre-LN", "peri": "Peri-LN", "output": "output norm"}
NOT_KNOWN = (
    "Cells of the paper are empty where we know no number. Its best learning rate is empty because the summaries "
    "contradict each other. normplace has no benchmark scores: the networks read too little text, and bytes only."
)


def published() -> str:
    """The published facts at the smallest size, and those of pretraining that are closest to them."""
    lines = pick(committed.records("periln", "full"), PART.name, variant=MAIN)
    size = f"{FULL.grid / 1e6:.0f} million"
    rows = [
        _row("average of five benchmarks, %", "paper", BENCHMARKS[SIZE], "{:.2f}".format),
        _row("standard deviation of a benchmark over seeds", "paper", BENCHMARK_SPREAD[SIZE], _spread),
        _row("C4, nats per token", "paper", LOSS[SIZE], "{:.2f}".format),
        *(
            _row(f"held-out bits per byte, {tokens / 1e6:.0f} million tokens", "normplace", _losses(lines, tokens))
            for tokens in (FULL.grid, FULL.long)
        ),
        _row("best learning rate", "paper", {}),
        _row(f"best learning rate, {size} tokens", "normplace", _rates(lines)),
        _row("diverged", "paper", DIVERGED[SIZE]),
        _row("diverged, all learning rates", "normplace", _diverged(lines)),
        _row("range of fp16", "paper", HALF_PRECISION[SIZE]),
        *(
            _row(
                f"largest magnitude at the best learning rate, {tokens / 1e6:.0f} million tokens",
                "normplace",
                _peaks(lines, tokens),
            )
            for tokens in (FULL.grid, FULL.long)
        ),
        _row(f"largest magnitude at {EQUAL_RATE:g}, {size} tokens", "normplace", _peaks(lines, FULL.grid, EQUAL_RATE)),
    ]
    table = markdown_table(("", "source", *COLUMNS.values()), rows)
    return f"{table}\n\n{NOT_KNOWN} {_missing(lines)}"


def _row(name: str, source: str, cells: Mapping[str, object], text: Callable[[object], str] = str) -> list[str]:
    return [name, source, *(text(cells[placement]) if placement in cells else "" for placement in COLUMNS)]


def _spread(ends: object) -> str:
    return "{:.2f} to {:.2f}".format(*ends)  # pyright: ignore[reportGeneralTypeIssues]


def _losses(lines: list[TrialRecord], tokens: int) -> dict[str, str]:
    values = {placement: at_best("bits_per_byte", placement, tokens)(lines) for placement in COLUMNS}
    return {placement: estimate_text(own, ".3f") for placement, own in values.items() if own}


def _rates(lines: list[TrialRecord]) -> dict[str, str]:
    rates = {}
    for placement in COLUMNS:
        best = best_rate(lines, PART.name, placement=placement, tokens=FULL.grid, seed=0)
        if best is not None:
            settled = settled_rate(lines, FULL, placement) is not None
            rates[placement] = f"{best:g}" if settled else f"{best:g}, grid not finished"
    return rates


def _diverged(lines: list[TrialRecord]) -> dict[str, str]:
    counts = {}
    for placement in COLUMNS:
        own = pick(lines, PART.name, placement=placement)
        if own:
            diverged, stuck = (sum(record.metrics[name] or 0 for record in own) for name in ("diverged", "stuck"))
            text = f"{diverged:.0f} of {len(own)} runs"
            counts[placement] = f"{text}; {stuck:.0f} stuck" if stuck else text
    return counts


def _peaks(lines: list[TrialRecord], tokens: int, rate: float | None = None) -> dict[str, str]:
    """Largest magnitude of the stream at any measured moment, at a learning rate or the best one of each placement."""
    peaks = {}
    for placement in COLUMNS:
        own_rate = rate or best_rate(lines, PART.name, placement=placement, tokens=FULL.grid, seed=0)
        own = pick(lines, PART.name, placement=placement, learning_rate=own_rate, tokens=tokens)
        if own:
            peaks[placement] = f"{fmean(record.metrics['peak_most'] or math.inf for record in own):,.0f}"
    return peaks


def _missing(lines: list[TrialRecord]) -> str:
    """How many runs there are, and which ones behind empty cells are still to come."""
    seeds = len({record.seed for record in lines})
    done = f"So far there are {len(lines)} runs with {count(seeds, 'seed')}."
    long = [name for name in LONG_PLACEMENTS if not pick(lines, PART.name, placement=name, tokens=FULL.long)]
    if not long:
        return done
    names = " and ".join(COLUMNS[name] for name in long)
    tokens = f"{FULL.long / 1e6:.0f} million tokens"
    return f"{done} Those of {names} on {tokens} are to come; no others of that length are planned."


def starts() -> str:
    """Every placement and start of the part ``initialization`` at its best learning rate."""
    records = committed.records("periln", "full")
    rows = []
    for placement in initialization.PLACEMENTS:
        for start in initialization.STARTS:
            cell = {"placement": placement, "start": start}
            best = best_records(records, initialization.PART.name, **cell)
            rates = config_values(records, initialization.PART.name, "learning_rate", **cell)
            rate = best[0].config["learning_rate"]
            edge = "\\*" if rate in (rates[0], rates[-1]) else ""
            numbers = (
                estimate_text(at_best_rate(initialization.PART.name, name, **cell)(records), number)
                for name, number in (("bits_per_byte", ".2f"), ("peak_end", ".0f"))
            )
            gap = loss_gap((placement, start), (placement, REFERENCE))(records)
            more = "" if start == REFERENCE else estimate_text(gap, "+.2f")
            rows.append([f"`{placement}`", start, f"{rate:g}{edge}", *numbers, more, str(len(best))])
    headings = ("placement", "start", "best learning rate", "bits per byte", "peak", f"bits above {REFERENCE}", "seeds")
    table = markdown_table(headings, rows)
    return f"{table}\n\n{_fixed_settings(pick(records, initialization.PART.name))}"


def _fixed_settings(lines: Sequence[TrialRecord]) -> str:
    """The weight decay and the warm-up of the trials."""
    decays = sorted({f"{line.config['weight_decay']:g}" for line in lines})
    warm_ups = sorted({f"{line.config['warm_up']} of {line.config['steps']} steps" for line in lines})
    values = f"weight decay {' or '.join(decays)} and a warm-up of {' or '.join(warm_ups)}"
    return f"All {len(lines)} trials have {values}."


def rates() -> str:
    """Bits per byte of every placement, start and learning rate; the best learning rate of a row in bold."""
    cells: dict[str, dict[float, float]] = {}
    for row in initialization_rows(committed.records("periln", "full")):
        cells.setdefault(row["network"], {})[float(row["rate"])] = row["bits"]
    tried = sorted({rate for own in cells.values() for rate in own})
    rows = [[name, *(_bold(own, rate) for rate in tried)] for name, own in cells.items()]
    return markdown_table(("placement, initial weights", *(f"{rate:g}" for rate in tried)), rows)


def _bold(own: Mapping[float, float], rate: float) -> str:
    if rate not in own:
        return ""
    text = f"{own[rate]:.2f}"
    return f"**{text}**" if own[rate] == min(own.values()) else text


def theory() -> str:
    """How far theory and measurement are apart before training, by placement."""
    rows = []
    for placement in NAMED:
        lines = pick(committed.records("periln", "full"), PART.name, placement=placement, variant=MAIN)
        first = {record.seed: record for record in reversed(lines) if record.series.get("moment")}
        if first:
            rows.append([COLUMNS[placement], *_theory_factors(list(first.values())), str(len(first))])
    headings = ("placement", "variance", "gradient relative to other layers", "level of all gradients", "seeds")
    return markdown_table(headings, rows, right_from=1)


def _theory_factors(records: Sequence[TrialRecord]) -> list[str]:
    """The largest factors over layers and seeds, and predicted over measured geometric mean of the gradients."""
    variance, gradient, levels = [], [], []
    for record in records:
        predicted, measured = prediction(record), before_training(record, "gradient")
        variance.append(largest_factor(predicted.variance[1:], before_training(record, "variance")[1:]))
        gradient.append(largest_factor(predicted.gradient, measured, relative=True))
        levels.append(fmean(math.log(one / two) for one, two in zip(predicted.gradient, measured, strict=True)))
    return [f"{max(variance):.2f}", f"{max(gradient):.2f}", f"{math.exp(fmean(levels)):.2f}"]

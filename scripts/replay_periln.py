"""Evaluate the committed trials of the Peri-LN study as if they were those of a comparison, and compare the verdicts.

Every check of the study on the loss of two variants is repeated twice: with all its lines, and with a quarter of their
cost. In the quarter, the training loss after a quarter of the steps of one seed chooses the learning rate, and as many
seeds are reported as the rest of the cost pays for.
``python scripts/replay_periln.py`` writes benchmarks/results/compare-replay.json and its table in
docs/reference/compare.md.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from papers.blocks import fill

from normplace._shared.output import write_atomic
from normplace._shared.text_table import markdown_table
from normplace.lab.compare.config import FINAL, SEARCH, STUDY_NAME
from normplace.lab.compare.result import Comparison
from normplace.lab.compare.statistics import Difference, Verdict
from normplace.lab.report.text import count
from normplace.lab.studies.periln import STUDY
from normplace.lab.trials.claims import Measurement, State, judge_all
from normplace.lab.trials.per_seed import SuccessfulRecords, config_values, pick
from normplace.lab.trials.record import TrialRecord, trial_hash
from normplace.lab.trials.results import read_records

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "src" / "normplace" / "lab" / "studies" / "periln" / "results"
FIGURES = ROOT / "benchmarks" / "results" / "compare-replay.json"
PAGE = ROOT / "docs" / "reference" / "compare.md"
QUARTER = 0.25
EXPECTED = {State.PASSED: Verdict.WORSE, State.OPEN: Verdict.TIED, State.FAILED: Verdict.BETTER}
"""The verdict on the first variant of a check "first minus second is above zero", with the second as the baseline."""

Variant = Mapping[str, str]


@dataclass(frozen=True)
class Replay:
    """Variants of one part of the study, compared with a baseline.

    Attributes:
        part: Part of the study.
        variants: Configuration fields of each variant by its name in the comparison.
        baseline: Name of the baseline.
        checks: Label of the study's check on each other variant.
    """

    part: str
    variants: Mapping[str, Variant]
    baseline: str
    checks: Mapping[str, str]


def replays() -> list[Replay]:
    """The checks of the study on the loss, as comparisons."""
    made = []
    for size in ("tiny", "10M", "40M", "120M"):
        variants = {name: {"size": size, "placement": name} for name in ("peri", "pre", "post")}
        checks = {name: f"bits per byte, {name} minus peri, {size}" for name in ("pre", "post")}
        made.append(Replay("training", variants, "peri", checks))
    starts = {start: {"placement": "peri", "start": start} for start in ("xavier", "depth", "fixed")}
    checks = {start: f"bits per byte, peri, {start} minus xavier" for start in ("depth", "fixed")}
    made.append(Replay("initialization", starts, "xavier", checks))
    for start, worse, baseline in (("xavier", "pre", "peri"), ("depth", "peri", "pre")):
        variants = {name: {"placement": name, "start": start} for name in (baseline, worse)}
        checks = {worse: f"bits per byte, {start}, {worse} minus {baseline}"}
        made.append(Replay("initialization", variants, baseline, checks))
    return made


def main() -> int:
    """Write the figures and the table, and print what differs; 1 if a separated pair has the opposite order."""
    figures = replay_all()
    write_atomic(FIGURES, json.dumps(figures, indent=1) + "\n")
    write_atomic(PAGE, fill(PAGE.read_text(), {"replay": text(figures)}))
    print(text(figures))
    return 1 if any(row["opposite"] for row in figures) else 0


def replay_all() -> list[dict[str, Any]]:
    """One entry for each check of the study."""
    paths = [next(RESULTS.glob(f"periln-{scale}.jsonl*")) for scale in ("laptop", "full")]
    runs = [SuccessfulRecords(read_records(path)) for path in paths]
    measurements = {
        measurement.check.label: measurement
        for records in runs
        for judgement in judge_all(STUDY.claims, records)
        for measurement in judgement.measurements
        if measurement.n
    }
    entries: list[dict[str, Any]] = []
    for replay in replays():
        for records in runs:
            if all(pick(records, replay.part, **fields) for fields in replay.variants.values()):
                entries += _entries(replay, records, measurements)
    return entries


def _entries(
    replay: Replay, records: Sequence[TrialRecord], measurements: Mapping[str, Measurement]
) -> list[dict[str, Any]]:
    lines = {name: pick(records, replay.part, **fields) for name, fields in replay.variants.items()}
    everything = [_final(name, record) for name, own in lines.items() for record in own]
    full = Comparison.from_records(everything, baseline=replay.baseline)
    quarter_lines, cost = _quarter(lines)
    quarter = Comparison.from_records(quarter_lines, baseline=replay.baseline)
    entries = []
    for name, label in replay.checks.items():
        measurement = measurements[label]
        expected = EXPECTED[measurement.ungated]
        compared = [comparison.row(name).difference for comparison in (full, quarter)]
        entries.append(
            {
                "check": label,
                "estimate": measurement.estimate,
                "verify": str(measurement.state),
                "without gates": str(measurement.ungated),
                "expected": str(expected),
                "all lines": _figures(compared[0]),
                "quarter": {**_figures(compared[1]), "cost": round(cost, 3)},
                "other rates": {
                    edit: [full.row(edit).learning_rate, quarter.row(edit).learning_rate]
                    for edit in (name, replay.baseline)
                    if full.row(edit).learning_rate != quarter.row(edit).learning_rate
                },
                "edge": [row.edit for row in quarter.rows if row.interior is False],
                "same order": (compared[1].estimate > 0) == (measurement.estimate > 0),
                "opposite": any({one.verdict, expected} == {Verdict.BETTER, Verdict.WORSE} for one in compared),
            }
        )
    return entries


def _figures(difference: Difference | None) -> dict[str, Any]:
    assert difference is not None
    ends = {"estimate": difference.estimate, "low": difference.low, "high": difference.high}
    return {**ends, "seeds": difference.seeds, "verdict": str(difference.verdict), "needed": difference.seeds_needed}


def _quarter(lines: Mapping[str, Sequence[TrialRecord]]) -> tuple[list[TrialRecord], float]:
    """Lines of a comparison that costs a quarter of all lines, and its share of their cost."""
    chosen: list[TrialRecord] = []
    rates = {name: config_values(own, own[0].part, "learning_rate") for name, own in lines.items()}
    seeds = min(int(QUARTER * len(own) - QUARTER * len(rates[name])) for name, own in lines.items())
    for name, own in lines.items():
        first = min(record.seed for record in own)
        search = [_search(name, record) for record in own if record.seed == first]
        best = min(search, key=lambda line: line.metrics["choose"] or float("inf")).config["learning_rate"]
        final = [record for record in own if record.config["learning_rate"] == best]
        chosen += search + [_final(name, record) for record in sorted(final, key=lambda one: one.seed)[:seeds]]
    spent = seeds * len(lines) + QUARTER * sum(map(len, rates.values()))
    return chosen, spent / sum(map(len, lines.values()))


def _final(edit: str, record: TrialRecord) -> TrialRecord:
    metrics = {
        "choose": record.metrics["choosing_bits"],
        "report": record.metrics["bits_per_byte"],
        "diverged": record.metrics["diverged"],
    }
    return _line(edit, record, FINAL, record.config["steps"], metrics)


def _search(edit: str, record: TrialRecord) -> TrialRecord:
    """A trial that ended after a quarter of the steps; its training loss chooses the learning rate."""
    steps = round(QUARTER * record.config["steps"])
    loss = record.series["loss"][record.series["step"].index(float(steps))]
    return _line(edit, record, SEARCH, steps, {"choose": loss, "report": None, "diverged": float(loss is None)})


def _line(edit: str, record: TrialRecord, part: str, steps: int, metrics: dict[str, float | None]) -> TrialRecord:
    config = {"task": "peri-ln", "edit": edit, "learning_rate": record.config["learning_rate"], "steps": steps}
    config |= {"rung": int(part == FINAL), "seed": record.seed, "start": "fresh"}
    key = trial_hash(STUDY_NAME, part, config)
    return TrialRecord(STUDY_NAME, part, "full", key, config, record.seed, "ok", metrics)


def text(figures: Sequence[Mapping[str, Any]]) -> str:
    """The table and a summary as Markdown."""
    rows = [
        [
            row["check"],
            row["without gates"] + (" (void)" if row["verify"] == State.VOID else ""),
            _compared(row, "all lines"),
            _compared(row, "quarter"),
            f"{row['quarter']['cost']:.0%}",
            _reason(row),
        ]
        for row in figures
    ]
    headings = ["check", "verify", "compare, all lines", "compare, a quarter", "cost", "why it differs"]
    agree = {key: sum(row[key]["verdict"] == row["expected"] for row in figures) for key in ("all lines", "quarter")}
    order = sum(row["same order"] for row in figures)
    summary = (
        f"`scripts/replay_periln.py` reads the committed lines of the Peri-LN study as trials of a comparison. Of "
        f"{len(figures)} checks on the loss, {agree['all lines']} have the verdict of `normplace verify` with all "
        f"lines and {agree['quarter']} with a quarter of the cost; {order} have the same order at a quarter, and "
        f"{sum(row['opposite'] for row in figures)} the opposite verdict. *Passed* corresponds to *worse*, *open* to "
        "*tied*. `normplace verify` voids a check if the best learning rate is at an edge of those tried; the "
        "comparison gives a verdict and warns."
    )
    return f"{summary}\n\n{markdown_table(headings, rows)}"


def _compared(row: Mapping[str, Any], key: str) -> str:
    own = row[key]
    needed = f", needs {own['needed'] or 'many more'}" if own["verdict"] == Verdict.TIED else ""
    differs = "" if own["verdict"] == row["expected"] else "**differs:** "
    return f"{differs}{own['verdict']}, {own['estimate']:+.3f} ({count(own['seeds'], 'seed')}{needed})"


def _reason(row: Mapping[str, Any]) -> str:
    """Why the verdict or the order at a quarter of the cost differs."""
    own = row["quarter"]
    if own["verdict"] == row["expected"] and row["same order"]:
        return ""
    rates = [
        f"chose learning rate {quarter:g} for {edit}, all lines {full:g}"
        for edit, (full, quarter) in row["other rates"].items()
    ]
    seeds = f"{count(own['seeds'], 'seed')} instead of {row['all lines']['seeds']}"
    what = "other order" if not row["same order"] else "not separated"
    return f"{what}: {'; '.join([*rates, seeds])}"


if __name__ == "__main__":
    sys.exit(main())

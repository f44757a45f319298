"""Simulate comparisons whose truth is known, and write how often the verdicts and the numbers of seeds are right.

The noise between seeds is that of the committed results of the Peri-LN study.
``python scripts/calibrate_compare.py`` writes benchmarks/results/compare-calibration.json and the tables of
docs/reference/compare.md; it takes about seven minutes of CPU time. ``--tables`` writes the tables only, from the
committed figures.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from calibration.methods import METHODS
from calibration.noise import KINDS, Noise, as_scores, measured_noise
from numpy.typing import NDArray
from papers.blocks import fill

from normplace._shared.output import write_atomic
from normplace._shared.text_table import markdown_table
from normplace.lab.compare.config import FINAL, SEARCH
from normplace.lab.compare.power import POWER, RANGE, detectable_effect, seeds_needed
from normplace.lab.compare.result import Comparison
from normplace.lab.compare.search import default_rates, search_state
from normplace.lab.compare.statistics import Difference, Verdict, against_baseline, best_against_each, ranking
from normplace.lab.trials.record import TrialRecord, trial_hash

ROOT = Path(__file__).parents[1]
FIGURES = ROOT / "benchmarks" / "results" / "compare-calibration.json"
PAGE = ROOT / "docs" / "reference" / "compare.md"
SEEDS, EDITS = (3, 5, 10), (2, 4, 6)
COMPARISONS = 200
"""Comparisons of an edit with itself, from result lines to the table."""
SIMULATIONS = 2000
FAMILIES = ("against the baseline", "best against each")
METHOD_EDITS = 4
COARSE_SEEDS, COARSE_SAMPLES, COARSE_ACCURACY = (2, 3, 4, 5, 10), 20, 0.9
COARSE_TIED = 0.94
"""Promised share of ties with a coarse accuracy, whose differences take few values."""
SEARCH_SEEDS, SEARCH_EDITS, CURVATURES, SEARCHES = (5, 10), (2, 4), (1.0, 4.0), 1000
"""Comparisons with a search. The curvature is how much worse a learning rate half a decade from the best one is, in
standard deviations over seeds; in the Transformers of the Peri-LN study it is about 4."""
LOOKS, MOST_ADDED = 4, 100
"""Results that are looked at while seeds are added, and seeds added at most."""
MOST_SEEDS = 10_000


def main() -> int:
    """Simulate, write the figures and the tables; 1 if a promise does not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", action="store_true", help="write the tables from the committed figures")
    arguments = parser.parse_args()
    if not arguments.tables:
        write_atomic(FIGURES, json.dumps(measure(measured_noise()), indent=1) + "\n")
    figures = json.loads(FIGURES.read_text())
    write_atomic(PAGE, fill(PAGE.read_text(), tables(figures)))
    broken = broken_promises(figures)
    print(*broken or ["every promise holds"], sep="\n")
    return 1 if broken else 0


def measure(noise: Noise) -> dict[str, Any]:
    """Run all simulations."""
    rng = np.random.default_rng(20)
    return {
        "noise": {"shared": noise.shared, "spreads": [float(noise.spreads.min()), float(noise.spreads.max())]},
        "same edit": [_same_edit(noise, seeds, edits, rng) for seeds in SEEDS for edits in EDITS],
        "equal edits": [_equal_edits(noise, kind, s, k, rng) for kind in KINDS for s in SEEDS for k in EDITS],
        "planted effects": [_planted(noise, seeds, edits, rng) for seeds in SEEDS for edits in EDITS],
        "seeds needed": [
            _seeds_needed(noise, seeds, factor, edits, rng) for edits in (2, 4) for seeds in SEEDS for factor in (2, 4)
        ],
        "methods": [_method(noise, name, rng) for name in METHODS],
        "coarse accuracy": [_coarse(seeds, edits, rng) for seeds in COARSE_SEEDS for edits in EDITS],
        "search": [
            _searched(curvature, seeds, edits, rng)
            for edits in SEARCH_EDITS
            for curvature in CURVATURES
            for seeds in SEARCH_SEEDS
        ],
        "added seeds": [_added_seeds(seeds, edits, rng) for edits in SEARCH_EDITS for seeds in SEEDS[:2]],
    }


def _same_edit(noise: Noise, seeds: int, edits: int, rng: np.random.Generator) -> dict[str, Any]:
    """Comparisons of equal edits, evaluated from result lines."""
    tied = 0
    for _ in range(COMPARISONS):
        comparison = Comparison.from_records(_lines(noise.draw("measured", edits, seeds, rng)))
        tied += all(row.verdict in {Verdict.TIED, "baseline"} for row in comparison.rows)
    return {"seeds": seeds, "edits": edits, "comparisons": COMPARISONS, "tied": tied}


def _lines(scores: NDArray[np.float64]) -> list[TrialRecord]:
    lines = []
    for number, row in enumerate(scores):
        for seed, value in enumerate(row):
            lines.append(_line(f"edit {number}", 1e-3, 1, seed, float(value)))
    return lines


def _line(edit: str, rate: float, steps: int, seed: int, value: float, part: str = FINAL) -> TrialRecord:
    config = {"task": "simulated", "edit": edit, "learning_rate": rate, "steps": steps, "seed": seed, "rung": steps}
    key = trial_hash("compare", part, config)
    metrics: dict[str, float | None] = {"choose": value, "report": value, "diverged": 0.0}
    return TrialRecord("compare", part, "full", key, config, seed, "ok", metrics)


def _equal_edits(noise: Noise, kind: str, seeds: int, edits: int, rng: np.random.Generator) -> dict[str, Any]:
    """How often edits with equal means are all tied, in either family."""
    shares = _tied_shares(noise.draw(kind, edits, seeds, rng) for _ in range(SIMULATIONS))
    return {"noise": kind, "seeds": seeds, "edits": edits, "simulations": SIMULATIONS, **shares}


def _coarse(seeds: int, edits: int, rng: np.random.Generator) -> dict[str, Any]:
    """The same of an accuracy on few samples; smaller is better, as for a share of errors."""
    drawn = rng.binomial(COARSE_SAMPLES, 1 - COARSE_ACCURACY, (SIMULATIONS, edits, seeds)) / COARSE_SAMPLES
    return {"seeds": seeds, "edits": edits, "simulations": SIMULATIONS, **_tied_shares(drawn)}


def _tied_shares(tables: Iterable[NDArray[np.float64]]) -> dict[str, float]:
    """Share of tables of scores in which every verdict of a family is tied."""
    tied = []
    for table in tables:
        scores = as_scores(table)
        first = ranking(scores, better="smaller")[0]
        families = (
            against_baseline(scores, "edit 0", better="smaller"),
            best_against_each(scores, first, better="smaller"),
        )
        tied.append([_all_tied(family) for family in families])
    return dict(zip(FAMILIES, np.mean(tied, axis=0).tolist(), strict=True))


def _all_tied(family: Mapping[str, Difference]) -> bool:
    return all(one.verdict is Verdict.TIED for one in family.values())


def _searched(curvature: float, seeds: int, edits: int, rng: np.random.Generator) -> dict[str, Any]:
    """Comparisons of edits with the same dependence on the learning rate, each of which is searched with one seed."""
    rates, tied, warned = default_rates(1e-3), 0, 0
    for _ in range(SEARCHES):
        best = rng.uniform(-0.25, 0.25)

        def mean(rate: float, best: float = best) -> float:
            return curvature * ((math.log10(rate) + 3 - best) / 0.5) ** 2

        lines = []
        for number in range(edits):
            name, scores = f"edit {number}", dict[tuple[int, float], float | None]()
            while (state := search_state(rates, scores)).best is None:
                for rung, rate in state.missing:
                    value = mean(rate) + rng.normal()
                    scores[rung, rate] = value
                    lines.append(_line(name, rate, 1 + rung, -1, value, SEARCH))
            drawn = mean(state.best) + rng.normal(size=seeds)
            lines += [_line(name, state.best, 3, seed, value) for seed, value in enumerate(drawn)]
        comparison = Comparison.from_records(lines)
        if all(row.verdict in {Verdict.TIED, "baseline"} for row in comparison.rows):
            tied += 1
        else:
            warned += any("is uncertain" in warning for warning in comparison.advice.warnings)
    shares = {"tied": tied / SEARCHES, "tied or warned": (tied + warned) / SEARCHES}
    return {"curvature": curvature, "seeds": seeds, "edits": edits, "simulations": SEARCHES, **shares}


def _added_seeds(seeds: int, edits: int, rng: np.random.Generator) -> dict[str, Any]:
    """Comparisons of equal edits to which the fewest seeds that may decide a tie are added, until none may."""
    wrong = [0] * LOOKS
    for _ in range(SIMULATIONS):
        drawn, shown = rng.normal(size=(edits, MOST_ADDED)), seeds
        for look in range(LOOKS):
            family = against_baseline(as_scores(drawn[:, :shown]), "edit 0", better="smaller").values()
            if any(one.verdict is not Verdict.TIED for one in family):
                wrong[look] += 1
                break
            asked = [one.seeds_needed for one in family if one.seeds_needed is not None]
            if not asked or min(asked) > MOST_ADDED:
                break
            shown = max(shown + 1, min(asked))
    first, every = 1 - wrong[0] / SIMULATIONS, 1 - sum(wrong) / SIMULATIONS
    return {"seeds": seeds, "edits": edits, "simulations": SIMULATIONS, "tied at first": first, "tied": every}


def _planted(noise: Noise, seeds: int, edits: int, rng: np.random.Generator) -> dict[str, Any]:
    """How often an effect with a stated power of 80% is found."""
    effect = detectable_effect(seeds, edits - 1)
    shares = {"effect": round(effect, 4), "stated power": POWER, "found": _found(noise, effect, seeds, edits, rng)}
    return {"seeds": seeds, "edits": edits, "simulations": SIMULATIONS, **shares}


def _found(noise: Noise, effect: float, seeds: int, edits: int, rng: np.random.Generator) -> float:
    """How often a better edit is found."""
    verdicts = [_better_edit(noise, effect, seeds, edits, rng).verdict for _ in range(SIMULATIONS)]
    return verdicts.count(Verdict.BETTER) / SIMULATIONS


def _better_edit(noise: Noise, effect: float, seeds: int, edits: int, rng: np.random.Generator) -> Difference:
    """A simulated edit that is better than the baseline, by an effect in standard deviations of the difference."""
    drawn = noise.draw("equal spreads", edits, seeds, rng)
    drawn[1] -= effect * math.sqrt(2)
    return against_baseline(as_scores(drawn), "edit 0", better="smaller")["edit 1"]


def _seeds_needed(noise: Noise, seeds: int, factor: int, edits: int, rng: np.random.Generator) -> dict[str, Any]:
    """The number of seeds from a first comparison, relative to the number that simulations need for the power."""
    planned = factor * seeds
    effect = detectable_effect(planned, edits - 1)
    truth = next(
        n for n in range(max(2, 4 * planned // 5), 3 * planned) if _found(noise, effect, n, edits, rng) >= POWER
    )
    ratios, covered = [], 0
    for _ in range(SIMULATIONS):
        one = _better_edit(noise, effect, seeds, edits, rng)
        covered += _covers(one.seeds_range, truth)
        # Without the limit, so that every first comparison has a number.
        needed = one.seeds_needed or seeds_needed(one.estimate, one.deviation, MOST_SEEDS, edits - 1)
        ratios.append((needed or MOST_SEEDS) / truth)
    return {
        "seeds": seeds,
        "edits": edits,
        "formula": planned,
        "needed": truth,
        "simulations": SIMULATIONS,
        "quartiles of the ratio": [round(float(value), 3) for value in np.quantile(ratios, [0.25, 0.5, 0.75])],
        "range covers": covered / SIMULATIONS,
    }


def _covers(seeds: tuple[int | None, int | None], truth: int) -> bool:
    """Whether a range of numbers of seeds contains one that is below the limit; an end above the limit is None."""
    fewest, most = seeds
    return fewest is not None and fewest <= truth and (most is None or truth <= most)


def _method(noise: Noise, name: str, rng: np.random.Generator) -> dict[str, Any]:
    """Errors and power of one method with three edits and a baseline."""
    figures: dict[str, Any] = {"method": name, "edits": METHOD_EDITS, "simulations": SIMULATIONS}
    for seeds in SEEDS:
        wrong = noisy = found = 0
        effect = detectable_effect(seeds, METHOD_EDITS - 1) * math.sqrt(2)
        for _ in range(SIMULATIONS):
            noisy += bool(METHODS[name](noise.draw("noisy edit", METHOD_EDITS, seeds, rng)).any())
            drawn = noise.draw("measured", METHOD_EDITS, seeds, rng)
            wrong += bool(METHODS[name](drawn).any())
            drawn[1] -= effect
            found += bool(METHODS[name](drawn)[0])
        counts = {"wrong": wrong, "wrong, noisy edit": noisy, "found": found}
        figures[f"{seeds} seeds"] = {what: number / SIMULATIONS for what, number in counts.items()}
    return figures


def broken_promises(figures: Mapping[str, Any]) -> list[str]:
    """What the figures do not show although the page promises it."""
    total = sum(row["comparisons"] for row in figures["same edit"])
    tied = sum(row["tied"] for row in figures["same edit"])
    broken = [f"equal edits from result lines: {tied} of {total} tied"] if tied < 0.95 * total else []
    for row in figures["equal edits"]:
        margin = 3 * math.sqrt(0.05 * 0.95 / row["simulations"])
        case = f"equal edits, {row['noise']}, {row['seeds']} seeds, {row['edits']} edits"
        broken += [f"{case}, {family}: {row[family]:.1%}" for family in FAMILIES if row[family] < 0.95 - margin]
    for row in figures["coarse accuracy"]:
        margin = 3 * math.sqrt(COARSE_TIED * (1 - COARSE_TIED) / row["simulations"])
        case = f"coarse accuracy, {row['seeds']} seeds, {row['edits']} edits"
        broken += [f"{case}, {family}: {row[family]:.1%}" for family in FAMILIES if row[family] < COARSE_TIED - margin]
    for row in figures["search"]:
        margin = 3 * math.sqrt(0.05 * 0.95 / row["simulations"])
        if row["tied or warned"] < 0.95 - margin:
            case = f"search, curvature {row['curvature']:g}, {row['seeds']} seeds, {row['edits']} edits"
            broken.append(f"{case}: {row['tied or warned']:.1%} tied or warned")
    for row in figures["planted effects"]:
        margin = 3 * math.sqrt(POWER * (1 - POWER) / row["simulations"])
        if abs(row["found"] - row["stated power"]) > margin:
            broken.append(f"planted effect, {row['seeds']} seeds, {row['edits']} edits: found {row['found']:.1%}")
    for row in figures["seeds needed"]:
        ratio = row["quartiles of the ratio"][1]
        if not 1 / 1.5 <= ratio <= 1.5:
            broken.append(f"seeds needed, {row['seeds']} seeds, {row['edits']} edits, {row['needed']}: ratio {ratio}")
        margin = 3 * math.sqrt(RANGE * (1 - RANGE) / row["simulations"])
        if row["range covers"] < RANGE - margin:
            case = f"range of seeds, {row['seeds']} seeds, {row['edits']} edits, {row['needed']}"
            broken.append(f"{case}: covered {row['range covers']:.1%}")
    return broken


def tables(figures: Mapping[str, Any]) -> dict[str, str]:
    """The tables of the page by the name of their block."""
    counts = {(row["edits"], row["seeds"]): f"{row['tied']} of {row['comparisons']}" for row in figures["same edit"]}
    same = [[str(edits), *(counts[edits, seeds] for seeds in SEEDS)] for edits in EDITS]
    shares = {(row["noise"], row["edits"], row["seeds"]): row for row in figures["equal edits"]}
    cases = [(family, seeds) for family in FAMILIES for seeds in SEEDS]
    equal = [
        [kind, str(edits), *(f"{shares[kind, edits, seeds][family]:.1%}" for family, seeds in cases)]
        for kind in KINDS
        for edits in EDITS
    ]
    coarse = [
        [str(row["seeds"]), str(row["edits"]), *(f"{row[family]:.1%}" for family in FAMILIES)]
        for row in figures["coarse accuracy"]
    ]
    planted = [
        [*(str(row[key]) for key in ("seeds", "edits")), f"{row['effect']:.2f}", f"{row['found']:.1%}"]
        for row in figures["planted effects"]
    ]
    needed = [
        [
            str(row["seeds"]),
            str(row["edits"]),
            str(row["needed"]),
            str(row["formula"]),
            *(f"{ratio:.2f}" for ratio in row["quartiles of the ratio"]),
            f"{row['range covers']:.1%}",
        ]
        for row in figures["seeds needed"]
    ]
    searched = [
        [
            *(f"{row[key]:g}" for key in ("curvature", "edits", "seeds")),
            f"{row['tied']:.1%}",
            f"{row['tied or warned']:.1%}",
        ]
        for row in figures["search"]
    ]
    added = [
        [*(str(row[key]) for key in ("edits", "seeds")), f"{row['tied at first']:.1%}", f"{row['tied']:.1%}"]
        for row in figures["added seeds"]
    ]
    columns = [(what, f"{seeds} seeds") for what in ("wrong", "wrong, noisy edit", "found") for seeds in SEEDS]
    methods = [[row["method"], *(f"{row[seeds][what]:.1%}" for what, seeds in columns)] for row in figures["methods"]]
    return {
        "same-edit": markdown_table(["edits", *(f"{seeds} seeds" for seeds in SEEDS)], same, right_from=0),
        "equal-edits": markdown_table(
            ["noise", "edits", *(f"{family}, {seeds} seeds" for family, seeds in cases)], equal, right_from=1
        ),
        "coarse": markdown_table(["seeds", "edits", *FAMILIES], coarse, right_from=0),
        "search": markdown_table(["curvature", "edits", "seeds", "tied", "tied or warned"], searched, right_from=0),
        "added-seeds": markdown_table(
            ["edits", "seeds at first", "tied at first", "still tied at the end"], added, right_from=0
        ),
        "planted": markdown_table(["seeds", "edits", "effect", "found"], planted, right_from=0),
        "seeds-needed": markdown_table(
            ["seeds", "edits", "needed", "formula", "lower quartile", "median", "upper quartile", "range covers"],
            needed,
            right_from=0,
        ),
        "methods": markdown_table(["method", *map(", ".join, columns)], methods, right_from=1),
    }


if __name__ == "__main__":
    sys.exit(main())

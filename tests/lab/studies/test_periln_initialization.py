"""The initialization part of the Peri-LN study: its plan, its measures and its claims."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.lab.studies.support import record, text_folder

from normplace import UsageError
from normplace.lab import studies
from normplace.lab.studies import STUDIES
from normplace.lab.studies.periln import initialization
from normplace.lab.studies.periln.claims.initialization import CLAIMS, loss_gap
from normplace.lab.studies.periln.figures.initialization import initialization_rows
from normplace.lab.studies.rate_grid import best_rate
from normplace.lab.trials.claims import Verdict, judge
from normplace.lab.trials.results import TrialRecord
from normplace.lab.trials.runner import read_run
from normplace.models.transformer import Transformer

SMALL = next(iter(initialization.plan("smoke")))


def test_the_grid_is_complete_where_claims_need_it():
    cells = Counter((trial.placement, trial.start, trial.learning_rate) for trial in initialization.plan("full"))
    for placement in initialization.PLACEMENTS:
        for start in initialization.STARTS:
            for rate in (2.5e-4, 5e-4, 1e-3):
                assert cells[placement, start, rate] == initialization.SEEDS
            if start != "fixed":
                assert cells[placement, start, 4e-3] == initialization.SEEDS
    assert not list(initialization.plan("laptop"))


@pytest.mark.parametrize(("start", "rms"), [("depth", 0.02 / 4), ("fixed", 0.02)])
def test_the_size_of_the_last_matrices_is_their_standard_deviation(start, rms):
    trial = replace(SMALL, start=start, dim=64, depth=8)
    model = Transformer(initialization.config_of(trial), generator=torch.Generator().manual_seed(0))
    assert initialization.branch_output_rms(model) == pytest.approx(rms, rel=0.01)


def test_a_trial_reports_the_growth_of_the_matrices(tmp_path, monkeypatch):
    text_folder(tmp_path)
    monkeypatch.setenv("NORMPLACE_DATA", str(tmp_path))
    trial = replace(SMALL, text="words", device="cpu", learning_rate=1e-2)
    small, large = (initialization.run(replace(trial, start=start)).metrics for start in ("depth", "xavier"))
    assert small["matrix_rms_end"] == pytest.approx(small["matrix_rms_start"] * 2 ** small["matrix_grown"])
    assert small["matrix_grown"] > 10 * abs(large["matrix_grown"])


def test_unknown_initial_weights():
    with pytest.raises(UsageError, match="did you mean 'depth'"):
        replace(SMALL, start="dept")


def lines_of(bits: dict[tuple[str, str], dict[float, float]], **metrics: float) -> list[TrialRecord]:
    return [
        record(
            "initialization",
            seed,
            {"bits_per_byte": value + seed / 1e3, "choosing_bits": value, **metrics},
            placement=placement,
            start=start,
            learning_rate=rate,
        )
        for (placement, start), rates in bits.items()
        for rate, value in rates.items()
        for seed in range(3)
    ]


def test_each_variant_is_compared_at_its_best_learning_rate():
    records = lines_of(
        {
            ("peri", "depth"): {5e-4: 2.1, 1e-3: 2.0, 2e-3: 2.2},
            ("peri", "xavier"): {1e-3: 1.9, 2e-3: 1.2, 4e-3: 1.3},
            ("peri", "fixed"): {5e-4: 1.6, 1e-3: 1.5, 2e-3: 1.6},
        }
    )
    assert best_rate(records, "initialization", placement="peri", start="xavier") == 2e-3
    assert best_rate(records, "initialization", placement="pre", start="xavier") is None
    assert loss_gap(("peri", "depth"), ("peri", "xavier"))(records) == pytest.approx(dict.fromkeys(range(3), 0.8))
    verdicts = {claim.id: judge(claim, records).verdict for claim in CLAIMS}
    assert verdicts["initialization-peri"] == Verdict.REPRODUCED
    assert verdicts["initialization-order"] == Verdict.NOT_TESTED


def test_the_page_shows_the_recorded_numbers():
    path = Path(studies.__file__).parent / "periln" / "results" / "periln-full.jsonl.gz"
    records = read_run(path, STUDIES).records
    page = (Path(__file__).parents[3] / "docs" / "howto" / "initialization.md").read_text()
    table = page.partition("<!-- table: initialization -->")[2].strip().splitlines()
    rates = [cell.strip() for cell in table[0].strip("|").split("|")][1:]
    shown = {}
    for row in itertools.takewhile(lambda row: row.startswith("|"), table[2:]):
        network, *cells = (cell.strip() for cell in row.strip("|").split("|"))
        shown |= {(network, rate): cell for rate, cell in zip(rates, cells, strict=True) if cell}
    rows = initialization_rows(records)
    best = {}
    for row in rows:
        best[row["network"]] = min(best.get(row["network"], math.inf), row["bits"])
    expected = {}
    for row in rows:
        text = f"{row['bits']:.2f}"
        expected[row["network"], row["rate"]] = f"**{text}**" if row["bits"] == best[row["network"]] else text
    assert shown == expected


def test_a_best_learning_rate_at_the_edge_voids_the_comparison():
    rates = {("peri", start): {1e-3: 2.0 + n, 2e-3: 2.2 + n} for n, start in enumerate(("xavier", "fixed", "depth"))}
    verdicts = {claim.id: judge(claim, lines_of(rates)).verdict for claim in CLAIMS}
    assert verdicts["initialization-peri"] == Verdict.VOID

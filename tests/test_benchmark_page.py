"""The results page is generated from the committed records."""

from __future__ import annotations

from pathlib import Path

from scripts.papers.benchmark_page import page
from tests.lab.bench.sample import record, row
from tests.project_scripts import imported_script

ROOT = Path(__file__).parents[1]


def test_the_committed_pages_are_current():
    with imported_script("write_benchmarks") as script:
        assert script.committed()
        pages = {"benchmarks.md": script.document(), "costs.md": script.costs()}
    for name, text in pages.items():
        assert (ROOT / "docs" / "reference" / name).read_text() == text, "run scripts/write_benchmarks.py"


def test_the_summary_has_the_median_and_the_range_of_each_peer():
    rows = [row("normplace", 2.0), row("PyG", 6.0), row("PyG", 10.0, case="larger"), row("PyG", 8.0, case="largest")]
    summary = page([record(rows=rows)]).partition("## How it is measured")[0]
    assert "| `aggregate` | H200 | PyG | 3 | 4 (3 to 5) |  |" in summary


def test_the_page_names_machine_versions_date_command_and_what_is_not_measured():
    text = page([record(), record("cpu", notes=["fla is not installed"], refused=["wave: wrong"])])
    for text_part in (
        "## H200",
        "- Versions: torch 2.13",
        "- Date: 15 November 2026, 12:00 UTC, at a load average of 0.1",
        "- Command: `normplace bench --device cuda`",
        "- Hardware limits: copy 4 TB/s, exp 3.2 Texp/s",
        "## EPYC",
        "- Hardware: 2 cores of EPYC, 8 GB; 2 threads",
    ):
        assert text_part in text
    assert "PyG" not in text.partition("## How it is measured")[0]  # it computes something else
    left = text.partition("## What is not measured")[2]
    for text_part in ("Liger is not installed", "fla is not installed", "wave: wrong", "several GPUs"):
        assert text_part in left

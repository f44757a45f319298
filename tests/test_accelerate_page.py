"""The times of the page on PyG are those of the committed benchmark."""

from __future__ import annotations

import json

from tests.documents import ROOT


def test_the_page_shows_the_committed_times():
    record = json.loads((ROOT / "benchmarks" / "results" / "accelerate-cpu.json").read_text())
    page = (ROOT / "docs" / "howto" / "pyg.md").read_text()
    compared = [row for row in record["rows"] if "pyg_s" in row]
    assert len(compared) == 4
    for row in compared:
        times = f"{1e3 * row['pyg_s']:.0f} ms | {1e3 * row['normplace_s']:.0f} ms | {row['ratio']:.1f}"
        assert f"| {row['case']} | {times} |" in page

"""Records, tables, the page and its charts."""

from __future__ import annotations

import dataclasses

import pytest
from tests.lab.bench.sample import record, row
from tests.lab.report.pages import Page

from normplace.errors import UsageError
from normplace.lab.bench.chart import figure, render
from normplace.lab.bench.record import Record, changes
from normplace.lab.bench.table import report, table


def test_a_record_is_read_as_it_was_written(tmp_path):
    written = record(refused=["wave: wrong"])
    written.write(tmp_path / "folder" / "bench.json")
    assert Record.read(tmp_path / "folder" / "bench.json") == written


def test_a_file_that_is_not_a_record_raises(tmp_path):
    path = tmp_path / "bench.json"
    with pytest.raises(UsageError, match="cannot read"):
        Record.read(path)
    for text, sentence in (
        ("{", "is not JSON"),
        ("[]", "not a record of format 1"),
        ('{"format": 9}', "not a record of format"),
    ):
        path.write_text(text)
        with pytest.raises(UsageError, match=sentence):
            Record.read(path)


def test_a_gpu_s_table_has_times_rates_and_fractions():
    headings, (own, peer) = table(record(), "aggregate")
    cells = dict(zip(headings, own, strict=True))
    # 4 GB in 2 ms are 2 TB/s, half of the 4 TB/s of a copy.
    assert cells == {
        "case": "softmax", "pass": "forward", "method": "normplace", "ms": "2.000", "quartiles": "1.800 to 2.200",
        "rate": "2.00 TB/s", "of ceiling": "50%", "peak MiB": "2.00", "error": "2e-07", "times normplace": "",
    }  # fmt: skip
    cells = dict(zip(headings, peer, strict=True))
    assert (cells["case"], cells["pass"]) == ("", "")  # as above
    assert cells["method"] == "PyG (something else)"
    assert (cells["rate"], cells["of ceiling"], cells["error"], cells["times normplace"]) == ("", "", "", "30.0")


def test_a_cpu_s_table_has_ratios_only():
    headings, (peer,) = table(record("cpu"), "aggregate")
    cells = dict(zip(headings, peer, strict=True))
    assert cells["times faster"] == "30.0"
    assert cells["quartiles"] == "0.500 to 9.00"
    assert cells["times less memory"] == "30.0"
    assert not any("ms" in heading or "ceiling" in heading for heading in headings)


def test_memory_that_is_unknown_or_nothing_has_no_ratio():
    for peak in (None, 0):
        rows = [row("normplace", 2.0, peak_bytes=peak), row("PyG", 60.0)]
        headings, (peer,) = table(record("cpu", rows=rows), "aggregate")
        assert dict(zip(headings, peer, strict=True))["times less memory"] == ""


def test_the_report_says_what_was_left_out():
    text = report(record())
    assert "copy: 4.00 TB/s, exp: 3.20 Texp/s" in text
    assert "left out:\n  Liger is not installed" in text


def test_the_report_warns_of_a_busy_machine():
    assert "the machine was busy (load 1.5 on 2 cores)" in report(record("cpu", load=1.5))
    assert "busy" not in report(record("cpu", load=0.5))
    assert "busy" not in report(record("cuda", load=1.5))


@pytest.mark.parametrize(("device", "factor"), [("cuda", 1.25), ("cpu", 1.25)])
def test_changes_are_of_times_on_a_gpu_and_of_ratios_on_a_cpu(device, factor):
    old = record(device)
    new = record(device, rows=[row("normplace", 2.0), row("PyG", 60.0 * factor)])
    compared = changes(new, old)
    assert [change.row.method for change in compared] == (["PyG", "normplace"] if device == "cuda" else ["PyG"])
    assert compared[0].factor == pytest.approx(factor)
    assert compared[0].size == pytest.approx(factor - 1)
    assert changes(old, new)[0].size == pytest.approx(factor - 1)
    assert "aggregate, softmax, forward, PyG: 1.25 of the recorded value" in str(compared[0])


def test_calls_back_to_back_are_compared_by_ratio():
    rows = [row("normplace", 4.0, burst=20), row("PyG", 120.0, burst=20)]
    assert [(change.row.method, change.factor) for change in changes(record(rows=rows), record())] == [("PyG", 2.0)]


def test_runs_that_cannot_be_compared():
    with pytest.raises(UsageError, match="a run on cpu cannot be compared with one on cuda"):
        changes(record("cpu"), record())
    other = [dataclasses.replace(kept, case="power") for kept in record().rows]
    with pytest.raises(UsageError, match="no measurement in common"):
        changes(record(rows=other), record())


def test_the_chart_has_normplace_at_one():
    own, peer = figure(record(), "aggregate").rows
    assert (own["time relative to normplace"], own["low"], own["high"]) == pytest.approx((1.0, 0.9, 1.1))
    assert (peer["time relative to normplace"], peer["low"], peer["high"]) == (30.0, 0.5, 9.0)


def test_the_page_of_a_run_draws_every_op():
    pytest.importorskip("vl_convert", reason="needs vl-convert: pip install 'normplace[charts]'")
    page = render(record(refused=["wave <b>: wrong"]))
    assert len(Page(page).charts) >= 2
    assert "time relative to normplace" in page
    assert "wave &lt;b&gt;: wrong" in page

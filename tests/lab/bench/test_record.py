"""Records, tables, the page and its charts."""

from __future__ import annotations

import dataclasses

import pytest

from normplace.errors import UsageError
from normplace.lab.bench.chart import figure, render
from normplace.lab.bench.record import Record, Row, changes
from normplace.lab.bench.table import report, table
from normplace.lab.bench.timing import Spread


def row(method: str, milliseconds: float, **more) -> Row:
    seconds = milliseconds * 1e-3
    taken = Spread(seconds, 0.9 * seconds, 1.1 * seconds, 20)
    ratio = None if method == "normplace" else Spread(seconds / 2e-3, 0.5, 9.0, 20)
    values = {
        "op": "aggregate", "case": "softmax", "step": "forward", "method": method, "seconds": taken, "slower": ratio,
        "peak_bytes": int(milliseconds * 2**20), "error": 2e-7, "ceiling": "copy", "amount": 4e9, "instead": "",
    }  # fmt: skip
    return Row(**values | more)


def record(device: str = "cuda", **more) -> Record:
    values = {
        "device": device,
        "command": f"normplace bench --device {device}",
        "date": "2026-11-15T12:00:00+00:00",
        "versions": {"torch": "2.13"},
        "hardware": {"cpu": "EPYC", "cores": 2, "memory_gb": 8.0, "threads": 2}
        | ({"gpu": "H200"} if device == "cuda" else {}),
        "load": 0.1,
        "ceilings": {"copy": 4e12, "exp": 3.2e12} if device == "cuda" else {},
        "rows": [row("normplace", 2.0), row("PyG", 60.0, error=None, instead="something else")],
        "notes": ["Liger is not installed"],
    }
    return Record(**values | more)


def test_a_record_is_read_as_it_was_written(tmp_path):
    written = record(refused=["wave: wrong"])
    written.write(tmp_path / "folder" / "bench.json")
    assert Record.read(tmp_path / "folder" / "bench.json") == written


def test_what_is_no_record_is_refused(tmp_path):
    path = tmp_path / "bench.json"
    with pytest.raises(UsageError, match="cannot read"):
        Record.read(path)
    for text, sentence in (
        ("{", "is not JSON"),
        ("[]", "no record of format 1"),
        ('{"format": 9}', "no record of format"),
    ):
        path.write_text(text)
        with pytest.raises(UsageError, match=sentence):
            Record.read(path)


def test_a_gpu_s_table_has_times_rates_and_fractions():
    headings, (ours, peer) = table(record(), "aggregate")
    found = dict(zip(headings, ours, strict=True))
    # 4 GB in 2 ms are 2 TB/s, half of the 4 TB/s of a copy.
    assert found == {
        "case": "softmax", "pass": "forward", "method": "normplace", "ms": "2.000", "quartiles": "1.800 to 2.200",
        "rate": "2.00 TB/s", "of ceiling": "50%", "peak MiB": "2.00", "error": "2e-07", "times ours": "",
    }  # fmt: skip
    found = dict(zip(headings, peer, strict=True))
    assert (found["case"], found["pass"]) == ("", "")  # as above
    assert found["method"] == "PyG (something else)"
    assert (found["rate"], found["of ceiling"], found["error"], found["times ours"]) == ("", "", "", "30.0")


def test_a_cpu_s_table_has_ratios_only():
    headings, (peer,) = table(record("cpu"), "aggregate")
    found = dict(zip(headings, peer, strict=True))
    assert found["times faster"] == "30.0"
    assert found["quartiles"] == "0.500 to 9.00"
    assert found["times less memory"] == "30.0"
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
    assert "other work kept this machine busy (load 1.5 on 2 cores)" in report(record("cpu", load=1.5))
    assert "busy" not in report(record("cpu", load=0.5))
    assert "busy" not in report(record("cuda", load=1.5))


@pytest.mark.parametrize(("device", "factor"), [("cuda", 1.25), ("cpu", 1.25)])
def test_changes_are_of_times_on_a_gpu_and_of_ratios_on_a_cpu(device, factor):
    old = record(device)
    new = record(device, rows=[row("normplace", 2.0), row("PyG", 60.0 * factor)])
    found = changes(new, old)
    assert [change.row.method for change in found] == (["PyG", "normplace"] if device == "cuda" else ["PyG"])
    assert found[0].factor == pytest.approx(factor)
    assert found[0].size == pytest.approx(factor - 1)
    assert changes(old, new)[0].size == pytest.approx(factor - 1)
    assert "aggregate, softmax, forward, PyG: 1.25 of the recorded figure" in str(found[0])


def test_changes_of_calls_on_end_are_of_ratios():
    rows = [row("normplace", 4.0, burst=20), row("PyG", 120.0, burst=20)]
    assert [(change.row.method, change.factor) for change in changes(record(rows=rows), record())] == [("PyG", 2.0)]


def test_runs_that_cannot_be_compared():
    with pytest.raises(UsageError, match="a run on cpu cannot be compared with one on cuda"):
        changes(record("cpu"), record())
    other = [dataclasses.replace(kept, case="power") for kept in record().rows]
    with pytest.raises(UsageError, match="no figure in common"):
        changes(record(rows=other), record())


def test_the_chart_has_ours_at_one():
    ours, peer = figure(record(), "aggregate").rows
    assert (ours["times our time"], ours["low"], ours["high"]) == pytest.approx((1.0, 0.9, 1.1))
    assert (peer["times our time"], peer["low"], peer["high"]) == (30.0, 0.5, 9.0)


def test_the_page_of_a_run_draws_every_op():
    pytest.importorskip("vl_convert", reason="needs vl-convert: pip install 'normplace[charts]'")
    page = render(record(refused=["wave <b>: wrong"]))
    assert page.count("<svg") >= 2
    assert "times our time" in page
    assert "wave &lt;b&gt;: wrong" in page

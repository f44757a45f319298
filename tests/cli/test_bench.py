"""The ``normplace bench`` command."""

from __future__ import annotations

import json

import pytest
import torch
from tests.lab.bench import sample
from tests.lab.bench.sample import record, row

from normplace.cli import main
from normplace.lab import bench
from normplace.lab.bench import run
from normplace.lab.bench.case import Op
from normplace.lab.bench.record import Record

WAVE = Op(
    "wave", "A sine.", lambda device, quick: [sample.case(), sample.case("wrong")] if not quick else [sample.case()]
)


@pytest.fixture(autouse=True)
def waves(monkeypatch, tmp_path):
    """One op of seconds, measured in this process."""
    load_ops = bench.load_ops
    monkeypatch.setattr(bench, "load_ops", lambda names: [WAVE] if "wave" in names else load_ops(names))
    monkeypatch.setattr("normplace.lab.bench.run.run_in_subprocess", lambda function, argument: function(argument))
    monkeypatch.chdir(tmp_path)


def test_it_prints_ratios_and_writes_the_record(capsys, tmp_path):
    assert main(["bench", "wave", "--quick", "--device", "cpu", "--out", "out/bench.json"]) == 0
    out = capsys.readouterr().out
    assert "times faster" in out
    assert "eight times" in out
    assert "broken fails: no such kernel" in out
    written = Record.read(tmp_path / "out" / "bench.json")
    assert written.command == "normplace bench wave --quick --device cpu"
    assert main(["bench", "--show", "out/bench.json"]) == 0
    assert capsys.readouterr().out == out


def test_it_prints_the_record_as_json(capsys, tmp_path):
    record("cpu").write(tmp_path / "old.json")
    assert main(["bench", "--show", "old.json", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert [row["method"] for row in printed["rows"]] == [row.method for row in record("cpu").rows]


def test_a_wrong_result_exits_with_1(capsys):
    assert main(["bench", "wave", "--device", "cpu"]) == 1
    captured = capsys.readouterr()
    assert "right kernel" in captured.out
    assert "wrong kernel" not in captured.out
    *notes, sentence = captured.err.splitlines()
    assert sentence.startswith("normplace: wrong result: wave, wrong kernel: the result")
    assert "is wrong by 1.2e-02" in sentence
    assert notes == ["1 of 2: wave, right kernel", "2 of 2: wave, wrong kernel"]


def test_a_run_far_from_the_record_exits_with_1(capsys, tmp_path):
    record("cpu").write(tmp_path / "old.json")
    record("cpu", rows=[row("normplace", 2.0), row("PyG", 63.0)]).write(tmp_path / "near.json")
    record("cpu", rows=[row("normplace", 2.0), row("PyG", 80.0)]).write(tmp_path / "far.json")
    assert main(["bench", "--show", "near.json", "--against", "old.json"]) == 0
    assert "1 of 1 measurements are within 10% of those in old.json" in capsys.readouterr().out
    assert main(["bench", "--show", "far.json", "--against", "old.json"]) == 1
    assert "0 of 1 measurements are within 10% of those in old.json\n  aggregate, softmax" in capsys.readouterr().out


def test_it_writes_a_page(capsys, tmp_path):
    pytest.importorskip("vl_convert", reason="needs vl-convert: pip install 'normplace[charts]'")
    record("cpu").write(tmp_path / "old.json")
    assert main(["bench", "--show", "old.json", "--html", "page.html"]) == 0
    assert "The page is at" in capsys.readouterr().out
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("agregate", "unknown op 'agregate': did you mean 'aggregate'?"),
        ("wave --device gpu", "unknown --device 'gpu'"),
        ("wave --tune --device cpu", "--tune needs a CUDA GPU"),
        ("wave --out file/inside.json", "cannot write file/inside.json"),
        ("wave --out .", "cannot write ."),
        ("--show nowhere.json", "cannot read nowhere.json: No such file or directory."),
    ],
)
def test_a_usage_error_is_one_line_and_code_2(words, sentence, capsys, tmp_path):
    (tmp_path / "file").touch()
    assert main(["bench", *words.split()]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert sentence in captured.err
    assert captured.err.count("\n") == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_missing_gpu_is_reported_in_one_sentence(capsys):
    assert main(["bench", "wave", "--device", "cuda"]) == 2
    assert capsys.readouterr().err == "normplace: no CUDA device is available: set device=auto or device=cpu.\n"


def test_an_interrupted_run_saves_finished_cases(capsys, monkeypatch, tmp_path):
    measured = run.run

    def stopped(*arguments):
        yield next(measured(*arguments))
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "run", stopped)
    assert main(["bench", "wave", "--device", "cpu", "--out", "bench.json"]) == 130
    assert "normplace: Interrupted. Finished cases are in bench.json.\n" in capsys.readouterr().err
    assert {row.case for row in Record.read(tmp_path / "bench.json").rows} == {"right kernel"}
    assert main(["bench", "wave", "--device", "cpu"]) == 130
    assert "normplace: Interrupted. Nothing is saved without --out.\n" in capsys.readouterr().err

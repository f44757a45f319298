"""Bad paths, damaged results, ASCII terminals and full disks: one-line errors, never a traceback."""

from __future__ import annotations

import errno
import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.usage_errors import usage_error

from normplace._shared.terminal import one_line
from normplace.cli import main
from normplace.lab.bench.record import FORMAT

LONG = "n" * 300


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["verify", "binary.jsonl"], "binary.jsonl:1 is not a result line"),
        (["report", "binary.jsonl"], "binary.jsonl:1 is not a result line"),
        (["verify", LONG], "File name too long"),
        (["verify", f"{LONG}/x.jsonl"], "File name too long"),
        (["verify", "loop"], "Too many levels of symbolic links"),
        (["verify", "binary.jsonl/inside"], "there is no binary.jsonl/inside"),
        (["verify", "a\nb"], r"there is no a\nb"),
        (["verify", "a\0b"], r"there is no a\x00b"),
        (["verify", "\udcff"], r"there is no \udcff"),
        (["report", "--out", "/"], "it is a folder"),
        (["report", "--out", ""], "it is a folder"),
        (["report", "--out", LONG], "File name too long"),
        (["report", "--out", "loop/x"], "Too many levels of symbolic links"),
        (["report", "--out", "pipe"], "it is a named pipe"),
        (["study", "..x:y"], "cannot import '..x:y': write package.module:name or file.py:name."),
        (["study", "x y:z"], "write package.module:name"),
        (["study", ":"], "write package.module:name"),
        (["study", "os:"], "write package.module:name"),
        (["study", "broken:STUDY"], "importing 'broken' failed (SyntaxError"),
        (["audit", "..x:y"], "write package.module:name"),
        (["audit", "broken:f"], "importing 'broken' failed (SyntaxError"),
        (["audit", "--hf", LONG], "File name too long"),
        (["audit", "--hf", "ill.json"], "ill.json is not a configuration that transformers knows"),
        (["audit", "broken_exit:leaves"], "failed (SystemExit: 3, broken_exit.py:"),
        (["bench", "--show", "/dev/full"], "it is not a regular file"),
        (["bench", "--show", "record.json"], "record.json is not a complete record"),
        (["study", "sample", "--out", LONG], "File name too long"),
        (["study", "sample", "--out", "a\0b"], "not a possible file name"),
        (["study", "sample", "--set", "slope=1e999"], "takes a finite number"),
        (["study", "sample", "--set", "slope=" + "9" * 400], "takes a"),
        (["study", "sample", "--set", "slope=" + "(" * 500], "takes a number"),
        (["bench", "--quick", "--out", "/"], "it is a folder"),
    ],
)
def test_a_bad_path_or_name_is_a_one_line_error(words, sentence, capsys, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "binary.jsonl").write_bytes(bytes(range(256)) * 4)
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "broken.py").write_text("def\n")
    (tmp_path / "broken_exit.py").write_text("def leaves():\n    raise SystemExit(3)\n")
    (tmp_path / "ill.json").write_text('{"model_type": "llama", "hidden_size": "eight"}')
    (tmp_path / "record.json").write_text(json.dumps({"format": FORMAT, "rows": [{}]}))
    os.mkfifo(tmp_path / "pipe")
    assert sentence in usage_error(capsys, *words)


def test_a_damaged_line_is_reported_and_the_others_count(smoke_results, capsys):
    good = smoke_results.read_bytes().splitlines(keepends=True)
    smoke_results.write_bytes(good[0] + b"\xff" + good[1] + good[2] + good[3])
    capsys.readouterr()
    assert main(["verify", "runs"]) == 1
    captured = capsys.readouterr()
    assert "3 trials in runs/sample-smoke.jsonl" in captured.out
    assert captured.err == "normplace: runs/sample-smoke.jsonl:2 does not match its checksum and is left out.\n"
    assert main(["report", "runs"]) == 1
    assert "sample-smoke.jsonl:2 " in capsys.readouterr().err
    assert "<dt>Damaged lines</dt><dd>1, left out</dd>" in Path("report.html").read_text()
    assert main(["study", "sample", "--scale", "smoke", "--jobs", "1"]) == 0
    assert "damaged lines (2) were moved to runs/sample-smoke.damaged" in capsys.readouterr().err.replace("\n", "")
    assert Path("runs/sample-smoke.damaged").read_bytes() == b"\xff" + good[1]
    assert smoke_results.read_bytes().startswith(good[0] + good[2] + good[3])
    assert main(["verify", "runs"]) == 0


def test_lines_that_the_study_cannot_read_are_a_one_line_error(smoke_results, capsys):
    lines = [json.loads(text) for text in smoke_results.read_text().splitlines()]
    del lines[0]["crc32"]
    lines[0]["series"]["x"].pop()
    smoke_results.write_text("".join(json.dumps(line) + "\n" for line in lines[:1]))
    assert "the study cannot read its results in runs/sample-smoke.jsonl" in usage_error(capsys, "report", "runs")


def test_a_symbolic_link_is_followed(smoke_results):
    Path("link.html").symlink_to("page.html")
    assert main(["report", "runs", "--out", "link.html"]) == 0
    assert Path("link.html").is_symlink()
    assert Path("page.html").read_text().startswith("<!doctype html>")


def test_a_system_error_is_one_line(monkeypatch, capsys):
    def full(*_):
        raise OSError(28, "No space left on device", "somewhere\nelse")

    monkeypatch.setattr("normplace.lab.trials.runner.Run.execute", full)
    sentence = usage_error(capsys, "study", "sample", "--scale", "smoke")
    assert sentence == "normplace: cannot read or write somewhere\\nelse: No space left on device.\n"


def test_an_ascii_terminal_gets_plain_text(monkeypatch):
    assert main(["study", "sample", "--jobs", "1"]) == 0
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    assert main(["verify", "runs"]) == 0
    assert "needs >= 0" in raw.getvalue().decode("ascii")


def test_control_characters_are_escaped():
    assert one_line("a\nb\x1b[1m\udcff ≥") == r"a\nb\x1b[1m\udcff ≥"


def run_module(*words: str, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "normplace", *words], text=True, stderr=subprocess.PIPE, **options)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a device that is always full")
def test_standard_output_on_a_full_disk_is_a_one_line_error():
    with open("/dev/full", "w") as full:  # noqa: PTH123
        for unbuffered in ("", "1"):
            done = run_module("--version", stdout=full, env=os.environ | {"PYTHONUNBUFFERED": unbuffered})
            assert done.returncode == 2
            assert "standard output: No space left on device.\n" in done.stderr
            assert done.stderr.count("\n") == 1


def test_a_closed_pipe_is_not_an_error():
    read, write = os.pipe()
    os.close(read)
    done = run_module("--help", stdout=write)
    os.close(write)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_command_runs_without_open_streams():
    code = "import os, sys; [os.close(stream) for stream in (0, 1, 2)]; os.execv(sys.executable, sys.argv[1:])"
    words = [sys.executable, "-m", "normplace", "list", "studies"]
    assert subprocess.run([sys.executable, "-c", code, *words], check=False).returncode == 0


@pytest.mark.parametrize("error", [errno.EPIPE, errno.ENOSPC])
def test_progress_that_nobody_reads_does_not_end_the_command(error, tmp_path, monkeypatch, capsys):
    class Unwritable(io.StringIO):
        def write(self, text):
            raise OSError(error, os.strerror(error))

    (tmp_path / "text.txt").write_text("one and two are three.\n" * 100)
    sizes = {"dim": 8, "depth": 1, "heads": 1, "context": 8, "batch": 2, "steps": 2, "peak-tflops": 1, "device": "cpu"}
    words = [word for name, value in sizes.items() for word in (f"--{name}", str(value))]
    monkeypatch.setattr(sys, "stderr", Unwritable())
    assert main(["train", "--text", "text.txt", "--out", "run", *words]) == 0
    assert json.loads(capsys.readouterr().out)["status"] == "finished"


def test_an_interrupt_during_import_exits_quietly():
    command = [sys.executable, "-X", "importtime", "-m", "normplace", "doctor"]
    with subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        seen = ""
        for text in process.stderr:
            seen = text
            if "normplace._startup" in text:
                break
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()
    assert "normplace._startup" in seen
    assert process.returncode == 130
    assert "Traceback" not in rest


COLLECTIONS = """
import gc
from normplace import _startup

print(gc.isenabled())
_startup.end_imports()
print(gc.isenabled(), gc.get_freeze_count() > 0)
"""


@pytest.mark.parametrize(
    ("words", "printed"), [(["-m", "normplace"], "False\nTrue True\n"), ([], "True\nTrue False\n")]
)
def test_only_the_command_line_collects_no_garbage_while_it_imports(words, printed):
    done = subprocess.run([sys.executable, "-c", COLLECTIONS, *words], text=True, capture_output=True, check=True)
    assert done.stdout == printed

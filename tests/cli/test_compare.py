"""``normplace compare``: the tasks it finds, its output, and one-sentence errors."""

from __future__ import annotations

import json
import sys

import pytest
from tests.cli.usage_errors import usage_error

from normplace.cli import main
from normplace.cli.compare import find_source
from normplace.lab.trials.engines import InProcessEngine

TINY = ["--set", "dim=8", "depth=1", "heads=2", "context=16", "batch=2", "held_out=2"]
FAST = ["--budget", "20", "--seeds", "2", "--rates", "0.003", "--jobs", "1"]


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("".join(f"{n} and one are {n + 1}.\n" for n in range(300)))
    return str(path)


def test_the_words_name_edits_and_one_task():
    assert find_source(["pre", "peri+qk", "norm:rms"], (), None, None).sources == ("python",)
    own = find_source(["as-is", "gnn.py:make", "edits.py:halve", "degree^-1@before:norms.0"], (), None, None)
    assert (own.kind, own.name, own.budget) == ("own", "gnn.py:make", "30m")
    assert own.edits == ("as-is", "edits.py:halve", "degree^-1@before:norms.0")
    graph = find_source(["gnn.py:make", "as-is"], (), "influence", None)
    assert (graph.kind, graph.model, graph.edits) == ("graph", "gnn.py:make", ("as-is",))
    text = find_source(["edits.py:halve"], ("notes.txt",), None, None)
    assert (text.kind, text.edits) == ("text", ("edits.py:halve",))


def test_a_comparison_prints_a_table_and_writes_a_page(text, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("normplace.lab.compare.run.open_engine", lambda *arguments, **options: InProcessEngine())
    out = tmp_path / "out"
    words = ["compare", "pre", "peri", "--text", text, "--out", str(out), *FAST, *TINY]
    assert main(words) == 0
    output = capsys.readouterr()
    assert output.out.startswith("text notes.txt: 2 edits")
    assert f"The page is at {out / 'report.html'}" in output.out
    assert "2 edits × 2 seeds of text notes.txt" in output.err
    assert "<html" in (out / "report.html").read_text()
    lines = (out / "compare.jsonl").read_text().splitlines()
    assert main([*words, "--json"]) == 0  # again: nothing is left to do
    result = json.loads(capsys.readouterr().out)
    assert {row["edit"] for row in result["rows"]} == {"pre", "peri"}
    assert result["page"] == str(out / "report.html")
    assert (out / "compare.jsonl").read_text().splitlines() == lines
    (out / "report.html").unlink()
    assert main(["compare", str(out), "--json", "--baseline", "peri"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["baseline"], shown["best"], len(shown["rows"])) == ("peri", result["best"], 2)
    assert (out / "report.html").exists() and shown["notes"] == result["notes"]


def test_a_dry_run_prints_the_plan_and_writes_nothing(text, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["compare", "pre", "--text", text, "--dry-run", *FAST, *TINY]
    assert main(words) == 0
    assert "1 edit × 2 seeds of text notes.txt" in capsys.readouterr().out
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["edits"] == {"pre": "pre"}
    assert not (tmp_path / "runs").exists()


OWN = """
import torch
from torch import nn

def make(seed):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(2, 4), nn.LayerNorm(4), nn.Linear(4, 1))
    return model, [torch.randn(4, 2) for _ in range(9)], lambda model, x: model(x).square().mean()
"""


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["pre", "--graph", "influence", "--precision", "bfloat16"], "--precision belongs to --text"),
        (["perry"], "unknown edit 'perry': did you mean 'peri'"),
        (["zzz"], "keel, layerscale, lns, "),
        (["pre", "pre"], "'pre' is listed twice"),
        (["--text", "absent.txt"], "there is no text"),
        (["--text", "TEXT", "--graph", "influence"], "--text and --graph are two tasks"),
        (["--hf", "config.json"], "--hf is the language model of a text: add --text"),
        (["--graph", "influense"], "did you mean 'influence'"),
        (["--graph", "influence", "--set", "feature=degree"], "unknown config key 'feature': did you mean 'features'"),
        (["--graph", "influence", "--better", "larger"], "--better belongs to a task of your own"),
        (["own_task.py:make", "--set", "dim=3"], "--set belongs to --text and --graph"),
        (["own_task.py:absent"], "has no 'absent'"),
        (["absent.py:make"], "there is no file 'absent.py'"),
        (["own_task.py:make", "--edits", "scales"], "scales need a graph network"),
        (["own_task.py:make", "post"], "the edit 'post' does not apply to own_task.py:make: "),
        (["--text", "TEXT", "--budget", "soon"], "neither a time such as 30m nor steps such as 2000"),
        (["--text", "TEXT", "--seeds", "0"], "seeds"),
        (["--text", "TEXT", "--rates", "-1"], "learning rate"),
        (["--text", "TEXT", "--start", "warm"], "--start"),
    ],
)
def test_mistakes_are_one_line(words, complaint, text, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "own_task.py").write_text(OWN)
    monkeypatch.delitem(sys.modules, "own_task", raising=False)
    tiny = TINY if "TEXT" in words else []
    chosen = [text if word == "TEXT" else word for word in words]
    assert complaint in usage_error(capsys, "compare", *chosen, *tiny)
    assert not (tmp_path / "runs").exists()

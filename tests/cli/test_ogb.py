"""``normplace ogb``: the plan, progress, scores, resumption and mistakes."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from tests.cli.usage_errors import usage_error
from tests.lab.tasks.graphs.ogb.ogb_cases import write_task

from normplace.cli import main
from normplace.lab.ogb.results import SeedResult
from normplace.lab.ogb.run import OgbRun

SMALL = ["--depth", "2", "--width", "4", "--device", "cpu"]


@pytest.fixture(autouse=True)
def data(one_thread):
    """Two data sets in the current folder."""
    for name in ("ogbn-arxiv", "ogbg-molpcba"):
        write_task(name, Path("ogb"))


def words(task, *more):
    return ["ogb", task, "--data", "ogb", *SMALL, *more]


def test_plan_progress_and_scores(capsys):
    assert main(words("ogbn-arxiv", "--epochs", "3", "--seeds", "2")) == 0
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    assert lines[0].startswith("task       ogbn-arxiv: 40 nodes, 220 edges; 20 train / 10 valid / 10 test; read in")
    assert "(published: 491,176)" in lines[1]
    assert "epochs 3 instead of 500" in lines[3]
    assert "test 0.7192 ± 0.0016, valid 0.7262 ± 0.0014 (README" in lines[4]
    assert lines[-1].startswith("normplace 0.") and "over 2 seeds; published 0.7192 ± 0.0016" in lines[-1]
    progress = captured.err.splitlines()
    assert [line.split("  ")[:2] for line in progress] == [
        [f"seed {seed}", f"epoch {epoch}/3"] for seed in (0, 1) for epoch in (1, 3)
    ]
    assert all("loss " in line and "valid 0." in line and "s/epoch" in line for line in progress)


def test_json_and_resumption(capsys):
    command = words("ogbg-molpcba", "--epochs", "1", "--batch", "4", "--json", "--placement", "peri")
    assert main(command) == 0
    first = json.loads(capsys.readouterr().out)
    assert first["settings"]["placement"] == "peri" and first["published"]["parameters"] == 5_550_208
    assert first["test"] == [first["seeds"][0]["test"], None]
    assert main(command) == 0  # nothing is trained again, so even the seconds are equal
    assert json.loads(capsys.readouterr().out) == first


def test_a_dry_run_trains_nothing(capsys):
    assert main(words("ogbn-arxiv", "--dry-run", "--batches", "neighbours", "--fanouts", "3", "2")) == 0
    captured = capsys.readouterr()
    assert "32 nodes a step, fanouts 3 2" in captured.out and captured.err == ""
    assert not Path("runs").exists()


def test_a_seed_that_diverges_is_reported(capsys):
    command = words("ogbn-arxiv", "--epochs", "9", "--learning-rate", "1e38", "--dropout", "0", "--evaluate-every", "9")
    assert main(command) == 1
    assert capsys.readouterr().out.splitlines()[-1].endswith("diverged")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["ogbn-arxi"], "unknown OGB task 'ogbn-arxi'"),
        (["ogbn-products"], "neither a folder raw nor ogbn_products/raw"),
        (["ogbn-arxiv", "--data", "none"], "there is no folder none"),
        (["ogbn-arxiv", "--batches", "graphs"], "ogbn-arxiv has batches of full or clusters or neighbours"),
        (["ogbn-arxiv", "--seeds", "0"], "--seeds must be a whole number"),
        (["ogbn-arxiv", "--epochs", "0"], "epochs must be at least 1"),
        (["ogbn-arxiv", "--order", "dense"], "unknown --order"),
        (["ogbn-arxiv", "--placement", "sideways"], "sideways"),
        (["ogbn-arxiv", "--device", "tpu"], "unknown device"),
        (["ogbn-arxiv", "--batches", "neighbours", "--fanouts", "5", "0"], "fanout must be a whole number"),
    ],
)
def test_mistakes(capsys, more, message):
    command = ["ogb", *more] + ([] if "--data" in more else ["--data", "ogb"])
    assert message in usage_error(capsys, *command)


def test_the_mean_names_the_seeds_that_have_a_score(monkeypatch, capsys):
    scored = SeedResult(0, "ok", 0.7, 0.6, 0.9, 1, 2, 1.0, 1.0, None)
    diverged = SeedResult(1, "diverged", None, None, None, None, 1, 1.0, 0.0, None)
    monkeypatch.setattr(
        OgbRun, "execute", lambda self, seeds, observe: [scored, diverged, dataclasses.replace(scored, test=0.8)]
    )
    assert main(words("ogbn-arxiv", "--seeds", "3")) == 1
    assert "normplace 0.7500 ± 0.0707 over 2 of 3 seeds; published" in capsys.readouterr().out

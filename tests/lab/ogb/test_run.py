"""Training with every kind of batch, results, and resumption."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
import torch
from tests.lab.tasks.graphs.ogb.ogb_cases import write_task

from normplace.errors import UsageError
from normplace.lab.ogb.recipe import RECIPES
from normplace.lab.ogb.run import OgbRun
from normplace.lab.ogb.training import task_loss
from normplace.lab.tasks.graphs.ogb.catalog import TASKS

SMALL = {"depth": 3, "dim": 16, "parts": 2, "batch_size": 4, "evaluate_every": 1}


def load(name, folder, **changes):
    if not (folder / TASKS[name].folder).exists():
        write_task(name, folder)
    recipe = replace(RECIPES[name], **{**SMALL, **changes})
    return OgbRun.load(TASKS[name], recipe, folder, torch.device("cpu"), folder / "runs")


def nothing(seed, history):
    """Observes nothing."""


@pytest.mark.parametrize("batches", ["full", "clusters", "neighbours"])
def test_every_kind_of_batch_learns_the_classes(tmp_path, one_thread, batches):
    """The features of each node show its class, so labels of other nodes could not be learned."""
    run = load("ogbn-arxiv", tmp_path, batches=batches, epochs=30, learning_rate=0.03, dropout=0.0, evaluation_parts=2)
    (result,) = run.execute(1, nothing)
    lines = [json.loads(line) for line in (run.folder / "seed-0.jsonl").read_text().splitlines()]
    assert result.status == "ok" and max(line["train"] for line in lines) > 0.9
    assert lines[-1]["loss"] < 0.5 * lines[0]["loss"]
    best = max(lines, key=lambda line: line["valid"])
    assert (result.test, result.valid, result.best_epoch) == (best["test"], best["valid"], best["epoch"])


@pytest.mark.parametrize("name", [name for name in TASKS if name != "ogbn-arxiv"])
def test_every_task_trains_as_published(tmp_path, one_thread, name):
    """But for the size of the network, and three epochs."""
    run = load(name, tmp_path, epochs=3)
    (result,) = run.execute(1, nothing)
    assert result.status == "ok" and result.epochs == 3
    assert result.test is not None and 0 <= result.test <= 1
    assert (result.train is None) == (TASKS[name].level == "graph")


@pytest.mark.parametrize("name", ["ogbn-proteins", "ogbg-molpcba"])
def test_an_interrupted_seed_resumes_with_the_same_bits(tmp_path, one_thread, name):
    whole = load(name, tmp_path, epochs=4, dropout=0.3)
    expected = whole.execute(1, nothing)[0]

    def stop(seed, history):
        if len(history) == 3:
            raise KeyboardInterrupt

    part = replace(whole, out=tmp_path / "again")
    with pytest.raises(KeyboardInterrupt):
        part.execute(1, stop, checkpoint_seconds=0)
    assert not (part.folder / "results.jsonl").read_text()
    seen = []
    result = part.execute(1, lambda seed, history: seen.append(len(history)))[0]
    assert seen == [3, 4]  # the third epoch had no checkpoint yet
    timeless = {"seconds_per_epoch": 0.0, "seconds_per_evaluation": 0.0}
    assert replace(result, **timeless) == replace(expected, **timeless)
    logs = [run.folder / "seed-0.jsonl" for run in (whole, part)]
    first, second = ([json.loads(line) for line in log.read_text().splitlines()] for log in logs)
    assert [line["loss"] for line in first] == [line["loss"] for line in second]


def test_finished_seeds_are_kept_and_more_can_be_added(tmp_path, one_thread):
    run = load("ogbg-molhiv", tmp_path, epochs=1)
    first = run.execute(1, nothing)
    trained = []
    assert run.execute(2, lambda seed, history: trained.append(seed))[:1] == first
    assert trained == [1]
    lines = [json.loads(line) for line in (run.folder / "results.jsonl").read_text().splitlines()]
    assert [line["seed"] for line in lines] == [0, 1]
    assert lines[0]["settings"]["task"] == "ogbg-molhiv" and "torch" in lines[0]["versions"]
    with (run.folder / "results.jsonl").open("a") as file:
        file.write("{\n")
    with pytest.raises(UsageError, match=r"results.jsonl:3 is not a result"):
        run.execute(2, nothing)


@pytest.mark.parametrize("name", ["ogbn-proteins", "ogbg-molhiv"])
def test_a_step_that_diverges_ends_the_seed(tmp_path, one_thread, name):
    """The loss of the first epoch is finite, but the outputs after its only step are not, and have no score."""
    run = load(name, tmp_path, epochs=3, learning_rate=1e38, parts=1, batch_size=7)
    (result,) = run.execute(1, nothing)
    assert (result.status, result.epochs, result.test) == ("diverged", 1, None)
    (line,) = (run.folder / "seed-0.jsonl").read_text().splitlines()
    assert json.loads(line)["loss"] is None


def test_other_settings_or_data_have_another_folder(tmp_path):
    run = load("ogbn-arxiv", tmp_path, epochs=1)
    assert replace(run, recipe=replace(run.recipe, dropout=0.1)).folder != run.folder
    smaller = replace(run.data, train=run.data.train[1:])
    assert replace(run, data=smaller).folder != run.folder


def test_a_damaged_checkpoint_is_named(tmp_path):
    run = load("ogbn-arxiv", tmp_path, epochs=1)
    run.folder.mkdir(parents=True)
    (run.folder / "seed-0.pt").write_bytes(b"nothing")
    with pytest.raises(UsageError, match="remove it to train this seed from the start"):
        run.execute(1, nothing)


def test_batches_that_cannot_be_learned_from_are_refused(tmp_path):
    with pytest.raises(UsageError, match="ogbg-ppa has batches of graphs"):
        load("ogbg-ppa", tmp_path, batches="full")
    with pytest.raises(UsageError, match="use larger batches"):
        load("ogbg-ppa", tmp_path, batch_size=1).execute(1, nothing)


def test_unknown_labels_have_no_loss():
    y = torch.tensor([[1.0, math.nan], [math.nan, math.nan]])
    logits = torch.tensor([[2.0, 5.0], [5.0, 5.0]], requires_grad=True)
    loss = task_loss(TASKS["ogbg-molpcba"], logits, y)
    assert loss.item() == pytest.approx(math.log1p(math.exp(-2)))
    loss.backward()
    assert logits.grad is not None and (logits.grad != 0).tolist() == [[True, False], [False, False]]
    classes = task_loss(TASKS["ogbn-arxiv"], logits, torch.tensor([[1.0], [math.nan]]))
    assert classes.item() == pytest.approx(math.log1p(math.exp(-3)))

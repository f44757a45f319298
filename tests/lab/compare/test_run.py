"""A whole comparison: stages, resuming, adding seeds and edits, and what the caller keeps."""

from __future__ import annotations

import copy
import dataclasses
import importlib
import json
import math
import random
import sys

import pytest
import torch
from tests.lab.compare.tiny_task import draw, make
from torch import nn

import normplace as npl
from normplace.errors import UsageError
from normplace.lab.compare import Plan, run, stages
from normplace.lab.compare.checks import Checked
from normplace.lab.compare.config import FINAL, SEARCH, SPEED
from normplace.lab.compare.edit_trials import by_edit
from normplace.lab.compare.plan import SPEED_SHARE, Cost, described
from normplace.lab.compare.run import RESULT_FILE
from normplace.lab.compare.tasks import TextTask
from normplace.lab.trials.results import read_records

TIMES = {"step_ms", "train_seconds"}


def own_make(seed):
    return make(seed)


def local_make():
    """The task as a function that other processes cannot import."""
    return lambda seed: own_make(seed)


def compare(out, edits=("as-is", "post"), task=None, **options):
    options = {"rates": [3e-3, 1e-2], "seeds": 2, "budget": 20, **options}
    return npl.compare(task or local_make(), edits, out=out, **options)


def facts(folder):
    """What must not depend on interruptions: everything but times."""
    lines = read_records(folder / RESULT_FILE)
    assert len({line.hash for line in lines}) == len(lines)
    return {
        line.hash: (line.part, line.config, line.series, {k: v for k, v in line.metrics.items() if k not in TIMES})
        for line in lines
    }


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished")
    return folder, compare(folder)


def test_every_edit_is_searched_and_reported(finished):
    folder, comparison = finished
    lines = read_records(folder / RESULT_FILE)
    for edit in ("as-is", "post"):
        search = [line.config for line in lines if line.part == SEARCH and line.config["edit"] == edit]
        final = [line for line in lines if line.part == FINAL and line.config["edit"] == edit]
        assert {config["steps"] for config in search} == {5, 10}
        assert {config["seed"] for config in search}.isdisjoint({0, 1})
        assert [line.seed for line in final] == [0, 1]
        assert {line.config["steps"] for line in final} == {20}
        assert {line.study for line in final} == {"compare"}
    assert {row.edit for row in comparison.rows} == {"as-is", "post"}
    assert comparison.baseline == "as-is"


def test_the_choosing_split_chooses(finished):
    lines = read_records(finished[0] / RESULT_FILE)
    for edit in ("as-is", "post"):
        longest = [line for line in lines if line.config["edit"] == edit and line.config["rung"] == 1]
        best = min(longest, key=lambda line: math.inf if line.metrics["diverged"] else line.metrics["choose"])
        final = {line.config["learning_rate"] for line in lines if line.config["edit"] == edit and line.part == FINAL}
        assert final == {best.config["learning_rate"]}


def test_nothing_of_the_caller_changes(tmp_path):
    torch.manual_seed(11)
    state = torch.get_rng_state(), random.getstate(), torch.get_num_threads()
    compare(tmp_path, edits=["as-is"], rates=[1e-2], seeds=1)
    assert torch.equal(state[0], torch.get_rng_state()) and state[1:] == (random.getstate(), torch.get_num_threads())


def test_the_same_call_trains_nothing_again(finished):
    ran = []
    again = compare(finished[0], on_trial=ran.append)
    assert ran == [] and str(again) == str(finished[1])


def test_an_interrupted_comparison_resumes_with_the_same_lines(finished, tmp_path):
    expected, runs = facts(finished[0]), 0
    while runs < 40:
        runs += 1
        left = [1 + runs % 3]

        def interrupt(record, left=left):
            left[0] -= 1
            if not left[0]:
                raise KeyboardInterrupt

        try:
            compare(tmp_path, on_trial=interrupt)
            break
        except KeyboardInterrupt:
            continue
    assert 4 < runs < 40
    assert facts(tmp_path) == expected


def test_seeds_and_edits_are_added_to_a_finished_comparison(finished, tmp_path):
    for name in ("plan.json", RESULT_FILE):
        (tmp_path / name).write_bytes((finished[0] / name).read_bytes())
    ran = []
    added = compare(tmp_path, seeds=3, on_trial=ran.append)
    assert [(line.part, line.seed) for line in ran] == [(FINAL, 2)] * 2
    assert "Seeds were added to a result of 2 seeds" in str(added) and "were added" not in str(finished[1])
    ran.clear()
    more = compare(tmp_path, edits=["peri"], on_trial=ran.append)
    assert {line.config["edit"] for line in ran} == {"peri"} and sorted(
        line.seed for line in ran if line.part == FINAL
    ) == [0, 1, 2]
    assert len(more.rows) == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"content": "other words. " * 200}, "another sha256"),
        ({"context": 8}, "another context (16, now 8)"),
        ({"name": "same.txt"}, "another text ("),
    ],
)
def test_a_comparison_of_another_text_is_not_continued(tmp_path, change, message):
    def text_task(content="some words. " * 200, context=16, name="words.txt"):
        (tmp_path / name).write_text(content)
        return TextTask(text=str(tmp_path / name), context=context, dim=16, depth=1, heads=2, held_out=4)

    task = text_task()
    plan = Plan(described(task), {"as-is": "as-is"}, (1e-3,), 1, "fresh", "20", {}, 20, 20, 1)
    plan.save(tmp_path / "plan.json")
    saved = Plan.load(tmp_path / "plan.json")
    saved.require_same_task(tmp_path, task)
    with pytest.raises(UsageError) as error:
        saved.require_same_task(tmp_path, text_task(**change))
    assert message in str(error.value) and "choose another --out" in str(error.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"budget": 30}, "another budget (20, now 30)"),
        ({"rates": [1e-3]}, "another rates"),
        ({"start": "weights"}, "another start (fresh, now weights)"),
        ({"edits": {"post": "pre"}}, "another edit called 'post' (post)"),
        ({"task": lambda seed: make(seed), "better": "larger"}, "another better (smaller, now larger)"),
    ],
)
def test_another_comparison_needs_another_folder(finished, change, message):
    with pytest.raises(UsageError) as error:
        compare(finished[0], **change)
    assert message in str(error.value) and "choose another --out" in str(error.value)


def test_the_same_edit_under_two_names_gives_the_same_numbers(tmp_path):
    comparison = compare(tmp_path, edits={"a": "as-is", "b": "as-is", "c": draw}, rates=[1e-2])
    reports = {}
    for line in read_records(tmp_path / RESULT_FILE):
        reports.setdefault(line.config["edit"], []).append(line.metrics["report"])
    assert reports["a"] == reports["b"] == reports["c"]
    assert sorted(row.verdict for row in comparison.rows) == ["baseline", "tied", "tied"]


def test_given_weights_are_continued_and_the_caller_keeps_them(tmp_path):
    pretrained = make(0)[0]
    before = copy.deepcopy(pretrained.state_dict())

    def from_pretrained(seed):
        return copy.deepcopy(pretrained), *make(seed)[1:]

    compare(tmp_path, task=from_pretrained, start="weights", rates=[1e-2])
    lines = read_records(tmp_path / RESULT_FILE)
    assert {line.config["start"] for line in lines} == {"weights"}
    untrained = {line.series["held_out"][0] for line in lines if line.config["edit"] == "as-is"}
    assert len(untrained) == 1  # every seed starts from the same weights
    assert all(torch.equal(before[name], value) for name, value in pretrained.state_dict().items())
    assert all(parameter.grad is None for parameter in pretrained.parameters())


def test_diverged_trainings_are_counted(tmp_path):
    comparison = compare(tmp_path, edits=["as-is"], rates=[1e30], seeds=2)
    assert comparison.rows[0].diverged == 2


def test_a_dry_run_plans_and_writes_nothing(tmp_path):
    plan = compare(tmp_path / "new", dry_run=True)
    assert isinstance(plan, Plan) and plan.final_steps == 20
    assert not (tmp_path / "new").exists()


@pytest.fixture
def slow_steps(monkeypatch):
    """Steps that are measured as slower than they are, so that a short time budget has few of them."""
    cost = Cost(step=0.01, prepare=0.01, validate=0.001, measure=0.01)
    monkeypatch.setattr(run, "check_task", lambda task, edits, start: Checked({"as-is": cost}, (), on_gpu=False))
    monkeypatch.setattr(run, "task_identity", lambda task: {})


@pytest.fixture
def fast_steps(monkeypatch):
    """Steps that are measured as faster than they are."""
    cost = Cost(step=1e-4, prepare=0.01, validate=0.001, measure=0.01)
    monkeypatch.setattr(run, "check_task", lambda task, edits, start: Checked({"as-is": cost}, (), on_gpu=False))
    monkeypatch.setattr(run, "task_identity", lambda task: {})


def test_a_time_budget_is_planned_again_from_the_speed_of_the_workers(tmp_path, fast_steps, monkeypatch):
    ran, plans = [], []

    def filled(plan, left, jobs):
        plans.append(plan)
        return dataclasses.replace(plan, steps=40)

    monkeypatch.setattr(stages, "fill_time", filled)
    monkeypatch.setattr(stages, "second_rung", lambda plan, pending, left, jobs: 20)
    monkeypatch.setattr(stages, "final_steps", lambda plan, left, jobs: 30)
    monkeypatch.setattr(stages, "further_seeds", lambda seconds, left, slack, jobs: 0)
    for seeds in (1, 2):
        comparison = compare(tmp_path, edits=["as-is"], budget="1s", seeds=seeds, on_trial=ran.append)
    assert SPEED not in {line.part for line in (*ran, *comparison.records)}
    (planned,) = plans
    (first,) = (line for line in read_records(tmp_path / RESULT_FILE) if line.part == SPEED)
    assert (first.config["steps"], first.config["learning_rate"]) == (round(SPEED_SHARE * planned.steps), 1e-2)
    assert planned.costs["as-is"].step == pytest.approx(first.metrics["step_ms"] / 1000, rel=1e-6)
    assert {(line.config["rung"], line.config["steps"]) for line in ran if line.part == SEARCH} == {
        (0, round(40 * planned.first_rung)),
        (1, 20),
    }
    assert by_edit(read_records(tmp_path / RESULT_FILE), better="smaller") == comparison.trials()
    assert [line.config["steps"] for line in ran if line.part == FINAL] == [30, 30]


def test_after_the_budget_only_the_first_two_seeds_are_trained(tmp_path, slow_steps, monkeypatch, capsys):
    monkeypatch.setattr(stages, "TOLERANCE", -1.0)
    ran = []
    options = {"edits": ["as-is"], "rates": [1e-2], "budget": "2s", "seeds": 4, "on_trial": ran.append}
    compare(tmp_path, **options)
    assert len(ran) == 2
    assert "the budget ended before all seeds" in capsys.readouterr().err
    assert compare(tmp_path, **options).rows[0].seeds == len(ran) == 4


def test_failed_trainings_stop_the_comparison_with_the_reason(tmp_path):
    def fails_later(seed):
        if seed == 1:
            assert len(starts) < 7, "the disk is full"
        starts.append(seed)
        return make(seed)

    starts = []
    with pytest.raises(UsageError, match=r"1 of 2 trainings failed, among them as-is, .*the disk is full"):
        compare(tmp_path, edits=["as-is"], rates=[1e-2], task=lambda seed: fails_later(seed))


def test_functions_of_this_process_run_here_only(tmp_path):
    for options in ({"engine": "ray"}, {"jobs": 2}):
        with pytest.raises(UsageError, match="other processes cannot import '<lambda>'"):
            compare(tmp_path, **options)


def test_results_of_default_folders_do_not_mix(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for rate in (1e-2, 2e-2):
        compare(None, edits=["as-is"], rates=[rate], seeds=1)
    assert len(list((tmp_path / "runs" / "compare").iterdir())) == 2


def test_a_function_that_was_changed_is_another_task(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def scaled(factor):
        def scaled_make(seed):
            model, batches, loss, validate = make(seed)
            return model, batches, lambda model, batch: factor * loss(model, batch), validate

        return scaled_make

    options = {"edits": ["as-is"], "rates": [1e-2], "seeds": 1}
    for factor in (1, 2, 2):
        compare(None, task=scaled(factor), **options)
    assert len(list((tmp_path / "runs" / "compare").iterdir())) == 2
    compare(tmp_path / "own", task=scaled(1), **options)
    with pytest.raises(UsageError, match=r"has a comparison of scaled_make with another loss of the first batch \(\d"):
        compare(tmp_path / "own", task=scaled(2), **options)


def test_a_file_whose_model_was_changed_is_not_continued(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    source = "from tests.lab.compare.tiny_task import halve as edit, make\n"
    changed = source + "original = make\ndef make(seed):\n    model, *rest = original(seed)\n    "

    def run_with(name, text, edits=("as-is",)):
        (tmp_path / "changing_task.py").write_text(text)
        sys.modules.pop("changing_task", None)
        importlib.invalidate_caches()
        return compare(name, edits=edits, task="changing_task:make", rates=[1e-2], seeds=1, jobs=1)

    first = run_with("out", source)
    assert str(run_with("out", f"{source}# a comment\n")) == str(first)
    with pytest.raises(UsageError, match="comparison of changing_task:make with another model: choose another --out"):
        run_with("out", f"{changed}model.dropout.p = 0.5\n    return model, *rest\n")
    with pytest.raises(UsageError, match=r"with another loss of the first batch \(.*, now .*\): choose another --out"):
        run_with("out", f"{changed}model.head.weight.data *= 3\n    return model, *rest\n")
    with pytest.raises(UsageError, match="with another number of batches"):
        run_with("out", f"{changed}rest[0] = rest[0][:-1]\n    return model, *rest\n")


@pytest.mark.parametrize("of", ["edit", "task"])
def test_the_functions_of_an_earlier_version_are_refused(tmp_path, of):
    def mine(model):
        return model

    options = {"edits": [mine], "rates": [1e-2], "seeds": 1}
    compare(tmp_path, **options)
    plan = json.loads((tmp_path / "plan.json").read_text())
    (plan["identities"] if of == "edit" else plan["task"]).update({"mine" if of == "edit" else "identity": "0123"})
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    with pytest.raises(UsageError, match="by an earlier version, which described functions in another way"):
        compare(tmp_path, **options)


def test_an_edit_that_was_changed_is_refused(tmp_path):
    def scaled(factor):
        def mine(model):
            with torch.no_grad():
                model.head.weight.mul_(factor)
            return model

        return mine

    options = {"rates": [1e-2], "seeds": 1}
    first = compare(tmp_path, edits=[scaled(2.0)], **options)
    assert str(compare(tmp_path, edits=[scaled(2.0)], **options)) == str(first)
    with pytest.raises(
        UsageError, match="has results of another function 'mine', with another loss of the first batch"
    ):
        compare(tmp_path, edits=[scaled(3.0)], **options)

    def mine(model):
        raise ValueError("no head")

    with pytest.raises(UsageError, match=r"the edit 'mine' of .* failed \(ValueError: no head\)"):
        compare(tmp_path, edits=[mine], **options)


@pytest.mark.parametrize("value", [3, None, nn.Linear(2, 2)])
def test_other_objects_are_not_tasks(value):
    with pytest.raises(UsageError, match=r"a task is a function make\(seed\)"):
        npl.compare(value)

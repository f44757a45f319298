"""The model as lm-evaluation-harness calls it, with a stand-in for the package."""

from __future__ import annotations

import sys
import types

import pytest
import torch
from tests.lab.train.trained_runs import untrained_run

from normplace.errors import UsageError
from normplace.lab.train.harness import harness_model, run_harness
from normplace.lab.train.scoring import Scorer


class LM:
    """The base class of the harness."""


def request(*arguments):
    return types.SimpleNamespace(args=arguments)


@pytest.fixture
def harness(monkeypatch):
    """A harness that has one task, ``colours``, of which the model gets the first answer right."""
    calls = []

    def simple_evaluate(model, tasks, limit, **seeds):
        calls.append((tasks, limit, seeds["random_seed"]))
        if tasks != ["colours"]:
            raise KeyError(f"no task\nnamed {tasks}")
        model.loglikelihood([request("red", " blue")])
        metrics = {
            "alias": "colours",
            "acc,none": 0.5,
            "acc_stderr,none": 0.1,
            "f1,strict": 1,
            "f1_stderr,strict": "N/A",
        }
        return {"results": {"colours": metrics}, "n-samples": {"colours": {"original": 9, "effective": 3}}}

    package, api, models = (types.ModuleType(name) for name in ("lm_eval", "lm_eval.api", "lm_eval.api.model"))
    package.__spec__ = types.SimpleNamespace()  # type: ignore[assignment]
    package.simple_evaluate, models.LM = simple_evaluate, LM  # type: ignore[attr-defined]
    for module in (package, api, models):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return calls


@pytest.fixture
def scorer():
    return Scorer(untrained_run(context=12), torch.device("cpu"))


def test_the_numbers_of_a_task_are_read(harness, scorer):
    first, second = run_harness(scorer, ["colours"], 3, 7)
    assert harness == [(["colours"], 3, 7)]
    assert (first.task, first.metric, first.value, first.stderr, first.samples) == ("colours", "acc", 0.5, 0.1, 3)
    assert (second.metric, second.value, second.stderr) == ("f1 (strict)", 1.0, None)


def test_an_error_of_the_harness_is_one_line(harness, scorer):
    with pytest.raises(UsageError, match=r"^lm-evaluation-harness failed \(KeyError: .*\): check the tasks\.$"):
        run_harness(scorer, ["shapes"], None, 0)


@pytest.mark.usefixtures("harness")
def test_spaces_before_a_continuation_belong_to_it(scorer):
    model = harness_model(scorer)
    pairs = [request("red ", "blue"), request("red", " blue"), request("", "red")]
    values = model.loglikelihood(pairs)
    assert values[0] == values[1]
    expected = scorer.score([(list(b"red"), list(b" blue")), (list(b"\n"), list(b"red"))])
    assert values[1:] == expected
    assert model.loglikelihood_rolling([request("a long text of more than one window")]) == [
        scorer.score([(list(b"\n"), list(b"a long text of more than one window"))])[0][0]
    ]


@pytest.mark.usefixtures("harness")
def test_generation_ends_before_a_stop_text(scorer):
    model = harness_model(scorer)
    whole = model.generate_until([request("red", {"max_gen_toks": 8})])[0]
    greedy = scorer.model.generate(torch.tensor([list(b"red")]), 8)[0, 3:].tolist()
    assert whole == scorer.tokenizer.decode(greedy)
    stop = whole[3]
    assert model.generate_until([request("red", {"until": [stop], "max_gen_toks": 8})]) == [whole[: whole.index(stop)]]


@pytest.mark.usefixtures("harness")
def test_answers_that_leave_no_room_for_a_prompt_are_an_error(scorer):
    with pytest.raises(UsageError, match="generates up to 256 tokens, but the context of the run is 12"):
        harness_model(scorer).generate_until([request("red", {})])


def test_a_missing_harness_is_an_error(scorer, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"the task 'colours' needs lm-evaluation-harness: pip install"):
        run_harness(scorer, ["colours"], None, 0)

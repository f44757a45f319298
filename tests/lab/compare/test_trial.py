"""One training: measurements, divergence, and equal conditions for all edits."""

from __future__ import annotations

import math

import pytest
import torch
from tests.lab.compare.tiny_task import TinyNet, data, draw, loss, make
from torch import nn

from normplace.lab.compare.config import CompareTrial
from normplace.lab.compare.edits import parse_edits
from normplace.lab.compare.factory import FactoryTask
from normplace.lab.compare.measures import count_spikes, final_loss, memory_megabytes, stream_signals, thinned
from normplace.lab.compare.task import Start, adamw
from normplace.lab.compare.trial import History, prepare, run_final, run_search, train

TASK = FactoryTask(make)
TIMES = {"step_ms": 0, "train_seconds": 0}
SETTINGS = {"task": "make", "learning_rate": 1e-2, "steps": 40, "rung": 2, "seed": 0, "evaluations": 4}


def trained(edit, measure_all=False, task=TASK, **settings):
    (parsed,) = parse_edits([edit])
    return train(CompareTrial(edit=parsed.name, **{**SETTINGS, **settings}), task, parsed, measure_all)


@pytest.fixture(scope="module")
def outcome():
    return trained("as-is", measure_all=True)


def test_everything_is_measured(outcome):
    assert outcome.metrics.keys() == {
        "choose", "report", "diverged", "train_loss", "spikes_per_1000", "step_ms", "train_seconds", "memory_mb",
        "stream_peak", "stream_growth", "fp16_headroom", "bf16_headroom", "gradient_evenness",
    }  # fmt: skip
    assert outcome.metrics["diverged"] == 0
    assert outcome.metrics["choose"] != outcome.metrics["report"]
    assert 0 < outcome.metrics["gradient_evenness"] <= 1
    assert len(outcome.series["loss"]) == len(outcome.series["loss_step"]) == 40
    assert outcome.series["held_out_step"] == [0, 10, 20, 30, 40]
    assert outcome.series["held_out"][-1] == outcome.metrics["choose"] < outcome.series["held_out"][0]


def test_a_search_training_measures_less():
    assert trained("as-is", evaluations=1, steps=10).metrics.keys() == {
        "choose", "report", "diverged", "train_loss", "spikes_per_1000", "step_ms", "train_seconds",
    }  # fmt: skip


def test_a_trial_is_a_function_of_its_configuration(outcome):
    state = torch.get_rng_state()
    torch.rand(5)  # another random state
    config = CompareTrial(edit="as-is", recipe="as-is", reference=TASK.reference or "", **SETTINGS)
    again = run_final(config)
    assert again.series == outcome.series
    assert {**again.metrics, **TIMES} == {**outcome.metrics, **TIMES}
    assert run_search(config).metrics["report"] == outcome.metrics["report"]
    torch.set_rng_state(state)


def test_an_edit_that_draws_random_numbers_trains_on_the_same_data_and_dropout(outcome):
    assert trained(draw).series == outcome.series


def test_another_seed_is_another_training(outcome):
    assert trained("as-is", seed=1).series["loss"] != outcome.series["loss"]


def test_another_edit_starts_from_the_same_weights():
    (plain, post), initial = parse_edits(["as-is", "post"]), []
    for edit in (plain, post):
        model = prepare(TASK, edit, 3).start.model
        initial.append([parameter.clone() for parameter in model.parameters() if parameter.ndim == 2])
    assert all(torch.equal(one, two) for one, two in zip(*initial, strict=True))


def test_divergence_is_counted():
    metrics = trained("as-is", measure_all=True, learning_rate=1e30).metrics
    assert metrics["diverged"] == 1 and math.isnan(metrics["choose"]) and math.isnan(metrics["report"])
    assert "stream_peak" not in metrics and metrics["memory_mb"] > 0


def test_a_new_model_whose_loss_rises_has_diverged():
    assert trained("as-is", learning_rate=30.0).metrics["diverged"] == 1
    assert trained("as-is", learning_rate=30.0, start="weights").metrics["diverged"] == 0


def test_an_unusable_measure_is_a_divergence():
    def bad(seed):
        calls = []
        model, batches, loss, validate = make(seed)

        def late_nan(model, split):
            calls.append(split)
            return validate(model, split) if len(calls) < 3 else math.nan

        return model, batches, loss, late_nan

    assert trained("as-is", task=FactoryTask(bad)).metrics["diverged"] == 1


def test_weights_that_are_not_finite_after_the_last_step_are_a_divergence():
    """The loss before the step is finite, and so is the accuracy of a model that returns NaN."""

    def infinite_slope(model, batch):
        return loss(model, batch) + (model.head.weight - model.head.weight.detach()).abs().sqrt().sum()

    def start(seed):
        model, batches, _, _ = make(seed)
        return Start(model, batches, infinite_slope, lambda model, split: float((model(data()[0]) > 0).double().mean()))

    outcome = trained("as-is", task=FactoryTask(start, "larger"), steps=1, evaluations=1)
    assert outcome.metrics["diverged"] == 1
    assert math.isnan(outcome.metrics["report"]) and math.isfinite(outcome.metrics["train_loss"])


def test_the_schedule_multiplies_the_learning_rate_of_each_group():
    rates = []

    class Recorder(torch.optim.SGD):
        def step(self, closure=None):
            rates.append([group["lr"] for group in self.param_groups])

    def two_groups(model, learning_rate):
        first, *others = model.parameters()
        return Recorder([{"params": [first], "lr": 10 * learning_rate}, {"params": others}], lr=learning_rate)

    def with_groups(seed):
        return Start(*make(seed), optimizer=two_groups)

    trained("as-is", task=FactoryTask(with_groups), steps=20)
    assert rates[0] == [0.05, 0.005] and rates[1] == [0.1, 0.01]
    assert all(one == pytest.approx(10 * other) for one, other in rates)
    assert 0.001 < rates[-1][1] < 0.002


def test_spikes():
    quiet = [1.0 + 0.1 * math.sin(k) for k in range(200)]
    assert count_spikes(quiet) == 0
    assert count_spikes([*quiet[:100], 3.0, *quiet[100:], 5.0]) == 2
    assert count_spikes([1 / (1 + k) for k in range(200)]) == 0
    assert count_spikes([1.0] * 100 + [1.005]) == 0


def test_curves_are_thinned_to_means():
    means, steps = thinned([float(k) for k in range(1000)])
    assert len(means) == 200 and steps[-1] == 1000 and means[0] == 2.0
    assert math.isnan(final_loss([])) and final_loss([*range(99), 7.0]) == pytest.approx((sum(range(90, 99)) + 7) / 10)
    assert History(losses=[1.0, math.inf]).is_finite is False


def test_signals_differentiate_the_loss_of_the_model():
    torch.manual_seed(0)
    model, batch = TinyNet().eval(), data()
    numbers = stream_signals(model, ((batch[0],), {}), loss, batch)
    loss(model, batch).backward()
    norms = [torch.cat([p.grad.flatten() for p in block.parameters()]).norm() for block in model.blocks]
    assert numbers["gradient_evenness"] == pytest.approx(float(min(norms) / max(norms)), rel=1e-5)


def test_memory_counts_weights_twice_moments_and_activations():
    model = nn.Sequential(nn.Linear(10, 10, bias=False), nn.Tanh())
    optimizer = adamw(model, 1e-3)
    x = torch.randn(50, 10)
    model(x).sum().backward()
    optimizer.step()
    weights, moments, counter = 2 * 400, 2 * 400, 4
    activations = 2000 + 2000  # the input of the matrix and the output of tanh
    expected = weights + moments + counter + activations
    assert memory_megabytes(model, optimizer, lambda model, x: model(x).sum(), x) == pytest.approx(expected / 2**20)

"""Signals are logged during training and change nothing."""

from __future__ import annotations

import math

import pytest
import torch
from tests.lab.train.training_cases import ALONE, StepObserver, corpus, network, train_config
from torch import nn
from torch.nn import functional as F

import normplace as npl
from normplace.errors import UsageError
from normplace.lab.train.data import held_out_sequences
from normplace.lab.train.log import TRACKERS, read_log
from normplace.lab.train.loop import fit
from normplace.lab.train.observer import TrainingObserver
from normplace.lab.train.signal_log import SignalsConfig


class Noisy(nn.Module):
    """Has dropout, so that its losses depend on the RNG state and the mode."""

    def __init__(self):
        super().__init__()
        self.network = network()

    def forward(self, ids):
        return F.dropout(self.network(ids), 0.3, self.training)


def trained(out, signals, build=Noisy, **changes):
    model = build()
    fit(model, corpus(), train_config(**changes), out, ALONE, signals=signals)
    return model


def lines(out, event):
    return [line for line in read_log(out) if line["event"] == event]


@pytest.mark.parametrize("changes", [{}, {"precision": "bfloat16", "accumulate": 2}], ids=["float32", "bfloat16"])
def test_measurements_do_not_change_a_bit(tmp_path, changes):
    plain = trained(tmp_path / "plain", None, **changes)
    measured = trained(tmp_path / "measured", SignalsConfig(every=3), **changes)
    for name, value in plain.state_dict().items():
        assert value.equal(measured.state_dict()[name]), name
    numbers = [
        [{key: line[key] for key in ("step", "loss", "gradient_norm")} for line in lines(tmp_path / run, "step")]
        for run in ("plain", "measured")
    ]
    assert numbers[0] == numbers[1]
    held_out = [[line["held_out_loss"] for line in lines(tmp_path / run, "held-out")] for run in ("plain", "measured")]
    assert held_out[0] == held_out[1]
    assert lines(tmp_path / "plain", "signals") == []
    assert [line["step"] for line in lines(tmp_path / "measured", "signals")] == [0, 3, 6, 8]


def test_a_line_has_the_numbers_of_npl_signals(tmp_path):
    model = trained(tmp_path, SignalsConfig(every=100, sequences=2), network)
    batch = held_out_sequences(corpus().held_out, 8, 2)
    expected = npl.signals(
        model, batch[:, :-1], loss=lambda out: F.cross_entropy(out.flatten(0, 1), batch[:, 1:].flatten())
    )
    first, last = lines(tmp_path, "signals")
    assert last["depths"] == [depth.name for depth in expected.depths]
    for name in ("variance", "peak", "fp16_headroom"):
        assert last[name] == [getattr(depth, name) for depth in expected.depths]
    assert last["gradient"] == [depth.gradient for depth in expected.depths]
    assert (last["loss"], last["gradient_norm"]) == (expected.loss, expected.gradient)
    assert first["loss"] == pytest.approx(math.log(31), rel=0.2)  # before the first step
    assert max(rate for rate in last["effective_lr"] if rate is not None) < 0.1  # of AdamW, not of a gradient step


def test_trackers_get_one_scalar_per_depth(tmp_path, monkeypatch):
    written = {}

    class Tracker:
        def __init__(self, out, config):
            pass

        def write(self, step, values):
            written.setdefault(step, {}).update(values)

        def close(self):
            pass

    monkeypatch.setitem(TRACKERS, "tensorboard", Tracker)
    fit(network(), corpus(), train_config(), tmp_path, ALONE, trackers="tensorboard", signals=SignalsConfig(every=4))
    assert set(written) == set(range(9))
    assert "normplace/variance/depth_04" in written[4]
    assert "normplace/variance/depth_04" not in written[5]
    assert written[4]["normplace/peak/depth_01"] == lines(tmp_path, "signals")[1]["peak"][1]
    assert written[4]["loss"] == lines(tmp_path, "step")[3]["loss"]  # and not that of the measured batch


def test_a_resumed_run_measures_at_the_same_steps(tmp_path):
    class Stopped(Exception):
        pass

    events = []

    class Observer(TrainingObserver):
        def on_resume(self, step):
            events.append(("resumed", step))

        def on_signals(self, step, signals):
            events.append((step, signals.loss))

    def stop(step):
        if step.number == 6:
            raise Stopped

    with pytest.raises(Stopped):
        fit(
            network(),
            corpus(),
            train_config(),
            tmp_path,
            ALONE,
            signals=SignalsConfig(every=2),
            observer=StepObserver(stop),
        )
    fit(network(), corpus(), train_config(), tmp_path, ALONE, signals=SignalsConfig(every=2), observer=Observer())
    assert [event[0] for event in events] == ["resumed", 6, 8]
    assert [line["step"] for line in lines(tmp_path, "signals")] == [0, 2, 4, 6, 8]


def test_a_model_without_residual_adds_is_an_error_before_the_first_step(tmp_path):
    with pytest.raises(UsageError, match="has no residual add"):
        trained(tmp_path, SignalsConfig(), lambda: nn.Sequential(nn.Embedding(31, 8), nn.Linear(8, 31)))
    assert lines(tmp_path, "step") == []


def test_invalid_settings_are_errors():
    with pytest.raises(UsageError, match="every must be at least 1, got 0"):
        SignalsConfig(every=0)
    with pytest.raises(UsageError, match="sequences takes a whole number"):
        SignalsConfig(sequences=1.5)  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # Dynamo reads it
def test_compiled_layers_are_measured(tmp_path, monkeypatch):
    compile_module = nn.Module.compile
    monkeypatch.setattr(nn.Module, "compile", lambda self, **options: compile_module(self, backend="eager", **options))
    torch.compiler.reset()
    trained(tmp_path / "eager", SignalsConfig(every=4), network)
    trained(tmp_path / "compiled", SignalsConfig(every=4), network, compile=True)
    eager, compiled = (lines(tmp_path / run, "signals")[-1]["variance"] for run in ("eager", "compiled"))
    assert compiled == pytest.approx(eager, rel=1e-4)

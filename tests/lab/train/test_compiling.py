"""Layers are compiled once for all, and compilation is measured."""

from __future__ import annotations

import pytest
import torch
from tests.lab.train.training_cases import ALONE, corpus, network, train_config
from torch import nn

from normplace.lab.train.compiling import CompileTimer, compile_regions, regions
from normplace.lab.train.log import read_log
from normplace.lab.train.loop import fit
from normplace.lab.train.observer import TrainingObserver
from normplace.residual import Residual

pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # Dynamo reads it


@pytest.fixture
def graphs(monkeypatch):
    """The graphs that are compiled, by a backend that runs them as they are."""
    compiled = []

    def backend(graph, inputs):
        compiled.append(graph)
        return graph

    compile_module = nn.Module.compile
    monkeypatch.setattr(nn.Module, "compile", lambda self, **options: compile_module(self, backend=backend, **options))
    torch.compiler.reset()
    return compiled


@pytest.mark.parametrize(("placement", "expected"), [("b2t", 3), ("siamese", 2)])
def test_one_region_is_compiled_for_all(graphs, placement, expected):
    # Layers of one stream are tested in test_steps.py. In b2t, a block is called with and without an extra residual.
    model, eager = network(placement), network(placement)
    compile_regions(model)
    ids = torch.arange(12).reshape(2, 6)
    torch.testing.assert_close(model(ids), eager(ids), atol=1e-6, rtol=0)
    assert len(graphs) <= expected
    assert len(graphs) > 0


def test_layers_with_their_own_constants_are_all_compiled(graphs):
    model, eager = network("lns"), network("lns")  # the scale depends on the layer
    compile_regions(model)
    ids = torch.arange(12).reshape(2, 6)
    torch.testing.assert_close(model(ids), eager(ids), atol=1e-6, rtol=0)
    assert len(graphs) == 2


def test_regions_of_other_networks():
    block = Residual(nn.Linear(4, 4), 4, "pre")
    assert regions(nn.Sequential(block, nn.Linear(4, 2))) == [block]
    linear = nn.Linear(4, 2)
    assert regions(linear) == [linear]


def test_compilation_is_timed_and_left_out_of_the_steps(graphs, tmp_path, monkeypatch):
    reported = []

    class Observer(TrainingObserver):
        def on_compile(self, seconds):
            reported.append(seconds)

    result = fit(network(), corpus(), train_config(compile=True), tmp_path, ALONE, observer=Observer())
    lines = [line for line in read_log(tmp_path) if line["event"] == "compile"]
    assert lines[0]["step"] == 1  # training
    assert lines[1]["step"] == 4  # the first evaluation
    assert [line["seconds"] for line in lines] == reported
    assert result.compile_seconds == pytest.approx(sum(reported))
    first = next(line for line in read_log(tmp_path) if line["event"] == "step")
    assert first["seconds"] > 0
    assert first["seconds"] + reported[0] < result.seconds


def test_the_timer_is_removed():
    from torch._dynamo.callback import callback_handler

    before = len(callback_handler.start_callbacks)
    with CompileTimer().running():
        assert len(callback_handler.start_callbacks) == before + 1
    assert len(callback_handler.start_callbacks) == before

from __future__ import annotations

import math
import time

import numpy as np
import pytest
import torch

from normplace.lab.train import steps
from normplace.lab.train.compiling import compile_regions
from normplace.lab.train.config import TrainConfig
from normplace.lab.train.data import TokenWindows
from normplace.lab.train.optimizer import graphed_adamw, parameter_groups
from normplace.lab.train.steps import Pause, Paused, StepHistory, spikes, take_steps
from normplace.models.sequence import SequenceModel
from normplace.models.transformer import AttentionConfig, Transformer, TransformerConfig

pytestmark = pytest.mark.usefixtures("one_thread")
CONFIG = TrainConfig(context=16, batch=4, steps=50, learning_rate=1e-2, warm_up=0.1)
TEXT = np.frombuffer(b"where should the norm sit? " * 40, dtype=np.uint8)


def network(placement: str = "peri", seed: int = 0) -> Transformer:
    config = TransformerConfig(256, 16, 2, placement=placement, attention=AttentionConfig(heads=2))
    return Transformer(config, generator=torch.Generator().manual_seed(seed))


def train(config: TrainConfig = CONFIG, pause: Pause | None = None, at=(0, 25)) -> tuple[StepHistory, Transformer]:
    model = network()
    optimizer = torch.optim.AdamW(parameter_groups(model, 0.1), lr=1.0)
    windows = TokenWindows(TEXT, config.context, config.seed)
    options = {"measure": lambda taken: {"steps": [taken]}, "measure_at": at, "pause": pause}
    return take_steps(model, optimizer, windows, config, torch.device("cpu"), **options), model


def test_the_loss_falls_and_measurements_are_taken():
    history, _ = train()
    assert len(history.losses) == len(history.gradient_norms) == CONFIG.steps
    assert history.losses[0] == pytest.approx(math.log(256), rel=0.1)
    assert history.losses[-1] < 0.5 * history.losses[0]
    assert history.measured == {taken: {"steps": [taken]} for taken in (0, 25, 50)}
    assert history.diverged is None


def test_accumulation_computes_the_same_step():
    whole, _ = train()
    parts, _ = train(TrainConfig(**{**vars(CONFIG), "accumulate": 2}))
    assert parts.losses[:5] == pytest.approx(whole.losses[:5], rel=1e-4)
    assert parts.gradient_norms[:5] == pytest.approx(whole.gradient_norms[:5], rel=1e-3)


def test_a_paused_run_resumes_with_the_same_bits(tmp_path):
    expected, model = train()
    path = tmp_path / "state" / "run.pt"
    with pytest.raises(Paused):
        train(pause=Pause(path, time.monotonic()))
    assert path.exists()
    resumed, same = train(pause=Pause(path, math.inf))
    assert resumed == expected
    assert all(torch.equal(*pair) for pair in zip(model.parameters(), same.parameters(), strict=True))
    assert not path.exists()


def test_the_graphed_optimizer_takes_the_same_steps():
    expected, _ = train()
    model = network()
    device = torch.device("cpu")
    optimizer = graphed_adamw(model, 0.1, (0.9, 0.999), device)
    windows = TokenWindows(TEXT, CONFIG.context, CONFIG.seed)
    options = {"measure": lambda taken: None, "measure_at": (), "cuda_graph": True}  # there is no graph on a CPU
    history = take_steps(model, optimizer, windows, CONFIG, device, **options)
    assert history.losses == pytest.approx(expected.losses, rel=1e-4)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="a CUDA graph needs a GPU")
@pytest.mark.parametrize("mixer", ["relation", "attention", "linear-attention", "gated-linear"])
def test_a_recorded_step_is_the_eager_step_and_resumes(mixer, tmp_path):
    device = torch.device("cuda")
    config = TrainConfig(**{**vars(CONFIG), "precision": "bfloat16"})

    def losses(cuda_graph: bool, pause: Pause | None = None) -> list[float]:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = SequenceModel(256, 32, 2, mixer=mixer, context=config.context).to(device)
        optimizer = graphed_adamw(model, 0.1, (0.9, 0.95), device)
        windows = TokenWindows(TEXT, config.context, config.seed)
        options = {"measure": lambda taken: None, "measure_at": (), "pause": pause, "cuda_graph": cuda_graph}
        return take_steps(model, optimizer, windows, config, device, **options).losses

    eager = losses(cuda_graph=False)
    # The order of atomic additions in bfloat16 changes the losses of later steps slightly.
    assert losses(cuda_graph=True) == pytest.approx(eager, rel=0.02)
    with pytest.raises(Paused):
        losses(cuda_graph=True, pause=Pause(tmp_path / "run.pt", time.monotonic()))
    assert losses(cuda_graph=True, pause=Pause(tmp_path / "run.pt", math.inf)) == pytest.approx(eager, rel=0.02)


def test_a_run_that_diverges_stops(monkeypatch):
    monkeypatch.setattr(steps, "BLOCK", 5)
    history, _ = train(TrainConfig(**{**vars(CONFIG), "learning_rate": 1e30, "warm_up": 0.0}))
    assert history.diverged is not None
    assert len(history.losses) < 15
    assert max(history.measured) == len(history.losses)


def test_spikes_are_counted_against_the_steps_before():
    values = [1.0] * 100
    values[10] = values[80] = 9.0
    values[90] = math.nan
    assert spikes(values, lambda value, middle: value > 3 * middle) == 2
    assert spikes(values, lambda value, middle: value > 3 * middle, first=85) == 1


def test_weight_decay_of_vectors():
    matrices, vectors = parameter_groups(network(), 0.1)
    assert (matrices["weight_decay"], vectors["weight_decay"]) == (0.1, 0.0)
    assert {parameter.ndim for parameter in vectors["params"]} == {1}
    assert parameter_groups(network(), 0.1, decay_vectors=True)[1]["weight_decay"] == 0.1


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # Dynamo reads it
def test_layers_and_networks_share_compiled_code(monkeypatch):
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph

    compile_module = torch.nn.Module.compile
    monkeypatch.setattr(
        torch.nn.Module, "compile", lambda self, **options: compile_module(self, **options, backend=backend)
    )
    torch.compiler.reset()
    ids = torch.arange(12).reshape(2, 6)
    for placement in ("pre", "peri"):
        for seed in (0, 1):
            model, eager = network(placement, seed), network(placement, seed)
            compile_regions(model)
            assert torch.allclose(model(ids), eager(ids), atol=1e-6)
    assert len(graphs) == 2
    with torch.compiler.set_stance("force_eager"), torch.no_grad():
        model(ids)
    assert len(graphs) == 2

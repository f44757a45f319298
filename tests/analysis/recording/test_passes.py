"""A pass leaves a model as it was."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import normplace as npl
from normplace.analysis.recording.passes import ForwardError, evaluating, record_pass, training


class Counting(nn.Module):
    """Blocks that count their calls in a buffer, which their output depends on."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(8) for _ in range(3))
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.calls = nn.Buffer(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls.add_(1)
        for norm, layer in zip(self.norms, self.layers, strict=True):
            x = x + layer(norm(x)) / (1 + 0 * self.calls)
        return x


X = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
CALLS = {
    "audit": lambda model: npl.audit(model, X),
    "signals": lambda model: npl.signals(model, X, lambda y: y.square().mean()),
    "survival": lambda model: npl.survival(model, X),
    "fold": lambda model: npl.fold(model, X),
    "fuse": lambda model: npl.fuse(model, X),
    "swap": lambda model: npl.swap(model, X, norm="rms"),
}


@pytest.mark.parametrize("name", CALLS)
def test_buffers_are_not_written(name):
    model = Counting()
    model(X)
    result = CALLS[name](model)
    assert model.calls == 1
    if isinstance(result, nn.Module):
        assert result.calls == 1


def test_a_buffer_that_a_pass_replaces_stays():
    model = nn.Linear(2, 2)
    model.register_buffer("cache", None)
    with evaluating(model):
        model.cache = torch.ones(3)
    assert torch.equal(model.cache, torch.ones(3))


def test_training_restores_the_buffers_that_it_writes():
    class Expanded(nn.BatchNorm1d):
        def __init__(self):
            super().__init__(4)
            self.register_buffer("shared", torch.zeros(1).expand(4))  # it cannot be written

    model = Expanded().eval()
    with training(model), torch.no_grad():
        model(torch.randn(8, 4))
        assert model.running_mean.abs().max() > 0
    assert model.running_mean.abs().max() == 0


def test_a_loss_that_cannot_be_differentiated_is_reported():
    class InPlace(Counting):
        def forward(self, x: Tensor) -> Tensor:
            x = x.clone()
            for norm, layer in zip(self.norms, self.layers, strict=True):
                x += layer(norm(x))
            return x

    with pytest.raises(npl.UsageError, match="the backward pass failed"):
        npl.signals(InPlace(), X, lambda y: y.square().mean())


def test_a_dict_of_inputs_is_passed_by_name():
    with pytest.raises(ForwardError, match="pass the entries of a dict by name, with two stars before it"):
        record_pass(nn.Linear(2, 2), ({"input": torch.zeros(1, 2)},), {})


@pytest.mark.parametrize(
    "call",
    [
        lambda model: npl.audit(model, X),
        lambda model: npl.survival(model, X),
        lambda model: npl.signals(model, X),
        lambda model: npl.move(model, X, to="peri"),
        lambda model: npl.swap(model, X, norm="rms"),
        lambda model: npl.insert(model, npl.Scale("degree"), values=torch.ones(4)),
        lambda model: npl.accelerate(model),
    ],
)
def test_lazy_layers_need_a_call(call):
    model = nn.Sequential(nn.LazyLinear(8), nn.LayerNorm(8))
    with pytest.raises(npl.UsageError, match=r"'0\.weight' has no shape yet: call the model once"):
        call(model)

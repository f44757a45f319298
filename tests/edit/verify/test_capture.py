"""Edits of models whose first pass differs from the later ones."""

from __future__ import annotations

import copy

import pytest
import torch
from tests.edit.small_models import Caching, Stack, features
from torch import Tensor, nn

import normplace as npl

OPTIONS = ({"to": "peri"}, {"to": "keel"}, {"to": "sub", "init": "kept"}, {"qk": "rms"})


def stack() -> nn.Module:
    torch.manual_seed(0)
    return Stack(*(Caching() for _ in range(3)))


@torch.random.fork_rng()
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_model_is_edited_alike_before_and_after_its_first_pass(options):
    x, new, used = features(2, 5), stack(), stack()
    used(x)
    moved, expected = npl.move(new, x, **options), npl.move(used, x, **options)
    assert npl.changes(moved).sites == npl.changes(expected).sites
    assert torch.equal(moved(x), expected(x))


@torch.random.fork_rng()
def test_signals_are_the_same_before_and_after_the_first_pass():
    x, new, used = features(2, 5), stack(), stack()
    used(x)
    measured, expected = (npl.signals(model, x, loss=lambda y: y.square().mean()) for model in (new, used))
    assert measured == expected
    copy.deepcopy(new)  # without the graphs of the tensors that it keeps


def test_signals_leave_the_graph_of_a_tensor_that_the_model_kept_before():
    class Chunked(nn.Module):
        """Adds the state of the chunk before."""

        def __init__(self):
            super().__init__()
            self.norm, self.map = nn.LayerNorm(8), nn.Linear(8, 8)
            self.state = self.map(torch.ones(8))

        def forward(self, x):
            return x + self.map(self.norm(x)) + self.state

    model = Chunked()
    npl.signals(model, features(2, 8), loss=lambda y: y.square().mean())
    assert model.state.grad_fn is not None


class Alternating(nn.Module):
    """A block whose branch has one more operator in every second pass."""

    def __init__(self):
        super().__init__()
        self.norm, self.branch, self.calls = nn.LayerNorm(8), nn.Linear(8, 8), 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        y = self.norm(x)
        return x + self.branch(y.relu() if self.calls % 2 else y)


def test_a_model_that_runs_other_operators_at_each_call_is_refused():
    with pytest.raises(npl.UsageError, match="runs different operators at each call"):
        npl.move(nn.Sequential(Alternating(), Alternating()), torch.randn(4, 8), to="peri")


@torch.random.fork_rng()
def test_compiled_layers_are_edited_and_measured_by_their_own_operators(recwarn):
    x, model, compiled = features(2, 5), stack(), stack()
    calls: list[int] = []

    def backend(graph, inputs):
        calls.append(len(inputs))
        return graph.forward

    for index, layer in enumerate(compiled.layers):
        compiled.layers[index] = torch.compile(layer, backend=backend)
    assert torch.equal(npl.move(compiled, x, to="peri").eval()(x), npl.move(model, x, to="peri").eval()(x))
    calls.clear()
    npl.move(compiled, x, to="post")
    npl.swap(compiled, x, norm="rms")
    npl.fold(compiled, x)
    measured, expected = (npl.signals(one, x, loss=lambda y: y.square().mean()) for one in (compiled, model))
    assert measured.gradient == expected.gradient
    assert [depth.variance for depth in measured.depths] == [depth.variance for depth in expected.depths]
    assert not calls
    assert not recwarn.list

"""Hooks and custom autograd functions change the kernel as they change the gradients of autograd, sample by sample."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.ntk.empirical_kernel.cases import contraction, jacobian
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

from normplace.ntk import empirical, empirical_blocks

FACTORS = torch.tensor([1.0, 3.0, 0.5, -2.0], dtype=torch.float64)


class Gradient(torch.autograd.Function):
    """The identity, with a function of the gradient in its backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.change = change
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return ctx.change(grads[0]), None


class Network(nn.Module):
    """A network that passes the outputs of its layers to a function."""

    def __init__(self, has_scale: bool) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.norm = nn.LayerNorm(4)
        self.scale = nn.Parameter(torch.linspace(0.5, 1.5, 4)) if has_scale else 1.0
        self.visit: Callable[[Tensor], Tensor | None] = lambda h: None

    def _layer(self, layer: nn.Module, x: Tensor) -> Tensor:
        h = layer(x)
        changed = self.visit(h)
        return h if changed is None else changed

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self._layer(self.first, x))
        h = self.norm(torch.tanh(self._layer(self.second, h))) * self.scale
        return self._layer(self.third, h)


def halved(grads: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
    return tuple(None if grad is None else grad / 2 for grad in grads)


def hook_tensors(change: Callable[[Tensor], Tensor]) -> Callable[[Network], object]:
    return lambda model: setattr(model, "visit", lambda h: h.register_hook(change) and None)


def use_function(change: Callable[[Tensor], Tensor]) -> Callable[[Network], object]:
    return lambda model: setattr(model, "visit", lambda h: Gradient.apply(h, change))


def hook_nodes(register: Callable[[Any], object]) -> Callable[[Network], object]:
    return lambda model: setattr(model, "visit", lambda h: register(h.grad_fn) and None)


CHANGES: dict[str, Callable[[Network], object]] = {
    "tensors, scaled": hook_tensors(lambda grad: grad * FACTORS),
    "tensors, by the batch size": hook_tensors(lambda grad: grad / len(grad)),
    "tensors, clipped": hook_tensors(lambda grad: grad / grad.norm()),
    "nodes, before": hook_nodes(lambda node: node.register_prehook(halved)),
    "nodes, after": hook_nodes(lambda node: node.register_hook(lambda grads, _: halved(grads))),
    "edges": lambda model: setattr(
        model,
        "visit",
        lambda h: get_gradient_edge(h).node.register_hook(lambda grads, _: halved(grads)) and None,
    ),
    "parameter of a layer": lambda model: model.second.weight.register_hook(lambda grad: grad / 2),
    "parameter, clipped": lambda model: model.third.bias.register_hook(lambda grad: grad.clamp(-0.1, 0.1)),
    "module": lambda model: model.second.register_full_backward_hook(lambda _, grads, outputs: halved(grads)),
    "module, by the batch size": lambda model: model.norm.register_full_backward_hook(
        lambda _, grads, outputs: (grads[0] / len(grads[0]),)
    ),
    "module, before": lambda model: model.second.register_full_backward_pre_hook(lambda _, grads: halved(grads)),
    "whole model": lambda model: model.register_full_backward_pre_hook(lambda _, grads: (grads[0] * FACTORS,)),
    "function, scaled": use_function(lambda grad: grad * FACTORS),
    "function, by the batch size": use_function(lambda grad: grad / len(grad)),
    "function, clipped": use_function(lambda grad: grad.clamp(-0.1, 0.1)),
}


def network(has_scale: bool = True) -> Network:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Network(has_scale).double()


def samples(n: int, seed: int = 0) -> Tensor:
    return torch.randn(n, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def assert_exact(model: nn.Module, x: Tensor, other: Tensor) -> None:
    # Sums of products in float64, and outputs of size one.
    rounding: dict[str, float] = {"rtol": 1e-10, "atol": 1e-10}
    expected = contraction(model, x, x)
    torch.testing.assert_close(empirical(model, x), expected, **rounding)
    torch.testing.assert_close(empirical(model, x, other), contraction(model, x, other), **rounding)
    trace = expected.diagonal(dim1=1, dim2=3).sum(-1)
    torch.testing.assert_close(empirical(model, x, output="trace"), trace, **rounding)
    j = jacobian(model, x)
    torch.testing.assert_close(empirical(model, x, diagonal=True), j @ j.mT, **rounding)


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
@pytest.mark.parametrize("has_scale", [False, True], ids=["layers", "layers and scale"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_gradient_changes_the_kernel(change, has_scale):
    model, x, other = network(has_scale), samples(9), samples(5, seed=1)
    assert_exact(model, x, other)  # the plan is remembered
    CHANGES[change](model)
    for _ in range(2):
        assert_exact(model, x, other)


@pytest.mark.parametrize("change", ["tensors, scaled", "parameter of a layer", "function, scaled"])
def test_blocks(change):
    model, x = network(), samples(9)
    CHANGES[change](model)
    expected = contraction(model, x, x)
    for rows, columns, block in empirical_blocks(model, x, block=4):
        torch.testing.assert_close(block, expected[rows][:, :, columns], rtol=1e-10, atol=1e-10)


def test_a_hook_that_only_large_batches_have():
    model, x = network(), samples(20)
    model.visit = lambda h: h.register_hook(lambda grad: grad / 2) and None if len(h) > 10 else None
    torch.testing.assert_close(empirical(model, x), contraction(model, x, x), rtol=1e-10, atol=1e-10)


def test_a_model_that_expects_a_graph_which_torch_func_does_not_have():
    model, x = network(), samples(9)

    def expect_graph(h: Tensor) -> None:
        assert h.grad_fn is not None

    model.visit = expect_graph
    torch.testing.assert_close(empirical(model, x), contraction(model, x, x), rtol=1e-10, atol=1e-10)

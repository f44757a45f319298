"""The gradients of moved models are checked."""

from __future__ import annotations

import copy

import pytest
import torch
from tests.edit.small_models import WIDTH, Block, Stack, features, mlp
from torch import Tensor, nn

import normplace as npl
from normplace.edit.verify.gradients import BackwardPass, check_gradients
from normplace.errors import UsageError


class Frozen(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.branch, self.out = nn.LayerNorm(WIDTH), mlp(), nn.Linear(WIDTH, 2)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            x = x + self.branch(self.norm(x))
        return self.out(x)


class DoubledGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.tanh()

    @staticmethod
    def backward(ctx, gradient):
        return 2 * gradient


class WithDoubledGradient(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(DoubledGradient.apply(self.norm(x)))


class Overwriting(nn.Module):
    """Writes into a tensor that the backward pass needs, so it cannot train."""

    def __init__(self):
        super().__init__()
        self.norm, self.up = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x).exp()
        y = self.up(h)
        h.add_(1)
        return y + h


class KeptLoss(Block):
    """A block that keeps a loss of its branch, as routers do."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.branch(self.norm(x))
        self.loss = y.square().mean()
        return x + y


def test_a_moved_model_that_keeps_losses_can_be_copied():
    moved = npl.move(Stack(KeptLoss(), KeptLoss()), features(2, 4), to="peri")
    twin = copy.deepcopy(moved)
    assert torch.equal(twin(features(2, 4)), moved(features(2, 4)))


def test_norms_without_a_gradient_are_refused():
    with pytest.raises(UsageError, match=r"'placed\.branch_output' receives no gradient"):
        npl.move(Frozen(), features(2, 5), to="peri")


def test_a_wrong_gradient_differs_from_a_finite_difference():
    model = WithDoubledGradient()
    with pytest.raises(UsageError, match="finite difference, because of the backward pass of DoubledGradient"):
        check_gradients(model, model, ((features(2, 5),), {}), {"norm": model.norm})


def test_a_correct_gradient_matches_and_leaves_no_trace():
    model = Stack(Block())
    backward = BackwardPass(model, ((features(2, 5),), {}), {"norm": model.norm})
    assert backward.matches_finite_difference()
    assert backward.missing == set()
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_model_that_overwrites_saved_tensors_is_still_checked():
    model = Overwriting()
    with pytest.raises(RuntimeError, match="inplace operation"):
        model(features(2, 5)).sum().backward()
    backward = BackwardPass(model, ((features(2, 5),), {}), {"norm": model.norm})
    assert backward.error is None
    assert backward.reached == {name for name, _ in model.named_parameters()}


def test_other_errors_of_the_backward_pass_are_reported():
    class Failing(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            raise RuntimeError("no backward pass here.")

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.LayerNorm(WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            return Failing.apply(self.norm(x))

    assert BackwardPass(Model(), ((features(2, 5),), {}), {}).error == "no backward pass here"

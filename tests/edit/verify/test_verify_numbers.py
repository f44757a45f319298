"""Moves that the analysis alone accepts are refused if the numbers do not fit the placement."""

from __future__ import annotations

import copy
import sys

import pytest
import torch
from tests.edit.small_models import WIDTH, Block, Shortcut, Stack, features, mlp
from torch import Tensor, nn
from torch.nn import functional as F

import normplace as npl
from normplace.analysis.norms.find import Norm
from normplace.edit.model.new_norms import NormFactory
from normplace.edit.verify.numbers import check_statistics
from normplace.errors import UsageError


class Reversing(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, layer):
        ctx.layer = layer
        with torch.no_grad():
            result = x + layer.branch(layer.norm(x))
        ctx.save_for_backward(x)
        return result

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            y = x + ctx.layer.branch(ctx.layer.norm(x))
            y.backward(gradient)
        return x.grad, None


class Reversible(Block):
    """A block with a user-defined backward pass, as in reversible networks."""

    def forward(self, x: Tensor) -> Tensor:
        return Reversing.apply(x, self)


class Mixture(nn.Module):
    """A mixture of experts whose router weights are divided by their L1 norm."""

    def __init__(self):
        super().__init__()
        self.router, self.experts = nn.Linear(WIDTH, 3), nn.ModuleList(mlp() for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        p, _ = self.router(x).softmax(-1).topk(2)
        p = p / p.norm(p=1, dim=-1, keepdim=True)
        outputs = torch.stack([expert(x) for expert in self.experts], -1)
        return (outputs * p.unsqueeze(-2)).sum(-1)


class Routed(Block):
    def __init__(self):
        super().__init__()
        self.branch = Mixture()


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.mlp, self.gate = mlp(), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, more: dict[str, Tensor]) -> Tensor:
        return self.mlp(x) * self.gate(more["gate"]).sigmoid()


class ReadsTwice(nn.Module):
    """Post-norm. A gate of the branch reads the stream separately."""

    def __init__(self):
        super().__init__()
        self.norm, self.branch = nn.LayerNorm(WIDTH), Gated()

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x + self.branch(x, {"gate": x}))


def test_a_norm_on_a_part_of_the_sum_is_refused():
    with pytest.raises(UsageError, match=r"would not read the whole sum, because 'layers\.0' adds another branch"):
        npl.move(Stack(Shortcut(), Shortcut()), features(2, 5), to="post")


@pytest.mark.parametrize("to", ["post", "peri", "output", "none"])
def test_blocks_with_a_user_defined_backward_pass_are_refused(to):
    with pytest.raises(UsageError, match=r"runs in Reversing, whose backward pass"):
        npl.move(Stack(Reversible(), Reversible()), features(2, 5), to=to)


def test_router_weights_are_not_an_output_norm():
    model, x = Stack(Routed(), Routed()), features(2, 5)
    moved = npl.move(model, x, to="output")
    added = [change.name for change in npl.changes(moved).where("added")]
    assert added == [f"layers.{layer}.placed.branch_output" for layer in range(2)]
    before, after = moved(x), copy.deepcopy(moved)
    for layer in after.layers:  # the output norm hides the size of the experts
        for expert in layer.branch.experts:
            expert[-1].weight.data.mul_(100)
            expert[-1].bias.data.mul_(100)
    torch.testing.assert_close(after(x), before, rtol=1e-3, atol=1e-3)


def test_a_placed_norm_that_does_not_normalize_is_refused(monkeypatch):
    monkeypatch.setattr(sys.modules["normplace.edit.move.api"], "verify_placement", lambda *_: None)
    monkeypatch.setattr(NormFactory, "build", lambda *_: (nn.Identity(), ""))
    with pytest.raises(UsageError, match=r"'layers\.0\.placed\.branch_output' normalizes nothing"):
        npl.move(Stack(Block(), Block()), features(2, 5), to="peri")


def test_a_branch_that_reads_the_stream_without_its_norm_is_refused():
    with pytest.raises(UsageError, match="reads the stream without the input norm"):
        npl.move(Stack(ReadsTwice(), ReadsTwice()), features(2, 5), to="pre")


@pytest.mark.parametrize("kind", ["layer", "rms", "l2"])
@pytest.mark.parametrize("affine", [True, False])
def test_statistics(kind, affine):
    x = 3 * features(4, 6) + 1
    normed = {
        "layer": F.layer_norm(x, (WIDTH,), eps=0.0),
        "rms": x / x.square().mean(-1, keepdim=True).sqrt(),
        "l2": F.normalize(x, dim=-1),
    }
    gain = torch.rand(WIDTH, generator=torch.Generator().manual_seed(1)) if affine else 1.0
    norm = Norm(kind, 0, 1, frozenset(), 0, 0, 0.0, affine=affine)
    check_statistics("norm", norm, {0: x, 1: gain * normed[kind]})
    check_statistics("norm", norm, {0: x.mT.contiguous(), 1: (gain * normed[kind]).mT.contiguous()})
    for wrong in (x, x / x.abs().sum(-1, keepdim=True), x / x.abs().amax(-1, keepdim=True), x.tanh()):
        with pytest.raises(UsageError, match="does not return normalized features"):
            check_statistics("norm", norm, {0: x, 1: gain * wrong})

"""Sums in a function that a method calls, and sums whose norm reads their rows in another shape, are fused too."""

from __future__ import annotations

import pickle

import pytest
import torch
from tests.edit.fuse.fuse_models import agree, build, count_kernels, first_output, gradients, mlp, rows
from torch import Tensor, nn
from torch.nn import functional as F

import normplace as npl

WIDTH = 16


def dropout_add(x: Tensor, residual: Tensor, prob: float, training: bool = False) -> Tensor:
    """As Falcon and Bloom have it in Hugging Face's code."""
    out = F.dropout(x, p=prob, training=training)
    return residual + out


def weighted_add(x: Tensor, residual: Tensor) -> Tensor:
    return torch.add(residual, x, alpha=1)


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.first, self.second = mlp(), mlp()


class Helped(Base):
    def forward(self, x: Tensor) -> Tensor:
        x = dropout_add(self.first(self.before(x)), x, 0.5, training=self.training)
        return x + self.second(self.norm(x))


class Other(Base):
    """The function does not write the sum as a + b."""

    def forward(self, x: Tensor) -> Tensor:
        x = weighted_add(self.first(self.before(x)), x)
        return x + self.second(self.norm(x))


class Nested(Base):
    """The function is not a global of the module."""

    def forward(self, x: Tensor) -> Tensor:
        def add(f: Tensor) -> Tensor:
            return x + f

        x = add(self.first(self.before(x)))
        return x + self.second(self.norm(x))


class Reshaped(Base):
    """The norm reads the rows of the sum in another shape, as in OPT."""

    def forward(self, x: Tensor) -> Tensor:
        shape = x.shape
        x = x + self.first(self.before(x))
        x = x.reshape(-1, WIDTH)
        return (x + self.second(self.norm(x))).view(shape)


class Network(nn.Module):
    def __init__(self, block: nn.Module):
        super().__init__()
        self.block, self.head = block, nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.block(x))


def fused(block: type[nn.Module]) -> tuple[nn.Module, nn.Module]:
    """A model and the same, fused."""
    torch.manual_seed(0)
    model = Network(block())
    return model, npl.fuse(model, rows(), only_if_faster=False)


def own_norms(model: nn.Module, monkeypatch) -> list[nn.Module]:
    """The norms that run by their own method from now on."""
    calls, plain = [], nn.LayerNorm.forward
    monkeypatch.setattr(nn.LayerNorm, "forward", lambda self, x: calls.append(self) or plain(self, x))
    return calls


@pytest.mark.parametrize("block", [Helped, Reshaped])
@pytest.mark.parametrize("training", [False, True])
def test_the_sum_is_computed_with_its_norm(block, training, monkeypatch):
    model, result = fused(block)
    assert [part.parts for part in npl.changes(result).fusions if part.fused] == ["add, norm"]
    counts, calls = count_kernels(monkeypatch), own_norms(result, monkeypatch)
    for mode in (torch.enable_grad, torch.no_grad):
        torch.manual_seed(3)  # dropout draws the same elements
        with mode():
            result.train(training)(rows())
        assert calls == [result.block.before]
        calls.clear()
    assert counts["sum"] == 2
    outputs = []
    for each in (result, model):
        torch.manual_seed(3)
        outputs.append(gradients(each.train(training), lambda m: m(rows())))
    agree(*outputs)


def test_a_copy_by_pickle_is_fused(monkeypatch):
    model, result = fused(Helped)
    copied = pickle.loads(pickle.dumps(result)).eval()
    counts = count_kernels(monkeypatch)
    assert torch.allclose(copied(rows()), model.eval()(rows()), atol=1e-6) and counts["sum"] == 1
    assert torch.equal(npl.unfuse(copied)(rows()), model(rows()))


@pytest.mark.parametrize(
    ("block", "words"), [(Other, "does not write the sum as a"), (Nested, "a function that the method calls")]
)
def test_a_function_that_cannot_be_rewritten_is_a_reason(block, words):
    _, result = fused(block)
    assert words in npl.changes(result).fusions[0].reason


@pytest.mark.parametrize("name", ["Falcon", "Bloom", "OPT"])
def test_architectures_of_hugging_face_in_half_precision(name, monkeypatch):
    model, inputs = build(name, torch.bfloat16)
    result = npl.fuse(model, only_if_faster=False, reach="stack", **inputs)
    counts = count_kernels(monkeypatch)
    with torch.no_grad():
        assert torch.equal(first_output(result.eval()(**inputs)), first_output(model.eval()(**inputs)))
    assert counts["sum"] == sum(part.fused for part in npl.changes(result).fusions) > 0

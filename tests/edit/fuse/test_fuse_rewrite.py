"""An output norm is left out of a method only where no other code can read its result."""

from __future__ import annotations

import inspect

import pytest
import torch
from tests.edit.fuse.fuse_models import RMSNorm, mlp, rows
from torch import Tensor, nn

import normplace as npl


class Base(nn.Module):
    """One branch with an output norm."""

    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList([RMSNorm()])
        self.norm, self.branch = RMSNorm(), mlp()


class Operand(Base):
    def forward(self, x: Tensor) -> Tensor:
        return x + self.norm(self.branch(x))


class Swapped(Base):
    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.branch(x)) + x


class Indexed(Base):
    def forward(self, x: Tensor) -> Tensor:
        return x + self.norms[0](self.branch(x))


class Assigned(Base):
    def forward(self, x: Tensor, *, scale: float = 1.0) -> Tensor:
        """Keep the documentation."""
        f = self.branch(x)
        f = self.norm(f)
        f = x + f
        return scale * f


class OtherName(Base):
    def forward(self, x: Tensor) -> Tensor:
        f = self.norm(self.branch(x))
        y = x + f
        return y.abs()


class InPlace(Base):
    def forward(self, x: Tensor) -> Tensor:
        f = self.norm(self.branch(x))
        f += x
        return f


class InBranch(Base):
    """The sum is in one branch of a condition, with its norm."""

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() == 3:
            f = self.norm(self.branch(x))
            x = x + f
        else:
            x = x - self.norm(self.branch(x))
        return x


class Added(Base):
    def forward(self, x: Tensor) -> Tensor:
        return torch.add(x, self.norm(self.branch(x)))


class Helper(Base):
    def join(self, x: Tensor, f: Tensor) -> Tensor:
        f = self.norm(f)
        return x + f

    def forward(self, x: Tensor) -> Tensor:
        return self.join(x, self.branch(x))


class ReadLater(Base):
    """Another path reads the result of the norm."""

    def forward(self, x: Tensor) -> Tensor:
        f = self.norm(self.branch(x))
        y = x + f
        return y if x.dim() == 3 else f


class ReadBetween(Base):
    def forward(self, x: Tensor) -> Tensor:
        f = self.norm(self.branch(x))
        if self.training:
            f = 2 * f
        return x + f


class Conditional(Base):
    """The norm may not run."""

    def forward(self, x: Tensor) -> Tensor:
        f = self.branch(x)
        if x.dim() == 3:
            f = self.norm(f)
        return x + f


class InLoop(Base):
    def forward(self, x: Tensor) -> Tensor:
        f = x
        for _ in range(1):
            x = x + 0 * f
            f = self.norm(self.branch(x))
            y = x + f
        return y


class Dropped(Base):
    """Dropout between the norm and the sum, which is not recorded in evaluation mode."""

    def forward(self, x: Tensor) -> Tensor:
        f = nn.functional.dropout(self.norm(self.branch(x)), 0.5, self.training)
        return x + f


class Network(nn.Module):
    def __init__(self, block: nn.Module):
        super().__init__()
        self.block, self.head = block, nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.block(x))


FUSED = [Operand, Swapped, Indexed, Assigned, OtherName, InPlace, InBranch, Added, Helper]
LEFT = [ReadLater, ReadBetween, Conditional, InLoop, Dropped]


def parts(kind: type[nn.Module], training: bool = False):
    torch.manual_seed(0)
    model, x = Network(kind()), rows()
    fused = npl.fuse(model, x, only_if_faster=False)
    for each in (model, fused):
        each.train(training)
    for value in (x, x[0]):
        torch.manual_seed(1)
        expected = model(value)
        torch.manual_seed(1)
        torch.testing.assert_close(fused(value), expected)
    return npl.changes(fused).fusions


@pytest.mark.parametrize("kind", FUSED)
def test_the_norm_is_computed_with_the_sum(kind):
    assert [(part.parts, part.fused) for part in parts(kind)] == [("norm, add", True)]


@pytest.mark.parametrize("kind", LEFT)
@pytest.mark.parametrize("training", [False, True])
def test_the_norm_is_left_in_the_code(kind, training):
    fusions = parts(kind, training)
    assert [(part.parts, part.fused) for part in fusions] == [("add", False), ("norm", True)]
    assert "other code may read the result of its output norm" in fusions[0].reason


def test_the_method_keeps_its_signature_and_documentation():
    fused = npl.fuse(Network(Assigned()), rows(), only_if_faster=False)
    assert inspect.signature(fused.block.forward) == inspect.signature(Assigned().forward)
    assert fused.block.forward.function.__doc__ == "Keep the documentation."
    assert torch.equal(fused.block(rows(), scale=2.0), 2 * fused.block(rows()))


class Looped(nn.Module):
    """One line of code adds for several norms."""

    def __init__(self):
        super().__init__()
        self.norms, self.maps = nn.ModuleList(RMSNorm() for _ in range(3)), nn.ModuleList(mlp() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for norm, branch in zip(self.norms, self.maps, strict=True):
            x = x + branch(norm(x))
        return x


def test_a_sum_that_different_norms_read_is_left_to_the_model():
    fusions = parts(Looped)
    assert [(part.parts, part.fused) for part in fusions] == [("add", False), *[("norm", True)] * 3]
    assert "different norms" in fusions[0].reason


def test_source_that_cannot_be_read_is_a_reason():
    namespace = {"Base": Base}
    exec("class Typed(Base):\n def forward(self, x):\n  return x + self.norm(self.branch(x))", namespace)
    reasons = [part.reason for part in parts(namespace["Typed"])]
    assert "source cannot be read" in reasons[0]

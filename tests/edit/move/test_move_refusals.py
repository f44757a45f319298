"""Moves that are not possible are refused in one sentence with the reason."""

from __future__ import annotations

import pytest
import torch
from tests.edit.families import WIDTH, Block
from torch import nn
from torch.nn import functional as F

import normplace as npl


class Functional(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(8, 8)

    def forward(self, x):
        return x + self.up(F.layer_norm(x, (8,)))


class Captured(nn.Module):
    """A function refers to a module of this object, in a copy too."""

    def __init__(self):
        super().__init__()
        self.norm, self.up = nn.LayerNorm(8), nn.Linear(8, 8)
        self.branch = lambda x: self.up(x)

    def forward(self, x):
        return x + self.branch(self.norm(x))


class Maps(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Conv2d(2, 2, 1)

    def forward(self, x):
        return x + self.up(x)


class Fused(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.weight = nn.LayerNorm(8), nn.Parameter(torch.randn(8, 8))

    def forward(self, x):
        return torch.addmm(x, self.norm(x), self.weight)


class StochasticDepth(nn.Module):
    """In training mode other code adds the branch, as in DINOv2's blocks."""

    def __init__(self):
        super().__init__()
        self.norm, self.up = nn.LayerNorm(8), nn.Linear(8, 8)

    def forward(self, x):
        branch = self.up(self.norm(x))
        return x.index_add(0, torch.randperm(len(x))[:2], branch[:2]) if self.training else x + branch


class Reused(nn.Module):
    """One activation, one dropout or one linear map is called at two places of a branch."""

    def __init__(self, branch):
        super().__init__()
        self.up, self.down, self.act, self.drop = nn.Linear(8, 8), nn.Linear(8, 8), nn.GELU(), nn.Dropout(0.1)
        self.branch = branch

    def forward(self, x):
        return x + self.branch(self, x)


@pytest.mark.parametrize(
    ("model", "inputs", "options", "sentence"),
    [
        (Block(), 3, {"to": "perry"}, "unknown placement 'perry': did you mean 'peri'"),
        (Block(), 3, {"to": "peri", "scale": "half"}, "unknown scale 'half'"),
        (Block(), 3, {}, "choose where to put the norms"),
        (Block(), 3, {"to": 2}, "the name of a placement or a Placement, not a int"),
        (Block(), 3, {"to": "deepnorm"}, "deepnorm is defined with initial weights"),
        (Block(), 3, {"to": "none", "scale": "lns"}, "needs an input norm"),
        (nn.Linear(WIDTH, 2), 3, {"to": "pre"}, "Linear has no residual add: "),
        (Functional(), 2, {"to": "post"}, "':layer' is part of the code of 'the model'"),
        (Fused(), 2, {"to": "post"}, "part of a fused operator"),
        (Captured(), 2, {"to": "peri"}, "a copy of Captured calls modules of the original"),
        (Maps(), 4, {"to": "pre", "norm": "layer"}, "not clear which dimension holds the channels"),
        (Fused(), 2, {"to": "peri"}, "no module returns what it adds"),
        (Fused(), 2, {"qk": "rms"}, "the model has no attention"),
        (
            Reused(lambda self, x: self.down(self.act(self.up(self.act(x))))),
            2,
            {"to": "pre", "norm": "layer"},
            "'act', which reads the stream, is called elsewhere too",
        ),
        (
            Reused(lambda self, x: self.drop(self.down(self.drop(self.up(x)).relu()).sin())),
            2,
            {"to": "output", "norm": "layer"},
            "no module returns what it adds at this place only",
        ),
        (
            Reused(lambda self, x: self.up(self.up(x).relu())),
            2,
            {"to": "output", "norm": "layer"},
            "'placed.up_output', placed in its output slot, is also inside a branch",
        ),
        (StochasticDepth(), 2, {"to": "post"}, "in training mode 'the model' does not call 'placed.up_stream'"),
        (Block(), None, {"to": "pre"}, "does not take these inputs"),
        (nn.TransformerEncoderLayer(WIDTH, 2, 8, batch_first=True), 3, {"qk": "rms"}, "value of one of them alone"),
    ],
)  # fmt: skip
def test_refusals_are_one_sentence(model, inputs, options, sentence):
    shapes = {2: (5, 8), 3: (2, 3, WIDTH), 4: (2, 2, 3, 3)}
    arguments = () if inputs is None else (torch.randn(shapes[inputs]),)
    with pytest.raises(npl.UsageError, match=sentence) as error:
        npl.move(model, *arguments, **options)
    assert "\n" not in str(error.value)
    assert str(error.value)[-1] in ".?"


def test_blocks_that_drop_themselves_at_random_are_moved():
    class Dropped(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.up = nn.LayerNorm(8), nn.Linear(8, 8)

        def forward(self, x):
            if self.training and torch.rand(()) < 0.8:
                return x
            return x + self.up(self.norm(x))

    x = torch.randn(5, 8)
    moved = npl.move(nn.Sequential(*(Dropped() for _ in range(4))), x, to="post")
    assert set(npl.audit(moved, x).equations) == {"N(x + F(x))"}


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace:DeprecationWarning")
def test_a_torchscript_model_is_refused():
    x = torch.randn(5, 8)
    traced = torch.jit.trace(nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8)), x)
    for edit in (npl.fold, npl.fuse):
        with pytest.raises(npl.UsageError, match="cannot read the code of a TorchScript model"):
            edit(traced, x)

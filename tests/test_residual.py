"""The residual block: scales, inner norms, and invalid combinations."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

from normplace import BlockSpec, Branch, LayerNorm, Placement, Residual, RMSNorm, Scale, UsageError

DIM = 8


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class WithInside(Branch):
    def __init__(self):
        super().__init__()
        self.norm_sites = {"middle": DIM}
        self.first, self.second = nn.Linear(DIM, DIM), nn.Linear(DIM, DIM)

    def forward(self, x, shift=0.0):
        return self.second(self.normalize_at("middle", self.first(x))) + shift


@pytest.mark.parametrize("where", ["before", "after"])
@pytest.mark.parametrize(
    ("placement", "slot"), [("pre", None), ("peri", "input"), ("peri", "output"), ("post", None), ("deepnorm", None)]
)
def test_a_scale_is_applied_on_its_side_of_the_norm(placement, slot, where):
    scale = Scale("degree", power=-1, where=where, slot=slot)
    block = Residual(nn.Linear(DIM, DIM), DIM, placement, scale=scale)
    spec, x, degree = block.spec, draw(5, DIM), torch.tensor([1, 2, 3, 4, 100])
    factor = scale.factor(degree)
    assert torch.equal(factor[:, 0], 1 / degree.float())
    chosen = slot or spec.slots[0]

    def norm(name, value):
        module = getattr(block, f"{name}_norm")
        if name != chosen:
            return module(value)
        return module(factor * value) if where == "before" else factor * module(value)

    out = block.branch(norm("input", x) if spec.input else x)
    out = norm("output", out) if spec.output else out
    out = (x if spec.skip_scale == 1 else spec.skip_scale * x) + out
    expected = norm("stream", out) if spec.stream else out
    assert torch.equal(block(x, factor=factor), expected)
    assert "s = degree^-1" in block.equation()


def test_a_scale_survives_after_a_norm_but_not_before():
    x, degree = draw(6, DIM), torch.arange(1, 7)
    reach = {}
    for where in ("before", "after"):
        scale = Scale("degree", power=-1, where=where)
        block = Residual(nn.Identity(), DIM, "post", scale=scale)
        constant = block(x, factor=scale.factor(torch.full((6,), 3)))
        changed = block(x, factor=scale.factor(degree))
        reach[where] = float(((changed - constant).norm() / constant.norm()).detach())
    assert reach["after"] > 0.3
    assert reach["before"] < 1e-3


def test_a_factor_needs_a_scale_and_a_scale_a_factor():
    scale = Scale("degree")
    with pytest.raises(UsageError, match="pass factor"):
        Residual(nn.Identity(), DIM, "pre", scale=scale)(draw(2, DIM))
    with pytest.raises(UsageError, match="takes no factor"):
        Residual(nn.Identity(), DIM, "pre")(draw(2, DIM), factor=torch.ones(2, 1))


@pytest.mark.parametrize(
    ("values", "shown"), [([1.0, 0.0], "row 1 has 0"), ([-2.0, 1.0], "row 0 has -2"), ([1.0, float("nan")], "has nan")]
)
def test_a_scale_must_be_positive(values, shown):
    with pytest.raises(UsageError, match=shown):
        Scale("degree", power=-1).factor(torch.tensor(values))


@pytest.mark.parametrize(("power", "shown"), [(60, "degree^60' is inf for"), (-60, "degree^-60' is 0 for")])
def test_the_power_of_a_scale_may_not_overflow(power, shown):
    with pytest.raises(UsageError, match=re.escape(f"{shown} the value 40 of row 1 in torch.float32")):
        Scale("degree", power=power).factor(torch.tensor([1.0, 40.0]))


MISFITS = [
    (lambda: Residual(nn.Identity(), DIM, "none", scale=Scale("degree")), "has none around the branch"),
    (lambda: Residual(nn.Identity(), DIM, "peri", scale=Scale("degree")), "choose one with"),
    (lambda: Residual(nn.Identity(), DIM, "pre", scale=Scale("degree", slot="stream")), "slot with a norm"),
    (lambda: Scale("degree", where="aftr"), "did you mean 'after'"),
    (lambda: Scale(""), "name of its source"),
    (lambda: Residual(nn.Identity(), DIM, Placement.uniform(BlockSpec(inner=("q",)))), "derive the branch from"),
    (lambda: Residual(WithInside(), DIM, Placement.uniform(BlockSpec(inner=("midle",)))), "did you mean 'middle'"),
    (lambda: Residual(nn.Identity(), DIM, "peri", norm={"input": "layer"}), "slot 'output'"),
    (lambda: Residual(nn.Identity(), DIM, "pre", norm={"input": "layer", "inptu": "rms"}), "did you mean 'input'"),
    (lambda: Residual(nn.Identity(), DIM, "pre", norm="msg"), "length of the row"),
    (lambda: Residual(nn.Identity(), DIM, "prr"), "did you mean 'pre'"),
]


@pytest.mark.parametrize(("build", "reason"), MISFITS)
def test_invalid_combinations_are_errors(build, reason):
    with pytest.raises(UsageError, match=reason):
        build()


def test_norms_per_slot_and_from_a_factory():
    block = Residual(nn.Identity(), DIM, "peri", norm={"input": "rms", "output": lambda dim: LayerNorm(dim, eps=0.1)})
    assert isinstance(block.input_norm, RMSNorm)
    assert block.output_norm.eps == 0.1


def test_a_norm_inside_the_branch():
    branch = WithInside()
    block = Residual(
        branch,
        DIM,
        Placement.uniform(BlockSpec(input=True, inner=("middle",))),
        norm={"input": "rms", "inner": "layer"},
    )
    x = draw(3, DIM)
    inside = branch.norms["middle"](branch.first(block.input_norm(x)))
    assert torch.equal(block(x), x + branch.second(inside))
    assert torch.equal(block(x, shift=1.0), x + (branch.second(inside) + 1.0))


def test_the_skip_can_start_after_the_norm():
    block = Residual(nn.Linear(DIM, DIM), DIM, Placement.uniform(BlockSpec(input=True, skip_normed=True)))
    x = draw(3, DIM)
    normed = block.input_norm(x)
    assert torch.equal(block(x), normed + block.branch(normed))


def test_graph_norms_get_the_batch():
    batch = torch.tensor([0, 0, 1, 1, 1])
    block = Residual(nn.Identity(), DIM, "pre", norm="graph")
    x = draw(5, DIM)
    assert torch.equal(block(x, batch=batch), x + block.input_norm(x, batch))
    assert not torch.equal(block(x, batch=batch), block(x))


def test_deepnorm_scales_initial_weights_once_and_leaves_biases():
    torch.manual_seed(0)
    branch = nn.Linear(DIM, DIM)
    weight, bias = branch.weight.detach().clone(), branch.bias.detach().clone()
    Residual(branch, DIM, "deepnorm", depth=2)
    torch.testing.assert_close(branch.weight, weight * 16**-0.25)
    assert torch.equal(branch.bias, bias)


def test_a_branch_can_choose_the_weights_of_the_initial_gain():
    class Attention(nn.Linear):
        def rescale_init(self, gain):
            self.gain = gain

    branch = Attention(DIM, DIM)
    before = branch.weight.detach().clone()
    Residual(branch, DIM, "deepnorm", depth=2)
    assert branch.gain == pytest.approx(0.5)
    assert torch.equal(branch.weight, before)


def test_learned_scales_have_the_published_initial_values():
    assert float(Residual(nn.Linear(DIM, DIM), DIM, "rezero").branch_scale.detach()) == 0
    scale = Residual(nn.Linear(DIM, DIM), DIM, "layerscale").branch_scale
    assert scale.shape == (DIM,)
    assert torch.equal(scale, torch.full((DIM,), 1e-4))

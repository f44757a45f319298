"""The effective learning rate of matrices before an output norm, against steps that are really taken."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import normplace as npl
from normplace import UsageError
from normplace.analysis.signal_probe.effective_lr import relative_update
from normplace.models.transformer import AttentionConfig, Transformer, TransformerConfig

OPTIMIZERS = {
    "sgd": lambda ps: torch.optim.SGD(ps, lr=0.03, momentum=0.9),
    "adam": lambda ps: torch.optim.Adam(ps, lr=3e-3),
    "adamw": lambda ps: torch.optim.AdamW(ps, lr=3e-3, weight_decay=0.1),
    "adamw fused": lambda ps: torch.optim.AdamW(ps, lr=3e-3, fused=True),
    "rmsprop": lambda ps: torch.optim.RMSprop(ps, lr=1e-3),
}


class Branch(nn.Module):
    """``x + N(W₂ tanh(W₁ x))``: the norm reads the second matrix."""

    def __init__(self, bias: bool = False, factor: float = 1.0, normed: bool = True) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(6, 12), nn.Linear(12, 6, bias=bias)
        self.norm = nn.LayerNorm(6, eps=0.0) if normed else nn.Identity()
        self.factor = factor

    def forward(self, x):
        return x + self.norm(self.factor * self.two(torch.tanh(self.one(x))))


def build(**options):
    torch.manual_seed(0)
    model = Branch(**options).double()
    return model, torch.randn(5, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def loss(out):
    return (out**3).mean()


def rate_of(model, x, optimizer=None):
    (depth,) = npl.signals(model, x, loss, optimizer).depths[1:]
    return depth.effective_lr


@pytest.mark.parametrize("options", [{}, {"bias": True}, {"factor": 0.5}])
def test_without_an_optimizer_it_is_the_gradient_over_the_weight(options):
    model, x = build(**options)
    loss(model(x)).backward()
    weight = model.two.weight
    assert rate_of(model, x) == pytest.approx(float(weight.grad.norm() / weight.detach().norm()), rel=1e-12)


def test_doubling_the_matrix_quarters_a_gradient_step_and_halves_a_first_step_of_adam():
    model, x = build()
    sgd, adam = (
        kind(model.parameters(), lr=0.01, **options)
        for kind, options in ((torch.optim.SGD, {}), (torch.optim.Adam, {"eps": 0.0}))
    )
    before = [rate_of(model, x, optimizer) for optimizer in (None, sgd, adam)]
    norm, count = float(model.two.weight.detach().norm()), model.two.weight.numel()
    assert before[1] == pytest.approx(0.01 * before[0], rel=1e-12)
    assert before[2] == pytest.approx(0.01 * math.sqrt(count) / norm, rel=1e-12)
    with torch.no_grad():
        model.two.weight *= 2
    after = [rate_of(model, x, optimizer) for optimizer in (None, sgd, adam)]
    assert after == pytest.approx([before[0] / 4, before[1] / 4, before[2] / 2], rel=1e-12)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_it_is_the_next_update_of_the_optimizer_which_stays_as_it_is(name):
    model, x = build()
    optimizer = OPTIMIZERS[name](model.parameters())
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)  # which replaces the optimizer's step
    called = []
    optimizer.register_step_pre_hook(lambda *_: called.append(1))
    for taken in range(3):
        predicted = rate_of(model, x, optimizer)
        assert len(called) == taken
        before = model.two.weight.detach().clone()
        optimizer.zero_grad()
        loss(model(x)).backward()
        optimizer.step()
        schedule.step()
        change = (model.two.weight.detach() - before).norm()
        assert predicted == pytest.approx(float(change / before.norm()), rel=1e-9)


def test_only_matrices_directly_before_an_output_norm_have_one():
    model, x = build(normed=False)
    assert rate_of(model, x) is None
    layer = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True, norm_first=True)
    depths = npl.signals(layer, torch.randn(2, 5, 8), loss).depths
    assert [depth.effective_lr for depth in depths] == [None] * 3
    model, x = build()
    assert npl.signals(model, x).depths[1].effective_lr is None  # no loss, no gradient
    model.two.weight.requires_grad_(False)
    assert rate_of(model, x) is None


@pytest.mark.parametrize(("placement", "has"), [("peri", True), ("output", True), ("pre", False), ("post", False)])
def test_our_transformer_by_placement(placement, has):
    config = TransformerConfig(23, 16, 2, placement=placement, attention=AttentionConfig(heads=2))
    model = Transformer(config, generator=torch.Generator().manual_seed(0))
    ids = torch.randint(23, (3, 9), generator=torch.Generator().manual_seed(2))
    found = npl.signals(model, ids, lambda out: out.square().mean())
    model(ids).square().mean().backward()
    weights = [
        matrix.weight for layer in model.layers for matrix in (layer.attention.branch.output, layer.mlp.branch.down)
    ]
    expected = [float(w.grad.norm() / w.detach().norm()) if has else None for w in weights]
    assert [depth.effective_lr for depth in found.depths[1:]] == (
        pytest.approx(expected, rel=1e-5) if has else expected
    )
    assert "eff. lr" in str(found)
    assert found.to_dict()["depths"][1]["effective_lr"] == found.depths[1].effective_lr


def test_a_parameter_the_optimizer_does_not_hold_does_not_move():
    model, x = build()
    assert rate_of(model, x, torch.optim.SGD(model.one.parameters(), lr=1.0)) == 0


def test_optimizers_that_cannot_step_and_objects_that_are_none_are_named():
    model, x = build()
    with pytest.raises(UsageError, match="LBFGS cannot step one matrix"):
        npl.signals(model, x, loss, torch.optim.LBFGS(model.parameters()))
    with pytest.raises(UsageError, match=r"must be a torch\.optim\.Optimizer, got str"):
        npl.signals(model, x, loss, "adam")


def test_the_callback_passes_the_optimizer_on():
    model, x = build()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    watch = npl.SignalsCallback(x, loss, every=1)
    assert watch(model, 0, optimizer) == npl.signals(model, x, loss, optimizer)


def test_the_change_of_a_low_precision_matrix_is_measured_in_float32():
    weight = nn.Parameter(torch.full((4, 4), 256.0, dtype=torch.float16))
    gradient = torch.full((4, 4), 256.0, dtype=torch.float16)  # whose squares overflow float16
    assert float(relative_update(weight, gradient, None)) == 1

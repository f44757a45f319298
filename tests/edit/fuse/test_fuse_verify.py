"""The verification of a fused model notices wrong numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.edit.fuse.fuse_models import build, peri, rows
from torch import Tensor, nn

import normplace as npl
from normplace.edit.fuse import numbers as fuse_numbers
from normplace.edit.fuse import plan as fuse_plan
from normplace.edit.fuse import runtime as fuse_runtime
from normplace.edit.fuse import verify as fuse_verify
from normplace.edit.fuse.forms import NormForm
from normplace.edit.fuse.numbers import Numbers

HALF = torch.bfloat16


def inject(monkeypatch, **changes):
    """Make the plan believe that every norm has another form."""
    plain = fuse_plan.identify

    def wrong(*args, **options):
        form = plain(*args, **options)
        assert isinstance(form, NormForm)
        return replace(form, **{key: value(form) for key, value in changes.items()})

    monkeypatch.setattr(fuse_plan, "identify", wrong)


FAULTS = {
    "eps": {"eps": lambda form: 10 * form.eps},
    "small eps": {"eps": lambda form: 0.5 * form.eps},
    "offset": {"unit_offset": lambda form: not form.unit_offset},
    "kind": {"norm": lambda form: "layer" if form.norm == "rms" else "rms"},
}
OTHER_ORDER = {"result": "gain", "gain": "result"}
CASTS = {
    "casts": lambda form: tuple((dtypes, c._replace(rounding=OTHER_ORDER[c.rounding])) for dtypes, c in form.casts)
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("dtype", [torch.float32, HALF], ids=str)
@pytest.mark.parametrize("name", ["Llama", "Gemma2"])
def test_a_wrong_norm_is_noticed(monkeypatch, name, dtype, fault):
    model, inputs = build(name, dtype)
    inject(monkeypatch, **FAULTS[fault])
    with pytest.raises(npl.UsageError, match="differs from the model's own"):
        npl.edit.fuse(model, only_if_faster=False, **inputs)


@pytest.mark.parametrize("name", ["Llama", "Gemma2", "Olmo2", "T5"])
def test_a_wrong_order_of_casts_is_noticed(monkeypatch, name):
    model, inputs = build(name, HALF)
    inject(monkeypatch, **CASTS)
    with pytest.raises(npl.UsageError, match="differs from the model's own"):
        npl.edit.fuse(model, only_if_faster=False, **inputs)


@pytest.mark.parametrize("wrong", [{"rounding": "result"}, {"result": HALF}], ids=["order", "dtype"])
def test_wrong_casts_under_autocast_are_noticed(monkeypatch, wrong):
    """Although the model is fused without autocast."""
    model, inputs = build("Llama")
    changed = {"casts": lambda form: tuple((key, c._replace(**wrong) if key.autocast else c) for key, c in form.casts)}
    inject(monkeypatch, **changed)
    with pytest.raises(npl.UsageError, match="differs from the model's own in autocast"):
        npl.edit.fuse(model, only_if_faster=False, **inputs)


def test_a_wrong_gradient_of_a_kernel_is_noticed(monkeypatch):
    plain = fuse_runtime.norm_add_norm

    class Halved(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            return 0.99 * gradient

    def wrong(x, f, **options):
        return plain(x, Halved.apply(f), **options)

    monkeypatch.setattr(fuse_runtime, "norm_add_norm", wrong)
    with pytest.raises(npl.UsageError, match="gradient of the branch"):
        npl.edit.fuse(peri(), rows(), only_if_faster=False)


def test_a_part_that_is_wrong_only_in_the_model_is_noticed(monkeypatch):
    """The parts are right on random rows, and the whole model is compared with float64."""
    plain = fuse_runtime.norm_add_norm

    def wrong(x, f, **options):
        stream, y = plain(x, f, **options)
        return (stream, y) if x.dim() == 2 else (stream + 1e-4, y)

    monkeypatch.setattr(fuse_runtime, "norm_add_norm", wrong)
    with pytest.raises(npl.UsageError, match="from float64"):
        npl.edit.fuse(peri(), rows(), only_if_faster=False)


def numbers(*outputs: Tensor, **gradients: Tensor) -> Numbers:
    return Numbers(list(outputs), gradients)


def test_errors_are_compared_with_those_of_the_original():
    truth = torch.randn(4000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    noise = torch.randn(4000, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    original = numbers((truth + 1e-5 * noise).float(), w=(truth + 1e-5 * noise).float())
    exact = numbers(truth, w=truth)
    same = numbers((truth - 1e-5 * noise).float(), w=(truth - 1.5e-5 * noise).float())
    assert 0.4 < fuse_verify.verify_model(original, same, exact) < 1
    for fused, words in (
        (numbers(same.outputs[0], w=(truth - 3e-5 * noise).float()), "gradient of w"),
        (numbers((truth - 3e-5 * noise).float(), w=same.gradients["w"]), "output 0"),
        (numbers(same.outputs[0], w=torch.full((4000,), float("nan"))), "gradient of w"),
        (numbers(same.outputs[0]), "no gradient"),
        (numbers(same.outputs[0].double(), w=same.gradients["w"]), "dtypes"),
        (same._replace(gradients={}, error="it failed"), "it failed"),
    ):
        with pytest.raises(npl.UsageError, match=words):
            fuse_verify.verify_model(original, fused, exact)


class Symmetric(nn.Module):
    """Copies of a stream that are mixed with weights of sum one, so that the gradient of the weights cancels."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm, self.shares = nn.Linear(32, 32), npl.RMSNorm(32), nn.Parameter(torch.randn(3))
        self.branches = nn.ModuleList(nn.Linear(32, 32) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        copies = self.stem(x) + 1e-4 * torch.arange(3).view(3, 1, 1)
        x = torch.einsum("n,nbd->bd", self.shares.softmax(0), copies)
        for branch in self.branches:
            x = x + branch(self.norm(x))
        return self.norm(x)


@torch.random.fork_rng()
def test_a_gradient_whose_terms_cancel_may_be_as_far_as_rounding_moves_it():
    torch.manual_seed(0)
    model, call = Symmetric(), ((torch.randn(64, 32),), {})
    original, exact = fuse_numbers.measure(model, call), fuse_numbers.measure_in_float64(model, call)
    rounded = fuse_numbers.measure_in_float64(model, call, rounding=True)
    usual, moved = (
        (rounded.gradients[name] - exact.gradients[name]).norm() / exact.gradients[name].norm()
        for name in ("branches.0.weight", "shares")
    )
    assert 1e-8 < usual < 1e-6 < moved < 1e-2

    def off_by(factor: float) -> Numbers:
        shares = exact.gradients["shares"] * (1 + factor * moved)
        return original._replace(gradients={**original.gradients, "shares": shares.float()})

    with pytest.raises(npl.UsageError, match="gradient of shares"):
        fuse_verify.verify_model(off_by(0), off_by(4), exact)
    assert 0.2 < fuse_verify.verify_model(off_by(0), off_by(4), exact, rounded) <= 1
    with pytest.raises(npl.UsageError, match="gradient of shares"):
        fuse_verify.verify_model(off_by(0), off_by(40), exact, rounded)


@pytest.mark.parametrize("name", ["Llama", "Gemma2", "Mixtral"])
def test_the_reference_is_float64_throughout(name):
    """Norms that cast to float32 inside do not round: two orders of summation agree to the digits of float64."""
    model, inputs = build(name)
    reference = fuse_numbers.measure_in_float64(model, ((), inputs))
    single = fuse_numbers.measure(model, ((), inputs))
    assert all(value.dtype == torch.float64 for value in (*reference.outputs, *reference.gradients.values()))
    assert reference.gradients.keys() == single.gradients.keys()
    error = (single.outputs[0].double() - reference.outputs[0]).norm() / reference.outputs[0].norm()
    assert 1e-9 < error < 2e-6
    with fuse_numbers.Float64Mode():
        double = model.double().eval()
        again = double(**inputs)[0]
    assert (again - reference.outputs[0]).norm() <= 1e-13 * again.norm()


def test_a_model_in_float64_is_its_own_reference():
    model = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True, dtype=torch.float64)
    model.norm2 = nn.RMSNorm(16, dtype=torch.float64)
    x = torch.randn(2, 5, 16, dtype=torch.float64)
    fused = npl.fuse(model, x, only_if_faster=False)
    assert [part.fused for part in npl.changes(fused).fusions] == [True, True]
    torch.testing.assert_close(fused(x), model(x))

"""What a norm module computes is identified by its results, whatever its class."""

from __future__ import annotations

import pytest
import torch
from tests.edit.fuse.fuse_models import RMSNorm
from torch import Tensor, nn
from torch.nn import functional as F

from normplace.edit.fuse.forms import CallDtypes, NormForm, identify

WIDTH, EPS, HALF = 24, 1e-6, torch.bfloat16


class Norm(nn.Module):
    """A norm with a gain and, if asked, a bias, under the names that are given."""

    def __init__(self, *names: str):
        super().__init__()
        for name in names:
            self.register_parameter(name, nn.Parameter(torch.ones(WIDTH)))


class Gemma(Norm):
    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPS)
        return (wide * (1.0 + self.weight.float())).type_as(x)


class Olmo(Norm):
    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        return (self.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPS))).to(x.dtype)


class Shifted(Norm):
    """The bias comes first."""

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, (WIDTH,), self.b, self.a, EPS)


class Outside(Norm):
    """Adds eps to the root."""

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x / (x.float().pow(2).mean(-1, keepdim=True).sqrt() + EPS).to(x.dtype)


class OfSequences(Norm):
    """Has no time dimension in a matrix of rows."""

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * F.rms_norm(x.flatten(1, 2), (WIDTH,), None, EPS).view(x.shape)


class Squared(Norm):
    def forward(self, x: Tensor) -> Tensor:
        return self.weight.square() * F.rms_norm(x, (WIDTH,), None, EPS)


class Half(Norm):
    """Computes its statistics in the dtype of its input."""

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS))


class Widening(Norm):
    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x.float(), (WIDTH,), self.weight.float(), EPS)


class Narrowing(Norm):
    def forward(self, x: Tensor) -> Tensor:
        y = F.rms_norm(x.float(), (WIDTH,), self.weight.float(), EPS)
        return y if x.dtype == torch.float32 else y.half()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    ("norm", "kind", "offset", "rounding", "names"),
    [
        (RMSNorm(WIDTH), "rms", False, "gain", ("weight", None)),
        (Gemma("weight"), "rms", True, "result", ("weight", None)),
        (Olmo("weight"), "rms", False, "result", ("weight", None)),
        (nn.LayerNorm(WIDTH, EPS), "layer", False, "result", ("weight", "bias")),
        (nn.LayerNorm(WIDTH, EPS, bias=False), "layer", False, "result", ("weight", None)),
        (nn.LayerNorm(WIDTH, EPS, elementwise_affine=False), "layer", False, "result", (None, None)),
        (Shifted("a", "b"), "layer", False, "result", ("b", "a")),
    ],
    ids=["llama", "gemma", "olmo", "layer", "no bias", "no gain", "other names"],
)
def test_the_form_is_identified(norm, kind, offset, rounding, names, dtype):
    form = identify(norm.to(dtype), kind, EPS, WIDTH, dtype)
    assert isinstance(form, NormForm), form
    assert (form.norm, form.unit_offset, form.weight, form.bias) == (kind, offset, *names)
    assert form.eps == EPS
    if dtype != torch.float32:
        assert dict(form.casts)[form.analysed] == (rounding, dtype)
    assert dict(form.casts)[CallDtypes(torch.bfloat16, torch.bfloat16)] == (rounding, torch.bfloat16)


def test_float32_gains_of_a_half_precision_model():
    form = identify(Olmo("weight"), "rms", EPS, WIDTH, torch.bfloat16)
    assert isinstance(form, NormForm) and form.analysed == (torch.bfloat16, torch.float32, None)
    assert dict(form.casts)[form.analysed] == ("result", torch.bfloat16)
    form = identify(RMSNorm(WIDTH), "rms", EPS, WIDTH, torch.bfloat16)
    assert isinstance(form, NormForm) and dict(form.casts)[form.analysed] == ("gain", torch.float32)


@pytest.mark.parametrize(
    ("norm", "kind", "half"),
    [
        (RMSNorm(WIDTH), "rms", ("gain", torch.float32)),
        (Gemma("weight"), "rms", ("result", HALF)),
        (Olmo("weight"), "rms", ("result", HALF)),
        (Widening("weight"), "rms", ("result", torch.float32)),
    ],
    ids=["llama", "gemma", "olmo", "widening"],
)
def test_casts_under_autocast(norm, kind, half):
    form = identify(norm, kind, EPS, WIDTH, torch.float32)
    assert isinstance(form, NormForm)
    casts = dict(form.casts)
    assert casts[CallDtypes(HALF, torch.float32, HALF)] == half
    assert casts[CallDtypes(torch.float32, torch.float32, HALF)].result == torch.float32
    with torch.autocast("cpu", HALF):
        assert form.casts_of(HALF, norm.weight, "cpu") == half
        assert form.casts_of(HALF, norm.weight, "cuda") is None or torch.cuda.is_available()
    assert form.casts_of(HALF, norm.weight, "cpu") is None


def test_the_meta_device_is_enough():
    form = identify(RMSNorm(WIDTH).to("meta"), "rms", EPS, WIDTH, torch.float32)
    assert isinstance(form, NormForm)
    assert dict(form.casts)[CallDtypes(torch.bfloat16, torch.bfloat16)].rounding == "gain"


@pytest.mark.parametrize(
    ("norm", "kind", "eps", "words"),
    [
        (nn.BatchNorm1d(WIDTH), "batch", EPS, "batch"),
        (RMSNorm(WIDTH + 1), "rms", EPS, "per feature"),
        (nn.Sequential(RMSNorm(WIDTH)), "rms", EPS, "submodules"),
        (Outside("weight"), "rms", EPS, "something else"),
        (Squared("weight"), "rms", EPS, "something else"),
        (OfSequences("weight"), "rms", EPS, "cannot be called with rows"),
        (RMSNorm(WIDTH), "rms", 2 * EPS, "something else"),
        (RMSNorm(WIDTH), "layer", EPS, "something else"),
        (Half("weight"), "rms", EPS, "order of its casts"),
        (Narrowing("weight"), "rms", EPS, "another dtype"),
        (nn.Bilinear(WIDTH, WIDTH, 1), "rms", EPS, "per feature"),
    ],
)
def test_other_norms_are_refused_with_a_reason(norm, kind, eps, words):
    assert words in str(identify(norm, kind, eps, WIDTH, torch.float32))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, HALF])
def test_an_eps_that_depends_on_the_dtype(dtype):
    eps = torch.finfo(torch.promote_types(dtype, torch.float32)).eps
    form = identify(nn.RMSNorm(WIDTH, dtype=dtype), "rms", eps, WIDTH, dtype)
    assert isinstance(form, NormForm)
    known = {dtypes.x for dtypes, _ in form.casts if dtypes.autocast is None}
    assert (torch.float64 in known, torch.float32 in known) == (dtype == torch.float64, dtype != torch.float64)

"""Each finding fires on a minimal bad model and stays silent on the same model mended."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import normplace as npl


class Stack(nn.Module):
    """Two residual blocks, mended or broken in the way that ``fault`` names."""

    def __init__(self, fault: str = "", dim: int = 8) -> None:
        super().__init__()
        self.fault = fault
        self.stem, self.head = nn.Linear(4, dim), nn.Linear(dim, 2)
        self.maps = nn.ModuleList(nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, dim)) for _ in range(3))
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(3))
        self.final, self.extra = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.gain = nn.Parameter(torch.ones(1))

    def forward(self, x):
        x = self.stem(x)
        for at, (norm, branch) in enumerate(zip(self.norms, self.maps, strict=True)):
            if self.fault == "mixed placements" and at == 1:
                x = x + norm(branch(x))
                continue
            x = x + branch(norm(x))
        if self.fault == "missing final norm":
            return self.head(x)
        if self.fault == "norm without effect":
            self.extra(x)
        x = self.final(x)
        return self.head(self.extra(x) if self.fault == "consecutive norms" else x)


@pytest.mark.parametrize(
    "fault", ["missing final norm", "mixed placements", "norm without effect", "consecutive norms"]
)
def test_stacks(fault):
    x = torch.randn(5, 4)
    found = {finding.rule: finding for finding in npl.audit(Stack(fault), x).findings}
    assert fault in found
    finding = found[fault]
    assert all((finding.evidence, finding.consequence, finding.remedy))
    assert set(found) <= {fault, "norm never called"}
    expected = {"norm without effect": "error", "mixed placements": "note"}.get(fault, "warning")
    assert finding.severity == expected
    assert {finding.rule for finding in npl.audit(Stack(), x).findings} == {"norm never called"}


@pytest.mark.parametrize("biased", [False, True])
def test_a_norm_after_a_linear_map_of_the_stream_is_a_final_norm(biased):
    model = Stack("missing final norm")
    model.head = nn.Sequential(nn.Linear(8, 4, bias=biased), nn.LayerNorm(4), nn.Linear(4, 2))
    assert "missing final norm" not in rules(model, torch.randn(5, 4))
    model.head = nn.Sequential(nn.Linear(8, 4, bias=biased), nn.ReLU(), nn.LayerNorm(4), nn.Linear(4, 2))
    assert "missing final norm" in rules(model, torch.randn(5, 4))


class Stages(nn.Module):
    """A backbone that normalizes the output of every stage and returns the last."""

    def __init__(self):
        super().__init__()
        self.stages, self.norm = nn.ModuleList(nn.Linear(8, 8) for _ in range(3)), nn.LayerNorm(8)

    def forward(self, x):
        outputs = []
        for stage in self.stages:
            x = stage(x)
            outputs.append(self.norm(x))
        return outputs[-1]


def test_a_norm_of_which_only_some_calls_are_needed_is_no_error():
    (finding,) = npl.audit(Stages(), torch.randn(3, 8)).findings
    assert (finding.rule, finding.severity) == ("norm without effect", "note")
    assert "gradient" not in finding.consequence


class AfterNorm(nn.Module):
    """A block module whose skip starts behind its own norm, as after a bad merge."""

    def __init__(self, broken: bool) -> None:
        super().__init__()
        self.broken, self.norm, self.branch = broken, nn.LayerNorm(8), nn.Linear(8, 8)

    def forward(self, x):
        normed = self.norm(x)
        return (normed if self.broken else x) + F.relu(self.branch(normed))


def rules(model: nn.Module, *inputs) -> dict[str, str]:
    return {finding.rule: finding.severity for finding in npl.audit(model, *inputs).findings}


def test_residual_after_norm():
    def stack(broken):
        return nn.Sequential(nn.Linear(8, 8), AfterNorm(broken), AfterNorm(broken), nn.LayerNorm(8))

    assert rules(stack(True), torch.randn(3, 8)) == {"residual after norm": "note"}
    assert rules(stack(False), torch.randn(3, 8)) == {}


class Undone(nn.Module):
    """Attention that normalizes q, k and v: its input norm is then divided out again."""

    def __init__(self, value_too: bool) -> None:
        super().__init__()
        self.value_too, self.norm = value_too, nn.RMSNorm(8)
        self.q, self.k, self.v = (nn.Linear(8, 8, bias=False) for _ in range(3))
        self.out = nn.Linear(8, 8)

    def forward(self, x):
        read = self.norm(x)
        q, k, v = F.normalize(self.q(read), dim=-1), F.normalize(self.k(read), dim=-1), self.v(read)
        v = F.normalize(v, dim=-1) if self.value_too else v
        return x + self.out((q @ k.mT).softmax(-1) @ v)


def test_norm_undone():
    x = torch.randn(1, 3, 8)
    assert rules(Undone(True), x) == {"norm undone": "warning"}
    assert rules(Undone(False), x) == {}
    # The consequence as a number: without the norm the answer is the same, with the value left alone it is not.
    for value_too in (True, False):
        model = Undone(value_too).double()
        with torch.no_grad():
            branch = model(x.double()) - x.double()
            model.norm = nn.Identity()
            same = torch.allclose(model(x.double()) - x.double(), branch, atol=1e-6)
        assert same == value_too


class Scaled(nn.Module):
    """A factor per row before or after a norm."""

    def __init__(self, where: str, kind: str = "row") -> None:
        super().__init__()
        self.where, self.kind, self.norm, self.map = where, kind, nn.LayerNorm(8), nn.Linear(8, 8)
        self.gain = nn.Parameter(torch.ones(1))

    def forward(self, x, factor):
        scale = {"row": factor, "learned": self.gain, "constant": 3.0}[self.kind]
        x = self.map(x)
        x = self.norm(x * scale) if self.where == "before" else self.norm(x) * scale
        return self.map(x)


@pytest.mark.parametrize(("kind", "severity"), [("row", "warning"), ("learned", "warning"), ("constant", "note")])
def test_erased_scale(kind, severity):
    inputs = torch.randn(4, 8), torch.rand(4, 1) + 0.5
    assert rules(Scaled("before", kind), *inputs) == {"erased scale": severity}
    assert rules(Scaled("after", kind), *inputs) == {}


class Half(nn.Module):
    """RMS normalization in the precision of its input, or in float32."""

    def __init__(self, wide: bool, eps: float) -> None:
        super().__init__()
        self.wide, self.eps = wide, eps

    def forward(self, x):
        held = x.float() if self.wide else x
        return (held * torch.rsqrt(held.pow(2).mean(-1, keepdim=True) + self.eps)).to(x.dtype)


def test_low_precision_statistics():
    x = torch.randn(3, 8, dtype=torch.bfloat16)
    assert rules(Half(False, 1e-6), x) == {"low-precision statistics": "warning"}
    assert rules(Half(True, 1e-6), x) == {}


def test_eps_that_vanishes():
    x = torch.randn(3, 8, dtype=torch.float16)
    assert rules(Half(False, 1e-12), x) == {"eps vanishes": "error", "low-precision statistics": "warning"}
    assert rules(Half(False, 1e-6), x) == {"low-precision statistics": "warning"}
    assert rules(Half(True, 1e-12), x) == {}
    assert not Half(False, 1e-12)(torch.zeros(1, 8, dtype=torch.float16)).isfinite().any()


def test_eps_that_rules():
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8, eps=1e-5))
    assert rules(model, torch.randn(3, 8)) == {}
    with torch.no_grad():
        model[0].weight.mul_(1e-4)
        model[0].bias.zero_()
    assert rules(model, torch.randn(3, 8)) == {"eps too large": "warning"}


@pytest.mark.parametrize(
    ("size", "dtype", "expected"),
    [
        (1.0, torch.float16, {}),
        (2e4, torch.float16, {"float16 overflow": "warning"}),
        (1e5, torch.float32, {"float16 overflow": "note"}),
        (float("inf"), torch.float32, {"stream not finite": "error"}),
    ],
)
def test_overflow(size, dtype, expected):
    class Grows(nn.Module):
        def __init__(self):
            super().__init__()
            self.map = nn.Linear(8, 8)

        def forward(self, x):
            return x + self.map(x)

    assert rules(Grows().to(dtype), torch.full((2, 8), size, dtype=dtype)) == expected


def test_unbounded_extrapolation():
    x = torch.randn(6, 3)
    bounded = nn.Sequential(nn.Linear(3, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 1))
    unbounded = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1))
    assert [finding.rule for finding in npl.audit(unbounded, x, certify=True).findings] == ["unbounded extrapolation"]
    assert npl.audit(bounded, x, certify=True).findings == ()
    assert npl.audit(unbounded, x).findings == ()
    with pytest.raises(npl.UsageError, match="certify needs a model with one floating-point input"):
        npl.audit(nn.Embedding(3, 4), torch.tensor([1]), certify=True)


def test_what_repeats_is_said_once():
    layers = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 3, enable_nested_tensor=False
    )
    for layer in layers.layers:
        layer.norm1 = nn.Sequential(nn.LayerNorm(8), nn.LayerNorm(8))
    (finding,) = npl.audit(layers, torch.randn(1, 3, 8)).findings
    assert finding.rule == "consecutive norms"
    assert finding.where == tuple(f"layers.{layer}.norm1.{part}" for layer in range(3) for part in range(2))
    assert "The same is true in 2 more places." in finding.evidence

"""Under autocast a fused model computes what the model computes, in the dtypes that autocast gives."""

from __future__ import annotations

import pytest
import torch
from tests.edit.fuse.fuse_models import (
    RMSNorm,
    build,
    count_kernels,
    first_output,
    fused_parts,
    peri,
    rows,
)
from torch import Tensor, nn

import normplace as npl
from normplace.edit.fuse.numbers import measure, measure_in_float64
from normplace.edit.fuse.verify import verify_model

HALF = torch.bfloat16


def fused(model, *inputs, **options):
    return npl.fuse(model, *inputs, only_if_faster=False, reach="stack", **options)


@pytest.mark.parametrize("name", ["Llama", "Gemma2", "Olmo2", "Qwen3", "T5"])
def test_bits_of_the_forward_pass(name, monkeypatch):
    model, inputs = build(name)
    result = fused(model, **inputs)
    counts = count_kernels(monkeypatch)
    with torch.autocast("cpu", HALF), torch.no_grad():
        one, other = (first_output(each.eval()(**inputs)) for each in (result, model))
    assert torch.equal(one, other) and one.dtype == other.dtype
    record = npl.changes(result).fusions
    assert counts["sum"] == sum(part.fused and "add" in part.parts for part in record)
    assert counts["norm"] == sum(part.fused and part.parts == "norm" for part in record)


@pytest.mark.parametrize("name", ["Gemma2", "Qwen3", "Bert", "ViT"])
@pytest.mark.parametrize("dtype", [HALF, torch.float16], ids=str)
def test_outputs_and_gradients_are_no_farther_from_float64(name, dtype):
    model, inputs = build(name)
    result, call = fused(model, **inputs), ((), inputs)
    with torch.autocast("cpu", dtype):
        numbers = measure(model, call), measure(result, call), measure_in_float64(model, call)
        assert verify_model(*numbers) <= 1
    assert all(value.dtype == torch.float32 for value in numbers[1].gradients.values())


@pytest.mark.parametrize("norm", [RMSNorm, lambda: nn.LayerNorm(16), lambda: nn.RMSNorm(16)], ids=["hf", "ln", "rms"])
@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")  # PyTorch's own, of nn.RMSNorm
def test_hand_written_code_with_output_norms(norm, monkeypatch):
    model, call = peri(norm), ((rows(),), {})
    result = fused(model, rows())
    counts = count_kernels(monkeypatch)
    with torch.autocast("cpu", HALF):
        assert verify_model(measure(model, call), measure(result, call), measure_in_float64(model, call)) <= 1
    assert counts["sum"] == 4


def test_a_model_can_be_fused_and_verified_under_autocast():
    model, x = peri(), rows()
    with torch.autocast("cpu", HALF):
        result = fused(model, x)
        assert torch.equal(result(x), model(x))
    assert len(list(fused_parts(result))) == len(list(fused_parts(fused(model, x))))


def test_a_norm_that_leaves_autocast_is_computed_again():
    """The sum under autocast has computed the norm in other dtypes than the norm's call without autocast."""

    class Leaving(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)
            self.before, self.norm = RMSNorm(), RMSNorm()

        def forward(self, x: Tensor) -> Tensor:
            x = self.first(self.before(x)).to(HALF) + x.to(HALF)
            with torch.autocast("cpu", enabled=False):
                y = self.norm(x)
            return x + self.second(y)

    torch.manual_seed(0)
    model, x = Leaving(), rows()
    with torch.autocast("cpu", HALF):
        result = fused(model, x)
        assert torch.equal(result(x), model(x))


def test_an_unknown_order_of_casts_under_autocast_is_left_to_the_model(monkeypatch):
    class Narrow(RMSNorm):
        """Rounds its statistics under autocast, as no kernel does."""

        def forward(self, x: Tensor) -> Tensor:
            if not torch.is_autocast_enabled("cpu"):
                return super().forward(x)
            scale = torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + self.eps)
            return (self.weight * x * scale.to(HALF)).to(x.dtype)

    model, x = peri(Narrow), rows()
    result = fused(model, x)
    counts = count_kernels(monkeypatch)
    assert torch.allclose(result(x), model(x), atol=1e-5) and counts["sum"] == 4
    with torch.autocast("cpu", HALF):
        assert torch.equal(result(x), model(x)) and counts["sum"] == 4


class Float32Stream(nn.Module):
    """Branches in half precision on a stream in float32, without autocast."""

    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList(RMSNorm() for _ in range(3))
        self.branches = nn.ModuleList(nn.Linear(16, 16) for _ in range(2))
        self.to(HALF)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.branches[0](self.norms[0](x).to(HALF))
        x = x + self.branches[1](self.norms[1](x).to(HALF))
        return self.norms[2](x)


def test_a_float32_stream_with_branches_in_half_precision(monkeypatch):
    torch.manual_seed(0)
    model, x = Float32Stream(), rows()
    result = fused(model, x)
    counts = count_kernels(monkeypatch)
    one, other = result(x), model(x)
    assert one.dtype == other.dtype == torch.float32 and counts["sum"] == 2
    assert torch.allclose(one, other, rtol=1e-5, atol=1e-5)

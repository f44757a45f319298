"""New norms start with the gain that gives their output the requested size."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from normplace.edit.model.new_norms import NormFactory
from normplace.errors import UsageError


class OffsetNorm(nn.Module):
    """RMSNorm that stores its gain minus one."""

    def __init__(self, dim: int):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(dim))

    def forward(self, x: Tensor) -> Tensor:
        return (1 + self.weight) * x / x.square().mean(-1, keepdim=True).sqrt()


def test_the_output_has_the_requested_size():
    x = torch.randn(100, 8, generator=torch.Generator().manual_seed(0))
    for template in (nn.LayerNorm(8), nn.RMSNorm(8), OffsetNorm(8)):
        norm, note = NormFactory(None, [template], torch.empty(0)).build(8, 2.5)
        assert type(norm) is type(template)
        assert note.startswith("measured gain")
        torch.testing.assert_close(norm(x).square().mean().sqrt(), torch.tensor(2.5), rtol=1e-3, atol=0)


def test_without_a_measured_size_the_gain_is_one():
    x = torch.randn(100, 8, generator=torch.Generator().manual_seed(0))
    for template in (nn.RMSNorm(8), OffsetNorm(8)):
        norm, note = NormFactory(None, [template], torch.empty(0)).build(8, None)
        assert note == "gain not measured: 1"
        torch.testing.assert_close(norm(x).square().mean().sqrt(), torch.tensor(1.0), rtol=1e-3, atol=0)


def test_a_template_of_the_right_width_is_copied_without_its_hooks():
    narrow, wide = nn.LayerNorm(4), nn.LayerNorm(8)
    wide.register_forward_hook(lambda *_: torch.zeros(8))
    norm, _ = NormFactory(None, [narrow, wide], torch.empty(0)).build(8, 1.0)
    assert norm.normalized_shape == (8,)
    assert norm is not wide
    assert norm(torch.randn(3, 8)).abs().sum() > 0
    with pytest.raises(UsageError, match="a gain over 16 features"):
        NormFactory(None, [narrow, wide], torch.empty(0)).build(16, 1.0)


def test_a_named_kind_has_the_dtype_of_the_model():
    norm, _ = NormFactory("rms", [], torch.empty(0, dtype=torch.float64)).build(8, 1.0)
    assert norm.weight.dtype == torch.float64

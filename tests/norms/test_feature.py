"""Feature norms against those of PyTorch, and their invariances."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from normplace import DyT, LayerNorm, RMSNorm, UsageError, build_norm

DIM = 16
PAIRS = [
    (LayerNorm, nn.LayerNorm, {"eps": 1e-5}),
    (LayerNorm, nn.LayerNorm, {"eps": 1e-3, "elementwise_affine": False}),
    (LayerNorm, nn.LayerNorm, {"bias": False}),
    (RMSNorm, nn.RMSNorm, {"eps": 1e-6}),
    (RMSNorm, nn.RMSNorm, {"eps": 1e-3, "elementwise_affine": False}),
]


def draw(*shape, seed=0, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def randomized(norm):
    with torch.no_grad():
        for index, parameter in enumerate(norm.parameters()):
            parameter.copy_(draw(*parameter.shape, seed=10 + index))
    return norm


@pytest.mark.parametrize(("ours", "theirs", "options"), PAIRS)
def test_state_dicts_load_strictly_both_ways_and_outputs_are_bit_identical(ours, theirs, options):
    mine, reference = randomized(ours(DIM, **options)), theirs(DIM, **options)
    reference.load_state_dict(mine.state_dict(), strict=True)
    x = draw(4, 7, DIM)
    assert torch.equal(mine(x), reference(x))
    back = ours(DIM, **options)
    back.load_state_dict(randomized(reference).state_dict(), strict=True)
    assert torch.equal(back(x), reference(x))


@pytest.mark.parametrize("norm_class", [LayerNorm, RMSNorm])
def test_is_an_instance_of_torchs_class(norm_class):
    assert isinstance(norm_class(DIM), getattr(nn, norm_class.__name__))
    assert norm_class((3, DIM))(draw(2, 3, DIM)).shape == (2, 3, DIM)


@pytest.mark.parametrize("norm_class", [LayerNorm, RMSNorm])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_statistics_are_float32(norm_class, dtype):
    """A mean of 100 with unit spread has no correct variance in bfloat16; only the final rounding may show."""
    x = (100 + draw(8, 512)).to(dtype)
    with torch.no_grad():
        y = norm_class(512, eps=1e-5)(x)
        exact = norm_class(512, eps=1e-5).double()(x.double())
    assert y.dtype == dtype
    assert float((y.double() - exact).detach().abs().max()) <= torch.finfo(dtype).eps * float(exact.abs().max())


@pytest.mark.parametrize("norm_class", [LayerNorm, RMSNorm, DyT])
def test_a_float32_gain_works_with_a_half_precision_stream(norm_class):
    assert norm_class(DIM)(draw(3, DIM, dtype=torch.bfloat16)).dtype == torch.bfloat16


@settings(max_examples=60, deadline=None)
@given(scale=st.floats(1e-2, 1e3), shift=st.floats(-1e2, 1e2), seed=st.integers(0, 1000))
def test_layernorm_ignores_scale_and_shift(scale, shift, seed):
    x = draw(3, DIM, seed=seed, dtype=torch.float64)
    norm = LayerNorm(DIM, eps=0.0, elementwise_affine=False)
    torch.testing.assert_close(norm(scale * x + shift), norm(x), rtol=1e-7, atol=1e-7)


@settings(max_examples=60, deadline=None)
@given(scale=st.floats(1e-2, 1e3), seed=st.integers(0, 1000))
def test_rmsnorm_ignores_scale_but_not_shift(scale, seed):
    x = draw(3, DIM, seed=seed, dtype=torch.float64)
    norm = RMSNorm(DIM, eps=0.0, elementwise_affine=False)
    torch.testing.assert_close(norm(scale * x), norm(x), rtol=1e-9, atol=1e-9)
    assert float((norm(x + 3) - norm(x)).detach().abs().max()) > 0.1


@settings(max_examples=60, deadline=None)
@given(scale=st.floats(1e-3, 1e3), log_eps=st.floats(-12, 0), seed=st.integers(0, 1000))
def test_the_law_of_a_scaled_row(scale, log_eps, seed):
    """LN(s x) = s (x - mean) / sqrt(s² var + eps): what survives of a scalar before the norm."""
    x, eps = draw(3, DIM, seed=seed, dtype=torch.float64), 10**log_eps
    centred = x - x.mean(-1, keepdim=True)
    law = scale * centred / torch.sqrt(scale**2 * centred.square().mean(-1, keepdim=True) + eps)
    torch.testing.assert_close(LayerNorm(DIM, eps=eps).double()(scale * x), law, rtol=1e-9, atol=1e-12)


def test_dyt_equals_its_formula_and_is_not_scale_invariant():
    norm = randomized(DyT(DIM, alpha_init=0.3))
    x = draw(4, DIM)
    torch.testing.assert_close(norm(x), norm.weight * torch.tanh(norm.alpha * x) + norm.bias)
    assert float((norm(10 * x) - norm(x)).detach().abs().max()) > 0.1
    assert [name for name, _ in DyT(DIM, elementwise_affine=False).named_parameters()] == ["alpha"]


def test_rmsnorm_needs_a_number_for_eps():
    with pytest.raises(UsageError, match="explicit eps"):
        RMSNorm(DIM, eps=None)


def test_the_registry_suggests_names_and_options():
    with pytest.raises(UsageError, match="did you mean 'layer'"):
        build_norm("layr", 4)
    with pytest.raises(UsageError, match="did you mean 'eps'"):
        build_norm("rms", 4, epss=1e-3)
    with pytest.raises(UsageError, match="positive integer"):
        build_norm("rms", 0)
    assert build_norm("pair", 4, scale=2.0).scale == 2.0
    assert torch.equal(build_norm("identity", 4, eps=1.0)(draw(2, 4)), draw(2, 4))

"""The infinite-width kernels against neural-tangents, quadrature and wide networks."""

import json
import math
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.polynomial.hermite_e import hermegauss
from scipy.integrate import quad

from normplace.errors import UsageError
from normplace.ntk.infinite_kernel.kernel import FullyConnected, infinite
from normplace.ntk.infinite_kernel.moments import Erf, LeakyReLU

REFERENCE = json.loads(Path(__file__).with_name("neural_tangents_reference.json").read_text())
PLACES = [
    (norm, at, where) for norm in ("layer", "rms") for at in ("first", "last", "every") for where in ("before", "after")
]


def double(rows):
    return torch.tensor(rows, dtype=torch.float64)


@pytest.mark.parametrize("case", REFERENCE["cases"], ids=lambda c: f"{c['activation']}-{c['depth']}-{c['norm_at']}")
def test_equals_neural_tangents(case):
    common = {
        key: REFERENCE[key]
        for key in ("negative_slope", "weight_variance", "bias_variance", "last_weight_variance", "eps")
    }
    placed = tuple(case["norm_at"])
    spec = FullyConnected(
        depth=case["depth"],
        activation=case["activation"],
        norm="layer" if placed else None,
        norm_at=placed,
        **common,
    )
    for name, rows in (("symmetric", REFERENCE["x1"]), ("cross", REFERENCE["x2"])):
        both = infinite(spec, double(REFERENCE["x1"]), double(rows) if name == "cross" else None, kind="both")
        for kind in ("nngp", "ntk"):
            # The largest observed error is 5e-14, including equal and opposite rows.
            torch.testing.assert_close(getattr(both, kind), double(case[name][kind]), rtol=1e-11, atol=0)


@pytest.mark.parametrize("slope", [0.0, 0.2, -0.5, 1.0])
@pytest.mark.parametrize("rho", [-1.0, -0.9, 0.0, 0.3, 0.999])
def test_leaky_relu_moments_equal_polar_quadrature(slope, rho):
    # A homogeneous φ leaves only the angle to integrate; the pieces end at its kinks.
    angle = math.acos(rho)
    kinks = sorted(
        {(k + shift) % (2 * math.pi) for k in (math.pi / 2, 1.5 * math.pi) for shift in (0.0, angle)}
        | {0.0, 2 * math.pi}
    )

    def value(u):
        return u if u > 0 else slope * u

    def derivative(u):
        return 1.0 if u > 0 else slope

    def mean_over_angle(f):
        return sum(
            quad(lambda th: f(math.cos(th)) * f(math.cos(th - angle)), low, high)[0] for low, high in pairwise(kinks)
        ) / (2 * math.pi)

    a, b, r = double(2.0), double(0.5), double(rho)
    moments = LeakyReLU(slope)
    assert float(moments.product(a, b, r)) == pytest.approx(2 * mean_over_angle(value), abs=1e-9)
    assert float(moments.slope_product(a, b, r)) == pytest.approx(mean_over_angle(derivative), abs=1e-9)
    half_normal = math.sqrt(2 / math.pi) / 2
    assert float(moments.mean(a)) == pytest.approx(math.sqrt(2) * (1 - slope) * half_normal)


@pytest.mark.parametrize("rho", [-1.0, -0.6, 0.0, 0.3, 0.99])
def test_erf_moments_equal_gauss_hermite(rho):
    nodes, weights = (torch.from_numpy(v) for v in hermegauss(120))
    weights = weights / weights.sum()
    a, b, r = double(0.8), double(0.3), double(rho)
    u = a.sqrt() * nodes[:, None].expand(120, 120)
    v = b.sqrt() * (r * nodes[:, None] + (1 - r**2).sqrt() * nodes)
    mass = weights[:, None] * weights
    slopes = (-u.square() - v.square()).exp() * 4 / math.pi
    assert float(Erf().product(a, b, r)) == pytest.approx(float((mass * u.erf() * v.erf()).sum()), abs=1e-8)
    assert float(Erf().slope_product(a, b, r)) == pytest.approx(float((mass * slopes).sum()), abs=1e-8)
    assert float(Erf().mean(a)) == 0


@pytest.mark.parametrize("moments", [LeakyReLU(), LeakyReLU(0.3), Erf()])
def test_squares_are_products_at_full_correlation(moments):
    a = double([1e-12, 0.3, 1.0, 1e9])
    one = torch.ones_like(a)
    torch.testing.assert_close(moments.square(a), moments.product(a, a, one))
    torch.testing.assert_close(moments.slope_square(a), moments.slope_product(a, a, one))


def wide_ntk(x, spec, width, generator):
    """The NTK of one random 2-hidden-layer network, layer by layer: (h hᵀ σ_w²/n + σ_b²) ∘ (g gᵀ)."""
    variances = (spec.weight_variance, spec.weight_variance, spec.last_weight_variance)
    activation = {
        "relu": torch.relu,
        "erf": torch.erf,
        "leaky_relu": lambda u: torch.nn.functional.leaky_relu(u, spec.negative_slope),
    }
    h, hidden, linear = x, [], []
    for layer, (variance, out) in enumerate(zip(variances, (width, width, 1), strict=True), start=1):
        scale = math.sqrt(variance / h.shape[1])
        z = scale * h @ torch.randn(h.shape[1], out, generator=generator) + math.sqrt(spec.bias_variance) * torch.randn(
            out, generator=generator
        )
        z.requires_grad_()
        hidden.append(variance * h @ h.T / h.shape[1] + spec.bias_variance)
        linear.append(z)
        for step in ("before", "activation", "after"):
            if step == "activation":
                h = activation[spec.activation](
                    z if layer not in spec.normed_layers or spec.norm_position == "after" else h
                )
            elif layer in spec.normed_layers and spec.norm_position == step:
                h = z if step == "before" else h
                centred = h - h.mean(1, keepdim=True) if spec.norm == "layer" else h
                h = centred / centred.square().mean(1, keepdim=True).sqrt()
    gradients = torch.autograd.grad(linear[-1].sum(), linear)
    return sum(k * (g @ g.T) for k, g in zip(hidden, gradients, strict=True)).detach().double()


@pytest.mark.parametrize(
    ("norm", "at", "activation"),
    [
        ("layer", "first", "relu"),
        ("layer", "every", "relu"),
        ("rms", "last", "relu"),
        ("layer", "every", "leaky_relu"),
        ("layer", "last", "erf"),
    ],
)
def test_norm_after_the_activation_is_the_wide_network_average(norm, at, activation):
    # Far out, erf leaves few units unsaturated, so that its average needs more than these seeds.
    x = torch.linspace(-1, 1, 15)[:, None] * (3 if activation == "erf" else 25)
    spec = FullyConnected(activation=activation, negative_slope=0.2, norm=norm, norm_at=at, norm_position="after")
    generator = torch.Generator().manual_seed(0)
    mean = sum(wide_ntk(x, spec, 4096, generator) for _ in range(4)) / 4
    exact = infinite(spec, x)
    assert float((mean - exact).norm() / exact.norm()) < 0.02


def test_wide_networks_agree_for_a_norm_before_the_activation():
    x = torch.linspace(-3, 3, 9)[:, None]
    spec = FullyConnected(norm="layer", norm_at="first")
    generator = torch.Generator().manual_seed(1)
    mean = sum(wide_ntk(x, spec, 4096, generator) for _ in range(4)) / 4
    exact = infinite(spec, x)
    assert float((mean - exact).norm() / exact.norm()) < 0.02


@pytest.mark.parametrize(("norm", "at", "where"), PLACES)
def test_a_norm_anywhere_bounds_the_diagonal_and_without_one_it_grows(norm, at, where):
    x = double([[0.0], [1.0], [1e3], [1e6], [-1e8]])
    diagonal = infinite(FullyConnected(norm=norm, norm_at=at, norm_position=where), x).diagonal()
    assert float(diagonal.max()) < 5
    plain = infinite(FullyConnected(), x).diagonal()
    # Two ReLU layers with σ_w² = 2: Θ(x,x) → 3x².
    assert float(plain[3]) == pytest.approx(3e12, rel=1e-6)


@pytest.mark.parametrize("activation", ["relu", "leaky_relu", "erf", "gelu", "silu", "relu2"])
@pytest.mark.parametrize(("norm", "at", "where"), [("layer", "none", "before"), *PLACES])
def test_hard_rows_give_finite_symmetric_semidefinite_kernels(activation, norm, at, where):
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(6, 4, generator=generator, dtype=torch.float64)
    x = torch.cat([x, x, -x, 0 * x[:1], 1e-9 * x[:1], 1e9 * x[:2]])
    for bias in (0.0, 0.01):
        spec = FullyConnected(
            depth=3, activation=activation, norm=norm, norm_at=at, norm_position=where, bias_variance=bias
        )
        for kernel in infinite(spec, x, kind="both"):
            assert bool(torch.isfinite(kernel).all())
            assert torch.equal(kernel, kernel.T)
            lengths = kernel.diagonal().clamp(min=1e-300).sqrt()
            assert float(torch.linalg.eigvalsh(kernel / lengths / lengths[:, None]).min()) > -1e-7
            # Copies of a row have equal entries up to rounding.
            torch.testing.assert_close(kernel[:6, 6:12].diagonal(), kernel[:6].diagonal(), rtol=1e-12, atol=0)


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 9),
    st.integers(1, 9),
    st.integers(1, 4),
    st.sampled_from(PLACES),
    st.sampled_from(["relu", "leaky_relu", "erf", "gelu", "silu", "relu2"]),
    st.integers(0, 2**31),
)
def test_blocks_and_cross_kernels_change_nothing(n1, n2, step, place, activation, seed):
    norm, at, where = place
    spec = FullyConnected(depth=3, activation=activation, norm=norm, norm_at=at, norm_position=where)
    x = torch.randn(n1 + n2, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    whole = infinite(spec, x)
    torch.testing.assert_close(infinite(spec, x, block_rows=step), whole, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(infinite(spec, x[:n1], x[n1:], block_rows=step), whole[:n1, n1:], rtol=1e-10, atol=1e-12)


def test_eps_acts_as_in_torch():
    # Variance ≪ eps: the norm multiplies by 1/√eps, which is equivalent to a scale of the weights.
    x = double([[1e-4, 2e-4], [3e-4, -1e-4]])
    tiny = infinite(FullyConnected(depth=1, norm="layer", norm_at="first", eps=1e4, bias_variance=0.0), x, kind="nngp")
    scaled = infinite(FullyConnected(depth=1, weight_variance=2e-4, bias_variance=0.0), x, kind="nngp")
    torch.testing.assert_close(tiny, scaled, rtol=1e-9, atol=0)


def test_last_weight_variance_defaults_to_weight_variance():
    x = double([[1.0], [2.0]])
    torch.testing.assert_close(
        infinite(FullyConnected(last_weight_variance=None), x),
        infinite(FullyConnected(last_weight_variance=2.0), x),
    )


def test_float32_inputs_are_accumulated_in_float64():
    x = torch.linspace(-1, 1, 5)[:, None]
    assert torch.equal(infinite(FullyConnected(), x), infinite(FullyConnected(), x.double()))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"activation": "reul"}, "did you mean 'relu'"),
        ({"norm": "layr"}, "did you mean 'layer'"),
        ({"norm": "layer", "norm_at": "evry"}, "did you mean 'every'"),
        ({"norm": "layer", "norm_at": (3,)}, "from 1 to 2"),
        ({"norm_at": "first"}, "norm is None"),
        ({"norm_position": "befor"}, "did you mean 'before'"),
        ({"depth": 0}, "at least 1"),
        ({"bias_variance": -1.0}, "zero or more"),
        ({"weight_variance": float("nan")}, "zero or more"),
    ],
)
def test_invalid_networks_are_rejected(arguments, message):
    with pytest.raises(UsageError, match=message):
        FullyConnected(**arguments)


def test_an_overflow_inside_the_network_is_reported():
    spec = FullyConnected(depth=3, activation="relu3", norm="layer", norm_at="last", norm_position="after")
    assert bool(torch.isfinite(infinite(spec, double([[1e3]]))).all())
    with pytest.raises(UsageError, match="rescale"):
        infinite(spec, double([[1e8]]))


@pytest.mark.parametrize(
    ("x1", "x2", "options", "message"),
    [
        (torch.zeros(3), None, {}, "reshape"),
        (torch.zeros(3, 2), torch.zeros(3, 1), {}, "must agree"),
        (torch.zeros(3, 2, dtype=torch.int64), None, {}, "convert"),
        (torch.full((3, 2), torch.nan), None, {}, "6 non-finite"),
        (torch.zeros(0, 2), None, {}, "empty"),
        ([[1.0]], None, {}, "must be a torch.Tensor"),
        (torch.zeros(3, 2), None, {"kind": "nkt"}, "did you mean 'ntk'"),
        (torch.zeros(3, 2), None, {"block_rows": 0}, "whole number of at least 1"),
        (torch.full((1, 1), 1e200, dtype=torch.float64), None, {}, "rescale"),
    ],
)
def test_invalid_inputs_are_rejected(x1, x2, options, message):
    with pytest.raises(UsageError, match=message):
        infinite(FullyConnected(), x1, x2, **options)

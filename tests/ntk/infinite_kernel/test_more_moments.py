"""Moments of GELU, SiLU and powers of ReLU against quadrature, Monte Carlo and wide networks."""

from __future__ import annotations

import math

import pytest
import torch
from numpy.polynomial.hermite_e import hermegauss
from scipy.integrate import quad
from torch.nn import functional as F

from normplace.models import MLP
from normplace.models.activations import build_activation
from normplace.ntk import FullyConnected, empirical, infinite
from normplace.ntk.infinite_kernel.power_moments import ReluPower
from normplace.ntk.infinite_kernel.smooth_moments import Gelu, Silu, logistic_scales

POINTS = [(0.5, 1.3, 0.4), (1.0, 2.0, -0.7), (0.3, 0.3, 0.95), (1.0, 1.0, -1.0)]
MOMENTS = {"gelu": Gelu(), "silu": Silu(), "relu2": ReluPower(2), "relu3": ReluPower(3)}


def scalar(value):
    return torch.tensor([value], dtype=torch.float64)


def slope(function):
    def derivative(u):
        u = u.clone().requires_grad_()
        return torch.autograd.grad(function(u).sum(), u)[0]

    return derivative


def smooth_expectation(function, a, b, rho):
    """E f(u) f(v) by a product of Gauss rules with 120 nodes, exact to rounding for entire functions of this width."""
    nodes, weights = (torch.from_numpy(part) for part in hermegauss(120))
    weights = weights / weights.sum()
    u = math.sqrt(a) * nodes[:, None]
    v = math.sqrt(b) * (rho * nodes[:, None] + math.sqrt(max(0.0, 1 - rho**2)) * nodes)
    return float((weights[:, None] * weights * function(u.expand_as(v)) * function(v)).sum())


# GELU is entire, so the rule is exact. SiLU's error is that of its mixture, 9e-8 in φ at most and smaller on average.
@pytest.mark.parametrize(("name", "function", "error"), [("gelu", F.gelu, 1e-14), ("silu", F.silu, 3e-9)])
@pytest.mark.parametrize(("a", "b", "rho"), POINTS)
def test_smooth_moments_equal_quadrature(name, function, error, a, b, rho):
    moments = MOMENTS[name]
    given = scalar(a), scalar(b), scalar(rho)
    assert float(moments.product(*given)) == pytest.approx(smooth_expectation(function, a, b, rho), abs=error)
    assert float(moments.slope_product(*given)) == pytest.approx(
        smooth_expectation(slope(function), a, b, rho), abs=error
    )
    assert float(moments.square(scalar(a))) == pytest.approx(smooth_expectation(function, a, a, 1.0), abs=error)


@pytest.mark.parametrize("name", ["gelu", "silu"])
@pytest.mark.parametrize("a", [1e-3, 1.0, 1e4])
def test_smooth_means_and_squares_equal_integrals_at_any_variance(name, a):
    function = {"gelu": F.gelu, "silu": F.silu}[name]

    def integrate(power):
        def value(z):
            return float(function(scalar(math.sqrt(a) * z))) ** power * math.exp(-z * z / 2) / math.sqrt(2 * math.pi)

        return quad(value, -12, 0, epsabs=0, epsrel=1e-11)[0] + quad(value, 0, 12, epsabs=0, epsrel=1e-11)[0]

    moments = MOMENTS[name]
    # The mixture's error in φ is below 9e-8, or 2e-8 |u|, whichever is less; GELU is exact.
    relative = 1e-9 if name == "gelu" else 1e-7
    assert float(moments.mean(scalar(a))) == pytest.approx(integrate(1), rel=relative)
    assert float(moments.square(scalar(a))) == pytest.approx(integrate(2), rel=relative)


def test_the_mixture_of_normals_is_the_logistic_function():
    u = torch.linspace(-60, 60, 24001, dtype=torch.float64)
    for nodes, error in ((8, 1e-6), (12, 3e-8), (20, 1e-10)):
        scales, weights = logistic_scales(nodes)
        assert sum(weights) == pytest.approx(1, abs=1e-12)
        mixture = sum(w * torch.special.ndtr(u / s) for s, w in zip(scales, weights, strict=True))
        assert float((mixture - torch.sigmoid(u)).abs().max()) < error


@pytest.mark.parametrize("power", [2, 3])
@pytest.mark.parametrize("rho", [-0.9, 0.0, 0.3, 0.999])
def test_powers_of_relu_equal_polar_quadrature(power, rho):
    # Of a homogeneous function of degree 2n only the angle is left, and E r^{2n} = 2^n n!.
    angle, a, b = math.acos(rho), 0.7, 1.9
    moments = ReluPower(power)

    def expectation(degree, factor):
        def value(psi):
            return (math.cos(psi) * math.cos(psi - angle)) ** degree

        low, high = angle - math.pi / 2, math.pi / 2  # where both cosines are positive
        integral = quad(value, low, high, epsabs=0, epsrel=1e-12)[0] / (2 * math.pi)
        return factor * (a * b) ** (degree / 2) * 2**degree * math.factorial(degree) * integral

    given = scalar(a), scalar(b), scalar(rho)
    assert float(moments.product(*given)) == pytest.approx(expectation(power, 1), rel=1e-9)
    assert float(moments.slope_product(*given)) == pytest.approx(expectation(power - 1, power**2), rel=1e-9)


@pytest.mark.parametrize("power", [2, 3])
def test_powers_of_relu_at_equal_and_opposite_inputs(power):
    moments, a = ReluPower(power), scalar(1.7)
    assert float(moments.square(a)) == pytest.approx(float(moments.product(a, a, scalar(1.0))), rel=1e-14)
    assert float(moments.slope_square(a)) == pytest.approx(float(moments.slope_product(a, a, scalar(1.0))), rel=1e-14)
    assert float(moments.product(a, a, scalar(-1.0))) == 0
    exact = {2: 0.5, 3: math.sqrt(2 / math.pi)}[power] * 1.7 ** (power / 2)
    assert float(moments.mean(a)) == pytest.approx(exact, rel=1e-14)


@pytest.mark.parametrize("activation", list(MOMENTS))
def test_moments_agree_with_monte_carlo(activation):
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(2, 400_000, generator=generator, dtype=torch.float64)
    a, b, rho = 0.8, 1.2, 0.6
    phi = build_activation(activation)
    u, v = math.sqrt(a) * z[0], math.sqrt(b) * (rho * z[0] + 0.8 * z[1])
    samples = phi(u) * phi(v)
    estimate, error = float(samples.mean()), float(samples.std()) / math.sqrt(len(samples))
    # Five standard errors of the mean: a false alarm once in two million seeds.
    assert float(MOMENTS[activation].product(scalar(a), scalar(b), scalar(rho))) == pytest.approx(
        estimate, abs=5 * error
    )


def free_norm(width):
    return torch.nn.LayerNorm(width, eps=1e-12, elementwise_affine=False)


@pytest.mark.parametrize("activation", ["gelu", "silu", "relu2"])
@pytest.mark.parametrize("norm_at", ["none", "first"])
def test_wide_networks_have_the_infinite_kernel(activation, norm_at):
    x = torch.tensor([[0.7, -0.4], [1.1, 0.3], [-0.5, 0.9]], dtype=torch.float64)
    options = {"parametrization": "ntk", "weight_std": 1.0, "bias_std": 0.1, "dtype": torch.float64}
    kernels = []
    for seed in range(24):
        generator = torch.Generator().manual_seed(seed)
        network = MLP(
            (2, 512, 512, 1), norm=free_norm, norm_at=norm_at, activation=activation, generator=generator, **options
        )
        kernels.append(empirical(network, x))
    stack = torch.stack(kernels)
    expected = infinite(
        FullyConnected(
            activation=activation,
            weight_variance=1.0,
            last_weight_variance=1.0,
            bias_variance=0.01,
            norm="layer",
            norm_at=norm_at,
        ),
        x,
    )
    # Five standard errors of the mean, and a finite-width bias of a few times 1/512 of the largest entry.
    error = 5 * stack.std(0) / math.sqrt(len(stack)) + 0.01 * expected.max()
    assert ((stack.mean(0) - expected).abs() < error).all()


@pytest.mark.parametrize(("activation", "degree"), [("relu", 1), ("relu2", 2), ("relu3", 3)])
def test_the_diagonal_of_a_homogeneous_network_grows_with_the_degree_of_its_composition(activation, degree):
    x = torch.tensor([[1e6], [1e7]], dtype=torch.float64)
    for depth in (1, 2):
        spec = FullyConnected(depth=depth, activation=activation)
        near, far = infinite(spec, x).diagonal().log10().tolist()
        # f is homogeneous of degree n^depth in x, and Θ of twice that; biases change it by less than 1e-6.
        assert far - near == pytest.approx(2 * degree**depth, abs=1e-5)
        normed = FullyConnected(depth=depth, activation=activation, norm="layer", norm_at="first")
        near, far = infinite(normed, x).diagonal().tolist()
        assert far == pytest.approx(near, rel=1e-9)

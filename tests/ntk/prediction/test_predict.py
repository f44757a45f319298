"""Kernel prediction against dense formulas, a simulated gradient flow and sampled networks."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from normplace.errors import UsageError
from normplace.ntk.infinite_kernel.kernel import FullyConnected, infinite
from normplace.ntk.prediction.predict import predict


def problem(n=12, m=5, outputs=None, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n + m, 3, generator=generator, dtype=torch.float64)
    shape = (n,) if outputs is None else (n, outputs)
    y = torch.randn(*shape, generator=generator, dtype=torch.float64)
    spec = FullyConnected(norm="layer", norm_at="first")
    return infinite(spec, x[:n]), y, infinite(spec, x[n:], x[:n]), infinite(spec, x, kind="nngp")


@pytest.mark.parametrize("method", ["cholesky", "eigh", "cg"])
@pytest.mark.parametrize("outputs", [None, 1, 3])
def test_every_method_solves_the_same_system(method, outputs):
    k, y, kt, _ = problem(outputs=outputs)
    result = predict(k, y, kt, method=method, tolerance=1e-12)
    torch.testing.assert_close(result.mean, kt @ torch.linalg.inv(k) @ y, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(kt @ result.weights, result.mean)
    values = torch.linalg.eigvalsh(k)
    assert result.condition == pytest.approx(float(values[-1] / values[0]), rel=0.02)
    assert result.method == method and result.converged and result.residual < 1e-10 and result.jitter == 0


def test_training_points_are_fitted_exactly():
    k, y, _, _ = problem()
    torch.testing.assert_close(predict(k, y, k).mean, y, rtol=1e-9, atol=1e-9)


@settings(max_examples=10, deadline=None)
@given(st.floats(0.0, 3.0), st.integers(0, 100))
def test_finite_time_is_the_simulated_gradient_flow(time, seed):
    k, y, kt, _ = problem(n=6, m=3, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    f, start = (torch.randn(size, generator=generator, dtype=torch.float64) for size in (6, 3))
    result = predict(k, y, kt, time=time, learning_rate=0.5, f0_train=f, f0_test=start)
    # The flow of (f_train, f_test) is linear: its matrix exponential is an independent oracle.
    system = torch.zeros(10, 10, dtype=torch.float64)
    system[:6, :6], system[6:9, :6] = -k, -kt
    system[:6, 9], system[6:9, 9] = k @ y, kt @ y
    state = torch.linalg.matrix_exp(0.5 * time * system) @ torch.cat([f, start, torch.ones(1, dtype=torch.float64)])
    torch.testing.assert_close(result.mean, state[6:9], rtol=1e-9, atol=1e-9)


def test_time_runs_from_the_initial_function_to_convergence():
    k, y, kt, _ = problem()
    f0 = {"f0_train": torch.full_like(y, 0.3), "f0_test": torch.full((5,), 0.7, dtype=torch.float64)}
    torch.testing.assert_close(predict(k, y, kt, time=0.0, **f0).mean, f0["f0_test"])
    late = predict(k, y, kt, time=1e8, **f0)
    torch.testing.assert_close(late.mean, predict(k, y, kt, **f0).mean, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(predict(k, y, kt, **f0).mean, 0.7 + kt @ torch.linalg.inv(k) @ (y - 0.3))


def test_finite_time_needs_no_regular_kernel():
    k, y, kt, _ = problem()
    twice = torch.tensor([0, *range(12)])
    result = predict(k[twice][:, twice], y[twice], kt[:, twice], time=1.0)
    assert bool(torch.isfinite(result.mean).all())


def test_variance_is_that_of_networks_drawn_and_trained():
    k, _, kt, nngp = problem(n=8, m=4)
    y = torch.zeros(8, dtype=torch.float64)
    parts = (nngp[:8, :8], nngp[8:, :8], nngp[8:, 8:].diagonal())
    draws = torch.linalg.cholesky(nngp) @ torch.randn(
        12, 200_000, generator=torch.Generator().manual_seed(3), dtype=torch.float64
    )
    for time in (None, 0.7):
        result = predict(k, y, kt, time=time, nngp=parts)
        trained = predict(
            k,
            y[:, None].expand(8, 200_000),
            kt,
            time=time,
            f0_train=draws[:8],
            f0_test=draws[8:],
            method="eigh",
        )
        # The relative error of a variance from 200,000 draws is √(2/200,000) = 0.3 %.
        torch.testing.assert_close(result.variance, trained.mean.var(1), rtol=0.02, atol=0)
    posterior = predict(nngp[:8, :8], y, nngp[8:, :8], nngp=parts).variance
    exact = (nngp[8:, 8:] - nngp[8:, :8] @ torch.linalg.inv(nngp[:8, :8]) @ nngp[:8, 8:]).diagonal()
    torch.testing.assert_close(posterior, exact, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("differ", [False, True])
@pytest.mark.parametrize("method", ["cholesky", "eigh"])
def test_duplicate_rows_are_named(differ, method):
    x = torch.randn(9, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    x[6] = x[2]
    y = x[:, 0].clone()
    y[6] += differ
    k = infinite(FullyConnected(), x)
    with pytest.raises(UsageError, match=r"rows 2 and 6 are duplicates.*jitter") as caught:
        predict(k, y, k, method=method)
    assert ("different targets" in str(caught.value)) == differ
    result = predict(k, y, k, method=method, jitter="auto")
    assert 0 < result.jitter < 1e-6
    torch.testing.assert_close(result.mean[[2, 6]], y[[2, 6]].mean().expand(2), rtol=1e-3, atol=1e-3)
    assert predict(k, y, k, method=method, jitter=1e-3).jitter == 1e-3


def test_a_singular_kernel_without_duplicate_rows():
    x = torch.linspace(-1, 1, 60, dtype=torch.float64)[:, None]
    k = torch.exp(-(x - x.T).square())
    with pytest.raises(UsageError, match="numerically singular"):
        predict(k, x[:, 0], k)


@pytest.mark.parametrize("shift", [2.0, 0.5])
@pytest.mark.parametrize("options", [{}, {"jitter": "auto"}, {"method": "eigh"}, {"time": 1.0}], ids=str)
def test_a_matrix_that_is_no_kernel_is_refused(shift, options):
    k, y, kt, _ = problem()
    values, vectors = torch.linalg.eigh(k)
    wrong = vectors @ torch.diag(values - shift * values.mean()) @ vectors.T
    with pytest.raises(UsageError, match=r"has the negative eigenvalue -.*, so it is not a kernel"):
        predict((wrong + wrong.T) / 2, y, kt, **options)


def test_auto_jitter_is_zero_for_a_regular_kernel():
    k, y, kt, _ = problem()
    assert predict(k, y, kt, jitter="auto").jitter == 0


def test_conjugate_gradients_take_a_function_and_agree():
    k, y, kt, _ = problem(n=40, outputs=2)
    result = predict(lambda v: k @ v, y, kt, jitter=1e-3, tolerance=1e-11)
    torch.testing.assert_close(result.mean, predict(k, y, kt, jitter=1e-3).mean, rtol=1e-7, atol=1e-8)
    assert result.method == "cg" and result.iterations > 1


def test_conjugate_gradients_never_stop_silently():
    k, y, kt, _ = problem(n=40)
    with pytest.warns(RuntimeWarning, match="stopped after 2 iterations"):
        result = predict(k, y, kt, method="cg", max_iterations=2)
    assert not result.converged and result.residual > 1e-8
    assert "NOT converged" in str(result)


def test_zero_targets():
    k, y, kt, _ = problem()
    for method in ("cholesky", "eigh", "cg"):
        assert predict(k, 0 * y, kt, method=method).mean.abs().max() == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"targets": torch.zeros(3)}, r"targets has shape \(3,\)"),
        ({"targets": torch.full((12,), torch.nan)}, "12 non-finite"),
        ({"targets": torch.zeros(12, dtype=torch.int64)}, "convert"),
        ({"kernel_train": torch.zeros(12, 11)}, "square"),
        ({"kernel_train": torch.arange(144.0).reshape(12, 12)}, "not symmetric"),
        ({"kernel_train": torch.full((12, 12), torch.inf)}, "non-finite"),
        ({"kernel_test": torch.zeros(5, 11)}, "12 training rows"),
        ({"f0_train": torch.zeros(12)}, "both or neither"),
        ({"f0_train": torch.zeros(12, 2), "f0_test": torch.zeros(5)}, "must agree"),
        ({"time": -1.0}, "zero or more"),
        ({"time": 1.0, "method": "cg"}, "eigh"),
        ({"time": 1.0, "method": "cholesky"}, "eigh"),
        ({"method": "choleski"}, "did you mean 'cholesky'"),
        ({"jitter": -1.0}, "jitter"),
        ({"jitter": "much"}, "jitter"),
        ({"jitter": "auto", "method": "cg"}, "as a number"),
        ({"tolerance": 0.0}, "tolerance"),
        ({"learning_rate": 0.0}, "learning_rate"),
        ({"kernel_train": lambda v: v, "method": "eigh"}, "matrix"),
        ({"kernel_train": lambda v: v[:1]}, "argument's shape"),
        ({"kernel_train": lambda v: -v}, "positive definite"),
        ({"kernel_train": lambda v: v * torch.nan}, "not finite"),
        ({"nngp": (torch.eye(12),) * 3}, "nngp must be"),
        ({"nngp": (torch.eye(12),) * 3, "method": "cg"}, "needs a factor"),
    ],
)
def test_invalid_input_raises_a_usage_error(change, message):
    k, y, kt, _ = problem()
    arguments = {"kernel_train": k, "targets": y, "kernel_test": kt} | change
    with pytest.raises(UsageError, match=message):
        predict(**arguments)

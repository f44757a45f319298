"""The provable bounds hold, and the text reports it."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from normplace.errors import UsageError
from normplace.ntk.infinite_kernel.kernel import FullyConnected, infinite
from normplace.ntk.prediction.bound import bound
from normplace.ntk.prediction.predict import predict

NORMED = FullyConnected(norm="layer", norm_at="first")


def sinusoid(spec, reach=1000.0):
    x = torch.linspace(-3, 3, 20, dtype=torch.float64)[:, None]
    y = x[:, 0].sin()
    far = torch.linspace(-reach, reach, 501, dtype=torch.float64)[:, None]
    kernel = infinite(spec, x)
    return kernel, y, predict(kernel, y, infinite(spec, far, x)).mean, infinite(spec, far).diagonal().max()


def test_prediction_and_bound_of_a_sinusoid():
    kernel, y, mean, top = sinusoid(NORMED)
    result = bound(kernel, y, float(top), predictions=mean)
    assert result.lambda_min == pytest.approx(9.3e-4, rel=0.01)
    assert result.diagonal_sup == pytest.approx(1.52)
    assert result.from_norm == pytest.approx(14.3, rel=0.01)
    assert result.from_eigenvalue == pytest.approx(179, rel=0.01)
    assert result.crude == pytest.approx(3.2e4, rel=0.01)
    assert result.as_summarised == pytest.approx(result.crude / 400)
    assert all(result.satisfied.values())
    text = str(result)
    assert "unconfirmed (s = 1)" in text and text.count("provable") == 3 and text.count("satisfied") == 4


def test_without_a_norm_the_prediction_leaves_every_fixed_bound():
    near, far = (sinusoid(FullyConnected(), reach) for reach in (1e3, 1e7))
    assert float(far[2].abs().max()) > 5000 * float(near[2].abs().max())
    broken = bound(near[0], near[1], float(near[3]), predictions=1e3 * far[2])
    assert not broken.satisfied["from_norm"] and "VIOLATED" in str(broken)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 12), st.integers(1, 3), st.integers(0, 2**31), st.sampled_from([0.0, 0.1]))
def test_the_provable_bounds_always_hold(n, outputs, seed, jitter):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 4, generator=generator, dtype=torch.float64)
    y = torch.randn(n, outputs, generator=generator, dtype=torch.float64)
    far = (
        torch.randn(200, 4, generator=generator, dtype=torch.float64)
        * torch.logspace(-3, 6, 200, dtype=torch.float64)[:, None]
    )
    kernel = infinite(NORMED, x)
    mean = predict(kernel, y, infinite(NORMED, torch.cat([far, x]), x), jitter=jitter).mean
    result = bound(kernel, y, float(kernel.diagonal().max()), predictions=mean, jitter=jitter)
    assert result.satisfied["from_norm"] and result.satisfied["from_eigenvalue"] and result.satisfied["crude"]
    assert result.from_norm <= result.from_eigenvalue * (1 + 1e-9)


def test_the_summarised_bound_can_fail():
    # With many well-separated points, the factor 1/|D| makes the bound smaller than the targets.
    kernel = torch.eye(50, dtype=torch.float64)
    result = bound(kernel, torch.ones(50, dtype=torch.float64), 1.0, predictions=torch.ones(50))
    assert not result.satisfied["as_summarised"] and result.satisfied["from_norm"]
    assert bound(kernel, torch.ones(50), 1.0, scale=50.0).as_summarised == pytest.approx(1.0)


def test_a_record_without_predictions():
    record = bound(torch.eye(3), torch.ones(3), 1.0).to_dict()
    assert record["satisfied"] == {} and record["largest_prediction"] is None and record["rows"] == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((torch.eye(3), torch.ones(3), 0.5), "C must bound"),
        ((torch.eye(3), torch.ones(3), float("nan")), "diagonal_sup"),
        ((torch.ones(3, 3), torch.ones(3), 1.0), "duplicates"),
        ((torch.ones(3, 3) - torch.eye(3) / 2, torch.ones(3), 1.0), "negative eigenvalue -0.5"),
        ((torch.eye(3), torch.ones(2), 1.0), "targets has shape"),
        ((torch.zeros(2, 3), torch.ones(2), 1.0), "square"),
        ((torch.eye(3), torch.full((3,), torch.inf), 1.0), "non-finite"),
    ],
)
def test_invalid_input_raises_a_usage_error(arguments, message):
    with pytest.raises(UsageError, match=message):
        bound(*arguments)

"""Arguments are checked once for each signature, and a changed argument is noticed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from normplace.errors import UsageError
from normplace.ops import checked_calls, feature_norm, norm_add_norm
from normplace.ops.checked_calls import CheckedCalls, signature


def test_the_signature_has_what_the_checks_read():
    x = torch.zeros(4, 3)
    same = [torch.ones(4, 3), torch.zeros(8, 3)[::1][:4]]
    others = [
        x.double(), torch.zeros(3, 4), torch.zeros(3, 4).T, x[..., None], x.to("meta"), nn.Parameter(x), None, [0.0]
    ]  # fmt: skip
    assert all(signature(other) == signature(x) for other in same)
    assert all(signature(other) != signature(x) for other in others)
    assert signature(x, None) != signature(None, x)


def test_few_signatures_are_remembered(monkeypatch):
    monkeypatch.setattr(checked_calls, "MAX_SIGNATURES", 2)
    calls: CheckedCalls[int] = CheckedCalls()
    for number in range(5):
        calls.remember(number, number)
        assert calls[number] == number and len(calls) <= 2


@pytest.mark.parametrize(
    "changed",
    [
        {"f": torch.zeros(2, 4)},
        {"f": torch.zeros(2, 3, dtype=torch.int64)},
        {"f": "rows"},
        {"out_weight": torch.ones(4)},
        {"out_weight": torch.ones(3).to("meta")},
        {"in_weight": torch.ones(3, dtype=torch.complex64)},
        {"in_bias": 0.0},
        {"out_norm": "batch"},
        {"out_norm": None},
        {"out_eps": float("nan")},
        {"in_eps": -1.0},
        {"skip_scale": float("inf")},
        {"branch_scale": torch.ones(5)},
        {"dropout": 0.5},
        {"stream_dtype": torch.int32},
        {"in_rounding": "never"},
        {"backend": "cuda"},
    ],
    ids=str,
)
def test_a_wrong_argument_is_refused_after_valid_calls(changed):
    valid: dict[str, Any] = {
        "x": torch.ones(2, 3),
        "f": torch.ones(2, 3),
        "out_weight": torch.ones(3),
        "in_weight": torch.ones(3),
    }
    for _ in range(2):
        norm_add_norm(**valid)
    for _ in range(2):
        with pytest.raises(UsageError):
            norm_add_norm(**(valid | changed))


@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_a_repeated_call_computes_from_its_own_tensors(backend):
    generator = torch.Generator().manual_seed(0)
    for _ in range(3):
        x, f, *gains = (
            torch.randn(shape, generator=generator).requires_grad_() for shape in ((4, 6), (4, 6), (6,), (6,))
        )
        stream, y = norm_add_norm(x, f, out_weight=gains[0], in_weight=gains[1], in_eps=1e-3, backend=backend)
        expected = x + nn.functional.rms_norm(f, (6,), gains[0], 1e-6)
        torch.testing.assert_close(stream, expected)
        torch.testing.assert_close(y, nn.functional.rms_norm(expected, (6,), gains[1], 1e-3))
        normed = feature_norm(x, gains[0], eps=1e-3, backend=backend)
        torch.testing.assert_close(normed, nn.functional.rms_norm(x, (6,), gains[0], 1e-3))
        assert stream.requires_grad and y.requires_grad and normed.requires_grad
        with torch.no_grad():
            assert not norm_add_norm(x, f, out_weight=gains[0], in_weight=gains[1], in_eps=1e-3)[1].requires_grad


def test_weights_that_are_not_contiguous_follow_contiguous_ones():
    x, weight = torch.randn(2, 3), torch.randn(3, 2)
    for gain in (weight[:, 0].contiguous(), weight[:, 0], weight[:, 0].contiguous(), weight[:, 0]):
        torch.testing.assert_close(
            feature_norm(x, gain), nn.functional.rms_norm(x, (3,), weight[:, 0].contiguous(), 1e-6)
        )
        _, y = norm_add_norm(x, x, out_norm=None, in_weight=gain)
        torch.testing.assert_close(y, nn.functional.rms_norm(2 * x, (3,), weight[:, 0].contiguous(), 1e-6))


def test_a_transform_after_plain_calls_is_seen():
    x = torch.randn(5, 3)
    for _ in range(2):
        feature_norm(x)
        norm_add_norm(x, x)
    rows = torch.func.vmap(lambda row: norm_add_norm(row[None], row[None])[1][0])(x)
    torch.testing.assert_close(rows, norm_add_norm(x, x)[1])
    jacobian = torch.func.jacfwd(lambda row: feature_norm(row))(x[0])
    torch.testing.assert_close(jacobian, torch.autograd.functional.jacobian(lambda row: feature_norm(row), x[0]))

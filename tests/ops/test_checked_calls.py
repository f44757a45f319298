"""Arguments are checked once for each signature, and a changed argument is noticed."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from normplace.errors import UsageError
from normplace.ops import checked_calls, feature_norm, norm_add_norm
from normplace.ops.checked_calls import CheckedCalls, signature

# No signature with one of these numbers is remembered before a test takes it.
UNUSED_EPS = itertools.count(0.001, 0.001)


class Subclass(torch.Tensor):
    """A tensor of a subclass."""


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


def outcome(call: Callable[[], Any]) -> Any:
    """The values of a call, or the type of its exception."""
    try:
        values = call()
    except Exception as error:  # whichever it is, a remembered signature must not hide it
        return type(error)
    return [value.tolist() for value in (values if isinstance(values, tuple) else [values])]


@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize(
    "changed",
    [
        *({"dropout": value} for value in (None, "", [], False, -0.0, np.float64(0), torch.tensor(0.0))),
        *({"in_eps": value} for value in (1, True, np.float32(0.5), torch.tensor(0.5), -1, None, "1", [1], 1j)),
        *({"branch_scale": value} for value in (None, True, torch.tensor([2]), torch.ones(1, 3), torch.tensor(2j))),
        *({"unit_offset": value} for value in (1, 1.0, np.bool_(True))),
        *({"x": value, "f": value} for value in (torch.ones(3, 2).T, torch.ones(1, 3).expand(2, 3), torch.ones(0, 3))),
        {"x": torch.arange(4.0).as_strided((2, 3), (1, 1))},
        {"f": torch.ones(2, 6)[:, ::2].requires_grad_()},
        {"f": torch.ones(2, 3).to_sparse()},
        {"x": torch.ones(2, 3).as_subclass(Subclass)},
        {"in_weight": torch.arange(6.0)[::2]},
        {"in_weight": torch.ones(1).expand(3)},
        {"in_weight": nn.Parameter(torch.arange(3.0))},
        {"in_weight": torch.ones(3, dtype=torch.int64)},
        {"in_weight": [1.0, 1.0, 1.0]},
        {"out_norm": ["rms"]},
    ],
    ids=str,
)
def test_a_call_gives_the_same_before_and_after_valid_calls(changed, backend):
    valid: dict[str, Any] = {
        "x": torch.arange(6.0).view(2, 3),
        "f": torch.ones(2, 3),
        "in_weight": torch.ones(3),
        "in_eps": next(UNUSED_EPS),
    }
    for op, names in ((norm_add_norm, None), (feature_norm, {"x": "x", "in_weight": "weight", "in_eps": "eps"})):
        known, other = (
            {(names or {}).get(key, key): value for key, value in arguments.items() if names is None or key in names}
            for arguments in (valid, valid | changed)
        )
        before = outcome(lambda op=op, other=other: op(**other, backend=backend))
        for _ in range(2):
            op(**known, backend=backend)
        for _ in range(2):
            assert outcome(lambda op=op, other=other: op(**other, backend=backend)) == before


@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (1, 1, 1, 1)])
def test_a_branch_scale_of_one_element_has_any_shape(shape, backend):
    x, scale = torch.arange(6.0).view(2, 3), torch.full(shape, 2.0, requires_grad=True)
    for _ in range(2):
        stream, y = norm_add_norm(x, x, branch_scale=scale, out_norm=None, backend=backend)
        assert torch.equal(stream, 3 * x) and y.shape == x.shape
        assert torch.equal(torch.autograd.grad(stream.sum(), scale)[0], torch.full(shape, 15.0))


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


class NormsInFloat64(TorchFunctionMode):
    """Computes PyTorch's norms in float64, as a mode that follows the functions of a model may."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        wide = [v.double() if func in (F.layer_norm, F.rms_norm) and isinstance(v, torch.Tensor) else v for v in args]
        return func(*wide, **(kwargs or {}))


@pytest.mark.parametrize("norm", ["layer", "rms"])
def test_a_function_mode_after_plain_calls_sees_the_norms(norm):
    x, f = torch.randn(2, 4, 6)
    expected = x + getattr(F, f"{norm}_norm")(f.double(), (6,), eps=1e-6)
    for _ in range(2):
        assert norm_add_norm(x, f, out_norm=norm, in_norm=None)[0].dtype == torch.float32
    with NormsInFloat64():
        assert torch.equal(norm_add_norm(x, f, out_norm=norm, in_norm=None)[0], expected)

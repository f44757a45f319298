"""Every invalid argument of a kernel function raises a UsageError with a message."""

import math

import pytest
import torch
from torch import nn

from normplace.errors import UsageError
from normplace.ntk import FullyConnected, bound, certificate, empirical, empirical_blocks, infinite, predict

KERNEL = torch.eye(3, dtype=torch.float64) + 0.1
TARGETS, TEST, X = torch.ones(3).double(), torch.ones(2, 3).double(), torch.ones(3, 2).double()
WRONG = {
    "text": "a",
    "bytes": b"x",
    "object": object(),
    "complex": 1j,
    "nan": math.nan,
    "dictionary": {},
    "matrix of nan": torch.full((3, 3), math.nan),
    "sparse": torch.eye(3).to_sparse(),
    "meta": torch.eye(3, device="meta"),
    "three axes": torch.ones(2, 2, 2),
    "0-d": torch.tensor(1),
    "empty": torch.zeros(0, 3),
}
CALLS = {
    "bound": (
        bound,
        {"kernel_train": KERNEL, "targets": TARGETS, "diagonal_sup": 2.0},
        "kernel_train targets diagonal_sup predictions scale jitter",
    ),
    "predict": (
        predict,
        {"kernel_train": KERNEL, "targets": TARGETS, "kernel_test": TEST, "f0_train": TARGETS, "f0_test": TEST[:, 0]},
        "kernel_train targets kernel_test time learning_rate f0_train f0_test nngp jitter method tolerance "
        "max_iterations",
    ),
    "infinite": (infinite, {"spec": FullyConnected(), "x1": X}, "spec x1 x2 kind block_rows"),
    "FullyConnected": (
        FullyConnected,
        {"norm": "layer", "norm_at": "first"},
        "depth activation negative_slope weight_variance bias_variance last_weight_variance norm norm_at "
        "norm_position eps",
    ),
    "empirical": (
        empirical,
        {"model": nn.Linear(2, 1).double(), "x1": X},
        "model x1 x2 output diagonal parameters memory_gb",
    ),
    "empirical_blocks": (empirical_blocks, {"model": nn.Linear(2, 1).double(), "x1": X}, "block memory_gb"),
    "certificate": (
        certificate,
        {"model": nn.Linear(2, 1).double(), "x": X},
        "model x radius decades directions changes strength generator",
    ),
}

# Predictions may have any shape, and a linear map takes samples with any leading axes.
ACCEPTED = {("bound", "predictions", "three axes"), ("certificate", "x", "three axes")}


@pytest.mark.parametrize("kind", WRONG)
@pytest.mark.parametrize("name", CALLS)
def test_every_invalid_argument_raises_a_usage_error(name, kind):
    function, arguments, names = CALLS[name]
    for argument in names.split():
        if (name, argument, kind) in ACCEPTED:
            continue
        with pytest.raises(UsageError) as caught:
            function(**{**arguments, argument: WRONG[kind]})
        assert "\n" not in str(caught.value), argument
        assert len(str(caught.value)) < 320, argument


@pytest.mark.parametrize("call", ["bound", "predict", "certificate"])
def test_a_number_beyond_float64_raises_a_usage_error(call):
    function, arguments, _ = CALLS[call]
    argument = {"bound": "diagonal_sup", "predict": "learning_rate", "certificate": "directions"}[call]
    with pytest.raises(UsageError) as caught:
        function(**{**arguments, argument: 10**400})
    assert len(str(caught.value)) < 320


def test_a_singular_kernel_is_named_by_its_row():
    for function in (lambda: bound(torch.ones(3, 3), TARGETS, 2.0), lambda: predict(torch.ones(3, 3), TARGETS, TEST)):
        with pytest.raises(UsageError, match="rows 0 and 1 are duplicates"):
            function()

"""Gradients by finite differences, and the choice of the backend."""

from __future__ import annotations

import itertools

import pytest
import torch
from tests.ops.relation.cases import Case

from normplace import UsageError
from normplace.ops import relation_pairwise, relation_scan


def test_gradcheck():
    case = Case((1, 5, 4), masked=True, dtype=torch.float64)
    a, b = case.a.requires_grad_(), case.b.requires_grad_()
    for norm, post_norm, causal in itertools.product(("joint", "separate", "none"), (False, True), (False, True)):
        options = {"norm": norm, "post_norm": post_norm, "causal": causal, "heads": 2, "mask": case.mask}
        for activation in ("exp", "gelu", "elu"):
            assert torch.autograd.gradcheck(
                lambda a, b: relation_pairwise(a, b, activation=activation, **options), (a, b)  # noqa: B023
            )  # fmt: skip


def test_a_backend_that_cannot_run_raises_with_the_reason(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    x = torch.randn(1, 3, 4)
    with pytest.raises(UsageError, match="need a CUDA GPU"):
        relation_scan(x, x, backend="triton")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with pytest.raises(UsageError, match=r"float32, bfloat16 and float16|not installed"):
        relation_pairwise(x.double(), x.double(), backend="triton")

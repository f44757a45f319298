"""The operators: gradients by finite differences, registration, compilation, and what they do not do."""

from __future__ import annotations

import itertools

import pytest
import torch
from tests.ops.relation.cases import Case
from torch.utils._python_dispatch import TorchDispatchMode

from normplace import UsageError
from normplace.ops import relation_pairwise, relation_scan
from normplace.ops.relation import op


def test_gradcheck():
    case = Case((1, 5, 4), masked=True, dtype=torch.float64)
    a, b = case.a.requires_grad_(), case.b.requires_grad_()
    for norm, post_norm, causal in itertools.product(("joint", "separate", "none"), (False, True), (False, True)):
        options = {"norm": norm, "post_norm": post_norm, "causal": causal, "heads": 2, "mask": case.mask}
        for activation in ("exp", "gelu", "elu"):
            assert torch.autograd.gradcheck(
                lambda a, b: relation_pairwise(a, b, activation=activation, **options), (a, b)  # noqa: B023
            )  # fmt: skip


@pytest.mark.parametrize(
    ("operator", "dtype", "options"),
    [
        (op.SCAN.operator, torch.float32, ("separate", "exp", True, 1e-5, True, 2, True, "auto")),
        (op.SCAN.operator, torch.float32, ("none", "exp", False, 1e-5, False, 1, True, "auto")),
        (op.PAIRS.operator, torch.bfloat16, ("joint", "exp", False, 1e-5, True, 2, True, "auto")),
        (op.PAIRS.operator, torch.bfloat16, ("joint", "exp", True, 1e-5, True, 2, True, "auto")),
    ],
)
def test_registration(operator, dtype, options):
    a, b = (torch.randn(2, 9, 6, dtype=dtype, requires_grad=True) for _ in range(2))
    torch.library.opcheck(operator, (a, b, None, *options))
    torch.library.opcheck(operator, (a, b, torch.ones(2, 9), *options))


@pytest.mark.parametrize("run", [relation_scan, relation_pairwise])
def test_compiles_whole(run):
    case = Case((2, 9, 6), masked=True)

    def loss(a, b):
        return run(a, b, post_norm=True, mask=case.mask).square().sum() + run(a, b).sum()

    a, b = case.a.requires_grad_(), case.b.requires_grad_()
    expected = torch.autograd.grad(loss(a, b), (a, b))
    found = torch.autograd.grad(torch.compile(loss, fullgraph=True)(a, b), (a, b))
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


class Names(TorchDispatchMode):
    """Notes the operators of this package."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "normplace":
            self.seen.append(func.name())
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("run", "name"), [(relation_scan, "relation_scan"), (relation_pairwise, "relation_pairs")])
def test_whoever_watches_sees_operators_and_the_same_numbers(run, name):
    case = Case((2, 9, 6), masked=True)
    a, b = case.a.requires_grad_(), case.b.requires_grad_()
    y = run(a, b, mask=case.mask)
    expected = y, *torch.autograd.grad(y, (a, b), case.grad)
    with Names() as watched:
        y = run(a, b, mask=case.mask)
        found = y, *torch.autograd.grad(y, (a, b), case.grad)
    assert watched.seen == [f"normplace::{name}", f"normplace::{name}_backward"]
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(found, expected, strict=True))
    # Begun unwatched, and watched from then on.
    y = run(a, b, mask=case.mask)
    with Names() as watched:
        found = torch.autograd.grad(y, (a, b), case.grad)
    assert watched.seen == [f"normplace::{name}_backward"]
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(found, expected[1:], strict=True))
    with torch.no_grad():
        assert torch.equal(run(a, b, mask=case.mask), expected[0])


def test_says_what_triton_needs(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    x = torch.randn(1, 3, 4)
    with pytest.raises(UsageError, match="need a CUDA GPU"):
        relation_scan(x, x, backend="triton")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with pytest.raises(UsageError, match=r"float32, bfloat16 and float16|not installed"):
        relation_pairwise(x.double(), x.double(), backend="triton")

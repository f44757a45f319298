"""The numba loops of both relations against a brute force in float64, and when they are chosen."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from tests.ops.relation.cases import Case, cancelling, distant

pytest.importorskip("numba")

from normplace import UsageError
from normplace.ops import relation_pairwise, relation_scan
from normplace.ops.backends import INSTALLED
from normplace.ops.relation import numba_pairs
from normplace.ops.relation.common import RelationSpec
from normplace.ops.relation.op import PAIRS, SCAN, choose_backend

RELATIONS = {"scan": relation_scan, "pairwise": relation_pairwise}
NORMS = {"scan": "separate", "pairwise": "joint"}


@pytest.fixture(params=RELATIONS)
def op(request) -> str:
    return request.param


@pytest.fixture(params=[1, 3], ids=["one thread", "three threads"])
def threads(request):
    """One thread processes whole sequences, three process parts of them."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.usefixtures("threads")
def test_equals_brute_force(op):
    for causal, post_norm, (heads, masked) in itertools.product(
        (True, False), (True, False), ((1, False), (3, True), (1, True))
    ):
        options = {"causal": causal, "post_norm": post_norm, "heads": heads, "masked": masked}
        Case((2, 137, 36), NORMS[op], **options).compare(op, "numba")
    Case((1, 137, 36), NORMS[op], mean=False).compare(op, "numba")


def test_wide_rows_and_short_sequences(op):
    for shape in ((1, 1, 12), (3, 2, 11), (2, 70, 640)):
        for post_norm in (False, True):
            Case(shape, NORMS[op], post_norm=post_norm).compare(op, "numba")


def test_results_do_not_depend_on_the_number_of_threads(op):
    before = torch.get_num_threads()
    try:
        found = []
        for number in (1, 2, 5):
            torch.set_num_threads(number)
            case = Case((2, 333, 36), NORMS[op], post_norm=True, masked=True)
            found.append(case.results(op, "numba"))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(found[0][key], other[key]) for other in found[1:] for key in found[0])


def test_rounding_errors_do_not_grow_with_the_length():
    """A sum of equal terms, whose rounding errors all have the same sign, of up to ten thousand rows."""
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(1, 10_000, 12, generator=generator)
    b = torch.randn(1, 1, 12, generator=generator).expand(a.shape)
    truth = relation_scan(a.double(), b.double())
    assert ((relation_scan(a, b, backend="numba") - truth) / truth).abs().max() <= 2e-6


def test_pairs_that_nearly_cancel_and_large_means():
    """Normalization amplifies the remainder of a pair, and the rounding of its gradient, fifty times."""
    cancelling(shape=(2, 40, 36)).compare("pairwise", "numba", of_gradients=2e-4)
    for op in RELATIONS:
        case = distant(shape=(2, 40, 48), heads=4)
        case.norm = NORMS[op]
        case.compare(op, "numba", tolerance=1e-5 if op == "scan" else 3e-3, of_gradients=3e-5 if op == "scan" else 3e-2)


def test_equal_values_are_normalized_to_zero(op):
    a, b = (torch.full((1, 5, 12), value, requires_grad=True) for value in (0.3, 0.1))
    for post_norm in (False, True):
        y = RELATIONS[op](a, b, post_norm=post_norm, backend="numba")
        assert y.tolist() == torch.full_like(y, 0.0 if post_norm else 1.0).tolist()
        # A sum of up to five gradients times 1 / sqrt(eps) minus its mean, each rounded.
        assert all(d.abs().max() <= 5 * 1.2e-7 / 1e-5**0.5 for d in torch.autograd.grad(y.sum(), (a, b)))


def test_values_with_an_infinite_variance_are_nan(op):
    """Not normalized to zero, which would pass for a result."""
    y = RELATIONS[op](*(1e25 * x for x in torch.randn(2, 1, 5, 12)), backend="numba")
    assert y.isnan().all()


def test_masked_rows_may_hold_anything(op):
    case = Case((1, 9, 12), NORMS[op])
    mask = torch.ones(1, 9, dtype=torch.bool)
    mask[0, 4:6] = False
    run = RELATIONS[op]
    a, b = case.a.clone(), case.b.clone()
    a[:, 4:6], b[:, 4:6] = math.nan, math.inf
    for x in (a, b):
        x.requires_grad_()
    y = run(a, b, mask=mask, backend="numba")
    torch.testing.assert_close(y[:, mask[0]], run(*(x[:, mask[0]] for x in (case.a, case.b))))
    da, db = torch.autograd.grad(y.square().sum(), (a, b))
    for x in (y, da, db):
        assert x[:, 4:6].abs().max() == 0
        assert x.isfinite().all()


@pytest.mark.parametrize("value", [math.nan, -math.nan, math.inf, 3e38])
def test_a_later_row_never_reaches_an_earlier_one_and_is_nan_itself(op, value):
    case, changed = (Case((1, 9, 12), NORMS[op]) for _ in range(2))
    changed.b[:, 7:] = value
    changed.b[:, 7:, 3] = 1.0
    case.grad[:, 7:], changed.grad[:, 7:] = 0, 0
    before, after = (c.results(op, "numba") for c in (case, changed))
    assert torch.equal(before["y"][:, :7], after["y"][:, :7])
    reference = changed.results(op, "reference")["y"]
    assert torch.equal(after["y"].isnan(), reference.isnan())
    # A NaN times a gradient of zero is NaN in the reference too, and reaches the keys of that pair.
    assert torch.equal(after["a"][:, :7], before["a"][:, :7])


@pytest.mark.parametrize("bits", [0x7FC00000, 0x7F800001, 0x7FFFFFFF, -0x3FFFFF])
def test_no_bits_of_a_nan_become_a_number(op, bits):
    x = torch.ones(1, 4, 12)
    x[0, 2] = torch.tensor(bits, dtype=torch.int32).view(torch.float32)
    is_nan = RELATIONS[op](x, torch.ones(1, 4, 12), backend="numba")[0].isnan()
    assert is_nan.any(1).tolist() == is_nan.all(1).tolist() == [False, False, True, False]


def test_half_precision_inputs_are_rounded_once(op):
    for dtype, digits in ((torch.bfloat16, 8), (torch.float16, 11)):
        case = Case((2, 30, 36), NORMS[op], post_norm=True, dtype=dtype)
        found, truth = case.results(op, "numba"), case.expected()
        error = (found["y"].double() - truth["y"]).abs() / (truth["y"].abs() + 1e-3)
        assert error.max() <= 2.0**-digits * 1.05
        assert {value.dtype for value in found.values()} == {dtype}


def test_the_operator_compiled_and_differentiated_twice(op):
    case = Case((1, 6, 12), NORMS[op])
    run = lambda a, b: RELATIONS[op](a, b, backend="numba")  # noqa: E731
    torch.compiler.reset()
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(case.a, case.b), run(case.a, case.b))
    a, b = case.a.requires_grad_(), case.b.requires_grad_()
    (first,) = torch.autograd.grad(run(a, b).square().sum(), a, create_graph=True)
    exact = [x.detach().double().requires_grad_() for x in (a, b)]
    (expected,) = torch.autograd.grad(RELATIONS[op](*exact).square().sum(), exact[0], create_graph=True)
    second, truth = (torch.autograd.grad(g.square().sum(), x)[0] for g, x in ((first, b), (expected, exact[1])))
    assert (second.double() - truth).abs().max() <= 1e-4 * truth.abs().max()


def test_when_the_loops_are_chosen(monkeypatch):
    def chosen(op, shape=(8, 128, 256), dtype=torch.float32, **options) -> str:
        return choose_backend(torch.empty(shape, dtype=dtype), RelationSpec(**options), op.loops).backend

    joint: dict[str, Any] = {"norm": "joint"}
    assert chosen(SCAN) == chosen(PAIRS, **joint) == chosen(SCAN, dtype=torch.bfloat16) == "numba"
    assert chosen(SCAN, (1, 16, 16)) == chosen(PAIRS, (1, 16, 16), **joint) == "reference"
    unsupported: list[dict[str, Any]] = [{"eps": 0.0}, {"dtype": torch.float64}, {"shape": (1, 300, 8192)}]
    for options in [*unsupported, {"norm": "none"}, {"post_norm": True, "mean": False}]:
        assert chosen(SCAN, **options) == "reference"
    for options in [*unsupported, {"activation": "relu"}]:
        assert chosen(PAIRS, **joint | options) == "reference"
    x = torch.ones(1, 3, 4)
    with pytest.raises(UsageError, match="exponentials of normalized pairs"):
        relation_pairwise(x, x, activation="gelu", backend="numba")
    with pytest.raises(UsageError, match="eps of at least"):
        relation_scan(x, x, eps=0.0, backend="numba")
    monkeypatch.setitem(INSTALLED, "numba", False)
    assert chosen(SCAN) == "reference"
    with pytest.raises(UsageError, match="not installed"):
        relation_scan(x, x, backend="numba")


def test_parts_of_the_queries_have_about_equal_numbers_of_pairs(monkeypatch):
    monkeypatch.setattr(numba_pairs, "MIN_QUERIES", 10)
    a = torch.zeros(1, 1000, 4)
    for causal in (True, False):
        pairs = numba_pairs._pairs(a, a, torch.ones(1000), RelationSpec("joint", causal=causal))
        assert [first for _, first, _ in pairs.pieces] == [0, *(last for *_, last in pairs.pieces[:-1])]
        assert pairs.pieces[-1][2] == 1000
        work = [(last**2 - first**2 if causal else last - first) for _, first, last in pairs.pieces]
        assert max(work) <= 1.1 * sum(work) / len(work)

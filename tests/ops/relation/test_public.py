"""Both relations against a brute force in float64, and invalid arguments."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from tests.ops.relation.cases import Case, cancelling, distant, kinked, norm

from normplace import UsageError
from normplace.ops import relation_pairwise, relation_scan
from normplace.ops.backends import INSTALLED
from normplace.ops.relation import pair_reference, scan_reference
from normplace.ops.relation.decode import relation_scan_prefill, relation_scan_step

CPU_BACKENDS = ("reference", "numba") if INSTALLED["numba"] else ("reference",)


@pytest.fixture
def small_pieces(monkeypatch):
    """Use chunks of few rows, so that sums carry over from one to the next."""
    monkeypatch.setattr(scan_reference, "BUDGET", 200)
    monkeypatch.setattr(pair_reference, "BUDGET", 700)


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("post_norm", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("norm", ["joint", "separate", "none"])
def test_equals_brute_force(norm, causal, post_norm):
    for heads, masked, mean in ((1, False, True), (3, True, True), (2, True, False)):
        case = Case((2, 21, 12), norm, post_norm=post_norm, causal=causal, heads=heads, masked=masked, mean=mean)
        case.compare("pairwise")
        if norm != "joint":
            case.compare("scan")


def test_double_precision_throughout():
    for masked, causal in itertools.product((False, True), (False, True)):
        options = {"masked": masked, "causal": causal, "dtype": torch.float64}
        Case((2, 21, 12), **options).compare("pairwise", tolerance=1e-13, of_gradients=1e-12)
        Case((2, 21, 12), "separate", **options).compare("scan", tolerance=1e-13, of_gradients=1e-12)


@pytest.mark.parametrize("norm", ["joint", "separate", "none"])
@pytest.mark.parametrize("activation", ["relu", "gelu", "elu"])
def test_activations(activation, norm):
    for post_norm, masked in ((False, True), (True, False)):
        Case((2, 21, 10), norm, activation, post_norm=post_norm, masked=masked, heads=2).compare("pairwise")


@pytest.mark.parametrize("length", [1, 2, 127, 512])
def test_lengths(length):
    for post_norm in (False, True):
        Case((1, length, 7), post_norm=post_norm).compare("pairwise")
        Case((1, length, 7), "separate", post_norm=post_norm).compare("scan")


def test_a_long_sequence():
    """The cumulative sum against float64; all pairs at once would not fit into memory."""
    case = Case((1, 4096, 33), "separate")
    count = torch.arange(1, 4097)[:, None]
    a, b = norm(case.a.double(), 1e-5), norm(case.b.double(), 1e-5)
    truth = a.exp() * b.exp().cumsum(1) / count
    found = relation_scan(case.a, case.b)
    assert (found - truth).abs().max() <= 1e-5 * truth.abs().max()
    rows = [0, 1000, 4095]
    truth = torch.stack([norm(case.a[0, i].double() + case.b[0, : i + 1].double(), 1e-5).exp().mean(0) for i in rows])
    found = relation_pairwise(case.a, case.b)[0, rows]
    assert (found - truth).abs().max() <= 1e-5 * truth.abs().max()


def test_pairs_that_nearly_cancel():
    """Normalization amplifies their remainder, and the rounding of its gradient, fifty times."""
    for eps in (1e-5, 0.0):
        cancelling(shape=(2, 40, 48), eps=eps).compare("pairwise", of_gradients=2e-4)


@pytest.mark.parametrize("op", ["scan", "pairwise"])
def test_constant_rows_and_large_means(op):
    for causal in (True, False):
        distant(shape=(2, 40, 48), heads=3, causal=causal).compare(op)


def test_the_slope_of_a_rectifier_at_zero_is_zero():
    for eps in (1e-5, 0.0):
        kinked(shape=(1, 10, 11), eps=eps).compare("pairwise", of_gradients=2e-4)


def test_equal_values_are_normalized_to_zero():
    a = torch.full((1, 5, 6), 0.3, requires_grad=True)
    b = torch.full((1, 5, 6), 0.1, requires_grad=True)
    for run, post_norm in itertools.product((relation_scan, relation_pairwise), (False, True)):
        y = run(a, b, eps=0.0, post_norm=post_norm)
        assert y.tolist() == torch.full_like(y, 0.0 if post_norm else 1.0).tolist()
        assert all(d.abs().max() == 0 for d in torch.autograd.grad(y.sum(), (a, b)))
    # Rows that differ but cancel to the same number in every channel.
    x = torch.randn(1, 5, 6, generator=torch.Generator().manual_seed(0))
    assert torch.equal(relation_pairwise(x, -x, eps=0.0)[:, 0], torch.ones(1, 6))


def test_the_hand_built_retrieval_head():
    """On a match the keys cancel, and only the joint norm scales the small value to sqrt(D - 1)."""
    generator = torch.Generator().manual_seed(0)
    width, length, values = 64, 512, 26
    keys = torch.randn(1, length, width, generator=generator)
    keys[..., :values] = 0
    said = torch.randint(0, values, (length,), generator=generator)
    asked = torch.randint(0, length, (length,), generator=generator)
    b = keys + 0.05 * torch.nn.functional.one_hot(said, width)
    a = -keys[:, asked]

    def accuracy(norm: str) -> float:
        y = relation_pairwise(a, b, norm=norm, causal=False, eps=0.0)
        return float((y[0, :, :values].argmax(-1) == said[asked]).float().mean())

    assert accuracy("joint") == 1.0
    assert accuracy("separate") < 0.2
    assert accuracy("none") < 0.2


def test_masked_rows_may_hold_anything():
    for run in (relation_scan, relation_pairwise):
        case = Case((1, 9, 6), "separate" if run is relation_scan else "joint")
        mask = torch.ones(1, 9, dtype=torch.bool)
        mask[0, 4:6] = False
        kept = [x[:, mask[0]] for x in (case.a, case.b)]
        a, b = case.a.clone(), case.b.clone()
        a[:, 4:6], b[:, 4:6] = math.nan, math.inf
        a.requires_grad_(), b.requires_grad_()
        y = run(a, b, mask=mask)
        torch.testing.assert_close(y[:, mask[0]], run(*kept))
        assert y[:, 4:6].abs().max() == 0
        da, db = torch.autograd.grad(y.square().sum(), (a, b))
        assert da[:, 4:6].abs().max() == 0
        assert db[:, 4:6].abs().max() == 0
        assert da.isfinite().all()


@pytest.mark.parametrize("value", [math.nan, math.inf, 3e38])
def test_a_later_row_never_reaches_an_earlier_one(value):
    """Not even by zero times infinity, in the blocks that hold pairs on both sides of the diagonal."""
    case = Case(shape=(1, 9, 12))
    changed = Case(shape=(1, 9, 12))
    changed.a[:, 7:], changed.b[:, 7:] = value, value
    case.grad[:, 7:], changed.grad[:, 7:] = 0, 0
    before, after = ({key: result[:, :7] for key, result in c.results("pairwise").items()} for c in (case, changed))
    for key in ("y", "a"):  # an earlier key has pairs with later queries
        truth = before[key]
        assert after[key].isfinite().all()
        assert (after[key] - truth).abs().max() <= 1e-6 * truth.abs().max()  # rounding: blocks are normalized otherwise


def test_all_rows_masked():
    x, mask = torch.randn(1, 3, 4), torch.zeros(1, 3, dtype=torch.bool)
    for run, post_norm in itertools.product((relation_scan, relation_pairwise), (False, True)):
        for options in ({}, {"norm": "none"}):
            assert torch.equal(run(x, x, mask=mask, post_norm=post_norm, **options), torch.zeros(1, 3, 4))


def test_large_exponents_do_not_overflow_before_a_post_norm():
    for causal in (False, True):
        case = Case((2, 40, 6), "none", post_norm=True, scale=40.0, causal=causal, dtype=torch.float64)
        case.compare("scan", tolerance=1e-9, of_gradients=1e-9)
        single = Case((2, 40, 6), "none", post_norm=True, scale=40.0, causal=causal)
        # The last digit of an exponent of 200 is worth 2e-5.
        single.compare("scan", tolerance=5e-5, of_gradients=5e-4)
    y = relation_scan(torch.full((1, 2, 3), 60.0), torch.full((1, 2, 3), 60.0), norm="none")
    assert y.isinf().all()


def test_a_post_norm_of_wide_heads_does_not_overflow():
    """One channel of 4096 dominates: exp(norm a + norm b) is e^128 there, beyond float32."""
    width = 4096
    a, b = (1e-3 * torch.randn(1, 3, width, generator=torch.Generator().manual_seed(n)) for n in (1, 2))
    a[..., 5], b[..., 5] = 1e3, 1e3
    truth = Case((1, 3, width), "separate", post_norm=True).brute(a.double(), b.double())
    found = relation_scan(a, b, post_norm=True)
    torch.testing.assert_close(found.double(), truth, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("width", [1792, 1801])
def test_many_one_hot_rows_of_wide_heads_do_not_overflow(width):
    """Each product is e^84 and fits into float32; 400 of them, before the division by their number, do not."""
    x = torch.zeros(1, 400, width)
    x[..., 5] = 1
    truth = norm(x[0, 0].double(), 1e-5).mul(2).exp()
    for backend in CPU_BACKENDS if width < 1801 else ("reference",):
        a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
        y = relation_scan(a, b, backend=backend)
        torch.testing.assert_close(y[0].double(), truth.expand(400, -1), rtol=2e-3, atol=1e-3)
        (1e-3 * y).sum().backward()
        assert a.grad is not None and b.grad is not None
        assert a.grad.isfinite().all() and b.grad.isfinite().all()
    torch.testing.assert_close(torch.func.vmap(relation_scan)(x[None], x[None])[0, 0], y[0], rtol=2e-3, atol=1e-3)
    _, state = relation_scan_prefill(x[:, :-1], x[:, :-1])
    last, _ = relation_scan_step(state, x[:, -1], x[:, -1])
    torch.testing.assert_close(last[0].double(), truth, rtol=2e-3, atol=1e-3)


def test_a_norm_whose_squares_overflow_is_nan():
    """Not zero, as a reciprocal root of infinity would make it."""
    x = 1e25 * torch.randn(1, 3, 16, generator=torch.Generator().manual_seed(0))
    for backend, post_norm in itertools.product(CPU_BACKENDS, (False, True)):
        assert relation_scan(x, x, post_norm=post_norm, backend=backend).isnan().all()
        assert relation_pairwise(x, x, post_norm=post_norm, backend=backend).isnan().all()
    for norm_name in ("joint", "separate"):
        assert relation_pairwise(x, x, norm=norm_name, activation="relu").isnan().all()


@pytest.mark.parametrize("size", [1e8, 1e15, 1e25])
def test_the_gradient_of_large_rows_through_autograd_and_transforms(size):
    """The norm's derivative has the cube of the reciprocal root, which would underflow."""
    a, b, seed = torch.randn(3, 1, 5, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def elu(a, b):
        return relation_pairwise(a, b, norm="separate", activation="elu")

    for run, differentiate in ((elu, _by_autograd), (elu, _by_vjp), (relation_scan, _by_vjp)):
        truth = differentiate(run, size * a, size * b, seed)
        for found, wanted in zip(differentiate(run, size * a.float(), size * b.float(), seed), truth, strict=True):
            torch.testing.assert_close(found.double() * size, wanted * size, rtol=1e-4, atol=1e-5)


def _by_autograd(run, a, b, seed):
    leaves = a.clone().requires_grad_(), b.clone().requires_grad_()
    return torch.autograd.grad(run(*leaves), leaves, seed.to(a.dtype))


def _by_vjp(run, a, b, seed):
    return torch.func.vjp(run, a, b)[1](seed.to(a.dtype))


@pytest.mark.parametrize("post_norm", [False, True])
def test_half_precision_inputs_are_rounded_once(post_norm):
    """A bfloat16 input gives the float64 result of the same numbers, rounded once."""
    for dtype, digits in ((torch.bfloat16, 8), (torch.float16, 11)):
        for op, kind in (("pairwise", "joint"), ("scan", "separate")):
            case = cancelling(shape=(2, 30, 48), norm=kind, post_norm=post_norm, dtype=dtype)
            found, truth = case.results(op)["y"], case.expected()["y"]
            fits = truth.abs() < torch.finfo(dtype).max
            error = ((found.double() - truth).abs() / (truth.abs() + 1e-3 * truth[fits].abs().max()))[fits].max()
            assert error <= 2.0**-digits * 1.05


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda x: relation_scan(x[0], x[0]), "batch × time × channels"),
        (lambda x: relation_scan(x.long(), x.long()), "floating point"),
        (lambda x: relation_scan(x, x[:, :2]), "same shape, dtype and device"),
        (lambda x: relation_scan(x, x.double()), "same shape, dtype and device"),
        (lambda x: relation_scan(x[:, :0], x[:, :0]), "at least one"),
        (lambda x: relation_scan(x, x, heads=4), "do not divide"),
        (lambda x: relation_scan(x, x, heads=0), "heads must be"),
        (lambda x: relation_scan(x, x, eps=-1.0), "eps must be"),
        (lambda x: relation_scan(x, x, norm="joint"), "unknown norm"),
        (lambda x: relation_pairwise(x, x, norm="jiont"), "did you mean 'joint'"),
        (lambda x: relation_pairwise(x, x, activation="tanh"), "unknown activation"),
        (lambda x: relation_pairwise(x, x, backend="cuda"), "unknown backend"),
        (lambda x: relation_pairwise(x, x, mask=torch.ones(2, 5)), "mask must be"),
        (lambda x: relation_pairwise(x, x, mask=torch.ones(2, 4, dtype=torch.bool)), "mask must be"),
    ],
)
def test_an_invalid_argument_raises(wrong, words):
    with pytest.raises(UsageError, match=words):
        wrong(torch.randn(2, 5, 6))

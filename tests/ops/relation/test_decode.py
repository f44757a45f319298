"""Incremental decoding equals the whole sequence."""

from __future__ import annotations

import pytest
import torch
from tests.ops.relation.cases import Case

from normplace import UsageError
from normplace.ops import (
    relation_pairwise,
    relation_pairwise_prefill,
    relation_pairwise_step,
    relation_scan,
    relation_scan_prefill,
    relation_scan_step,
)

SCAN = (relation_scan, relation_scan_prefill, relation_scan_step)
PAIRS = (relation_pairwise, relation_pairwise_prefill, relation_pairwise_step)


def continued(ops, case, prompt, **options):
    """The rows after a prompt, computed one at a time, and the last state."""
    _, prefill, step = ops
    masks = {"mask": case.mask[:, :prompt]} if case.mask is not None else {}
    state = prefill(case.a[:, :prompt], case.b[:, :prompt], **masks, **options)[1] if prompt else None
    rows = []
    for t in range(prompt, case.shape[1]):
        masks = {"mask": case.mask[:, t]} if case.mask is not None else {}
        y, state = step(state, case.a[:, t], case.b[:, t], **masks, **options)
        rows.append(y)
    return torch.stack(rows, 1), state


@pytest.mark.parametrize(("ops", "length"), [(SCAN, 1000), (PAIRS, 1000)], ids=["scan", "pairwise"])
def test_a_thousand_rows(ops, length):
    case = Case((2, length, 16))
    for prompt in (0, 600):
        found, _ = continued(ops, case, prompt, post_norm=True)
        truth = ops[0](case.a, case.b, post_norm=True)[:, prompt:]
        assert (found - truth).abs().max() <= 1e-5 * truth.abs().max()


@pytest.mark.parametrize("options", [{"norm": "none"}, {"norm": "separate", "heads": 2}, {"mean": False}])
@pytest.mark.parametrize("ops", [SCAN, PAIRS], ids=["scan", "pairwise"])
def test_options_and_masks(ops, options):
    for masked in (False, True):
        case = Case((3, 25, 8), masked=masked, scale=3.0 if options.get("norm") == "none" else 1.0)
        whole = ops[0](case.a, case.b, mask=case.mask, **options)
        for prompt in (0, 11):
            found, _ = continued(ops, case, prompt, **options)
            torch.testing.assert_close(found, whole[:, prompt:], rtol=2e-5, atol=1e-6)


def test_other_activations():
    case = Case((2, 20, 8))
    for activation, norm in (("relu", "joint"), ("gelu", "separate"), ("elu", "none")):
        options = {"activation": activation, "norm": norm}
        found, _ = continued(PAIRS, case, 5, **options)
        torch.testing.assert_close(found, relation_pairwise(case.a, case.b, **options)[:, 5:])


@pytest.mark.parametrize("ops", [SCAN, PAIRS], ids=["scan", "pairwise"])
def test_double_precision(ops):
    case = Case((1, 12, 8), dtype=torch.float64)
    found, _ = continued(ops, case, 4)
    torch.testing.assert_close(found, ops[0](case.a, case.b)[:, 4:], rtol=1e-13, atol=1e-13)


def test_the_size_of_a_state():
    """The state of a scan keeps its size; that of pairs grows by one row."""
    case = Case((1, 12, 8), dtype=torch.bfloat16)
    _, few = continued(SCAN, Case((1, 3, 8), dtype=torch.bfloat16), 1)
    _, many = continued(SCAN, case, 1)
    assert few.sums.total.shape == many.sums.total.shape == (1, 1, 8)
    assert many.sums.total.dtype == torch.float32
    assert many.seen.tolist() == [12]
    _, memory = continued(PAIRS, case, 4)
    assert torch.equal(memory.keys, case.b)


def test_a_state_is_not_modified():
    """Two continuations of one state are independent."""
    case = Case((1, 6, 4))
    for _, prefill, step in (SCAN, PAIRS):
        _, state = prefill(case.a[:, :3], case.b[:, :3])
        first, _ = step(state, case.a[:, 3], case.b[:, 3])
        step(state, case.a[:, 4], case.b[:, 4])
        again, _ = step(state, case.a[:, 3], case.b[:, 3])
        assert torch.equal(first, again)


def test_a_step_with_a_sequence_raises():
    x = torch.randn(2, 4, 6)
    with pytest.raises(UsageError, match="one row at a time"):
        relation_scan_step(None, x, x)


@pytest.mark.parametrize(
    ("step", "options", "words"),
    [
        (relation_scan_step, {"norm": "joint"}, "unknown norm of a scan 'joint'"),
        (relation_pairwise_step, {"norm": "both"}, "unknown norm of pairs 'both'"),
        (relation_pairwise_step, {"activation": "tanh"}, "unknown activation 'tanh'"),
    ],
)
def test_a_step_raises_for_unknown_names(step, options, words):
    x = torch.randn(2, 6)
    with pytest.raises(UsageError, match=words):
        step(None, x, x, **options)

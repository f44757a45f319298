"""Incremental decoding of relations: a scan keeps a state of fixed size, pairs keep every key so far."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from normplace.errors import UsageError
from normplace.ops.features import compute_dtype, describe
from normplace.ops.relation.common import RelationSpec, normalise
from normplace.ops.relation.pair_reference import activate
from normplace.ops.relation.public import (
    apply_post_norm,
    check_inputs,
    norm_heads,
    pair_spec,
    relation_pairwise,
    relation_scan,
    scan_spec,
)
from normplace.ops.relation.scan_reference import Sums, combine, empty_sums, keeps_top, keys_so_far, running


class ScanState(NamedTuple):
    """State of a scan: one sum per channel, in float32 or float64, and the number of rows so far."""

    sums: Sums
    """B × 1 × D, with their largest exponents if the sums could overflow."""
    seen: Tensor
    """B: rows so far, without masked ones."""


class PairState(NamedTuple):
    """State of a pairwise relation: every key so far."""

    keys: Tensor
    """B × T × D."""
    mask: Tensor
    """B × T, true for valid keys."""


def relation_scan_prefill(
    a: Tensor,
    b: Tensor,
    *,
    norm: str = "separate",
    post_norm: bool = False,
    eps: float = 1e-5,
    heads: int = 1,
    mask: Tensor | None = None,
    mean: bool = True,
    backend: str = "auto",
) -> tuple[Tensor, ScanState]:
    """:func:`relation_scan` of a prompt, and the state for :func:`relation_scan_step`."""
    options = {"norm": norm, "post_norm": post_norm, "eps": eps, "heads": heads, "mean": mean}
    y = relation_scan(a, b, mask=mask, backend=backend, **options)
    valid_row = _valid_rows(b, mask)
    sums = keys_so_far(b, valid_row.to(compute_dtype(b.dtype)), RelationSpec(norm, eps=eps, heads=heads))
    return y, ScanState(sums, valid_row.sum(1))


def relation_scan_step(
    state: ScanState | None,
    a: Tensor,
    b: Tensor,
    *,
    norm: str = "separate",
    post_norm: bool = False,
    eps: float = 1e-5,
    heads: int = 1,
    mask: Tensor | None = None,
    mean: bool = True,
) -> tuple[Tensor, ScanState]:
    """The next row of :func:`relation_scan` with the same options.

    Args:
        state: The state that the last step or the prefill returned; None before the first row.
        a: B × D.
        b: B × D.
        norm: See the whole-sequence function.
        post_norm: See the whole-sequence function.
        eps: See the whole-sequence function.
        heads: See the whole-sequence function.
        mask: B, true for valid rows.
        mean: See the whole-sequence function.

    Returns:
        y, B × D, and the next state; the old state is not modified.
    """
    spec = scan_spec(norm, post_norm, eps, True, heads, mean)
    rows, keys, valid_row = _row(a, b, mask, spec)
    if state is not None:
        _check_state(state.sums.total, state.seen, (len(a), 1, a.shape[1]), (len(a),))
        if (state.sums.top is None) == keeps_top(spec, a.shape[1], compute_dtype(a.dtype)):
            raise UsageError("the state was created with another norm: pass the same options to prefill and steps.")
    u, v = (norm_heads(x, spec) if norm == "separate" else x.to(compute_dtype(x.dtype)) for x in (rows, keys))
    key = valid_row[:, None, None].to(u.dtype)
    before = state.sums if state is not None else empty_sums(u, keeps_top(spec, u.shape[2], u.dtype))
    sums = running(v, key, before)
    count = valid_row.long() + (state.seen if state is not None else 0)
    out = combine(u, sums, _weight(valid_row, count, mean, u), spec)
    return (out.normed if post_norm else out.z)[:, 0].to(a.dtype), ScanState(sums, count)


def relation_pairwise_prefill(
    a: Tensor,
    b: Tensor,
    *,
    norm: str = "joint",
    activation: str = "exp",
    post_norm: bool = False,
    eps: float = 1e-5,
    heads: int = 1,
    mask: Tensor | None = None,
    mean: bool = True,
    backend: str = "auto",
) -> tuple[Tensor, PairState]:
    """:func:`relation_pairwise` of a prompt, and the state for :func:`relation_pairwise_step`."""
    options = {"norm": norm, "post_norm": post_norm, "eps": eps, "heads": heads, "mean": mean}
    y = relation_pairwise(a, b, activation=activation, mask=mask, backend=backend, **options)
    return y, PairState(b, _valid_rows(b, mask))


def relation_pairwise_step(
    state: PairState | None,
    a: Tensor,
    b: Tensor,
    *,
    norm: str = "joint",
    activation: str = "exp",
    post_norm: bool = False,
    eps: float = 1e-5,
    heads: int = 1,
    mask: Tensor | None = None,
    mean: bool = True,
) -> tuple[Tensor, PairState]:
    """The next row of :func:`relation_pairwise` with the same options.

    Args:
        state: The state that the last step or the prefill returned; None before the first row.
        a: B × D.
        b: B × D.
        norm: See the whole-sequence function.
        activation: See the whole-sequence function.
        post_norm: See the whole-sequence function.
        eps: See the whole-sequence function.
        heads: See the whole-sequence function.
        mask: B, true for valid rows.
        mean: See the whole-sequence function.

    Returns:
        y, B × D, and the next state with one more key; the old state is not modified.
    """
    spec = pair_spec(norm, activation, post_norm, eps, True, heads, mean)
    row, key, valid_row = _row(a, b, mask, spec)
    memory = PairState(key, valid_row[:, None])
    if state is not None:
        _check_state(state.keys, state.mask, (len(a), state.keys.shape[1], a.shape[1]), state.keys.shape[:2])
        memory = PairState(torch.cat([state.keys, key], 1), torch.cat([state.mask, memory.mask], 1))
    valid = memory.mask[..., None]
    x, keys = row.to(compute_dtype(a.dtype)), torch.where(valid, memory.keys, 0).to(compute_dtype(a.dtype))
    if norm == "separate":
        x, keys = norm_heads(x, spec), norm_heads(keys, spec)
    n = (x + keys).unflatten(-1, (heads, -1))
    if norm == "joint":
        n, _ = normalise(n, eps)
    terms = torch.where(valid, activate(n.flatten(-2), activation), 0)
    weight = _weight(valid_row, memory.mask.sum(1), mean, x)
    y = torch.where(weight > 0, terms.sum(1, keepdim=True) * weight, 0)
    return (apply_post_norm(y, eps) if post_norm else y)[:, 0].to(a.dtype), memory


def _row(a: Tensor, b: Tensor, mask: Tensor | None, spec: RelationSpec) -> tuple[Tensor, Tensor, Tensor]:
    """The row as a sequence of length one with zeros if masked, and whether it is valid."""
    if not all(isinstance(x, Tensor) and x.dim() == 2 for x in (a, b)):
        raise UsageError(f"a step takes one row at a time, B × D, got {describe(a)} and {describe(b)}.")
    if mask is not None and (not isinstance(mask, Tensor) or mask.dim() != 1):
        raise UsageError(f"the mask of a step must have one boolean for each sequence, got {describe(mask)}.")
    a, b = a[:, None], b[:, None]
    check_inputs(a, b, None if mask is None else mask[:, None], spec)
    valid_row = _valid_rows(a[:, 0], mask)
    a, b = (torch.where(valid_row[:, None, None], x, 0) for x in (a, b))
    return a, b, valid_row


def _valid_rows(rows: Tensor, mask: Tensor | None) -> Tensor:
    """Which rows of a tensor of rows are valid: all without a mask."""
    return torch.ones(rows.shape[:-1], dtype=torch.bool, device=rows.device) if mask is None else mask


def _check_state(rows: Tensor, counts: Tensor, shape: tuple[int, ...], counts_shape: tuple[int, ...]) -> None:
    """Raise an error for the state of sequences of another number or width."""
    if rows.shape != shape or counts.shape != counts_shape:
        raise UsageError(
            f"the state must be {shape} for these inputs, got {tuple(rows.shape)}: pass the state of these sequences."
        )


def _weight(valid_row: Tensor, count: Tensor, mean: bool, like: Tensor) -> Tensor:
    """The factor of the sum of each row, B × 1 × 1."""
    count = count.clamp(min=1).to(like.dtype)
    return torch.where(valid_row, 1 / count if mean else torch.ones_like(count), 0)[:, None, None]

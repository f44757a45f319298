"""Relations one row at a time: a scan keeps a state of fixed size, pairs keep one row for each token so far."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from normplace.errors import UsageError
from normplace.ops.relation.pair_reference import activate
from normplace.ops.relation.plain import Rule, normalise, wide
from normplace.ops.relation.public import (
    checked,
    normalised_sum,
    pair_rule,
    relation_pairwise,
    relation_scan,
    scan_rule,
    separated,
)
from normplace.ops.relation.scan_reference import Sums, combine, keys_so_far, nothing, running, stable


class ScanState(NamedTuple):
    """What a scan remembers of the rows so far: one sum a channel, in float32 or float64, and how many they are."""

    sums: Sums
    """B × 1 × D, and their largest exponents where nothing bounds them."""
    seen: Tensor
    """B."""


class PairState(NamedTuple):
    """What pairs remember: every row so far, as it was given."""

    keys: Tensor
    """B × T × D."""
    mask: Tensor
    """B × T, true for a row that is there."""


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
    """:func:`relation_scan` of a prompt, and the state :func:`relation_scan_step` goes on from."""
    options = {"norm": norm, "post_norm": post_norm, "eps": eps, "heads": heads, "mean": mean}
    y = relation_scan(a, b, mask=mask, backend=backend, **options)
    there = torch.ones(b.shape[:2], dtype=torch.bool, device=b.device) if mask is None else mask
    sums = keys_so_far(b, there.to(wide(b.dtype)), Rule(norm, eps=eps, heads=heads))
    return y, ScanState(sums, there.sum(1))


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
    """The next row of :func:`relation_scan`, given with the same options.

    Args:
        state: What the last step or the prompt returned; None before the first row.
        a: B × D.
        b: B × D.
        norm: As for the whole sequence.
        post_norm: As for the whole sequence.
        eps: As for the whole sequence.
        heads: As for the whole sequence.
        mask: B, true for a row that is there.
        mean: As for the whole sequence.

    Returns:
        y, B × D, and the next state; nothing is changed in place.
    """
    rule = scan_rule(norm, post_norm, eps, True, heads, mean)
    rows, keys, there = _row(a, b, mask, rule)
    if state is not None:
        _check_state(state.sums.total, state.seen, (len(a), 1, a.shape[1]), (len(a),))
        if (state.sums.top is None) == stable(rule, a.shape[1], wide(a.dtype)):
            raise UsageError("the state was made with another norm: pass the options of the prompt to every step.")
    u, v = (separated(x, rule) if norm == "separate" else x.to(wide(x.dtype)) for x in (rows, keys))
    key = there[:, None, None].to(u.dtype)
    before = state.sums if state is not None else nothing(u, stable(rule, u.shape[2], u.dtype))
    sums = running(v, key, before)
    count = there.long() + (state.seen if state is not None else 0)
    out = combine(u, sums, _weight(there, count, mean, u), rule)
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
    """:func:`relation_pairwise` of a prompt, and the state :func:`relation_pairwise_step` goes on from."""
    y = relation_pairwise(
        a, b, norm=norm, activation=activation, post_norm=post_norm, eps=eps, heads=heads, mask=mask, mean=mean,
        backend=backend,
    )  # fmt: skip
    return y, PairState(b, torch.ones(b.shape[:2], dtype=torch.bool, device=b.device) if mask is None else mask)


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
    """The next row of :func:`relation_pairwise`, given with the same options.

    Args:
        state: What the last step or the prompt returned; None before the first row.
        a: B × D.
        b: B × D.
        norm: As for the whole sequence.
        activation: As for the whole sequence.
        post_norm: As for the whole sequence.
        eps: As for the whole sequence.
        heads: As for the whole sequence.
        mask: B, true for a row that is there.
        mean: As for the whole sequence.

    Returns:
        y, B × D, and the next state, which holds one more row; nothing is changed in place.
    """
    rule = pair_rule(norm, activation, post_norm, eps, True, heads, mean)
    row, key, there = _row(a, b, mask, rule)
    memory = PairState(key, there[:, None])
    if state is not None:
        _check_state(state.keys, state.mask, (len(a), state.keys.shape[1], a.shape[1]), state.keys.shape[:2])
        memory = PairState(torch.cat([state.keys, key], 1), torch.cat([state.mask, memory.mask], 1))
    known = memory.mask[..., None]
    x, keys = row.to(wide(a.dtype)), torch.where(known, memory.keys, 0).to(wide(a.dtype))
    if norm == "separate":
        x, keys = separated(x, rule), separated(keys, rule)
    n = (x + keys).unflatten(-1, (heads, -1))
    if norm == "joint":
        n, _ = normalise(n, eps)
    terms = torch.where(known, activate(n.flatten(-2), activation), 0)
    weight = _weight(there, memory.mask.sum(1), mean, x)
    y = torch.where(weight > 0, terms.sum(1, keepdim=True) * weight, 0)
    return (normalised_sum(y, eps) if post_norm else y)[:, 0].to(a.dtype), memory


def _row(a: Tensor, b: Tensor, mask: Tensor | None, rule: Rule) -> tuple[Tensor, Tensor, Tensor]:
    """The row as a sequence of one, zero where masked, and where it is not."""
    if not all(isinstance(x, Tensor) and x.dim() == 2 for x in (a, b)):
        found = [tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__ for x in (a, b)]
        raise UsageError(f"a step takes one row at a time, B × D, got {found[0]} and {found[1]}.")
    if mask is not None and (not isinstance(mask, Tensor) or mask.dim() != 1):
        raise UsageError("the mask of a step must have one boolean for each sequence.")
    a, b = a[:, None], b[:, None]
    checked(a, b, None if mask is None else mask[:, None], rule)
    there = torch.ones(len(a), dtype=torch.bool, device=a.device) if mask is None else mask
    a, b = (torch.where(there[:, None, None], x, 0) for x in (a, b))
    return a, b, there


def _check_state(rows: Tensor, beside: Tensor, shape: tuple[int, ...], beside_shape: tuple[int, ...]) -> None:
    """Refuse the state of other sequences."""
    if rows.shape != shape or beside.shape != beside_shape:
        raise UsageError(f"the state is of sequences of another number or width, {tuple(rows.shape)}, not {shape}.")


def _weight(there: Tensor, count: Tensor, mean: bool, like: Tensor) -> Tensor:
    """B × 1 × 1."""
    count = count.clamp(min=1).to(like.dtype)
    return torch.where(there, 1 / count if mean else torch.ones_like(count), 0)[:, None, None]

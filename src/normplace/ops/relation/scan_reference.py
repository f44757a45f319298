"""The exponential relation in plain PyTorch, in time linear in the length: what the kernels must equal.

With u = norm(a) and v = norm(b), or a and b themselves, and w_i = 1 / count of the keys of row i::

    y_i = w_i sum_{j <= i} exp(u_i + v_j) = w_i exp(u_i) sum_{j <= i} exp(v_j)

A norm over D channels leaves no number above sqrt(D - 1), so sums of exponentials are taken as they are. Only where
that bound would not keep a product within single precision, or where nothing is normalized, a sum is kept as
``total · exp(top)`` with the largest exponent so far.

The norm after the sum is of y itself. It is computed from z = y exp(-shift), with a shift that keeps the squares of z
in range, as ``(z - mean) / sqrt(var + eps exp(-2 shift))``: the same number. Where the bound above says enough of y,
the shift is one for all rows.

Backward, with q_i = w_i exp(u_i) dy_i::

    du_i = y_i dy_i        dv_j = exp(v_j) sum_{i >= j} q_i

Nothing is kept for it but a and b. Time is taken in pieces that stay in the cache.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from normplace.ops.relation.plain import (
    Rule,
    centre,
    exponential,
    inverse_root,
    normalise,
    normalise_backward,
    wide,
)

# Elements of a piece: enough that calling PyTorch costs little beside them, and few enough to stay in the cache.
BUDGET = 1 << 18
# Rows of a block that are summed one after the other, those of all blocks at once.
BLOCK = 16
# exp(2 sqrt(D - 1)) and its sums stay below the largest float32 for heads up to this width.
WIDEST = 1800
# The square of such a product stays below it for heads up to this width.
NARROW = 400
# That of the product times 2^-LOWER stays below it up to this width. As exponents sum to zero over the channels, a mean
# of exponentials reaches 1 in one of them at least, so nothing that matters is lost.
LOWERED, LOWER = 1100, 40.0
# An exponent lower than any, of which differences can be taken.
LOWEST = -1e30


class Sums(NamedTuple):
    """Sums of exponentials, ``total · exp(top)``; ``top`` is None where it is zero throughout."""

    total: Tensor
    top: Tensor | None

    def at(self, row: slice) -> Sums:
        """Those of some rows."""
        return Sums(self.total[:, row], None if self.top is None else self.top[:, row])


class Rows(NamedTuple):
    """The exponents of some time, what their centred rows were scaled by, and the weights; 0 where masked."""

    exponent: Tensor
    scale: Tensor
    weight: Tensor
    masked: bool

    @property
    def key(self) -> Tensor | None:
        """1 for a row that counts as a key, 0 for one that does not; None where all count."""
        return (self.weight > 0).to(self.exponent.dtype) if self.masked else None

    def kept(self, x: Tensor) -> Tensor:
        """``x``, zero in rows that are masked."""
        return torch.where(self.weight > 0, x, 0) if self.masked else x


class Output(NamedTuple):
    """The relation of some rows: z = y exp(-shift), and where a norm follows, its result and scale."""

    z: Tensor
    gate: Tensor
    """exp(u - shift), or where sums have a top its logarithm."""
    normed: Tensor
    scale: Tensor


def stable(rule: Rule, width: int, dtype: torch.dtype) -> bool:
    """Whether sums need the largest exponent kept beside them."""
    return rule.norm == "none" or (width // rule.heads > WIDEST and dtype != torch.float64)


def lowering(rule: Rule, width: int) -> float | None:
    """The power of two that a y with a norm is divided by; None where that depends on y."""
    width //= rule.heads
    if not rule.mean or width > LOWERED:
        return None
    return LOWER if rule.post_norm and width > NARROW else 0.0


def _pieces(a: Tensor) -> list[slice]:
    batch, length, width = a.shape
    step = max(1, BUDGET // (batch * width))
    step = min(length, max(step // BLOCK * BLOCK, 1) if step >= BLOCK else step)
    return [slice(first, min(first + step, length)) for first in range(0, length, step)]


def _rows(x: Tensor, weight: Tensor, span: slice, rule: Rule) -> Rows:
    masked = weight.dim() == 2
    w = (weight if masked else weight[None])[:, span, None]
    x = x[:, span].to(wide(x.dtype))
    if masked:
        x = torch.where(w > 0, x, 0)  # whatever padding holds
    if rule.norm == "none":
        return Rows(x, x, w, masked)
    out, scale = normalise(x.unflatten(-1, (rule.heads, -1)), rule.eps)
    return Rows(out.flatten(-2), scale, w, masked)


def _through_norm(grad: Tensor, rows: Rows, rule: Rule) -> Tensor:
    if rule.norm == "none":
        return grad
    heads = (rule.heads, -1)
    return normalise_backward(grad.unflatten(-1, heads), rows.exponent.unflatten(-1, heads), rows.scale).flatten(-2)


def summed_up(x: Tensor, before: Tensor, reverse: bool = False) -> Tensor:
    """Sums over time so far, or over time from its end, those before included; in place.

    Whole rows are added, which is several times faster than ``cumsum`` along an axis that is not the last.
    """
    (x[:, -1:] if reverse else x[:, :1]).add_(before)
    rest = x.shape[1] % BLOCK
    single = (x[:, :rest] if reverse else x[:, x.shape[1] - rest :]).unbind(1)
    blocks = (x[:, rest:] if reverse else x[:, : x.shape[1] - rest]).unflatten(1, (-1, BLOCK))
    together = blocks.unbind(2)
    if reverse:
        single, together = single[::-1], together[::-1]
    for row, following in pairwise(together):
        following += row
    if blocks.shape[1] > 1:
        if reverse:
            blocks[:, :-1] += together[-1].flip(1).cumsum(1).flip(1)[:, 1:, None]
        else:
            blocks[:, 1:] += together[-1].cumsum(1)[:, :-1, None]
    last = [together[-1][:, 0 if reverse else -1]] if blocks.shape[1] else []
    for row, following in pairwise([*last, *single]):
        following += row
    return x


def running(exponent: Tensor, factor: Tensor | None, before: Sums, reverse: bool = False) -> Sums:
    """Sums over time of ``factor · exp(exponent)``, or over time from its end, those before included."""
    if before.top is None:
        terms = exponential(exponent)
        return Sums(summed_up(terms if factor is None else terms.mul_(factor), before.total, reverse), None)
    if factor is None:
        factor = torch.ones_like(exponent)
    if reverse:
        found = running(exponent.flip(1), factor.flip(1), before)
        assert found.top is not None
        return Sums(found.total.flip(1), found.top.flip(1))
    top = torch.where(factor == 0, LOWEST, exponent)
    total = factor.expand_as(exponent).clone()
    step = 1
    while step < exponent.shape[1]:
        top, total = _joined(top, total, step)
        step *= 2
    best = torch.maximum(top, before.top)
    total = total * (top - best).exp() + before.total * (before.top - best).exp()
    return Sums(total, best)


def _joined(top: Tensor, total: Tensor, step: int) -> tuple[Tensor, Tensor]:
    """Each row with the one ``step`` before it."""
    best = torch.maximum(top[:, step:], top[:, :-step])
    both = total[:, step:] * (top[:, step:] - best).exp() + total[:, :-step] * (top[:, :-step] - best).exp()
    return torch.cat([top[:, :step], best], 1), torch.cat([total[:, :step], both], 1)


def nothing(like: Tensor, keep_top: bool) -> Sums:
    """The sums before the first row."""
    zero = like.new_zeros(like.shape[0], 1, like.shape[2], dtype=wide(like.dtype))
    return Sums(zero, torch.full_like(zero, LOWEST) if keep_top else None)


def combine(u: Tensor, sums: Sums, weight: Tensor, rule: Rule) -> Output:
    """The relation of rows with exponents ``u``, given the sums of their keys."""
    if sums.top is None:
        lower = lowering(rule, u.shape[-1])
        gate = exponential(u, lower or 0.0)
        y = (gate * sums.total).mul_(weight)
        if not rule.post_norm:
            return Output(y, gate, y, y)
        if lower is not None:
            return Output(y, gate, *normalise(y, rule.eps * 4.0**-lower))
        largest = y.amax(-1, keepdim=True)
        largest = torch.where(largest > 0, largest, 1)
        z, gate, eps = y / largest, gate / largest, (math.sqrt(rule.eps) / largest).square()
    else:
        exponent, gate = u + sums.top, u
        if not rule.post_norm:
            y = exponent.exp() * sums.total * weight
            return Output(torch.where(weight == 0, 0, y), gate, y, y)
        shift = exponent.amax(-1, keepdim=True)
        gate = u - shift
        z = (exponent - shift).exp() * sums.total * weight
        eps = rule.eps * torch.exp(-2 * shift) if rule.eps else 0.0
    centred = centre(z)
    scale = inverse_root(centred.square().mean(-1, keepdim=True) + eps)
    return Output(z, gate, centred * scale, scale)


def _powers(keys: Rows) -> Tensor:
    """What the sums add up: exp(v), 0 for a row that does not count as a key."""
    powers = exponential(keys.exponent)
    return powers if keys.key is None else powers.mul_(keys.key)


def _sums_before(b: Tensor, weight: Tensor, rule: Rule, spans: list[slice]) -> list[Sums]:
    """The sums before each piece, and those after the last."""
    found = [nothing(b, stable(rule, b.shape[2], b.dtype))]
    for span in spans:
        keys, before = _rows(b, weight, span, rule), found[-1]
        if before.top is None:
            found.append(Sums(before.total + _powers(keys).sum(1, keepdim=True), None))
        else:
            found.append(running(keys.exponent, keys.key, before).at(slice(-1, None)))
    return found


def keys_so_far(b: Tensor, weight: Tensor, rule: Rule) -> Sums:
    """The sums a sequence leaves behind, B × 1 × D."""
    return _sums_before(b, weight, rule, _pieces(b))[-1]


def forward(a: Tensor, b: Tensor, weight: Tensor, rule: Rule) -> Tensor:
    """The relation of every row."""
    y = torch.empty_like(a)
    sums = nothing(b, stable(rule, b.shape[2], b.dtype)) if rule.causal else keys_so_far(b, weight, rule)
    for span in _pieces(a):
        rows = _rows(a, weight, span, rule)
        if rule.causal:
            keys = _rows(b, weight, span, rule)
            sums = running(keys.exponent, keys.key, sums.at(slice(-1, None)))
        out = combine(rows.exponent, sums, rows.weight, rule)
        y[:, span] = out.normed if rule.post_norm else out.z
    return y


def backward(grad: Tensor, a: Tensor, b: Tensor, weight: Tensor, rule: Rule) -> tuple[Tensor, Tensor]:
    """Gradients of a and b."""
    da, db, spans = torch.empty_like(a), torch.empty_like(b), _pieces(a)
    before = _sums_before(b, weight, rule, spans[:-1] if rule.causal else spans)
    after = nothing(a, stable(rule, a.shape[2], a.dtype))
    for number, span in reversed(list(enumerate(spans))):
        rows, keys = _rows(a, weight, span, rule), _rows(b, weight, span, rule)
        sums, powers = before[-1], keys.exponent
        if after.top is None:
            powers = _powers(keys)
        if rule.causal and after.top is None:
            sums = Sums(summed_up(powers.clone(), before[number].total), None)
        elif rule.causal:
            sums = running(keys.exponent, keys.key, before[number])
        out = combine(rows.exponent, sums, rows.weight, rule)
        g = rows.kept(grad[:, span].to(out.z.dtype))
        if rule.post_norm:
            g = normalise_backward(g, out.normed, out.scale)
        da[:, span] = _through_norm(g * out.z, rows, rule)
        factor = g.mul_(rows.weight) if rule.post_norm else g * rows.weight
        if after.top is None:
            later = Sums(summed_up(factor.mul_(out.gate), after.total, reverse=True), None)
        else:
            later = running(out.gate, factor, after, reverse=True)
        after = later.at(slice(None, 1))
        if rule.causal:
            db[:, span] = _key_gradient(keys, powers, later, rule)
    if not rule.causal:
        for span in spans:
            keys = _rows(b, weight, span, rule)
            powers = _powers(keys) if after.top is None else keys.exponent
            db[:, span] = _key_gradient(keys, powers, after, rule)
    return da, db


def _key_gradient(keys: Rows, powers: Tensor, later: Sums, rule: Rule) -> Tensor:
    """The gradient of keys from exp(v), or where sums have a top from v itself."""
    lifted = powers if later.top is None else keys.kept((powers + later.top).exp())
    return _through_norm(lifted * later.total, keys, rule)

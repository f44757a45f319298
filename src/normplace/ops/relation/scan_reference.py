"""The exponential relation in plain PyTorch, in time linear in the length: what the kernels must equal.

With u = norm(a) and v = norm(b), or a and b themselves, and w_i = 1 / count of the keys of row i::

    y_i = w_i sum_{j <= i} exp(u_i + v_j) = w_i exp(u_i) sum_{j <= i} exp(v_j)

A norm over D channels leaves no number above sqrt(D - 1), so sums of exponentials are taken as they are. Only where
that bound would not keep a product within single precision, or where nothing is normalized, a sum is kept as
``total · exp(top)`` with the largest exponent so far.

The norm after the sum is of y itself. It is computed from z = y exp(-shift), with a shift of each row that keeps z
near 1, as ``(z - mean) / sqrt(var + eps exp(-2 shift))``: the same number.

Backward, with q_i = w_i exp(u_i) dy_i::

    du_i = y_i dy_i        dv_j = exp(v_j) sum_{i >= j} q_i

Nothing is kept for it but a and b. Time is taken in pieces that stay in the cache.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from normplace.ops.relation.plain import Rule, centre, inverse_root, normalise, normalise_backward, wide

# Elements of a piece: it stays in the cache of one core.
BUDGET = 1 << 17
# exp(2 sqrt(D - 1)) and its sums stay below the largest float32 for heads up to this width.
WIDEST = 1800
# The square of such a product stays below it for heads up to this width.
NARROW = 400
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

    @property
    def key(self) -> Tensor:
        """1 for a row that counts as a key, 0 for one that does not."""
        return (self.weight > 0).to(self.exponent.dtype)


class Output(NamedTuple):
    """The relation of some rows: z = y exp(-shift), and where a norm follows, its result and scale."""

    z: Tensor
    shift: Tensor | float
    normed: Tensor
    scale: Tensor


def stable(rule: Rule, width: int, dtype: torch.dtype) -> bool:
    """Whether sums need the largest exponent kept beside them."""
    return rule.norm == "none" or (width // rule.heads > WIDEST and dtype != torch.float64)


def _pieces(a: Tensor) -> list[slice]:
    batch, length, width = a.shape
    step = max(1, min(length, BUDGET // (batch * width)))
    return [slice(first, min(first + step, length)) for first in range(0, length, step)]


def _rows(x: Tensor, weight: Tensor, span: slice, rule: Rule) -> Rows:
    w = weight.expand(x.shape[:2])[:, span, None]
    x = x[:, span].to(wide(x.dtype))
    if weight.dim() == 2:
        x = torch.where(w > 0, x, 0)  # whatever padding holds
    if rule.norm == "none":
        return Rows(x, x, w)
    out, scale = normalise(x.unflatten(-1, (rule.heads, -1)), rule.eps)
    return Rows(out.flatten(-2), scale, w)


def _through_norm(grad: Tensor, rows: Rows, rule: Rule) -> Tensor:
    if rule.norm == "none":
        return grad
    heads = (rule.heads, -1)
    return normalise_backward(grad.unflatten(-1, heads), rows.exponent.unflatten(-1, heads), rows.scale).flatten(-2)


def running(exponent: Tensor, factor: Tensor, before: Sums, reverse: bool = False) -> Sums:
    """Sums over time of ``factor · exp(exponent)``, or over time from its end, those before included."""
    if before.top is None:
        terms = exponent.exp().mul_(factor)
        total = terms.flip(1).cumsum(1).flip(1) if reverse else terms.cumsum(1)
        return Sums(total.add_(before.total), None)
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
        y = u.exp().mul_(sums.total).mul_(weight)
        if not rule.post_norm:
            return Output(y, 0.0, y, y)
        if rule.eps and u.shape[-1] // rule.heads <= NARROW:
            return Output(y, 0.0, *normalise(y, rule.eps))
        largest = y.amax(-1, keepdim=True)
        largest = torch.where(largest > 0, largest, 1)
        z, shift = y / largest, largest.log()
    else:
        exponent = u + sums.top
        if not rule.post_norm:
            y = exponent.exp() * sums.total * weight
            return Output(torch.where(weight == 0, 0, y), 0.0, y, y)
        shift = exponent.amax(-1, keepdim=True)
        z = (exponent - shift).exp() * sums.total * weight
    centred = centre(z)
    eps = rule.eps * torch.exp(-2 * shift) if rule.eps else 0.0
    scale = inverse_root(centred.square().mean(-1, keepdim=True) + eps)
    return Output(z, shift, centred * scale, scale)


def _keys(b: Tensor, weight: Tensor, rule: Rule) -> list[Sums]:
    """The sums before each piece, and those of all time."""
    found = [nothing(b, stable(rule, b.shape[2], b.dtype))]
    for span in _pieces(b):
        keys = _rows(b, weight, span, rule)
        found.append(running(keys.exponent, keys.key, found[-1]).at(slice(-1, None)))
    return found


def keys_so_far(b: Tensor, weight: Tensor, rule: Rule) -> Sums:
    """The sums a sequence leaves behind, B × 1 × D."""
    return _keys(b, weight, rule)[-1]


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
    da, db = torch.empty_like(a), torch.empty_like(b)
    before, spans = _keys(b, weight, rule), _pieces(a)
    after = nothing(a, stable(rule, a.shape[2], a.dtype))
    for number, span in reversed(list(enumerate(spans))):
        rows, keys = _rows(a, weight, span, rule), _rows(b, weight, span, rule)
        sums = running(keys.exponent, keys.key, before[number]) if rule.causal else before[-1]
        out = combine(rows.exponent, sums, rows.weight, rule)
        g = grad[:, span].to(out.z.dtype)
        if weight.dim() == 2:
            g = torch.where(rows.weight > 0, g, 0)
        if rule.post_norm:
            g = normalise_backward(g, out.normed, out.scale)
        da[:, span] = _through_norm(g * out.z, rows, rule)
        lowered = rows.exponent - out.shift if isinstance(out.shift, Tensor) else rows.exponent
        later = running(lowered, g * rows.weight, after, reverse=True)
        after = later.at(slice(None, 1))
        if rule.causal:
            db[:, span] = _key_gradient(keys, later, rule)
    if not rule.causal:
        for span in spans:
            db[:, span] = _key_gradient(_rows(b, weight, span, rule), after, rule)
    return da, db


def _key_gradient(keys: Rows, later: Sums, rule: Rule) -> Tensor:
    lifted = keys.exponent if later.top is None else keys.exponent + later.top
    return _through_norm(torch.where(keys.weight > 0, lifted.exp() * later.total, 0), keys, rule)

"""The exponential relation in plain PyTorch, in linear time: the definition, the test oracle, and the fallback.

With u = norm(a) and v = norm(b), or a and b themselves, and w_i = 1 / number of keys of row i::

    y_i = w_i sum_{j <= i} exp(u_i + v_j) = w_i exp(u_i) sum_{j <= i} exp(v_j)

A value normalized over D channels is at most sqrt(D - 1), so sums of exponentials are computed directly. Only if this
bound does not keep a product within float32, or without a norm, a sum is kept as ``total · exp(top)`` with the largest
exponent so far.

The post-norm is computed from z = y exp(-shift), with a shift that keeps the squares of z in range, as
``(z - mean) / sqrt(var + eps exp(-2 shift))``, which is the same number. Where the bound above limits y, the shift is
the same for all rows.

Backward, with q_i = w_i exp(u_i) dy_i::

    du_i = y_i dy_i        dv_j = exp(v_j) sum_{i >= j} q_i

It needs a and b alone. Time is processed in chunks that stay in the cache.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from normplace.ops.features import compute_dtype
from normplace.ops.relation.common import RelationSpec, centre, exponential, inverse_root, normalise, normalise_backward
from normplace.ops.tracing import is_observed

# Elements of a chunk: enough to amortize the overhead of PyTorch calls, few enough to stay in the cache.
BUDGET = 1 << 18
# Rows of a block. Rows of a block are added one after the other, in all blocks at once.
BLOCK = 16
# exp(2 sqrt(D - 1)) and its sums stay below the largest float32 for heads up to this width.
MAX_DIRECT_WIDTH = 1800
# Above this width, many rows with the largest product may overflow before they are divided by their number.
MAX_SUMMED_WIDTH = 1400
# The square of such a product stays below it for heads up to this width.
MAX_SQUARE_WIDTH = 400
# The square of the product times 2^-LOWER stays below it up to this width. Exponents sum to zero over the channels, so
# a mean of exponentials reaches 1 in at least one channel, and the factor loses nothing relevant.
MAX_LOWERED_WIDTH, LOWER = 1100, 40.0
# An exponent below any other, finite so that differences are defined.
LOWEST = -1e30


class Sums(NamedTuple):
    """Sums of exponentials, ``total · exp(top)``; ``top`` is None if it is zero everywhere."""

    total: Tensor
    top: Tensor | None

    def rows(self, row: slice) -> Sums:
        """The sums of some rows."""
        return Sums(self.total[:, row], None if self.top is None else self.top[:, row])


class ChunkRows(NamedTuple):
    """Exponents of a chunk of time, the scales of their norms, and the weights (0 where masked)."""

    exponent: Tensor
    scale: Tensor
    weight: Tensor
    masked: bool

    @property
    def key(self) -> Tensor | None:
        """1 for a row that is a key, 0 for a masked one; None without a mask."""
        return (self.weight > 0).to(self.exponent.dtype) if self.masked else None

    def zero_masked(self, x: Tensor) -> Tensor:
        """``x`` with zeros in masked rows."""
        return torch.where(self.weight > 0, x, 0) if self.masked else x


class Output(NamedTuple):
    """The relation of some rows: z = y exp(-shift), and with a post-norm its result and scale."""

    z: Tensor
    gate: Tensor
    """exp(u - shift), or its logarithm if sums have a top."""
    normed: Tensor
    scale: Tensor


def keeps_top(spec: RelationSpec, width: int, dtype: torch.dtype) -> bool:
    """Whether sums keep their largest exponent, because they could overflow."""
    return spec.norm == "none" or (width // spec.heads > MAX_DIRECT_WIDTH and dtype != torch.float64)


def lowering(spec: RelationSpec, width: int) -> float | None:
    """log2 of the divisor of y before its post-norm; None if the divisor depends on y."""
    width //= spec.heads
    if not spec.mean or width > MAX_LOWERED_WIDTH:
        return None
    return LOWER if spec.post_norm and width > MAX_SQUARE_WIDTH else 0.0


def _chunks(a: Tensor) -> list[slice]:
    batch, length, width = a.shape
    step = max(1, BUDGET // (batch * width))
    step = min(length, max(step // BLOCK * BLOCK, 1) if step >= BLOCK else step)
    return [slice(first, min(first + step, length)) for first in range(0, length, step)]


def _rows(x: Tensor, weight: Tensor, span: slice, spec: RelationSpec) -> ChunkRows:
    masked = weight.dim() == 2
    w = (weight if masked else weight[None])[:, span, None]
    x = x[:, span].to(compute_dtype(x.dtype))
    if masked:
        x = torch.where(w > 0, x, 0)  # padding may hold anything
    if spec.norm == "none":
        return ChunkRows(x, x, w, masked)
    out, scale = normalise(x.unflatten(-1, (spec.heads, -1)), spec.eps)
    return ChunkRows(out.flatten(-2), scale, w, masked)


def _through_norm(grad: Tensor, rows: ChunkRows, spec: RelationSpec) -> Tensor:
    if spec.norm == "none":
        return grad
    heads = (spec.heads, -1)
    return normalise_backward(grad.unflatten(-1, heads), rows.exponent.unflatten(-1, heads), rows.scale).flatten(-2)


def cumulative_sum_(x: Tensor, before: Tensor, reverse: bool = False) -> Tensor:
    """Cumulative sums over time, or from its end, plus ``before``; in place.

    Adding whole rows is several times faster than ``cumsum`` along an axis that is not the last.
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
    """Cumulative sums over time of ``factor · exp(exponent)``, or from its end, plus ``before``."""
    if before.top is None:
        terms = exponential(exponent)
        return Sums(cumulative_sum_(terms if factor is None else terms.mul_(factor), before.total, reverse), None)
    if factor is None:
        factor = torch.ones_like(exponent)
    if reverse:
        flipped = running(exponent.flip(1), factor.flip(1), before)
        assert flipped.top is not None
        return Sums(flipped.total.flip(1), flipped.top.flip(1))
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
    """The sum of each row and the one ``step`` before it."""
    best = torch.maximum(top[:, step:], top[:, :-step])
    both = total[:, step:] * (top[:, step:] - best).exp() + total[:, :-step] * (top[:, :-step] - best).exp()
    return torch.cat([top[:, :step], best], 1), torch.cat([total[:, :step], both], 1)


def empty_sums(like: Tensor, keep_top: bool) -> Sums:
    """The sums before the first row."""
    zero = like.new_zeros(like.shape[0], 1, like.shape[2], dtype=compute_dtype(like.dtype))
    return Sums(zero, torch.full_like(zero, LOWEST) if keep_top else None)


def _without_overflow(y: Tensor, power: Tensor, total: Tensor, weight: Tensor) -> Tensor:
    """``y = power · total · weight``, from the mean where the product with the sum is infinite."""
    if not is_observed() and math.isfinite(float(y.detach().sum())):
        return y
    return torch.where(y.isinf(), power * (total * weight), y)


def combine(u: Tensor, sums: Sums, weight: Tensor, spec: RelationSpec) -> Output:
    """The relation of rows with exponents ``u`` and the sums of their keys."""
    if sums.top is None:
        lower = lowering(spec, u.shape[-1])
        gate = exponential(u, lower or 0.0)
        y = (gate * sums.total).mul_(weight)
        if spec.mean and u.shape[-1] // spec.heads > MAX_SUMMED_WIDTH:
            y = _without_overflow(y, gate, sums.total, weight)
        if not spec.post_norm:
            return Output(y, gate, y, y)
        if lower is not None:
            return Output(y, gate, *normalise(y, spec.eps * 4.0**-lower))
        largest = y.amax(-1, keepdim=True)
        largest = torch.where(largest > 0, largest, 1)
        z, gate, eps = y / largest, gate / largest, (math.sqrt(spec.eps) / largest).square()
    else:
        exponent, gate = u + sums.top, u
        if not spec.post_norm:
            power = exponent.exp()
            y = power * sums.total * weight
            y = _without_overflow(y, power, sums.total, weight) if spec.mean else y
            return Output(torch.where(weight == 0, 0, y), gate, y, y)
        shift = exponent.amax(-1, keepdim=True)
        gate = u - shift
        z = (exponent - shift).exp() * sums.total * weight
        eps = spec.eps * torch.exp(-2 * shift) if spec.eps else 0.0
    centred = centre(z)
    scale = inverse_root(centred.square().mean(-1, keepdim=True) + eps)
    return Output(z, gate, centred * scale, scale)


def _powers(keys: ChunkRows) -> Tensor:
    """The terms of the sums: exp(v), 0 for a masked row."""
    powers = exponential(keys.exponent)
    return powers if keys.key is None else powers.mul_(keys.key)


def _sums_before(b: Tensor, weight: Tensor, spec: RelationSpec, spans: list[slice]) -> list[Sums]:
    """The sums before each chunk, and those after the last."""
    sums = [empty_sums(b, keeps_top(spec, b.shape[2], b.dtype))]
    for span in spans:
        keys, before = _rows(b, weight, span, spec), sums[-1]
        if before.top is None:
            sums.append(Sums(before.total + _powers(keys).sum(1, keepdim=True), None))
        else:
            sums.append(running(keys.exponent, keys.key, before).rows(slice(-1, None)))
    return sums


def keys_so_far(b: Tensor, weight: Tensor, spec: RelationSpec) -> Sums:
    """The sums over a whole sequence, B × 1 × D."""
    return _sums_before(b, weight, spec, _chunks(b))[-1]


def forward(a: Tensor, b: Tensor, weight: Tensor, spec: RelationSpec) -> Tensor:
    """The relation of every row."""
    y = torch.empty_like(a)
    sums = empty_sums(b, keeps_top(spec, b.shape[2], b.dtype)) if spec.causal else keys_so_far(b, weight, spec)
    for span in _chunks(a):
        rows = _rows(a, weight, span, spec)
        if spec.causal:
            keys = _rows(b, weight, span, spec)
            sums = running(keys.exponent, keys.key, sums.rows(slice(-1, None)))
        out = combine(rows.exponent, sums, rows.weight, spec)
        y[:, span] = out.normed if spec.post_norm else out.z
    return y


def backward(grad: Tensor, a: Tensor, b: Tensor, weight: Tensor, spec: RelationSpec) -> tuple[Tensor, Tensor]:
    """Gradients of a and b."""
    da, db, spans = torch.empty_like(a), torch.empty_like(b), _chunks(a)
    before = _sums_before(b, weight, spec, spans[:-1] if spec.causal else spans)
    after = empty_sums(a, keeps_top(spec, a.shape[2], a.dtype))
    for number, span in reversed(list(enumerate(spans))):
        rows, keys = _rows(a, weight, span, spec), _rows(b, weight, span, spec)
        sums, powers = before[-1], keys.exponent
        if after.top is None:
            powers = _powers(keys)
        if spec.causal and after.top is None:
            sums = Sums(cumulative_sum_(powers.clone(), before[number].total), None)
        elif spec.causal:
            sums = running(keys.exponent, keys.key, before[number])
        out = combine(rows.exponent, sums, rows.weight, spec)
        g = rows.zero_masked(grad[:, span].to(out.z.dtype))
        if spec.post_norm:
            g = normalise_backward(g, out.normed, out.scale)
        da[:, span] = _through_norm(g * out.z, rows, spec)
        factor = g.mul_(rows.weight) if spec.post_norm else g * rows.weight
        if after.top is None:
            later = Sums(cumulative_sum_(factor.mul_(out.gate), after.total, reverse=True), None)
        else:
            later = running(out.gate, factor, after, reverse=True)
        after = later.rows(slice(None, 1))
        if spec.causal:
            db[:, span] = _key_gradient(keys, powers, later, spec)
    if not spec.causal:
        for span in spans:
            keys = _rows(b, weight, span, spec)
            powers = _powers(keys) if after.top is None else keys.exponent
            db[:, span] = _key_gradient(keys, powers, after, spec)
    return da, db


def _key_gradient(keys: ChunkRows, powers: Tensor, later: Sums, spec: RelationSpec) -> Tensor:
    """The gradient of keys, from exp(v), or from v if sums have a top."""
    lifted = powers if later.top is None else keys.zero_masked((powers + later.top).exp())
    return _through_norm(lifted * later.total, keys, spec)

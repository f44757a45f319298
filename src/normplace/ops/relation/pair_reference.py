"""The pairwise relation in plain PyTorch: the definition, the test oracle, and the fallback.

With x_ij = a_i + b_j and w_i = 1 / number of keys of row i::

    y_i = w_i sum_{j <= i} act(n_ij)        n_ij = norm(x_ij), or x_ij itself

Backward, with p_ij = w_i dy_i act'(n_ij) and s_ij = 1 / sqrt(var x_ij + eps)::

    dx_ij = s_ij (p_ij - mean p_ij - n_ij mean(p_ij n_ij))        da_i = sum_j dx_ij        db_j = sum_i dx_ij

No temporary has the size pairs × channels: queries and keys are processed in chunks, and the backward pass recomputes
the pairs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from normplace.ops.features import compute_dtype
from normplace.ops.relation.common import RelationSpec, centre, exponential, normalise

ACTIVATIONS = ("exp", "relu", "gelu", "elu")
# Elements of the largest temporary, so that it stays in the cache of one core.
BUDGET = 1 << 18
# Least variance of a pair, relative to the sum of its rows' variances, for which their product is precise enough.
NEARLY_CANCELLED = 1 / 16
# Below both, no pair and no exponential of a normalized pair is infinite.
MAX_ENTRY, MAX_WIDTH = 1e15, 7_000
# Most queries of a block: fewer compute fewer pairs that are not summed, more take fewer operations.
QUERIES = 64


def activate(x: Tensor, name: str) -> Tensor:
    """The activation of ``x``."""
    if name == "exp":
        return exponential(x)
    return {"relu": F.relu, "gelu": F.gelu, "elu": F.elu}[name](x)


def slope(x: Tensor, name: str) -> Tensor:
    """The derivative of the activation at ``x``."""
    if name == "exp":
        return exponential(x)
    if name == "relu":
        return (x > 0).to(x.dtype)
    if name == "elu":
        return x.clamp(max=0).exp()
    density = torch.exp(-0.5 * x.square()) / math.sqrt(2 * math.pi)
    return torch.special.ndtr(x) + x * density


def pair_weights(weight: Tensor, queries: Tensor, keys: Tensor, causal: bool) -> Tensor:
    """B × I × J × 1: the weight of the query if the pair is summed, else 0."""
    row, key = weight[:, queries, None, None], weight[:, None, keys, None]
    counts = key > 0
    if causal:
        counts = counts & (keys[None, :] <= queries[:, None])[None, :, :, None]
    return torch.where(counts, row, 0)


def masked_inputs(a: Tensor, b: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs in the dtype of the arithmetic, with zeros in masked rows."""
    a, b = a.to(compute_dtype(a.dtype)), b.to(compute_dtype(b.dtype))
    if weight.dim() == 2:
        present = weight[..., None] > 0
        a, b = torch.where(present, a, 0), torch.where(present, b, 0)
    return a, b, weight.expand(a.shape[:2])


class Block(NamedTuple):
    """Some sequences, queries and keys, and the scales of their pairs' norms."""

    n: slice
    i: slice
    j: slice
    scale: Tensor | None
    """B × I × J × heads × 1; None if pairs have no norm or must be normalized directly."""


class _Pairs:
    """The pairs of two sequences of rows, computed a block at a time.

    The variance of a pair follows from the product of its centred rows. Rows that nearly cancel lose precision this
    way, so in a block with such a pair the rows are added first and normalized then.

    Args:
        a: Queries, B × T × D, with zeros in masked rows.
        b: Keys, the same.
        weight: B × T: the factor of each row's sum, 0 if the row is masked.
        spec: The arguments of the relation.
        temporaries: Tensors of the size of a block that are reused.
    """

    def __init__(self, a: Tensor, b: Tensor, weight: Tensor, spec: RelationSpec, temporaries: int) -> None:
        self.a, self.b = (x.unflatten(-1, (spec.heads, -1)) for x in (a, b))
        self.weight, self.spec, self.time = weight, spec, torch.arange(a.shape[1], device=a.device)
        self.gain = math.log2(math.e) if spec.activation == "exp" else 1.0
        batch, length, width = a.shape
        self.queries = max(1, min(length, QUERIES, math.isqrt(BUDGET // width)))
        self.keys = max(1, min(length, BUDGET // (width * self.queries)))
        self.sequences = max(1, min(batch, BUDGET // (width * self.queries * self.keys)))
        self.buffers = a.new_empty(temporaries, self.sequences * self.queries * self.keys * width)
        self.masked = not bool((weight > 0).all())
        self.finite = width < MAX_WIDTH and bool(torch.maximum(a.abs(), b.abs()).amax() < MAX_ENTRY)
        if spec.norm == "joint":
            self.centred = centre(self.a), centre(self.b)
            self.squares = [rows.square().mean(-1) for rows in self.centred]
            for rows, squares in zip(self.centred, self.squares, strict=True):
                # Where the square of a pair could overflow, its scale would be 0.
                large = squares > torch.finfo(squares.dtype).max / 8
                if bool(large.any()):
                    rows.masked_fill_(large[..., None], torch.nan)

    def blocks(self) -> Iterator[Block]:
        """Blocks whose pairs fit in the budget."""
        batch, length = self.weight.shape
        for first in range(0, batch, self.sequences):
            n = slice(first, min(first + self.sequences, batch))
            for start in range(0, length, self.queries):
                i = slice(start, min(start + self.queries, length))
                last = i.stop if self.spec.causal else length
                scale, cancelled = self._scale(n, i, last) if self.spec.norm == "joint" else (None, None)
                for start_key in range(0, last, self.keys):
                    j = slice(start_key, min(start_key + self.keys, last))
                    own = None if scale is None else scale[:, :, j]
                    if cancelled is not None and bool(cancelled[:, :, j].any()):
                        own = None
                    yield Block(n, i, j, own)

    def normalized(self, block: Block) -> tuple[Tensor, Tensor | None]:
        """B × I × J × heads × channels: the pairs of a block times the gain, and the scales of their norms."""
        if block.scale is not None:
            return self._sums(*self.centred, block).mul_(block.scale * self.gain), block.scale
        x, scale = self._sums(self.a, self.b, block), None
        if self.spec.norm == "joint":
            x, scale = normalise(x, self.spec.eps)
            x.mul_(self.gain)
        return x, scale

    def like(self, x: Tensor) -> Tensor:
        """A second temporary of the shape of ``x``."""
        return self.buffers[1, : x.numel()].view(x.shape)

    def leave_out(self, block: Block, *values: Tensor) -> None:
        """Set the pairs of a block that are not summed to zero."""
        n, i, j, _ = block
        if not self.masked and (j.stop <= i.start or not self.spec.causal):
            return
        if self.masked:
            counts = (pair_weights(self.weight[n], self.time[i], self.time[j], self.spec.causal) > 0)[..., None]
        else:
            counts = (self.time[j] <= self.time[i, None])[:, :, None, None]
        for value in values:
            if self.finite:
                value.mul_(counts.to(value.dtype))  # several times faster
            else:
                value.masked_fill_(~counts, 0)

    def _sums(self, a: Tensor, b: Tensor, block: Block) -> Tensor:
        a, b = a[block.n, block.i, None], b[block.n, None, block.j]
        shape = (a.shape[0], a.shape[1], *b.shape[2:])
        return torch.add(a, b, out=self.buffers[0, : math.prod(shape)].view(shape))

    def _scale(self, n: slice, i: slice, last: int) -> tuple[Tensor | None, Tensor | None]:
        """The scales of queries with the keys before ``last``, and which pairs nearly cancel, if any does."""
        if self.spec.eps == 0:
            return None, None
        a, b = self.centred[0][n, i].transpose(1, 2), self.centred[1][n, :last].permute(0, 2, 3, 1)
        total = self.squares[0][n, i, None] + self.squares[1][n, None, :last]
        variance = (a @ b).permute(0, 2, 3, 1).mul(2 / a.shape[-1]).add_(total)
        cancelled = variance < total.mul_(NEARLY_CANCELLED)
        return variance.add_(self.spec.eps).rsqrt_()[..., None], cancelled if bool(cancelled.any()) else None


def forward(a: Tensor, b: Tensor, weight: Tensor, spec: RelationSpec) -> Tensor:
    """The relation of every row, in float32 or float64, without the post-norm."""
    a, b, weight = masked_inputs(a, b, weight)
    pairs, y = _Pairs(a, b, weight, spec, temporaries=1), torch.zeros_like(a)
    for block in pairs.blocks():
        x, _ = pairs.normalized(block)
        values = x.exp2_() if spec.activation == "exp" else activate(x, spec.activation)
        pairs.leave_out(block, values)
        y[block.n, block.i] += values.sum(2).flatten(-2)
    return y.mul_(weight[..., None])


def backward(grad: Tensor, a: Tensor, b: Tensor, weight: Tensor, spec: RelationSpec) -> tuple[Tensor, Tensor]:
    """Gradients of a and b, in float32 or float64."""
    a, b, weight = masked_inputs(a, b, weight)
    pairs, da, db = _Pairs(a, b, weight, spec, temporaries=2), torch.zeros_like(a), torch.zeros_like(b)
    da, db = (x.unflatten(-1, (spec.heads, -1)) for x in (da, db))
    grad = (grad.to(a.dtype) * weight[..., None]).unflatten(-1, (spec.heads, -1))
    for block in pairs.blocks():
        x, scale = pairs.normalized(block)
        slopes = torch.exp2(x, out=pairs.like(x)) if spec.activation == "exp" else slope(x, spec.activation)
        p = slopes.mul_(grad[block.n, block.i, None])
        if scale is None:
            pairs.leave_out(block, p)
        else:
            pairs.leave_out(block, p, x, scale)
            through = torch.linalg.vecdot(p, x).mul_(1 / (x.shape[-1] * pairs.gain**2))[..., None]
            p.sub_(x.mul_(through)).mul_(scale)
        da[block.n, block.i] += p.sum(2)
        db[block.n, block.j] += p.sum(1)
    if spec.norm == "joint":  # the mean of p, which the sums over pairs still contain
        da, db = da.sub_(da.mean(-1, keepdim=True)), db.sub_(db.mean(-1, keepdim=True))
    return da.flatten(-2), db.flatten(-2)

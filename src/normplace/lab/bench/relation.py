"""The relations compared with plain PyTorch, torch.compile, attention and linear attention."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from normplace.lab.bench import peers
from normplace.lab.bench.case import FORWARD, TRAINING, Case, Floor, Method, Op, Problem
from normplace.lab.bench.tune import Setting, fastest
from normplace.norms._precision import widen
from normplace.ops import relation_pairwise, relation_scan

EPS = 1e-5
HEAD = 64  # channels of an attention head
# Batch, length, width, precision.
Shape = tuple[int, int, int, torch.dtype]
SCANS: dict[tuple[str, bool], list[Shape]] = {
    ("cpu", True): [(2, 512, 256, torch.float32)],
    ("cpu", False): [(4, 2048, 256, torch.float32), (1, 8192, 512, torch.float32)],
    ("cuda", True): [(4, 8192, 1024, torch.bfloat16)],
    ("cuda", False): [
        (4, 2048, 1024, torch.bfloat16),
        (4, 8192, 1024, torch.bfloat16),
        (4, 8192, 1024, torch.float32),
        (64, 602, 192, torch.bfloat16),
    ],
}
PAIRS: dict[tuple[str, bool], list[Shape]] = {
    ("cpu", True): [(1, 128, 64, torch.float32)],
    ("cpu", False): [(1, 128, 64, torch.float32), (1, 1024, 64, torch.float32)],
    ("cuda", True): [(4, 512, 256, torch.float32)],
    ("cuda", False): [
        (4, 512, 256, torch.float32),
        (4, 512, 256, torch.bfloat16),
        (64, 602, 192, torch.bfloat16),
        (1, 8192, 768, torch.bfloat16),
    ],
}
# Relative to the largest entry. An exponential amplifies the rounding error of its argument, which is at most sqrt(D).
# In bfloat16 the result is rounded, and the backward pass may start from the rounded result.
TOLERANCE = {torch.float32: 3e-5, torch.bfloat16: 2 * torch.finfo(torch.bfloat16).eps}
# Tensors of the size pairs × channels that the plain form holds at a time, forward and backward.
PAIR_TENSORS = 6
# Elements of pairs × channels that the float64 reference computes at a time.
PIECE = 1 << 25


def _counts(x: Tensor) -> Tensor:
    return torch.arange(1, x.shape[1] + 1, device=x.device)[:, None]


def _normed(x: Tensor) -> Tensor:
    return F.layer_norm(widen(x), x.shape[-1:], eps=EPS)


def cumsum_form(a: Tensor, b: Tensor) -> Tensor:
    """The factorised relation with a cumulative sum, in at least float32."""
    return _normed(_normed(a).exp() * _normed(b).exp().cumsum(1) / _counts(a)).to(a.dtype)


def logcumsumexp_form(a: Tensor, b: Tensor) -> Tensor:
    """The same in log space, as published."""
    return _normed((_normed(a) + _normed(b).logcumsumexp(1)).exp() / _counts(a)).to(a.dtype)


def pair_form(a: Tensor, b: Tensor) -> Tensor:
    """All pairs at once; ``a`` holds the queries of the last rows of ``b``."""
    first, last = b.shape[1] - a.shape[1], b.shape[1]
    positions = torch.arange(last, device=a.device)
    causal = (positions <= positions[first:, None])[:, :, None]
    pairs = _normed(widen(a)[:, :, None] + widen(b)[:, None]).exp().where(causal, 0.0)
    return (pairs.sum(2) / (positions[first:, None] + 1)).to(a.dtype)


def pair_form_in_pieces(a: Tensor, b: Tensor) -> Tensor:
    """The same for few rows at a time, recomputed in the backward pass."""
    batch, length, width = a.shape
    rows = max(1, PIECE // (batch * length * width))
    pieces = [
        checkpoint(pair_form, a[:, first : first + rows], b[:, : first + rows], use_reentrant=False)
        for first in range(0, length, rows)
    ]
    return torch.cat(pieces, dim=1)


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal softmax attention of the same length and width."""
    q, k, v = (tensor.unflatten(2, (-1, HEAD)).transpose(1, 2) for tensor in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def linear_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Simple gated linear attention of flash-linear-attention, of the same length and width."""
    q, k, v = (tensor.unflatten(2, (-1, HEAD)) for tensor in (q, k, v))
    decay = q.new_full(q.shape[:3], -0.01, dtype=torch.float32)
    return peers.imported("fla.ops.simple_gla").chunk_simple_gla(q, k, v, g=decay)[0]


def running_logsumexp(rows: Tensor, out: Tensor) -> Tensor:
    """The log of the cumulative sum of each head's rows, by the kernel of flash-linear-attention."""
    batch, heads, length, width = rows.shape
    kernel = peers.imported("fla.ops.utils.logcumsumexp").logcumsumexp_fwd_kernel
    kernel[(batch * heads,)](rows, out, T=length, S=width)
    return out


class Inputs:
    """The tensors of a case, and its methods."""

    def __init__(self, shape: Shape, device: str) -> None:
        *size, dtype = shape
        generator = torch.Generator(device).manual_seed(0)
        random = [torch.randn(size, generator=generator, device=device).to(dtype) for _ in range(3)]
        self.a, self.b, self.seed = random[0].requires_grad_(), random[1].requires_grad_(), random[2]
        self.device, self.size = device, self.a.nbytes
        self.tolerance = TOLERANCE[self.a.dtype]

    def method(self, name: str, function: Callable[[Tensor, Tensor], Tensor]) -> Method:
        """A method on these tensors."""
        return Method(name, lambda: function(self.a, self.b), {"a": self.a, "b": self.b})

    def truth(self, function: Callable[[Tensor, Tensor], Tensor]) -> Method:
        """A method in float64 on the same numbers."""
        a, b = (tensor.detach().double().requires_grad_() for tensor in (self.a, self.b))
        return Method("float64", lambda: function(a, b), {"a": a, "b": b})

    def references(self) -> tuple[list[Method], list[str]]:
        """Other sequence layers, timed for comparison, and notes on those not installed."""
        q, k, v = (self.a.detach().clone() for _ in range(3))
        methods = [Method("SDPA", lambda: attention(q, k, v), instead="causal attention")]
        if self.device != "cuda":
            return methods, []
        if not peers.missing("fla"):
            rows = k.float().unflatten(2, (-1, HEAD)).transpose(1, 2).contiguous()
            out = torch.empty_like(rows)
            methods += [
                Method("fla gla", lambda: linear_attention(q, k, v), instead="simple gated linear attention"),
                Method("fla logcumsumexp", lambda: running_logsumexp(rows, out), instead="the cumulative sum alone"),
            ]
        return methods, peers.missing("fla")


def scan(device: str, shape: Shape, quick: bool) -> Problem:
    """The factorised relation, with the post-norm of the published block."""
    inputs = Inputs(shape, device)
    references, notes = inputs.references()
    forms = [inputs.method("logcumsumexp", logcumsumexp_form), inputs.method("cumsum", cumsum_form)]
    if quick:
        notes.append(peers.NOT_QUICK)
    else:
        forms.append(inputs.method("torch.compile", peers.compiled(cumsum_form)))
    return Problem(
        normplace=inputs.method("normplace", functools.partial(relation_scan, post_norm=True, eps=EPS)),
        peers=[*forms, *references],
        truth=inputs.truth(cumsum_form),
        tolerance=inputs.tolerance,
        seeds=[inputs.seed],
        # Forward reads a and b and writes y; backward reads a, b and a gradient and writes two gradients.
        floors={FORWARD: Floor("copy", 3 * inputs.size), TRAINING: Floor("copy", 8 * inputs.size)},
        notes=notes,
    )


def pairs(device: str, shape: Shape, quick: bool) -> Problem:
    """The relation of normalized pairs."""
    inputs = Inputs(shape, device)
    batch, length, width, _ = shape
    references, notes = inputs.references()
    forms = []
    if device == "cuda" and PAIR_TENSORS * 4 * batch * length**2 * width > torch.cuda.mem_get_info()[0]:
        notes.append(
            f"the plain form of pairwise, {_describe(shape)}: tensors of pairs × channels do not fit into GPU memory"
        )
    else:
        forms.append(inputs.method("PyTorch", pair_form))
        if not quick:
            forms.append(inputs.method("torch.compile", peers.compiled(pair_form)))
    notes += [peers.NOT_QUICK] if quick else []
    exponentials = batch * length * (length + 1) / 2 * width
    return Problem(
        normplace=inputs.method("normplace", functools.partial(relation_pairwise, eps=EPS)),
        peers=[*forms, *references],
        truth=inputs.truth(pair_form_in_pieces),
        tolerance=inputs.tolerance,
        seeds=[inputs.seed],
        # No exponential is stored, so the backward pass recomputes each.
        floors={FORWARD: Floor("exp", exponentials), TRAINING: Floor("exp", 2 * exponentials)},
        notes=notes,
    )


def cases(device: str, quick: bool) -> list[Case]:
    """Scans, then pairs."""
    return [
        Case("relation", f"{name}, {_describe(shape)}", functools.partial(build, shape=shape, quick=quick))
        for name, build, shapes in (("scan", scan, SCANS), ("pairwise", pairs, PAIRS))
        for shape in shapes[device, quick]
    ]


def _describe(shape: Shape) -> str:
    *size, dtype = shape
    return " × ".join(map(str, size)) + (", bfloat16" if dtype == torch.bfloat16 else "")


def tune() -> Iterator[str]:
    """Times of layouts of the kernels, fastest first."""
    from normplace.ops.launch import clear_plans
    from normplace.ops.relation import layouts
    from normplace.ops.relation.layouts import PairTile, ScanTile

    long, many = (4, 8192, 1024, torch.bfloat16), (64, 602, 192, torch.bfloat16)
    scans, products = (build("cuda", shape, quick=True) for build, shape in ((scan, long), (pairs, many)))
    walks = [ScanTile(1024, 1, 16, 3), ScanTile(1024, 1, 32, 4), ScanTile(1024, 2, 16)]
    tiles = [PairTile(32, 64, 8, 8), PairTile(8, 64, 2, 8), PairTile(16, 32, 2, 8)]
    for problem, name, values, step in (
        (scans, "SCAN_SUMS", [ScanTile(1024, 1, 1, 4), ScanTile(2048, 1)], FORWARD),
        (scans, "SCAN_FORWARD", walks, FORWARD),
        (scans, "SCAN_BACKWARD", walks, TRAINING),
        (products, "PAIR_SCALES", [PairTile(128, 32, 8)], FORWARD),
        (products, "PAIR_FORWARD", tiles, FORWARD),
        (products, "PAIR_QUERIES", tiles, TRAINING),
        (products, "PAIR_KEYS", tiles, TRAINING),
        (products, "PAIR_THROUGH_SCALE", [PairTile(64, 128, 8, 32)], TRAINING),
    ):
        call = problem.normplace.calls(problem.seeds)[step]
        yield from fastest("relation", Setting(layouts, name, values, forget=clear_plans), call)


OP = Op(
    name="relation",
    summary=(
        "scan: the norm of the causal mean of exp(LN(a_i) + LN(b_j)). Minimal work: read a and b and write y, and five "
        "more tensors with the backward pass. pairwise: the causal mean of exp(LN(a_i + b_j)). Minimal work: one "
        "exponential for each pair and channel, and one more with the backward pass. Sizes are batch × length × width. "
        "SDPA and fla are other sequence layers of the same size, with heads of 64 channels, timed for comparison."
    ),
    cases=cases,
    tune=tune,
)

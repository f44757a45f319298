"""The fused boundary between two residual blocks compared with PyTorch's norms, torch.compile and Liger."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from normplace.lab.bench import peers
from normplace.lab.bench.case import FORWARD, TRAINING, Case, Floor, Method, Op, Problem
from normplace.lab.bench.tune import Setting, fastest
from normplace.ops import norm_add_norm

EPS = 1e-6
WIDTHS = (1024, 2048, 4096, 8192)
# Norm, rows, width, and calls timed back to back.
SHAPES = {
    ("cpu", True): [("rms", 2048, 1024, 1)],
    ("cpu", False): [(norm, rows, 1024, 1) for norm in ("rms", "layer") for rows in (256, 8192)],
    ("cuda", True): [("rms", 16384, 4096, 1), ("rms", 256, 4096, 20)],
    ("cuda", False): [
        *(("rms", rows, 1024, 1) for rows in (256, 32768)),
        ("rms", 16384, 1536, 1),
        ("rms", 16384, 2048, 1),
        *(("rms", rows, 4096, 1) for rows in (256, 2048, 16384)),
        ("rms", 16384, 8192, 1),
        # Narrow, very wide, and of models whose widths are not powers of two.
        *(("rms", 2**26 // width // 1024 * 1024, width, 1) for width in (128, 512, 2304, 3584, 5120, 16384)),
        *(("layer", max(16384, 2**25 // width), width, 1) for width in WIDTHS),
        *(("rms", 256, width, 20) for width in (1024, 4096, 8192)),
    ],
}
DTYPES = {"cpu": torch.float32, "cuda": torch.bfloat16}
# Relative to the largest entry: results are rounded twice, gradients of gains are sums over all rows.
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 4 * torch.finfo(torch.bfloat16).eps}
NAMES = ("x", "f", "the output gain", "the next gain", "the output bias", "the next bias")

Boundary = Callable[..., tuple[Tensor, Tensor]]


def fused(x: Tensor, f: Tensor, w_out: Tensor, w_in: Tensor, *biases: Tensor) -> tuple[Tensor, Tensor]:
    """Normplace."""
    b_out, b_in = biases or (None, None)
    norm = "layer" if biases else "rms"
    return norm_add_norm(
        x, f, out_norm=norm, out_weight=w_out, out_bias=b_out, in_norm=norm, in_weight=w_in, in_bias=b_in,
        out_eps=EPS, in_eps=EPS,
    )  # fmt: skip


def eager(x: Tensor, f: Tensor, w_out: Tensor, w_in: Tensor, *biases: Tensor) -> tuple[Tensor, Tensor]:
    """PyTorch's norms, one after the other."""
    shape = (x.shape[-1],)
    if biases:
        stream = x + F.layer_norm(f, shape, w_out, biases[0], EPS)
        return stream, F.layer_norm(stream, shape, w_in, biases[1], EPS)
    stream = x + F.rms_norm(f, shape, w_out, EPS)
    return stream, F.rms_norm(stream, shape, w_in, EPS)


def liger(x: Tensor, f: Tensor, w_out: Tensor, w_in: Tensor) -> tuple[Tensor, Tensor]:
    """Liger's two kernels with Llama's arithmetic, not in place."""
    options = (EPS, 0.0, "llama", False)
    branch = peers.imported("liger_kernel.ops.rms_norm").LigerRMSNormFunction.apply(f, w_out, *options)
    pair = peers.imported("liger_kernel.ops.fused_add_rms_norm").LigerFusedAddRMSNormFunction
    y, stream = pair.apply(branch, x, w_in, *options)
    return stream, y


def inputs(norm: str, rows: int, width: int, device: str) -> tuple[dict[str, Tensor], list[Tensor]]:
    """The learned tensors by name, and gradients of the two results."""
    generator = torch.Generator(device).manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device=device).to(DTYPES[device])

    gains = [1 + random(width) / 8 for _ in range(2)]
    biases = [random(width) / 8 for _ in range(2)] if norm == "layer" else []
    learned = [tensor.requires_grad_() for tensor in (random(rows, width), random(rows, width), *gains, *biases)]
    return dict(zip(NAMES, learned, strict=False)), [random(rows, width) for _ in range(2)]


def problem(device: str, norm: str, rows: int, width: int, burst: int, quick: bool) -> Problem:
    """One boundary."""
    learned, seeds = inputs(norm, rows, width, device)
    exact = {name: tensor.detach().double().requires_grad_() for name, tensor in learned.items()}

    def method(name: str, function: Boundary, tensors: dict[str, Tensor] = learned) -> Method:
        return Method(name, lambda: function(*tensors.values()), tensors)

    others, notes = [method("PyTorch", eager)], []
    if quick:
        notes.append(peers.NOT_QUICK)
    else:
        others.append(method("torch.compile", peers.compiled(eager)))
    if device == "cuda" and norm == "rms":
        notes += peers.missing("liger_kernel")
        others += [method("Liger", liger)] if not peers.missing("liger_kernel") else []
    size = learned["x"].nbytes
    return Problem(
        normplace=method("normplace", fused),
        peers=others,
        truth=method("float64", eager, exact),
        tolerance=TOLERANCE[DTYPES[device]],
        seeds=seeds,
        floors={FORWARD: Floor("copy", 4 * size), TRAINING: Floor("copy", 10 * size)},
        burst=burst,
        notes=notes,
    )


def cases(device: str, quick: bool) -> list[Case]:
    """Widths of Transformers, with many and with few rows."""
    precision = "" if device == "cpu" else ", bfloat16"
    return [
        Case(
            "norm_add_norm",
            f"{norm}, {rows} × {width}{precision}{f', {burst} back to back' if burst > 1 else ''}",
            functools.partial(problem, norm=norm, rows=rows, width=width, burst=burst, quick=quick),
        )
        for norm, rows, width, burst in SHAPES[device, quick]
    ]


def tune() -> Iterator[str]:
    """Times of the kernels' layouts for some widths, fastest first."""
    from normplace.ops.launch import clear_plans
    from normplace.ops.norm_add_norm import layouts

    for width, norm in itertools.product(WIDTHS, ("rms", "layer")):
        rows = max(4096, 2**26 // width)
        learned, seeds = inputs(norm, rows, width, "cuda")
        results = fused(*learned.values())

        def forward(learned=learned) -> object:
            with torch.no_grad():
                return fused(*learned.values())

        def backward(results=results, learned=learned, seeds=seeds) -> object:
            return torch.autograd.grad(results, list(learned.values()), seeds, retain_graph=True)

        tables = (
            (layouts.forward_table(width, few_rows=False, subtracts_mean=norm == "layer"), forward, (0, 4, 8)),
            (layouts.backward_table(width, has_bias_grads=norm == "layer"), backward, (1, 2, 4, 5)),
        )
        for table, call, per_sm in tables:
            current = table.setdefault(width, layouts.tile_for(table, width))
            tried = list(candidate_tiles(layouts.BoundaryTile, width, per_sm, in_blocks=current.columns > 0))
            setting = Setting(table, width, tried, forget=clear_plans)
            yield from fastest(f"{norm}, {rows} × {width}, {call.__name__}", setting, call)


def candidate_tiles(
    tile: Callable[..., object], block: int, programs: tuple[int, ...], in_blocks: bool = False
) -> Iterator[object]:
    """Tiles worth trying for a width: 8 to 64 elements for each thread."""
    if in_blocks:
        for columns, warps in itertools.product((1024, 2048, 4096, 8192, 16384), (4, 8, 16, 32)):
            if columns <= block and 8 <= columns // (32 * warps) <= 16:
                yield tile(rows=1, warps=warps, columns=columns)
        return
    for rows, warps, stages, per_sm in itertools.product((1, 2, 4), (1, 2, 4, 8, 16, 32), (1, 2, 3, 4), programs):
        fits = 8 <= rows * block // (32 * warps) <= 64 and rows * block <= 16384
        if fits and (stages == 1 or per_sm) and (per_sm == 0 or 8 <= warps * per_sm <= 32):
            yield tile(rows=rows, warps=warps, per_sm=per_sm, stages=stages)


OP = Op(
    name="norm_add_norm",
    summary=(
        "The boundary x' = x + N_out(f), y = N_in(x') with learned gains, with layer also learned biases, and all "
        "gradients. The minimal work is 4 tensors of the stream's size moved forward and 6 backward. Liger has two "
        "kernels: a norm, and an add with the next norm."
    ),
    cases=cases,
    tune=tune,
)

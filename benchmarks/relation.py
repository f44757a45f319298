"""Speed and memory of the relation ops beside PyTorch's own, in one run: correctness first, then forward and backward.

    python benchmarks/relation.py --out benchmarks/results/relation-cpu.json
    python benchmarks/relation.py --device cuda --out benchmarks/results/relation-cuda.json

On a GPU the scan is measured against what it must move, two rows read and one written forward and three read and two
written backward, at the speed of a device copy; the pairs against the exponentials they must take, one for each channel
of a pair, at the speed of a kernel that does nothing else. Both ceilings are measured in the same run, the second beside
the figure of 16 a clock and multiprocessor (4.18e12 a second on an H200 at 1.98 GHz). Times are medians of replayed CUDA
graphs with a cold cache; ``call_ms`` is the same call from Python. A kernel that disagrees with double precision is not
reported: the run stops. ``--tune`` tries layouts of the kernels instead and prints their times.

On a CPU the scan stands beside the same function by ``torch.logcumsumexp``, and the memory of pairs, the high-water mark
of the resident set of a process of its own over what the inputs take, beside that of a tensor of all pairs.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import importlib.metadata
import importlib.util
import itertools
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))
from normplace.ops import relation_pairwise, relation_scan
from normplace.ops.relation import op

SFU_LIMIT = 4.18e12
EPS = 1e-5
SCANS = ((4, 2048, 1024), (4, 8192, 1024), (64, 602, 192))
PAIRS = (
    ((64, 602, 192), torch.bfloat16),
    ((1, 8192, 768), torch.bfloat16),
    ((4, 512, 256), torch.float32),
    ((4, 512, 256), torch.bfloat16),
)
SCAN_OPTIONS = ("separate", True, EPS, True, 1, True, "auto")
PAIR_OPTIONS = ("joint", "exp", EPS, True, 1, True, "auto")


def inputs(shape: tuple[int, int, int], dtype: torch.dtype, device: str, count: int = 2) -> list[Tensor]:
    """Rows of normal numbers."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator).to(device, dtype) for _ in range(count)]


def norm(x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], eps=EPS)


def by_logcumsumexp(a: Tensor, b: Tensor, post_norm: bool = True) -> Tensor:
    """The scan as the published code has it, in float32."""
    count = torch.arange(1, a.shape[1] + 1, device=a.device)[:, None]
    y = torch.exp(norm(a.float()) + torch.logcumsumexp(norm(b.float()), 1)) / count
    return (norm(y) if post_norm else y).to(a.dtype)


def by_cumsum(a: Tensor, b: Tensor) -> Tensor:
    """The scan as two factors, in float32."""
    count = torch.arange(1, a.shape[1] + 1, device=a.device)[:, None]
    return norm(norm(a.float()).exp() * norm(b.float()).exp().cumsum(1) / count).to(a.dtype)


def by_pairs(a: Tensor, b: Tensor) -> Tensor:
    """Every pair written out, in float32 or float64."""
    wide = a.dtype if a.dtype == torch.float64 else torch.float32
    x = norm(a.to(wide)[:, :, None] + b.to(wide)[:, None]).exp()
    count = torch.arange(1, a.shape[1] + 1, device=a.device)
    return (x * torch.ones_like(x[..., 0]).tril()[..., None]).sum(2) / count[:, None]


def apart(found: Tensor, truth: Tensor) -> float:
    """The largest difference, relative to the largest entry."""
    return float((found.double() - truth.double()).abs().max() / truth.double().abs().max())


def demand(what: str, error: float, allowed: float) -> float:
    """Stop where a kernel is wrong."""
    if not error <= allowed:
        raise RuntimeError(f"{what} is {error:.1e} away from double precision, {allowed:.0e} is allowed")
    return error


def gradients(run: Callable[[Tensor, Tensor], Tensor], a: Tensor, b: Tensor, seed: Tensor) -> list[Tensor]:
    a, b = a.detach().requires_grad_(), b.detach().requires_grad_()
    y = run(a, b)
    return [y.detach(), *torch.autograd.grad((y * seed.to(y.dtype)).sum(), (a, b))]


def correctness() -> dict[str, float]:
    """Errors of value and gradients of both ops against double precision, the widest of each case."""
    found = {}
    cancelling = inputs((2, 150, 96), torch.float32, "cuda", 3)
    cancelling[1][:, :75] = -cancelling[0][:, 75:] + 0.02 * cancelling[1][:, :75]
    mask = torch.ones(2, 150, dtype=torch.bool, device="cuda")
    mask[0, 100:] = False
    cases: list[tuple[str, list[Tensor], dict[str, Any]]] = [
        ("random", inputs((3, 301, 192), torch.float32, "cuda", 3), {}),
        ("heads", inputs((2, 130, 200), torch.float32, "cuda", 3), {"heads": 4, "post_norm": True}),
        ("cancelling", cancelling, {}),
        ("masked", inputs((2, 150, 96), torch.float32, "cuda", 3), {"mask": mask, "post_norm": True}),
        ("bidirectional", inputs((2, 140, 96), torch.float32, "cuda", 3), {"causal": False}),
        ("no norm", inputs((2, 140, 96), torch.float32, "cuda", 3), {"norm": "none", "post_norm": True}),
        ("relu", inputs((2, 140, 96), torch.float32, "cuda", 3), {"activation": "relu", "norm": "separate"}),
        ("gelu", inputs((2, 140, 96), torch.float32, "cuda", 3), {"activation": "gelu"}),
        ("elu", inputs((2, 140, 96), torch.float32, "cuda", 3), {"activation": "elu"}),
    ]
    for (name, (a, b, seed), options), call in itertools.product(cases, (relation_scan, relation_pairwise)):
        if call is relation_scan and "activation" in options:
            continue
        ours = gradients(lambda a, b: call(a, b, **options), a, b, seed)  # noqa: B023
        truth = gradients(lambda a, b: call(a, b, backend="reference", **options), a.double(), b.double(), seed)  # noqa: B023
        errors = [apart(x, y) for x, y in zip(ours, truth, strict=True)]
        # A cancelling pair multiplies the last digits of what it is made of by the inverse of what is left.
        allowed = 2e-4 if name == "cancelling" else 3e-5
        demand(f"{call.__name__}, {name}", errors[0], 1e-5)
        demand(f"the gradient of {call.__name__}, {name}", max(errors[1:]), allowed)
        found[f"{call.__name__}, {name}"] = max(errors)
    a, b = inputs((2, 150, 64), torch.float64, "cuda")
    demand("the reference", apart(relation_pairwise(a, b), by_pairs(a, b)), 1e-10)
    return found


class Clock:
    """Times on a GPU with a cold cache."""

    def __init__(self) -> None:
        self.cold = torch.empty(1 << 28, dtype=torch.int8, device="cuda")

    def ms(self, run: Callable[[], Any], repeats: int = 20) -> float:
        """The median time of a replayed graph of ``run``."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            run()
            run()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run()
        found = self._times(graph.replay, repeats)
        del graph
        return found

    def call_ms(self, run: Callable[[], Any], repeats: int = 20) -> float:
        """The median time of ``run`` called from Python."""
        run()
        return self._times(run, repeats)

    def _times(self, run: Callable[[], Any], repeats: int) -> float:
        times = []
        for _ in range(repeats):
            self.cold.zero_()
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            run()
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end))
        return statistics.median(times)


def peak(run: Callable[[], Any]) -> int:
    """Bytes allocated at most, over what there was before, the result included."""
    run()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def ceilings(clock: Clock) -> dict[str, float]:
    """Bytes a second of a copy, exponentials a second of a kernel that takes nothing else."""
    from relation_ceiling import exponentials

    source = torch.empty(1 << 29, dtype=torch.int8, device="cuda")
    target = torch.empty_like(source)
    copy = 2 * len(source) / (clock.ms(lambda: target.copy_(source)) * 1e-3)
    out = torch.empty(132 * 16 * 2048, device="cuda")
    steps = 2000
    rate = out.numel() * steps / (clock.ms(lambda: exponentials(out, steps), 5) * 1e-3)
    return {"copy_bytes_per_s": copy, "exponentials_per_s": rate, "exponentials_limit_per_s": SFU_LIMIT}


def peer(name: str, row: dict, clock: Clock, run: Callable[[], Any]) -> None:
    """The time of a peer, or why there is none."""
    try:
        row[f"{name}_ms"] = clock.ms(run, 10)
    except (
        ImportError,
        RuntimeError,
        torch._dynamo.exc.BackendCompilerFailed,
    ) as problem:  # a peer may fail, we may not
        row[f"{name}_ms"] = None
        row[f"{name}_problem"] = f"{type(problem).__name__}: {problem}"[:200]
        torch.cuda.empty_cache()


def scan_row(shape: tuple[int, int, int], limits: dict[str, float], clock: Clock) -> dict:
    a, b, grad = inputs(shape, torch.bfloat16, "cuda", 3)
    truth = by_cumsum(a[:1].double(), b[:1].double()) if shape[1] <= 4096 else None
    error = demand(
        f"the scan of {shape}",
        apart(relation_scan(a[:1].float(), b[:1].float(), post_norm=True), truth) if truth is not None else 0.0,
        1e-5,
    )
    with torch.no_grad():
        row: dict[str, Any] = {"shape": shape, "dtype": "bfloat16", "error_float32": error}
        for name, post in (("ours", True), ("ours_without_post_norm", False)):
            row[f"{name}_ms"] = clock.ms(lambda: relation_scan(a, b, post_norm=post))  # noqa: B023
        row["call_ms"] = clock.call_ms(lambda: relation_scan(a, b, post_norm=True))
        row["backward_ms"] = clock.ms(lambda: op.scan_backward(grad, a, b, None, *SCAN_OPTIONS))
        row["peak_bytes"] = peak(lambda: relation_scan(a, b, post_norm=True))
        floor = a.numel() * 6 / limits["copy_bytes_per_s"] * 1e3
        row["of_floor"], row["of_floor_backward"] = floor / row["ours_ms"], floor * 10 / 6 / row["backward_ms"]
        row["of_floor_without_post_norm"] = floor / row["ours_without_post_norm_ms"]
        peer("logcumsumexp", row, clock, lambda: by_logcumsumexp(a, b))
        peer("cumsum", row, clock, lambda: by_cumsum(a, b))
        compiled = torch.compile(by_cumsum)
        peer("compiled", row, clock, lambda: compiled(a, b))
        heads = [x.unflatten(-1, (-1, 64)).transpose(1, 2).contiguous() for x in (a, b, b)]
        peer("causal_sdpa", row, clock, lambda: F.scaled_dot_product_attention(*heads, is_causal=True))
        peer("fla_logcumsumexp", row, clock, fla_logcumsumexp(b))
        peer("fla_simple_gla", row, clock, fla_simple_gla(a, b))
    row["faster_than_logcumsumexp"] = row["logcumsumexp_ms"] / row["ours_ms"]
    print(
        f"scan {shape}: {row['ours_ms']:.4f} ms, {row['of_floor']:.0%} of copy speed "
        f"({row['of_floor_without_post_norm']:.0%} without post-norm), {row['faster_than_logcumsumexp']:.0f}x "
        f"logcumsumexp; backward {row['backward_ms']:.4f} ms, {row['of_floor_backward']:.0%}; call {row['call_ms']:.3f} ms",
        flush=True,
    )
    return row


def fla_logcumsumexp(b: Tensor) -> Callable[[], Any]:
    def run():
        from fla.ops.utils import logcumsumexp

        return (
            logcumsumexp.logcumsumexp(b[:, None]) if hasattr(logcumsumexp, "logcumsumexp") else logcumsumexp(b[:, None])
        )

    return run


def fla_simple_gla(a: Tensor, b: Tensor) -> Callable[[], Any]:
    q, k, v = (x.unflatten(-1, (-1, 64)) for x in (a, b, b))
    decay = torch.zeros(q.shape[:3], device=q.device)

    def run():
        from fla.ops.simple_gla import chunk_simple_gla

        return chunk_simple_gla(q, k, v, g=decay)

    return run


def pair_row(shape: tuple[int, int, int], dtype: torch.dtype, limits: dict[str, float], clock: Clock) -> dict:
    batch, length, width = shape
    a, b, grad = inputs(shape, dtype, "cuda", 3)
    rows = torch.linspace(0, length - 1, 12, dtype=torch.long).tolist()
    wide = relation_pairwise(a[:1].float(), b[:1].float())[0]
    truth = [norm(a[0, i].double() + b[0, : i + 1].double()).exp().mean(0) for i in rows]
    error = demand(f"pairs of {shape}", apart(wide[rows], torch.stack(truth)), 1e-5)
    exponentials = batch * length * (length + 1) / 2 * width
    name = str(dtype).removeprefix("torch.")
    row: dict[str, Any] = {"shape": shape, "dtype": name, "error_float32": error, "exponentials": exponentials}
    with torch.no_grad():
        row["ours_ms"] = clock.ms(lambda: relation_pairwise(a, b), 10)
        row["call_ms"] = clock.call_ms(lambda: relation_pairwise(a, b), 10)
        row["backward_ms"] = clock.ms(lambda: op.pairs_backward(grad.float(), a, b, None, *PAIR_OPTIONS), 5)
        row["peak_bytes"] = peak(lambda: relation_pairwise(a, b))
        row["backward_peak_bytes"] = peak(lambda: op.pairs_backward(grad.float(), a, b, None, *PAIR_OPTIONS))
        row["bytes_of_one_float_a_pair"] = batch * length * length * 4
        if batch * length * length * width < 1 << 29:
            peer("eager", row, clock, lambda: by_pairs(a, b))
            compiled = torch.compile(by_pairs)
            peer("compiled", row, clock, lambda: compiled(a, b))
    row["of_limit"] = exponentials / SFU_LIMIT * 1e3 / row["ours_ms"]
    row["of_measured"] = exponentials / limits["exponentials_per_s"] * 1e3 / row["ours_ms"]
    row["backward_over_forward"] = row["backward_ms"] / row["ours_ms"]
    beside = "".join(
        f", {row[f'{other}_ms'] / row['ours_ms']:.1f}x {other}"
        for other in ("eager", "compiled")
        if row.get(f"{other}_ms")
    )
    print(
        f"pairs {shape} {name}: {row['ours_ms']:.3f} ms, {row['of_limit']:.0%} of the limit, "
        f"{row['of_measured']:.0%} of the rate measured{beside}; backward {row['backward_over_forward']:.2f} of forward; "
        f"peak {row['peak_bytes'] / 2**20:.0f} and {row['backward_peak_bytes'] / 2**20:.0f} MiB beside "
        f"{row['bytes_of_one_float_a_pair'] / 2**20:.0f} for a float a pair; call {row['call_ms']:.3f} ms",
        flush=True,
    )
    return row


def gpu_report() -> dict:
    report: dict[str, Any] = {"errors": correctness()}
    clock = Clock()
    report["ceilings"] = limits = ceilings(clock)
    print(", ".join(f"{name} {value:.3g}" for name, value in limits.items()), flush=True)
    report["scan"] = [scan_row(shape, limits, clock) for shape in SCANS]
    report["pairs"] = [pair_row(shape, dtype, limits, clock) for shape, dtype in PAIRS]
    return report


def tune(seconds: float) -> None:
    """Print the times of layouts of the kernels, fastest first, as far as the time allows."""
    from normplace.ops.relation import triton_pairs, triton_scan

    clock, began = Clock(), time.perf_counter()
    scans, pairs = inputs((4, 8192, 1024), torch.bfloat16, "cuda", 3), inputs((64, 602, 192), torch.bfloat16, "cuda", 3)
    a, b, grad = pairs
    tile, wide = triton_scan.Tile, triton_pairs.Tile
    runs: list[tuple[Any, str, list[Any], Callable[[], Any]]] = [
        (triton_pairs, "FORWARD", [wide(r, c, w, u) for r, c, w, u in (
            (8, 64, 4, 8), (16, 64, 4, 8), (16, 64, 4, 4), (32, 64, 4, 4), (32, 64, 8, 8), (16, 32, 2, 8), (16, 64, 2, 8),
        )], lambda: op.pairs(a, b, None, *PAIR_OPTIONS)),
        (triton_scan, "FORWARD", [tile(e, w, c, s) for e, w, c, s in (
            (4096, 4, 32, 1), (4096, 4, 16, 1), (4096, 4, 64, 1), (8192, 8, 32, 1), (8192, 8, 16, 1), (2048, 4, 32, 1),
            (4096, 4, 32, 2), (2048, 2, 16, 1), (4096, 8, 32, 1),
        )], lambda: op.scan(scans[0], scans[1], None, *SCAN_OPTIONS)),
        (triton_scan, "SUMS", [tile(e, w, 1, s) for e, w, s in (
            (4096, 4, 1), (8192, 4, 1), (8192, 8, 1), (2048, 4, 1), (4096, 4, 2),
        )], lambda: op.scan(scans[0], scans[1], None, *SCAN_OPTIONS)),
        (triton_pairs, "QUERIES", [wide(r, c, w, u) for r, c, w, u in (
            (16, 64, 4, 8), (16, 64, 4, 4), (32, 64, 4, 4), (8, 64, 4, 8), (32, 64, 8, 8),
        )], lambda: op.pairs_backward(grad.float(), a, b, None, *PAIR_OPTIONS)),
        (triton_pairs, "KEYS", [wide(r, c, w, u) for r, c, w, u in (
            (16, 64, 4, 8), (16, 64, 4, 4), (32, 64, 4, 4), (32, 64, 8, 4), (8, 64, 4, 4),
        )], lambda: op.pairs_backward(grad.float(), a, b, None, *PAIR_OPTIONS)),
        (triton_scan, "BACKWARD", [tile(e, w) for e, w in (
            (8192, 8), (4096, 4), (4096, 8), (8192, 16), (16384, 16),
        )], lambda: op.scan_backward(scans[2], scans[0], scans[1], None, *SCAN_OPTIONS)),
        (triton_pairs, "SCALES", [wide(r, c, w) for r, c, w in (
            (64, 32, 8), (64, 32, 4), (128, 32, 8), (64, 64, 8),
        )], lambda: op.pairs(a, b, None, *PAIR_OPTIONS)),
    ]  # fmt: skip
    for module, name, layouts, run in runs:
        found, start = [], getattr(module, name)
        for layout in layouts:
            if time.perf_counter() - began > seconds:
                break
            setattr(module, name, layout)
            try:
                found.append((clock.ms(run, 7), layout))
            except Exception as problem:  # a layout may not fit the device
                print(f"  {layout}: {type(problem).__name__}", flush=True)
        found.sort(key=lambda pair: pair[0])
        setattr(module, name, found[0][1] if found else start)
        print(f"{module.__name__.rsplit('.', 1)[1]}.{name}", flush=True)
        for taken, layout in found:
            print(f"  {taken:.4f} ms  {layout}", flush=True)


@dataclasses.dataclass(frozen=True)
class CpuCase:
    """What is timed on a CPU."""

    batch: int
    length: int
    width: int


def cpu_report(repeats: int) -> dict:
    report: dict[str, Any] = {"scan": [], "pairs": []}
    for case in (CpuCase(4, 2048, 256), CpuCase(1, 8192, 512)):
        a, b = inputs(dataclasses.astuple(case), torch.float32, "cpu")
        truth = by_logcumsumexp(a.double(), b.double()) if case.width <= 256 else by_logcumsumexp(a, b)
        row: dict[str, Any] = dataclasses.asdict(case)
        row["apart"] = demand("the scan", apart(relation_scan(a, b, post_norm=True), truth), 2e-5)
        seed = torch.randn_like(a)
        runs = {
            "ours": lambda a, b: relation_scan(a, b, post_norm=True),
            "logcumsumexp": by_logcumsumexp,
            "cumsum": by_cumsum,
        }
        for name, run in runs.items():
            row[f"{name}_ms"] = _best(lambda: run(a, b), repeats)  # noqa: B023
            row[f"{name}_with_backward_ms"] = _best(lambda: gradients(run, a, b, seed), repeats)  # noqa: B023
        row["faster"] = row["logcumsumexp_ms"] / row["ours_ms"]
        row["faster_with_backward"] = row["logcumsumexp_with_backward_ms"] / row["ours_with_backward_ms"]
        report["scan"].append(row)
        print(
            f"scan {dataclasses.astuple(case)}: {row['ours_ms']:.1f} ms, {row['faster']:.1f}x logcumsumexp; with backward "
            f"{row['ours_with_backward_ms']:.1f} ms, {row['faster_with_backward']:.1f}x",
            flush=True,
        )
    for length, width in ((1024, 64), (2048, 64)):
        command = [sys.executable, __file__, "--worker", str(length), str(width)]
        row = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        report["pairs"].append(row)
        print(
            f"pairs 1 x {length} x {width}: {row['seconds']:.2f} s with backward, {row['peak_bytes'] / 2**20:.0f} MiB over "
            f"the inputs beside {row['bytes_of_all_pairs'] / 2**20:.0f} for a tensor of all pairs",
            flush=True,
        )
    return report


def _best(run: Callable[[], Any], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return min(times) * 1e3


def cpu_worker(length: int, width: int) -> dict:
    a, b, seed = inputs((1, length, width), torch.float32, "cpu", 3)
    gradients(relation_pairwise, a[:, :8], b[:, :8], seed[:, :8])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.perf_counter()
    gradients(relation_pairwise, a, b, seed)
    return {
        "length": length,
        "width": width,
        "seconds": time.perf_counter() - began,
        "peak_bytes": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024,
        "bytes_of_all_pairs": length * length * width * 4,
    }


def environment(device: str) -> dict:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    cpu = [line.split(":")[1].strip() for line in lines if "model name" in line]
    there = [name for name in ("triton", "flash-linear-attention") if _there(name)]
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "versions": {name: importlib.metadata.version(name) for name in there},
        "cpu": cpu[0] if cpu else platform.processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if device == "cuda" else None,
        "load_average_before": os.getloadavg(),
    }


def _there(package: str) -> bool:
    return importlib.util.find_spec({"flash-linear-attention": "fla"}.get(package, package)) is not None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="where to write the figures as JSON")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument(
        "--tune", type=float, nargs="?", const=140.0, help="try layouts of the GPU kernels for so many seconds"
    )
    parser.add_argument("--worker", nargs=2, type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        print(json.dumps(cpu_worker(*args.worker)))
        return
    if args.tune:
        tune(args.tune)
        return
    report: dict[str, Any] = {"environment": environment(args.device)}
    report |= gpu_report() if args.device == "cuda" else cpu_report(args.repeats)
    report["environment"]["load_average_after"] = os.getloadavg()
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()

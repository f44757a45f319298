"""Speed and memory of the fused boundary between residual blocks, in one run: correctness first, then the clock.

    python benchmarks/norm_add_norm.py --out benchmarks/results/norm-add-norm-cuda.json
    python benchmarks/norm_add_norm.py --tune

What is timed is ``x' = x + N_out(f); y = N_in(x')`` in bfloat16 with learned gains, and with ``layer`` shifts too.
Beside ours stand PyTorch's own norms called one by one, the same under ``torch.compile``, and for RMSNorm Liger's pair
(rms_norm, then fused_add_rms_norm) where it is installed. Everything is timed as training calls it, with gradients
wanted: ``forward``, and ``step``, which is forward and backward without accumulation.

A time is that of one call by CUDA events around it, the L2 cache overwritten before, while Python runs ahead: the
median, and the quartiles, of the repeats. A ``burst`` is twenty calls on end with a warm cache, over twenty: where a
call's work takes less time than its launch, that is the cost of the launch. With ``--graphs`` ours is timed as a CUDA
graph too.

The floor is what must be moved: 4 tensors forward, 10 with the backward pass, at the speed of a device copy measured in
the same run. Memory is what is kept between the passes beyond inputs and results, and the peak over the inputs.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import importlib.metadata
import importlib.util
import itertools
import json
import platform
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))
from normplace.ops import norm_add_norm

EPS = 1e-6
SHAPES = [
    *((rows, 4096) for rows in (256, 2048, 16384)),
    *((rows, 1024) for rows in (256, 32768)),
    (16384, 1536),
    (16384, 2048),
    *((rows, 8192) for rows in (256, 16384)),
]
LAYER_SHAPES = [(16384, width) for width in (1024, 2048, 4096, 8192)]
BURST = 20
# Floor, in tensors of the stream's size.
FORWARD, STEP = 4, 10


@dataclasses.dataclass
class Case:
    """The inputs of one comparison."""

    kind: str
    rows: int
    width: int
    dtype: torch.dtype = torch.bfloat16

    def __post_init__(self) -> None:
        generator = torch.Generator("cuda").manual_seed(0)

        def random(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator, device="cuda").to(self.dtype)

        self.inputs = [random(self.rows, self.width).requires_grad_() for _ in range(2)]
        many = 4 if self.kind == "layer" else 2
        self.parameters = [(1 - i // 2 + random(self.width) / 8).requires_grad_() for i in range(many)]
        self.seeds = [random(self.rows, self.width) for _ in range(2)]

    @property
    def learned(self) -> list[Tensor]:
        """All that gets a gradient."""
        return self.inputs + self.parameters

    @property
    def nbytes(self) -> int:
        """Of one tensor of the stream's size."""
        return self.inputs[0].nbytes

    def contenders(self) -> dict[str, Callable[..., tuple[Tensor, Tensor]]]:
        """Each a function of x, f and the parameters."""
        torch.compiler.reset()  # each shape compiled for itself, none as a dynamic one
        compiled = torch.compile(self.eager, fullgraph=True, dynamic=False)
        found = {"ours": self.ours, "eager": self.eager, "compile": compiled}
        if self.kind == "rms" and importlib.util.find_spec("liger_kernel"):
            found["liger"] = self.liger
        return found

    def ours(self, x: Tensor, f: Tensor, w_out: Tensor, w_in: Tensor, *shifts: Tensor) -> tuple[Tensor, Tensor]:
        """This library."""
        b_out, b_in = shifts or (None, None)
        return norm_add_norm(
            x, f, out_norm=self.kind, out_weight=w_out, out_bias=b_out, in_norm=self.kind, in_weight=w_in, in_bias=b_in,
            out_eps=EPS, in_eps=EPS,
        )  # fmt: skip

    def eager(self, x: Tensor, f: Tensor, w_out: Tensor, w_in: Tensor, *shifts: Tensor) -> tuple[Tensor, Tensor]:
        """PyTorch's norms, one by one."""
        shape = (x.shape[-1],)
        if shifts:
            stream = x + F.layer_norm(f, shape, w_out, shifts[0], EPS)
            return stream, F.layer_norm(stream, shape, w_in, shifts[1], EPS)
        stream = x + F.rms_norm(f, shape, w_out, EPS)
        return stream, F.rms_norm(stream, shape, w_in, EPS)

    def liger(self, x: Tensor, f: Tensor, w_out: Tensor, w_in: Tensor) -> tuple[Tensor, Tensor]:
        """Liger's two kernels."""
        from liger_kernel.ops.fused_add_rms_norm import LigerFusedAddRMSNormFunction
        from liger_kernel.ops.rms_norm import LigerRMSNormFunction

        u: Any = LigerRMSNormFunction.apply(f, w_out, EPS, 0.0, "llama", False)
        y, stream = LigerFusedAddRMSNormFunction.apply(u, x, w_in, EPS, 0.0, "llama", False)  # pyright: ignore
        return stream, y

    def forward(self, call: Callable) -> tuple[Tensor, Tensor]:
        """Stream and y."""
        return call(*self.inputs, *self.parameters)

    def step(self, call: Callable) -> tuple[Tensor, ...]:
        """All gradients."""
        return torch.autograd.grad(self.forward(call), self.learned, self.seeds)

    def check(self, rows: int = 512) -> float:
        """The largest error over results and gradients, relative to the largest entry of each, in the first rows.

        Raises:
            RuntimeError: If it is more than rounding explains; nothing is reported of a wrong kernel.
        """
        small = Case(self.kind, min(rows, self.rows), self.width, self.dtype)
        truth = Case(self.kind, min(rows, self.rows), self.width, self.dtype)
        truth.inputs, truth.parameters = ([t.detach().double().requires_grad_() for t in ts] for ts in
                                          (small.inputs, small.parameters))  # fmt: skip
        truth.seeds = [seed.double() for seed in small.seeds]
        mine = [*small.forward(small.ours), *small.step(small.ours)]
        theirs = [*truth.forward(truth.eager), *truth.step(truth.eager)]
        worst = max(float((a.double() - b).abs().max() / b.abs().max()) for a, b in zip(mine, theirs, strict=True))
        # The whole of it against PyTorch's own kernels: the many rows of one program, and the sums over all.
        whole = [*self.forward(self.ours), *self.step(self.ours)]
        other = [*self.forward(self.eager), *self.step(self.eager)]
        apart = max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(whole, other, strict=True))
        allowed = 4 * torch.finfo(self.dtype).eps
        if not (worst <= allowed and apart <= 2 * allowed):
            raise RuntimeError(
                f"{self} is off by {worst:.1e} from float64 and {apart:.1e} from eager: {allowed:.1e} is allowed"
            )
        return worst


class Clock:
    """Times calls with a cold cache."""

    def __init__(self, repeats: int) -> None:
        self.repeats = repeats
        self.cache = torch.empty(2**28, dtype=torch.uint8, device="cuda")  # five times the L2 of an H200

    def __call__(self, call: Callable[[], object], repeats: int | None = None) -> list[float]:
        """Milliseconds of each repeat, in order of size."""
        for _ in range(3):
            call()
        pairs = []
        for _ in range(repeats or self.repeats):
            self.cache.zero_()
            pairs.append([torch.cuda.Event(enable_timing=True) for _ in range(2)])
            pairs[-1][0].record()
            call()
            pairs[-1][1].record()
        torch.cuda.synchronize()
        return sorted(start.elapsed_time(end) for start, end in pairs)


def quartiles(times: list[float]) -> dict[str, float]:
    """Median and quartiles."""
    low, middle, high = statistics.quantiles(times, n=4)
    return {"median_ms": middle, "low_ms": low, "high_ms": high}


def burst(call: Callable[[], object]) -> Callable[[], object]:
    """Many calls on end."""

    def calls() -> None:
        for _ in range(BURST):
            call()

    return calls


def graphed(call: Callable[[], object]) -> Callable[[], object]:
    """The call as a CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def copy_speed(clock: Clock) -> float:
    """Bytes a second, read and written."""
    block = torch.empty(2**30, dtype=torch.uint8, device="cuda")
    other = torch.empty_like(block)
    return 2 * block.nbytes / (statistics.median(clock(lambda: other.copy_(block), 20)) * 1e-3)


def memory(case: Case, call: Callable) -> dict[str, int]:
    """Bytes kept for the backward pass beyond inputs and results, and the peak of a step over the inputs."""
    case.step(call)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    results = case.forward(call)
    after = torch.cuda.memory_allocated()
    kept = after - before - sum(result.nbytes for result in results)
    del results
    torch.cuda.reset_peak_memory_stats()
    case.step(call)
    torch.cuda.synchronize()
    return {"kept_bytes": kept, "peak_bytes": torch.cuda.max_memory_allocated() - before}


def compare(case: Case, clock: Clock, speed: float, graphs: bool) -> dict:
    """One row of the report."""
    row: dict = {"norm": case.kind, "rows": case.rows, "width": case.width, "error": case.check()}
    floors = {"forward": FORWARD * case.nbytes / speed * 1e3, "step": STEP * case.nbytes / speed * 1e3}
    for name, call in case.contenders().items():
        calls = {"forward": lambda call=call: case.forward(call), "step": lambda call=call: case.step(call)}
        entry: dict = {part: quartiles(clock(once)) for part, once in calls.items()}
        for part, once in calls.items():
            entry[f"{part}_burst"] = quartiles([taken / BURST for taken in clock(burst(once), 8)])
            if graphs and name == "ours":
                entry[f"{part}_graph"] = quartiles(clock(graphed(once)))
        for part, figures in entry.items():
            floor = floors[part.partition("_")[0]]
            figures["of_copy_speed"] = floor / figures["median_ms"]
            figures["tb_per_s"] = floor / figures["median_ms"] * speed / 1e12
        row[name] = entry | memory(case, call)
    ours = row["ours"]
    for name in ("eager", "compile", "liger"):
        if name in row:
            row[f"faster_than_{name}"] = {
                part: row[name][part]["median_ms"] / ours[part]["median_ms"]
                for part in ("forward", "step", "forward_burst", "step_burst")
            }
    print(f"{case.kind} {case.rows} x {case.width}, error {row['error']:.1e}")
    for name in ("ours", "compile", "liger", "eager"):
        if name in row:
            parts = [part for part in row[name] if not part.endswith("_bytes")]
            told = ", ".join(
                f"{part} {row[name][part]['median_ms']:.4f} ms ({row[name][part]['of_copy_speed']:.0%})"
                for part in parts
            )
            ratios = row.get(f"faster_than_{name}", {})
            told += "".join(f", {ratio:.2f}x {part}" for part, ratio in ratios.items())
            kept, peak = (row[name][f"{what}_bytes"] / case.nbytes for what in ("kept", "peak"))
            print(f"  {name:8} {told}; keeps {kept:.2f} T, peak {peak:.2f} T", flush=True)
    return row


def tune(args: argparse.Namespace) -> None:
    """Print the fastest layouts of the kernels for each class of widths."""
    from normplace.ops.norm_add_norm import triton as kernels

    clock = Clock(args.repeats)
    speed = copy_speed(clock)
    for width, kind in itertools.product(args.widths, args.kinds):
        case = Case(kind, max(4096, 2**26 // width), width)
        block = 1 << (width - 1).bit_length()
        backward = "BACKWARD_SHIFTS" if kind == "layer" else "BACKWARD"
        for name, part in (("FORWARD", FORWARD), (backward, STEP - FORWARD)):
            table = getattr(kernels, name)
            start, found = table[block], []
            for tile in layouts(kernels.Tile, block, name):
                table[block] = tile
                try:
                    found.append((statistics.median(clock(timed(case, name), 15)), tile))
                except Exception as error:  # a layout that does not fit the machine
                    print(f"  {tile} fails: {type(error).__name__} {str(error)[:80]}")
            table[block] = start
            found.sort(key=lambda pair: pair[0])
            print(f"{kind} {case.rows} x {width} {name}")
            floor = part * case.nbytes / speed * 1e3
            for taken, tile in found[: args.show]:
                print(f"  {taken:.4f} ms {floor / taken:.1%}  {tile}", flush=True)


def timed(case: Case, name: str) -> Callable[[], object]:
    """The pass on its own."""
    if name == "FORWARD":

        def forward() -> object:
            with torch.no_grad():
                return case.forward(case.ours)

        return forward
    results = case.forward(case.ours)
    return lambda: torch.autograd.grad(results, case.learned, case.seeds, retain_graph=True)


def layouts(tile: Callable, block: int, name: str) -> list:
    """What is worth trying: 8 to 64 elements of a tile for each thread."""
    programs = (0, 4, 8, 16) if name == "FORWARD" else (1, 2, 3, 4, 6, 8)
    return [
        tile(rows=rows, warps=warps, per_sm=per_sm, stages=stages)
        for rows, warps, stages, per_sm in itertools.product((1, 2, 4), (1, 2, 4, 8, 16, 32), (1, 2), programs)
        if 8 <= rows * block // (32 * warps) <= 64
        and rows * block <= 16384
        and (stages == 1 or per_sm)
        and (per_sm == 0 or 4 <= warps * per_sm <= 64)
    ]


def environment() -> dict:
    """What the figures depend on."""
    packages = [name for name in ("triton", "liger-kernel") if importlib.util.find_spec(name.replace("-", "_"))]
    versions = {}
    for name in packages:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "on the path"
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "versions": versions,
        "gpu": torch.cuda.get_device_name(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="where to write the figures as JSON")
    parser.add_argument("--repeats", type=int, default=50)
    parser.add_argument("--graphs", action="store_true", help="time ours as a CUDA graph too")
    parser.add_argument("--tune", action="store_true", help="try layouts of the kernels instead")
    parser.add_argument("--widths", type=int, nargs="+", default=[1024, 2048, 4096, 8192], help="to tune")
    parser.add_argument("--kinds", nargs="+", default=["rms"], help="norms to tune")
    parser.add_argument("--show", type=int, default=4, help="layouts to print")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("these kernels are timed on a CUDA GPU, and none answers.")
    if args.tune:
        tune(args)
        return
    clock = Clock(args.repeats)
    speed = copy_speed(clock)
    print(f"device copy: {speed / 1e12:.2f} TB/s")
    cases = [("rms", *shape) for shape in SHAPES] + [("layer", *shape) for shape in LAYER_SHAPES]
    rows = [compare(Case(*case), clock, speed, args.graphs) for case in cases]
    if args.out:
        report = {"environment": environment(), "copy_bytes_per_s": speed, "boundary": rows}
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()

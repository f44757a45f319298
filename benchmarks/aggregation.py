"""Speed and memory of generalized aggregation beside PyG, in one run: correctness first, then forward and backward.

    python benchmarks/aggregation.py --out benchmarks/results/aggregation-cpu.json
    python benchmarks/aggregation.py --device cuda --out benchmarks/results/aggregation-cuda.json

What is timed is a layer's aggregation: messages relu(x_j + e_ij) + eps of 64 (CPU) or 128 (GPU) channels, softmax with
a learned temperature or power mean with a learned power, and gradients of everything that is learned. Edge terms are
``none``; ``dense``, a learned row for each edge; ``linear``, a learned map of 8 features; ``table``, one of 8 learned
rows.

On a CPU each figure comes from a process of its own, once with the allocator as it is and once told not to return large
blocks to the system (MALLOC_MMAP_THRESHOLD_ and its kin), which makes PyG several times faster: the ratio that counts
is the second. Memory is the high-water mark of the resident set over what the inputs take. The graphs are tolokers
(labelled/tolokers.npz in the folder NORMPLACE_DATA; else a power-law graph of its size) and a random one.

On a GPU the floor is what a pass that gathers every row from memory must move: the rows of x once forward and three
rows backward, plus indices and results, at the speed of a device copy measured in the same run. ``--tune`` tries
layouts of the kernels instead and prints their times.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import dataclasses
import datetime
import importlib.metadata
import importlib.util
import itertools
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))
from normplace.models import GENConv
from normplace.ops import LinearEdge, Neighbours, TableEdge, powermean_aggregate, softmax_aggregate

TUNED = {
    "MALLOC_MMAP_THRESHOLD_": "4294967296",
    "MALLOC_TRIM_THRESHOLD_": "8589934592",
    "MALLOC_TOP_PAD_": "1073741824",
}
EDGES = ("none", "dense", "linear", "table")
RULES = ("softmax", "power")
EPS = 1e-7
# Nodes, edges and the exponent with which the chance of a node falls with its rank.
GRAPHS = {
    "tolokers": (11_758, 1_038_000, 0.6),
    "random": (100_000, 1_000_000, 0.0),
    "uniform": (169_343, 2_332_486, 0.0),
    "power-law": (169_343, 2_332_486, 0.7),
}


def edge_index(name: str) -> tuple[Tensor, int]:
    """The edges and the number of nodes of a graph."""
    nodes, edges, exponent = GRAPHS[name]
    folder = os.environ.get("NORMPLACE_DATA")
    for path in (Path(folder or ".") / p for p in ("labelled/tolokers.npz", "graphs/labelled/tolokers.npz")):
        if name == "tolokers" and folder and path.is_file():
            once = torch.from_numpy(np.load(path)["edges"].astype(np.int64))
            return torch.cat([once, once.flip(1)]).T.contiguous(), nodes
    rng = np.random.default_rng(0)
    chance = np.cumsum(np.arange(1, nodes + 1, dtype=float) ** -exponent)
    drawn = np.searchsorted(chance, rng.random((2, edges)) * chance[-1])
    return torch.from_numpy(np.stack([rng.permutation(nodes)[ends] for ends in drawn])), nodes


@dataclasses.dataclass
class Case:
    """The inputs of one comparison."""

    edges: Tensor
    nodes: int
    channels: int
    edge: str
    rule: str
    device: str
    dtype: torch.dtype = torch.float32

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        count = self.edges.shape[1]
        self.edges = self.edges.to(self.device)

        def random(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator).to(self.device, self.dtype)

        self.x, self.seed = random(self.nodes, self.channels).requires_grad_(), random(self.nodes, self.channels)
        self.exponent = torch.tensor([1.5], device=self.device, requires_grad=True)
        self.learned: list[Tensor] = [self.x, self.exponent]
        if self.edge == "dense":
            self.term = random(count, self.channels).requires_grad_()
        elif self.edge == "linear":
            self.features, self.term = random(count, 8), random(self.channels, 8).requires_grad_()
        elif self.edge == "table":
            self.term = random(8, self.channels).requires_grad_()
            self.types = torch.randint(0, 8, (count,), generator=generator).to(self.device)
        if self.edge != "none":
            self.learned.append(self.term)

    def ours(self, backend: str = "auto", piece: int | None = None) -> Callable[[], Tensor]:
        """The aggregation here; the graph is built beforehand."""
        graph = Neighbours(self.edges, self.nodes, **({} if piece is None else {"piece": piece}))
        edge = {
            "none": lambda: None,
            "dense": lambda: self.term,
            "linear": lambda: LinearEdge(self.features, self.term),
            "table": lambda: TableEdge(self.types, self.term),
        }[self.edge]()
        aggregate = softmax_aggregate if self.rule == "softmax" else powermean_aggregate
        return lambda: aggregate(self.x, graph, self.exponent, edge, relu=True, eps=EPS, backend=backend)

    def peer(self) -> Callable[[], Tensor]:
        """As PyG's GENConv computes it."""
        from torch_geometric.nn.aggr import PowerMeanAggregation, SoftmaxAggregation

        module = SoftmaxAggregation(learn=True) if self.rule == "softmax" else PowerMeanAggregation(learn=True)
        setattr(module, "t" if self.rule == "softmax" else "p", torch.nn.Parameter(self.exponent.detach()))
        source, target = self.edges

        def run() -> Tensor:
            sent = self.x.index_select(0, source)
            if self.edge == "dense":
                sent = sent + self.term
            elif self.edge == "linear":
                sent = sent + F.linear(self.features, self.term)
            elif self.edge == "table":
                sent = sent + F.embedding(self.types, self.term)
            return module(sent.relu() + EPS, target, dim_size=self.nodes)

        return run

    def step(self, run: Callable[[], Tensor]) -> None:
        """Forward and backward."""
        for tensor in self.learned:
            tensor.grad = None
        run().backward(self.seed)

    def first_channels(self, count: int) -> Case:
        """The same inputs in double precision, of the first channels alone."""
        case = dataclasses.replace(self, dtype=torch.float64, channels=count)

        def taken(tensor: Tensor) -> Tensor:
            part = tensor[:count] if self.edge == "linear" and tensor is self.term else tensor[:, :count]
            return part.detach().double().requires_grad_(tensor.requires_grad)

        case.x, case.seed = taken(self.x), taken(self.seed)
        case.exponent = self.exponent.detach().double().requires_grad_()
        case.learned = [case.x, case.exponent]
        if self.edge != "none":
            case.term = taken(self.term)
            case.learned.append(case.term)
        if self.edge == "linear":
            case.features = self.features.double()
        if self.edge == "table":
            case.types = self.types
        return case

    def check(self, tolerance: float = 2e-4, count: int = 8) -> float:
        """The largest error of value and gradients in the first channels, relative to the largest entry of each.

        Raises:
            RuntimeError: If it is more than rounding explains; nothing is reported of a wrong kernel.
        """
        truth = self.first_channels(count)
        expected, found = truth.ours("reference")(), self.ours()()
        truth.step(lambda: expected)
        seed = self.seed
        self.seed = F.pad(seed[:, :count], (0, self.channels - count))  # the exponent's gradient is of all channels
        self.step(lambda: found)
        self.seed = seed
        pairs = [(found.detach()[:, :count], expected.detach())]
        for mine, theirs in zip(self.learned, truth.learned, strict=True):
            assert mine.grad is not None and theirs.grad is not None
            pairs.append((mine.grad[tuple(slice(n) for n in theirs.shape)], theirs.grad))
        worst = max(float((a.double() - b).abs().max() / b.abs().max()) for a, b in pairs)
        if not worst <= tolerance:
            raise RuntimeError(f"{self.rule} with edges {self.edge} is wrong by {worst:.1e} of the largest entry")
        if self.rule == "softmax":  # PyG clamps its power mean
            with torch.no_grad():
                apart = float((self.peer()()[:, :count].double() - expected).abs().max() / expected.abs().max())
            if not apart <= tolerance:
                raise RuntimeError(f"PyG's softmax aggregation is {apart:.1e} away")
        return worst


def resident() -> tuple[int, int]:
    """Resident memory of this process and its high-water mark, in bytes."""
    text = Path("/proc/self/status").read_text()
    now, top = (next(line for line in text.splitlines() if line.startswith(key)) for key in ("VmRSS", "VmHWM"))
    return int(now.split()[1]) * 1024, int(top.split()[1]) * 1024


def cpu_worker(graph: str, edge: str, rule: str, side: str, repeats: int) -> dict:
    """One figure, in a process of its own."""
    edges, nodes = edge_index(graph)
    small = Case(edges[:, :2000] % 500, 500, 64, edge, rule, "cpu")
    small.step(getattr(small, side)())  # compiles, and loads what is loaded on first use
    case = Case(edges, nodes, 64, edge, rule, "cpu")
    start = time.perf_counter()
    run = getattr(case, side)()
    built = time.perf_counter() - start
    ctypes.CDLL(None).malloc_trim(0)  # what was freed would hide what is taken
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts anew
    before, _ = resident()
    case.step(run)
    results = case.seed.nbytes + sum(tensor.grad.nbytes for tensor in case.learned if tensor.grad is not None)
    peak = resident()[1] - before
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        case.step(run)
        times.append(time.perf_counter() - start)
    return {"times_s": times, "peak_bytes": peak, "result_bytes": results, "graph_built_s": built}


def cpu_report(args: argparse.Namespace) -> list[dict]:
    rows = []
    for graph, rule, edge in itertools.product(("tolokers", "random"), RULES, EDGES):
        edges, nodes = edge_index(graph)
        row: dict = {"graph": graph, "edges": edges.shape[1], "rule": rule, "edge": edge}
        row["error"] = Case(edges, nodes, 64, edge, rule, "cpu").check()
        for malloc, settings in (("default", {}), ("tuned", TUNED)):
            for side in ("peer", "ours"):
                command = [
                    sys.executable,
                    __file__,
                    "--worker",
                    graph,
                    edge,
                    rule,
                    side,
                    "--repeats",
                    str(args.repeats),
                ]
                done = subprocess.run(command, env=os.environ | settings, capture_output=True, text=True, check=True)
                row[f"{side}_{malloc}"] = json.loads(done.stdout)
        for malloc in ("default", "tuned"):
            ours, peer = row[f"ours_{malloc}"], row[f"peer_{malloc}"]
            row[f"faster_{malloc}"] = statistics.median(peer["times_s"]) / statistics.median(ours["times_s"])
            row[f"memory_ratio_{malloc}"] = peer["peak_bytes"] / max(1, ours["peak_bytes"])
            print(
                f"{graph}, {rule}, edges {edge}, malloc {malloc}: ours "
                f"{statistics.median(ours['times_s']) * 1e3:.1f} ms, {ours['peak_bytes'] / 2**20:.0f} MiB; PyG "
                f"{statistics.median(peer['times_s']) * 1e3:.1f} ms, {peer['peak_bytes'] / 2**20:.0f} MiB: "
                f"{row[f'faster_{malloc}']:.1f}x faster, {row[f'memory_ratio_{malloc}']:.1f}x less memory",
                flush=True,
            )
        rows.append(row)
    return rows


def gpu_ms(call: Callable[[], object], repeats: int) -> float:
    """The median time of a call by CUDA events around five, so that launches overlap as they do in training."""
    for _ in range(5):
        call()
    times = []
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(5):
            call()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) / 5)
    return statistics.median(times)


def gpu_peak(case: Case, run: Callable[[], Tensor]) -> int:
    """Bytes allocated at most by forward and backward, over the inputs."""
    for tensor in case.learned:
        tensor.grad = None
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    case.step(run)
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def copy_speed() -> float:
    """Bytes a second, read and written."""
    block = torch.empty(2**30, dtype=torch.uint8, device="cuda")
    other = torch.empty_like(block)
    return 2 * block.nbytes / (gpu_ms(lambda: other.copy_(block), 20) * 1e-3)


def floor_bytes(case: Case) -> tuple[int, int]:
    """What forward and backward must move when each edge's rows come from memory."""
    size, edges = case.x.element_size(), case.edges.shape[1]
    row, rows = case.channels * size, case.nodes * case.channels
    dense = edges * row if case.edge == "dense" else 0
    small = {"linear": 8 * size * edges, "table": 8 * edges}.get(case.edge, 0)
    ids = 4 * edges * (1 if case.edge == "none" else 2)
    gathered = 3 if case.rule == "softmax" else 2
    forward = edges * row + ids + 8 * rows + dense + small
    backward = gathered * 4 * case.channels * edges + ids + 2 * size * rows + 2 * dense + small
    return forward, backward


def gpu_report(args: argparse.Namespace) -> dict:
    speed = copy_speed()
    report: dict = {"copy_bytes_per_s": speed, "aggregation": [], "GENConv": []}
    print(f"device copy: {speed / 1e12:.2f} TB/s")
    for graph, rule, edge in itertools.product(("uniform", "power-law"), RULES, EDGES):
        edges, nodes = edge_index(graph)
        case = Case(edges, nodes, args.channels, edge, rule, "cuda")
        row: dict = {"graph": graph, "rule": rule, "edge": edge, "error": case.check()}
        ours, peer = case.ours(), case.peer()
        with torch.no_grad():
            row["ours_forward_ms"] = gpu_ms(ours, args.repeats)
            row["peer_forward_ms"] = gpu_ms(peer, args.repeats)
        for side, run in (("ours", ours), ("peer", peer)):
            row[f"{side}_ms"] = gpu_ms(lambda case=case, run=run: case.step(run), args.repeats)
            row[f"{side}_peak_bytes"] = gpu_peak(case, run)
        floor = [size / speed * 1e3 for size in floor_bytes(case)]
        row |= {
            "floor_forward_ms": floor[0],
            "floor_ms": sum(floor),
            "of_floor_forward": floor[0] / row["ours_forward_ms"],
            "of_floor": sum(floor) / row["ours_ms"],
            "faster": row["peer_ms"] / row["ours_ms"],
        }
        half = Case(edges, nodes, args.channels, edge, rule, "cuda", torch.bfloat16)
        run = half.ours()
        row["ours_bfloat16_ms"] = gpu_ms(lambda half=half, run=run: half.step(run), args.repeats)
        report["aggregation"].append(row)
        print(
            f"{graph}, {rule}, edges {edge}: forward {row['ours_forward_ms']:.3f} ms "
            f"({row['of_floor_forward']:.0%} of floor speed), with backward {row['ours_ms']:.3f} ms "
            f"({row['of_floor']:.0%}), {row['ours_peak_bytes'] / 2**30:.2f} GiB, "
            f"bfloat16 {row['ours_bfloat16_ms']:.3f} ms; PyG {row['peer_forward_ms']:.2f} and {row['peer_ms']:.2f} ms, "
            f"{row['peer_peak_bytes'] / 2**30:.2f} GiB: {row['faster']:.1f}x",
            flush=True,
        )
    report["GENConv"] = [layer_row(graph, args) for graph in ("uniform", "power-law")]
    return report


def layer_row(graph: str, args: argparse.Namespace) -> dict:
    """The whole layer, with its MLP, beside PyG's with the same weights."""
    from torch_geometric.nn import GENConv as Peer

    edges, nodes = edge_index(graph)
    case = Case(edges, nodes, args.channels, "none", "softmax", "cuda")
    ours = GENConv(args.channels, args.channels, learn_t=True).cuda()
    peer = Peer(args.channels, args.channels, learn_t=True).cuda()
    peer.load_state_dict(ours.state_dict())
    neighbours = Neighbours(case.edges, nodes)
    runs = {"ours": lambda: ours(case.x, neighbours), "peer": lambda: peer(case.x, case.edges)}
    apart = float((runs["ours"]() - runs["peer"]()).abs().max())
    if not apart < 1e-3:
        raise RuntimeError(f"GENConv is {apart:.1e} away from PyG's")
    row: dict = {"graph": graph, "apart": apart}
    for side, run in runs.items():
        row[f"{side}_ms"] = gpu_ms(lambda run=run: case.step(run), args.repeats)
        row[f"{side}_peak_bytes"] = gpu_peak(case, run)
    row["faster"] = row["peer_ms"] / row["ours_ms"]
    print(
        f"GENConv, {graph}: {row['ours_ms']:.2f} ms, {row['ours_peak_bytes'] / 2**30:.2f} GiB; "
        f"PyG {row['peer_ms']:.2f} ms, {row['peer_peak_bytes'] / 2**30:.2f} GiB: {row['faster']:.1f}x"
    )
    return row


def tune(args: argparse.Namespace) -> None:
    """Print the times of layouts of the kernels, fastest first."""
    from normplace.ops.aggregate import triton as kernels

    start = (kernels.FORWARD, kernels.BACKWARD, kernels.BACKWARD_WEIGHT)
    layouts = [
        kernels.Tile(elements, unroll, warps)
        for elements, unroll, warps in itertools.product((128, 256, 512), (1, 2, 4, 8), (1, 2, 4))
        if 2 <= elements // (32 * warps) <= 4
    ]
    for graph, edge, piece in itertools.product(("uniform", "power-law"), ("none", "dense", "linear"), (256,)):
        edges, nodes = edge_index(graph)
        case = Case(edges, nodes, args.channels, edge, "softmax", "cuda")
        run = case.ours(piece=piece)
        for name in ("FORWARD", "BACKWARD"):
            weighs = name == "BACKWARD" and edge == "linear"
            found = []
            for tile in layouts if not weighs else [kernels.Tile(1, u, w) for u in (1, 2, 4) for w in (1, 2, 4)]:
                setattr(kernels, "BACKWARD_WEIGHT" if weighs else name, tile)
                with torch.no_grad() if name == "FORWARD" else contextlib.nullcontext():
                    call = run if name == "FORWARD" else lambda run=run, case=case: case.step(run)
                    found.append((gpu_ms(call, 10), tile))
                kernels.FORWARD, kernels.BACKWARD, kernels.BACKWARD_WEIGHT = start
            found.sort(key=lambda pair: pair[0])
            print(graph, edge, "piece", piece, name)
            for taken, tile in found[:5]:
                print(f"  {taken:.3f} ms  {tile}", flush=True)
    for graph, piece in itertools.product(("uniform", "power-law"), (64, 128, 256, 512, 1024)):
        edges, nodes = edge_index(graph)
        case = Case(edges, nodes, args.channels, "none", "softmax", "cuda")
        run = case.ours(piece=piece)
        print(f"{graph}, piece {piece}: {gpu_ms(lambda run=run, case=case: case.step(run), 10):.3f} ms", flush=True)


def environment(device: str) -> dict:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    cpu = [line.split(":")[1].strip() for line in lines if "model name" in line]
    versions = {n: importlib.metadata.version(n) for n in ("torch-geometric", "numba", "triton") if _there(n)}
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "versions": versions,
        "cpu": cpu[0] if cpu else platform.processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if device == "cuda" else None,
        "tolokers": "real" if os.environ.get("NORMPLACE_DATA") else "power-law graph of its size",
        "load_average_before": os.getloadavg(),
    }


def _there(package: str) -> bool:
    return importlib.util.find_spec(package.replace("-", "_")) is not None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="where to write the figures as JSON")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--channels", type=int, default=128, help="of the GPU's cases")
    parser.add_argument("--tune", action="store_true", help="try layouts of the GPU kernels instead")
    parser.add_argument("--worker", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        print(json.dumps(cpu_worker(*args.worker, args.repeats)))
        return
    if args.tune:
        tune(args)
        return
    report: dict = {"environment": environment(args.device)}
    if args.device == "cuda":
        report |= gpu_report(args)
    else:
        report["aggregation"] = cpu_report(args)
    report["environment"]["load_average_after"] = os.getloadavg()
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""Run indices and shapes that reach outside a tensor through every op, and report what happened.

    python scripts/check_bounds.py                      # everything this machine can run
    python scripts/check_bounds.py --modes eager cuda   # only some modes
    python scripts/check_bounds.py --backend aot_eager  # compile without code generation, which is faster

Each case runs in a process of its own, so that a crash or a device-side assertion costs that case alone. An outcome is
``refused`` (an exception), ``nan`` (nothing was read and the result is not a number), ``accepted`` or ``crashed``. The
exit code is 1 if anything was accepted or crashed. A case first runs with valid indices, and is reported as ``broken``
if that fails.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from normplace.models import GENConv, GraphStack, centrality
from normplace.models.graph_parts import SumOfEmbeddings, pool
from normplace.models.topology import TOPOLOGIES, topology
from normplace.norms import GraphNorm, PairNorm
from normplace.ops import (
    TableEdge,
    norm_add_norm,
    powermean_aggregate,
    relation_pairwise,
    relation_scan,
    softmax_aggregate,
)

NODES, EDGES, WIDTH = 300, 900, 16
FAR = (-1, 100_000_000, -(2**40))
MODES = ("eager", "compiled", "cuda", "cuda-compiled")
SECONDS = 300.0


@dataclass
class Case:
    """A call with one argument that is varied."""

    run: Callable[[Any, str], Any]
    """From the varied argument and the device to a result."""
    good: Callable[[str], Any]
    bad: Callable[[str], dict[str, Any]]
    """Variants of the argument that reach outside, by name."""
    modes: tuple[str, ...] = MODES


def features(device: str, rows: int = NODES) -> Tensor:
    """Features of some rows."""
    return torch.linspace(0.1, 1, rows * WIDTH, device=device).reshape(rows, WIDTH).requires_grad_()


def edge_index(device: str) -> Tensor:
    """A random graph."""
    return torch.randint(0, NODES, (2, EDGES), generator=torch.Generator().manual_seed(0)).to(device)


def indices(bound: int, count: int, modes: tuple[str, ...], run: Callable[[Tensor, str], Any]) -> Case:
    """A case whose argument is a flat tensor of indices below ``bound``."""

    def good(device: str) -> Tensor:
        return torch.arange(count, device=device) % bound

    def bad(device: str) -> dict[str, Tensor]:
        found = {}
        for value in (bound, *FAR):
            found[str(value)] = good(device).clone()
            found[str(value)][count // 2] = value
        return found

    return Case(run, good, bad, modes)


def shapes(modes: tuple[str, ...], run: Callable[[Tensor, str], Any], *size: int) -> Case:
    """A case whose argument is a tensor of the wrong shape."""

    def made(device: str, shape: tuple[int, ...]) -> Tensor:
        return torch.ones(shape, device=device)

    def bad(device: str) -> dict[str, Tensor]:
        return {
            "shorter": made(device, (*size[:-1], size[-1] - 1)),
            "one": made(device, (*size[:-1], 1)),
            "fewer": made(device, (max(size[0] - 1, 1), *size[1:])) if len(size) > 1 else made(device, (2, *size)),
            "empty": made(device, (0, *size[1:])),
        }

    return Case(run, lambda device: made(device, size), bad, modes)


def with_backward(result: Tensor) -> Tensor:
    """The result, after a backward pass from it."""
    if result.requires_grad:
        result.sum().backward()
    return result


def _table(rows: int, device: str) -> Tensor:
    return torch.ones(rows, WIDTH, device=device, requires_grad=True)


def _changed_types(types: Tensor, device: str) -> Tensor:
    """Types changed after they were checked, in a way that PyTorch's version counter does not see."""
    kept, edges = torch.arange(EDGES, device=device) % 5, edge_index(device)
    table = _table(5, device)
    softmax_aggregate(features(device), edges, 1.0, TableEdge(kept, table))
    kept.data.copy_(types)
    return softmax_aggregate(features(device), edges, 1.0, TableEdge(kept, table))


def aggregates() -> dict[str, Case]:
    """Aggregation over neighbours."""
    found = {}
    for name, run in (("softmax", softmax_aggregate), ("powermean", powermean_aggregate)):
        for rows in (5, 700):
            found[f"{name}: edge types of {rows}"] = indices(
                rows, EDGES, MODES,
                lambda i, device, run=run, rows=rows: run(
                    features(device), edge_index(device), 1.0, TableEdge(i, _table(rows, device))
                ),
            )  # fmt: skip
        for end, which in (("sources", 0), ("targets", 1)):
            found[f"{name}: {end}"] = indices(
                NODES, EDGES, MODES,
                lambda i, device, run=run, which=which: run(
                    features(device), edge_index(device).index_copy(0, torch.tensor([which], device=device), i[None])
                ),
            )  # fmt: skip
    found["softmax: num_dst too small"] = indices(
        NODES, EDGES, MODES,
        lambda i, device: softmax_aggregate(features(device), torch.stack([i.clamp(0, 9), i]), num_dst=NODES),
    )  # fmt: skip
    found["softmax: types changed through .data"] = indices(5, EDGES, ("eager", "cuda"), _changed_types)
    for backend, modes in (("numba", ("eager", "compiled")), ("reference", MODES), ("triton", MODES[2:])):
        found[f"softmax by {backend}: edge types"] = indices(
            5, EDGES, modes,
            lambda i, device, backend=backend: softmax_aggregate(
                features(device), edge_index(device), 1.0, TableEdge(i, _table(5, device)), backend=backend
            ),
        )  # fmt: skip
    found["softmax: edge terms"] = shapes(
        MODES, lambda terms, device: softmax_aggregate(features(device), edge_index(device), 1.0, terms), EDGES, WIDTH
    )
    return found


def relations() -> dict[str, Case]:
    """Relations between the rows of sequences."""
    size, found = (2, 40, WIDTH), {}
    for name, run in (("scan", relation_scan), ("pairwise", relation_pairwise)):
        found[f"relation {name}: keys"] = shapes(
            MODES,
            lambda b, device, run=run: run(features(device, 80).reshape(size), b),
            *size,
        )
        found[f"relation {name}: mask"] = shapes(
            MODES,
            lambda mask, device, run=run: run(
                *(features(device, 80).reshape(size) for _ in range(2)), mask=mask.bool()
            ),
            *size[:2],
        )
    return found


def boundaries() -> dict[str, Case]:
    """The boundary between two residual blocks."""
    found = {}
    for name in ("out_weight", "out_bias", "in_weight", "in_bias", "branch_scale"):
        case = shapes(
            MODES,
            lambda gain, device, name=name: norm_add_norm(
                features(device), features(device), out_norm="layer", in_norm="layer", **{name: gain}
            )[1],
            WIDTH,
        )
        if name == "branch_scale":  # one number for all features is valid
            case.bad = lambda device, bad=case.bad: {k: v for k, v in bad(device).items() if k != "one"}
        found[f"boundary: {name}"] = case
    for name in ("out_scale", "in_scale"):
        found[f"boundary: {name}"] = shapes(
            MODES,
            lambda scale, device, name=name: norm_add_norm(features(device), features(device), **{name: scale})[1],
            NODES,
        )
    found["boundary: f"] = shapes(MODES, lambda f, device: norm_add_norm(features(device), f)[1], NODES, WIDTH)
    return found


def graph_parts() -> dict[str, Case]:
    """Convolutions, readouts, graph norms and topology."""
    conv, stack = GENConv(WIDTH, WIDTH, edge_types=5, norm="layer"), GraphStack(GENConv, WIDTH, 8, 2, 2, readout="mean")
    found = {
        "GENConv: edge types": indices(
            5, EDGES, MODES, lambda i, device: conv.to(device)(features(device), edge_index(device), i)
        ),
        "GraphStack: batch": indices(
            4, NODES, MODES,
            lambda i, device: stack.to(device)(features(device), edge_index(device), batch=i, num_graphs=4),
        ),
        "SumOfEmbeddings": indices(
            5, NODES, MODES, lambda i, device: SumOfEmbeddings((5, 7), 4).to(device)(torch.stack([i, i], 1))
        ),
    }  # fmt: skip
    for how in ("mean", "max"):
        found[f"readout: {how}"] = indices(
            4, NODES, MODES, lambda i, device, how=how: pool(features(device), i, how, 4)
        )
    for norm in (GraphNorm, PairNorm):
        found[norm.__name__] = indices(
            4, NODES, MODES, lambda i, device, norm=norm: norm(WIDTH).to(device)(features(device), i, 4)
        )
    for name in TOPOLOGIES:
        found[f"topology: {name}"] = indices(
            NODES,
            NODES,
            ("eager", "cuda"),
            lambda i, device, name=name: topology(name, torch.stack([i, i.flip(0)]), NODES),
        )
    found["centrality: betweenness"] = indices(
        NODES, NODES, ("eager", "cuda"),
        lambda i, device: centrality.betweenness(
            torch.stack([i, i.flip(0)]), NODES, torch.arange(3, device=device), directed=True
        ),
    )  # fmt: skip
    return found


def selection() -> dict[str, Case]:
    """Node selection, which is compiled by numba."""
    try:
        from normplace.lab.tasks.selection import Graph, core_numbers, corehd_order, dismantle, greedy_set, spread
        from normplace.lab.tasks.selection.rewards import DismantlingReward
    except ValueError as error:
        print(f"node selection is left out: {error}")
        return {}
    path = Graph.from_edges(np.stack([np.arange(NODES - 1), np.arange(1, NODES)], 1))

    def from_rows(changed: Tensor, device: str) -> Any:
        graph = Graph(path.indptr, changed.numpy())
        return [core_numbers(graph), corehd_order(graph), greedy_set(graph, np.zeros(NODES))]

    def rows_of(array: np.ndarray, run: Callable[[Tensor, str], Any]) -> Case:
        def bad(device: str) -> dict[str, Tensor]:
            found = {str(value): torch.from_numpy(array.copy()).long() for value in (NODES, *FAR)}
            for value, changed in found.items():
                changed[len(array) // 2] = int(value)
            return found

        return Case(run, lambda device: torch.from_numpy(array.copy()).long(), bad, ("eager",))

    return {
        "selection: indices": rows_of(path.indices, from_rows),
        "selection: indptr": rows_of(
            path.indptr, lambda changed, device: core_numbers(Graph(changed.numpy(), path.indices))
        ),
        "selection: order": rows_of(np.arange(NODES), lambda order, device: dismantle(path, order.numpy())),
        "selection: orders": rows_of(
            np.arange(NODES), lambda order, device: DismantlingReward().rewards(path, order.numpy()[None])
        ),
        "selection: seeds": rows_of(np.arange(9), lambda seeds, device: spread(path, seeds.numpy(), simulations=3)),
    }


def cases() -> dict[str, Case]:
    """All cases by name."""
    return aggregates() | relations() | boundaries() | graph_parts() | selection()


def _result(found: Any) -> str:
    return "nan" if isinstance(found, Tensor) and bool(found.isnan().any()) else "accepted"


def attempt(name: str, mode: str, variants: list[str], backend: str, report: Any) -> None:
    """Run one case in this process, sending (variant, outcome, detail) for each variant."""
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    torch.set_num_threads(1)
    case, device = CASES[name], "cuda" if mode.startswith("cuda") else "cpu"

    def forward(argument: Any) -> Any:
        return case.run(argument, device)

    if mode.endswith("compiled"):
        forward = torch.compile(forward, backend=backend)

    def run(argument: Any) -> Any:
        found = forward(argument)
        return with_backward(found) if isinstance(found, Tensor) else found

    try:
        run(case.good(device))
    except Exception as error:
        report.send(("valid", "broken", f"{type(error).__name__}: {error}".splitlines()[0]))
        return
    for variant in variants:
        try:
            outcome, detail = _result(run(case.bad(device)[variant])), ""
            if device == "cuda":
                torch.cuda.synchronize()
        except Exception as error:
            outcome, detail = "refused", f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        report.send((variant, outcome, detail))


def isolate(job: tuple[str, str, list[str], str]) -> list[tuple[str, str, str, str, str]]:
    """Run one case in a process of its own."""
    name, mode, variants, backend = job
    receive, send = multiprocessing.get_context("fork").Pipe(duplex=False)
    child = multiprocessing.get_context("fork").Process(target=attempt, args=(name, mode, variants, backend, send))
    child.start()
    send.close()
    found, left, until = [], list(variants), time.monotonic() + SECONDS
    while left and receive.poll(max(0.0, until - time.monotonic())):
        try:
            variant, outcome, detail = receive.recv()
        except EOFError:
            break
        found.append((name, mode, variant, outcome, detail))
        left = [] if outcome == "broken" else [one for one in left if one != variant]
    if left:
        hung = child.is_alive() and time.monotonic() >= until
        if hung:
            child.kill()
        child.join()
        found.append((name, mode, left[0], "hung" if hung else "crashed", f"exit code {child.exitcode}"))
    child.join(10)
    return found


def main() -> int:
    """Run what the arguments ask for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--modes", nargs="+", choices=MODES, default=None, help="default: all this machine has")
    parser.add_argument("--backend", default="inductor", help="of torch.compile")
    parser.add_argument("--jobs", type=int, default=min(8, os.cpu_count() or 1), help="cases at a time")
    parser.add_argument("--only", default="", help="only cases whose name contains this")
    options = parser.parse_args()
    # Asked of the driver in another process: a process that has used CUDA cannot fork children that do.
    with multiprocessing.get_context("fork").Pool(1) as pool_of_one:
        has_gpu = pool_of_one.apply(torch.cuda.is_available)
    modes = options.modes or [mode for mode in MODES if has_gpu or not mode.startswith("cuda")]
    jobs = []
    for name, case in CASES.items():
        for mode in modes:
            if mode in case.modes and options.only in name:
                variants = list(case.bad("cpu"))
                # A device-side assertion ends the process's use of the GPU, so there each variant has its own.
                groups = [[one] for one in variants] if mode == "cuda" else [variants]
                jobs += [(name, mode, group, options.backend) for group in groups]
    counts: Counter[str] = Counter()
    with ThreadPoolExecutor(options.jobs) as workers:
        for outcomes in workers.map(isolate, jobs):
            for name, mode, variant, outcome, detail in outcomes:
                counts[outcome] += 1
                if outcome not in ("refused", "nan") or detail.startswith(("RuntimeError", "AcceleratorError")):
                    print(f"{outcome:9} {mode:14} {name}, {variant}  {detail[:110]}", flush=True)
    print(", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items())))
    return int(any(counts[bad] for bad in ("accepted", "crashed", "hung", "broken")))


CASES = cases()

if __name__ == "__main__":
    sys.exit(main())

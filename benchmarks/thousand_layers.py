"""Train a thousand reversible layers and record loss, time and peak memory of each step.

    python benchmarks/thousand_layers.py --out benchmarks/results/thousand_layers-cpu.json

The graph is Minesweeper if its file is in the folder ``NORMPLACE_DATA``, otherwise a generated grid of the same size
(10,000 nodes, 78,804 directed edges). Memory is the process's high-water mark on a CPU, including PyTorch and its
libraries, and the allocator's peak on a GPU.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from pathlib import Path

import torch
from torch.nn import functional as F

from normplace._shared.device import pick_device
from normplace.lab.bench.record import run_environment
from normplace.lab.tasks.data_files import unavailable_reason
from normplace.lab.tasks.graphs.grid_mines import grid_mines
from normplace.lab.tasks.graphs.labelled import load_labelled
from normplace.models import GENConv, GraphStack


def convolution(in_dim: int, out_dim: int) -> GENConv:
    """The convolution of the DeeperGCN study."""
    return GENConv(in_dim, out_dim, aggr="softmax", learn_t=True, num_layers=1, bias=True)


def peak_gb(device: torch.device) -> float:
    """Peak memory so far, in GiB."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # kilobytes on Linux


def main() -> None:
    """Train and write the results."""
    parser = argparse.ArgumentParser(description="Train a thousand reversible layers for some steps.")
    parser.add_argument("--depth", type=int, default=1000)
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--groups", type=int, default=2)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--memory", default="reversible")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    device = pick_device(arguments.device)
    is_available = unavailable_reason(load_labelled, "minesweeper") is None
    graph = load_labelled("minesweeper") if is_available else grid_mines(torch.Generator().manual_seed(0))
    x, edge_index, y, train = (tensor.to(device) for tensor in (graph.x, graph.edge_index, graph.y, graph.train[0]))
    torch.manual_seed(0)
    model = GraphStack.named(
        "res+",
        convolution,
        x.shape[1],
        arguments.dim,
        2,
        arguments.depth,
        memory=arguments.memory,
        groups=arguments.groups,
        dropout=0.1,
    ).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    steps = []
    for step in range(arguments.steps):
        start = time.perf_counter()
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x, edge_index)[train], y[train])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        value = loss.item()
        steps.append({"loss": value, "seconds": time.perf_counter() - start, "peak_gb": peak_gb(device)})
        print(f"step {step + 1}: loss {value:.4f}, {steps[-1]['seconds']:.1f} s, peak {steps[-1]['peak_gb']:.2f} GiB")
    if arguments.out:
        settings = {name: value for name, value in vars(arguments).items() if name != "out"}
        result = {"graph": graph.name, **settings, "environment": run_environment(), "steps": steps}
        arguments.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()

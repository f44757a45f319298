"""Time and peak memory of the largest inputs: a graph of 100 million edges, and a Llama with 405 billion parameters.

    python benchmarks/scale.py --out benchmarks/results/scale-cpu.json

The edges of a uniformly random graph are written to a temporary file in blocks, and every subject reads that file
through a memory map, in its own process. Times are CPU seconds on one thread, of one call. Memory is the peak resident
set of the process, which includes the imports and the pages of the file that are in memory. ``--only`` measures some
of the subjects; the record keeps the others.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.pop(0)  # the folder of this script, in which accelerate.py hides the package that transformers imports
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))
import normplace as npl
from normplace.lab.bench.isolation import run_in_subprocess
from normplace.lab.bench.record import run_environment
from normplace.lab.tasks.selection.dismantling import dismantle
from normplace.lab.tasks.selection.graph import Graph
from normplace.ops import Neighbours, softmax_aggregate

DEGREE = 16
"""Edges per node."""
CHANNELS = 16
BLOCK = 4_000_000
"""Edges that are written at once."""


@dataclass(frozen=True)
class EdgeFile:
    """A file with the int64 sources and then the targets of a graph.

    Args:
        path: The file.
        edges: Number of edges.
        subject: What is measured on the graph.
    """

    path: Path
    edges: int
    subject: str

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return max(2, self.edges // DEGREE)

    def write(self) -> None:
        """Write uniformly random edges in blocks."""
        generator = np.random.default_rng(0)
        with self.path.open("wb") as file:
            for first in range(0, 2 * self.edges, BLOCK):
                generator.integers(self.nodes, size=min(BLOCK, 2 * self.edges - first)).tofile(file)

    def array(self) -> np.ndarray:
        """The edges as a memory map, 2 × E; a write would change a private copy only."""
        return np.memmap(self.path, np.int64, "c", shape=(2, self.edges))


def measure(file: EdgeFile) -> dict[str, Any]:
    """Time and peak memory of one subject, in this process."""
    torch.set_num_threads(1)
    seconds: dict[str, float] = {}
    result = GRAPH_SUBJECTS[file.subject](file, seconds)
    return {
        "edges": file.edges, "nodes": file.nodes, "seconds": seconds, "peak_gib": peak_gib(), "result": result,
    }  # fmt: skip


def timed(seconds: dict[str, float], name: str, call: Callable[[], Any]) -> Any:
    """Call a function and note its CPU time."""
    start = time.process_time()
    value = call()
    seconds[name] = time.process_time() - start
    print(f"{name}: {seconds[name]:.1f} s, {peak_gib():.2f} GiB", flush=True)
    return value


def peak_gib() -> float:
    """The peak resident set of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def topology(name: str) -> Callable[[EdgeFile, dict[str, float]], float]:
    """A subject that computes a topology scalar and returns its largest value."""

    def run(file: EdgeFile, seconds: dict[str, float]) -> float:
        edges = torch.from_numpy(file.array())
        return float(timed(seconds, name, lambda: npl.models.topology(name, edges, file.nodes)).max())

    return run


def aggregation(file: EdgeFile, seconds: dict[str, float]) -> float:
    """The CSR form and a softmax aggregation; the mean of the result."""
    edges = torch.from_numpy(file.array())
    graph = timed(seconds, "CSR form", lambda: Neighbours(edges, file.nodes))
    x = torch.randn(file.nodes, CHANNELS, generator=torch.Generator().manual_seed(0))
    beta = torch.tensor(1.0)
    softmax_aggregate(x[:10_000], Neighbours(edges[:, :BLOCK] % 10_000, 10_000), beta)  # compiles
    name = f"softmax aggregation, {CHANNELS} channels"
    return float(timed(seconds, name, lambda: softmax_aggregate(x, graph, beta)).mean())


def robustness(file: EdgeFile, seconds: dict[str, float]) -> float:
    """The robustness of the removal in the order of degrees."""
    dismantle(Graph.from_edges([[0, 1]]), [0, 1])  # compiles
    graph = timed(seconds, "graph", lambda: Graph.from_edges(file.array().T, file.nodes))
    order = np.argsort(-graph.degrees, kind="stable")
    return timed(seconds, "robustness curve", lambda: dismantle(graph, order)).R


GRAPH_SUBJECTS: dict[str, Callable[[EdgeFile, dict[str, float]], float]] = {
    "degree": topology("degree"),
    "k-core": topology("k-core"),
    "pagerank": topology("pagerank"),
    "aggregation": aggregation,
    "robustness": robustness,
}


def llama(layers: int) -> dict[str, Any]:
    """Time and peak memory of the audit of a Llama with 405 billion parameters on the meta device."""
    import transformers

    torch.set_num_threads(1)
    config = transformers.LlamaConfig(
        hidden_size=16_384, num_hidden_layers=layers, num_attention_heads=128, num_key_value_heads=8,
        intermediate_size=53_248, vocab_size=128_256,
    )  # fmt: skip
    seconds: dict[str, float] = {}

    def build() -> torch.nn.Module:
        with torch.device("meta"):
            return transformers.LlamaForCausalLM(config)

    model = timed(seconds, "model", build)
    audit = timed(seconds, "audit", lambda: npl.audit(model, torch.zeros(1, 16, dtype=torch.long)))
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return {"parameters": parameters, "norms": len(audit.sites), "seconds": seconds, "peak_gib": peak_gib()}


def main() -> None:
    """Measure and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="JSON file to write; subjects that it has and --only leaves out stay")
    parser.add_argument("--only", nargs="*", choices=[*GRAPH_SUBJECTS, "llama"], help="subjects to measure")
    parser.add_argument("--edges", type=int, default=100_000_000, help="edges of the graph (default: %(default)s)")
    parser.add_argument("--folder", type=Path, help="folder of the temporary file (default: that of the system)")
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = os.environ["NUMBA_NUM_THREADS"] = "1"  # of the subprocesses
    torch.set_num_threads(1)
    record = json.loads(arguments.out.read_text()) if arguments.out is not None and arguments.out.exists() else {}
    record |= run_environment()
    for name in arguments.only or [*GRAPH_SUBJECTS, "llama"]:
        if name == "llama":
            result = run_in_subprocess(llama, 126)
        else:
            edges = arguments.edges // 2 if name == "robustness" else arguments.edges
            with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
                file = EdgeFile(Path(folder) / "edges", edges, name)
                file.write()
                result = run_in_subprocess(measure, file)
        record.setdefault("subjects", {})[name] = result
        if arguments.out is not None:
            arguments.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""Training steps of the 7-layer network on ogbg-molhiv with the official batch size, next to PyG's modules.

    python benchmarks/molhiv_step.py --out benchmarks/results/molhiv_step-cuda.json

Ways to take the same steps, interleaved in rounds: PyG's ``GENConv`` and ``DeepGCNLayer`` with batches collated in the
loop and with batches collated beforehand, ``GraphStack`` with batches gathered on the device, and the study's training
of several seeds at once, with batches laid out in the measured time and beforehand. On a GPU the study's step is
compiled, replayed as a CUDA graph and computed with TF32 products; the others use float32 products. All have the same
architecture, Adam and batches of 32. The time of several seeds is divided by their number. Only ratios to the study's
training with batches laid out beforehand are recorded; CPU time is used on a CPU. The molecules are those of
``NORMPLACE_DATA``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.data import Batch, Data
from torch_geometric.nn import DeepGCNLayer, GENConv, global_mean_pool

from normplace.lab.bench.record import run_environment
from normplace.lab.studies.deepergcn import molhiv
from normplace.lab.studies.deepergcn.molhiv import MolhivTrial
from normplace.lab.studies.deepergcn.molhiv_official import OfficialTrial, Training
from normplace.lab.tasks.graphs.graph_batches import GraphSet
from normplace.lab.tasks.graphs.molecules import ATOM_SIZES, BOND_SIZES, load_molhiv
from normplace.models.graph_parts import SumOfEmbeddings

BATCH = 32
LEARNING_RATE = 1e-4


class PyGNetwork(nn.Module):
    """The published network from PyG's modules: a bare first convolution, then res+ layers, each with a bond encoder.

    Args:
        depth: Number of convolutions.
        dim: Width of the stream.
    """

    def __init__(self, depth: int, dim: int) -> None:
        super().__init__()
        self.atoms = SumOfEmbeddings(ATOM_SIZES, dim)
        self.bonds = nn.ModuleList(SumOfEmbeddings(BOND_SIZES, dim) for _ in range(depth))
        convs = [GENConv(dim, dim, aggr="softmax", learn_t=True, num_layers=1, bias=True) for _ in range(depth)]
        self.first = convs[0]
        self.layers = nn.ModuleList(
            DeepGCNLayer(conv, nn.BatchNorm1d(dim), nn.ReLU(), block="res+", dropout=0.2) for conv in convs[1:]
        )
        self.norm, self.head = nn.BatchNorm1d(dim), nn.Linear(dim, 1)

    def forward(self, batch: Batch) -> Tensor:
        """Logits of the molecules."""
        first, *others = self.bonds
        x = self.first(self.atoms(batch.x), batch.edge_index, first(batch.edge_attr))
        for layer, bonds in zip(self.layers, others, strict=True):
            x = layer(x, batch.edge_index, bonds(batch.edge_attr))
        x = F.dropout(self.norm(x), 0.2, self.training)
        return self.head(global_mean_pool(x, batch.batch, batch.num_graphs))[:, 0]


def as_data(molecules: GraphSet, indices: Tensor) -> list[Data]:
    """The molecules as PyG's data objects on the CPU, as a ``DataLoader`` reads them."""
    graphs = []
    for index in indices:
        one = molecules.batch(index[None])
        graphs.append(Data(x=one.x, edge_index=one.edge_index, edge_attr=one.edge_attr, y=one.y[:, 0]))
    return graphs


def pyg_steps(molecules: GraphSet, order: Tensor, arguments: argparse.Namespace, collated: bool) -> Callable[[], None]:
    """An epoch over ``order`` with PyG's modules."""
    device = arguments.device
    model = PyGNetwork(arguments.depth, arguments.dim).to(device).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE, fused=True)
    lists = [as_data(molecules, part) for part in order.split(BATCH)]
    ready = [Batch.from_data_list(graphs).to(device) for graphs in lists] if collated else []

    def steps() -> None:
        for number, graphs in enumerate(lists):
            batch = ready[number] if collated else Batch.from_data_list(graphs).to(device)
            optimizer.zero_grad()
            F.binary_cross_entropy_with_logits(model(batch), batch.y).backward()
            optimizer.step()

    return steps


def stack_steps(molecules: GraphSet, order: Tensor, arguments: argparse.Namespace) -> Callable[[], None]:
    """An epoch with ``GraphStack``, whose batches are gathered on the device."""
    data = molecules.to(arguments.device)
    model = molhiv.build(MolhivTrial(seed=0, depth=arguments.depth, dim=arguments.dim)).to(arguments.device).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE, fused=True)

    def steps() -> None:
        for part in order.split(BATCH):
            batch = data.batch(part)
            optimizer.zero_grad()
            logits = model(batch.x, batch.edge_index, batch.edge_attr, batch.batch, num_graphs=batch.num_graphs)[:, 0]
            F.binary_cross_entropy_with_logits(logits, batch.y[:, 0]).backward()
            optimizer.step()

    return steps


def study_steps(
    molecules: GraphSet, order: Tensor, arguments: argparse.Namespace
) -> tuple[Callable[[], None], Callable[[], None]]:
    """An epoch of several seeds at once, each with another order of the same molecules.

    Returns:
        The epoch with batches laid out in it, and with batches laid out beforehand.
    """
    trials = [OfficialTrial(seed=seed, depth=arguments.depth, dim=arguments.dim) for seed in range(arguments.seeds)]
    training = Training(trials, molecules, torch.device(arguments.device))
    orders = [order.roll(BATCH * seed) for seed in range(arguments.seeds)]
    prepared = list(training.prepare(orders))
    return lambda: training.take_steps(training.prepare(orders)), lambda: training.take_steps(prepared)


def seconds(call: Callable[[], None], device: str) -> float:
    """Duration of a call; CPU time on a CPU, which other programs disturb less."""
    if device != "cuda":
        start = time.process_time()
        call()
        return time.process_time() - start
    torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def main() -> None:
    """Measure and write the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("depth", 7), ("dim", 256), ("seeds", 5), ("steps", 100), ("rounds", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    if arguments.device == "cpu":
        torch.set_num_threads(1)
    molecules = load_molhiv()
    generator = torch.Generator().manual_seed(0)
    order = molecules.train[torch.randperm(len(molecules.train), generator=generator)][: BATCH * arguments.steps]
    study = f"study, {arguments.seeds} seeds at once, batches laid out beforehand"
    whole = f"study, {arguments.seeds} seeds at once, batches laid out in the loop"
    laid_out_within, laid_out_before = study_steps(molecules, order, arguments)
    calls = {
        "PyG, batches collated in the loop": pyg_steps(molecules, order, arguments, collated=False),
        "PyG, batches collated beforehand": pyg_steps(molecules, order, arguments, collated=True),
        "GraphStack": stack_steps(molecules, order, arguments),
        whole: laid_out_within,
        study: laid_out_before,
    }
    times: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(arguments.rounds + 1):
        for name, call in calls.items():
            duration = seconds(call, arguments.device) / (arguments.seeds if name in (study, whole) else 1)
            if number:  # the first round warms up, compiles and records the CUDA graph
                times[name].append(duration)
    medians = {name: statistics.median(values) for name, values in times.items()}
    ratios = {name: round(median / medians[study], 2) for name, median in medians.items()}
    for name, ratio in ratios.items():
        print(f"{name}: {ratio} times the study's step of one seed")
    one = 1e3 * medians[study] / arguments.steps
    print(f"one step of {arguments.seeds} seeds: {one * arguments.seeds:.3f} ms, of one seed: {one:.3f} ms")
    if arguments.out:
        settings = {name: value for name, value in vars(arguments).items() if name != "out"}
        report = {"settings": settings, "time_relative_to_the_study": ratios}
        arguments.out.write_text(json.dumps(run_environment() | report, indent=1) + "\n")


if __name__ == "__main__":
    main()

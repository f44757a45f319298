"""The program that the test of several processes starts under torchrun: each case trains into its own folder."""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import torch
from tests.lab.train.training_cases import corpus, network, train_config
from torch import nn
from torch._dynamo import config as compile_config
from torch.utils._python_dispatch import TorchDispatchMode

from normplace.errors import UsageError
from normplace.lab.train.distributed import (
    ProcessGroup,
    distribute,
    exit_now,
    full_state_dict,
    gradient_sync,
    join_process_group,
)
from normplace.lab.train.loop import fit
from normplace.lab.train.signal_log import SignalsConfig

CASES = {
    "sharded": ("peri", {}),
    "sharded-measured": ("peri", {}),
    "sharded-parts": ("post", {"accumulate": 2}),
    "sharded-streams": ("siamese", {}),
    "sharded-parallel": ("parallel", {}),
    "sharded-double": ("peri", {"steps": 40}),
    "copied": ("peri", {"parallel": "ddp"}),
    "copied-parts": ("peri", {"parallel": "ddp", "accumulate": 2}),
    "copied-measured": ("peri", {"parallel": "ddp"}),
}
COUNTED = {"peri": 1, "pre": 2, "post": 3}
"""Placements whose collective operations are counted, and their gradient accumulation steps."""
COMPILED = {"peri": 2, "post": 2, "siamese": 2, "parallel": 2, "lns": 4}
"""Graphs of two compiled layers: attention and MLP, and in ``lns`` those of each layer, which has its own constant."""
SIGNALS = SignalsConfig(every=4)
DTYPES = {"sharded-double": torch.float64}


class CollectiveCounter(TorchDispatchMode):
    """Counts the bytes that this process gathers, and those of which it receives a reduced shard."""

    def __init__(self) -> None:
        super().__init__()
        self.gathered = self.reduced = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.c10d._allgather_base_.default:  # output, input
            self.gathered += args[0].nbytes
        elif func is torch.ops.c10d._reduce_scatter_base_.default:  # output, input
            self.reduced += args[1].nbytes
        return func(*args, **(kwargs or {}))


def count_collectives(group: ProcessGroup, placement: str, accumulate: int) -> list[int]:
    """Bytes gathered and reduced in the passes of one step, as the training loop makes them."""
    model = distribute(network(placement), group, "fsdp", compiled=False)
    with CollectiveCounter() as counter:
        for part in range(accumulate):
            with gradient_sync(model, enabled=part == accumulate - 1):
                model(torch.zeros(1, 8, dtype=torch.long)).sum().backward()
    return [counter.gathered, counter.reduced]


def count_graphs(group: ProcessGroup, placement: str) -> int:
    """Graphs that the compiler makes of the blocks in a forward and a backward pass."""
    graphs: list[Any] = []

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    original = nn.Module.compile

    def compile_module(module: nn.Module, **options: Any) -> None:
        original(module, backend=backend, **options)

    nn.Module.compile = compile_module
    compile_config.recompile_limit = 1
    try:
        model = distribute(network(placement), group, "fsdp", compiled=True)
        model(torch.zeros(1, 8, dtype=torch.long)).sum().backward()
    finally:
        nn.Module.compile = original
    return len(graphs)


def no_space(_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def main(out: Path) -> None:
    """Train every case; resume the run of one process in ``alone``, and the run in ``full`` until the disk is full."""
    torch.set_num_threads(1)
    with join_process_group("cpu") as group:
        for name, (placement, changes) in CASES.items():
            model = network(placement).to(DTYPES.get(name))
            signals = SIGNALS if name.endswith("measured") else None
            fit(model, corpus(), train_config(**changes), out / name, group, signals=signals)
            weights = full_state_dict(model, group)
            if group.is_first:
                torch.save(weights, out / name / "weights.pt")
        counts = {placement: count_collectives(group, placement, count) for placement, count in COUNTED.items()}
        if group.is_first:
            (out / "collectives.json").write_text(json.dumps(counts))
        graphs = {placement: count_graphs(group, placement) for placement in COMPILED}
        if group.is_first:
            (out / "graphs.json").write_text(json.dumps(graphs))
        fit(network(), corpus(), train_config(), out / "alone", group)
        if group.is_first:  # damage in a file that only the second process compares with its hash
            shutil.copytree(out / "sharded", out / "damaged")
            file = out / "damaged" / "checkpoints" / "step-00000008" / "process-1.safetensors"
            file.write_bytes(file.read_bytes()[:-1] + b"?")
        group.all_gather(None)
        try:
            fit(network(), corpus(), train_config(), out / "damaged", group)
        except UsageError as error:
            (out / f"damaged-{group.rank}.txt").write_text(str(error))
        if group.rank == 1:
            os.fsync = no_space  # on the disk of one process
        try:
            fit(network(), corpus(), train_config(), out / "full", group)
        except UsageError as error:
            (out / f"full-{group.rank}.txt").write_text(str(error))
    exit_now()


if __name__ == "__main__":
    main(Path(sys.argv[1]))

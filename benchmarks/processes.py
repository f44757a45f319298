"""Losses of one process compared with those of several under torchrun with FSDP, on a CPU.

    python benchmarks/processes.py --out benchmarks/results/processes-cpu.json

Every run is one command of ``normplace train``, with the same settings and the same text, the sources of Python's
standard library. The record has the commands, the losses of every step and the largest difference to those of one
process. In float32 several processes sum the gradients in another order, and such rounding errors grow with the steps;
one process that accumulates the gradients of four parts of the batch shows how much.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from normplace.lab.bench.record import run_environment
from normplace.lab.train.log import read_log

RUNS = ((1, ""), (1, " --accumulate 4"), (2, ""), (4, ""))
"""Numbers of processes and further options; the first run is the one to compare with."""
SETTINGS = (
    "--placement peri --dim 64 --depth 4 --heads 4 --context 64 --batch 8 --steps 200 --evaluate-sequences 64 "
    "--peak-tflops 1 --device cpu"
)


def launch(processes: int) -> str:
    """How to start ``normplace train`` on a number of processes."""
    return "normplace train" if processes == 1 else f"torchrun --nproc-per-node {processes} -m -- normplace train"


def train(processes: int, settings: str, out: Path) -> dict[str, Any]:
    """Train and return the command, the losses and the result."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes), "-m", "--"]
    words = ["-m", "normplace"] if processes == 1 else [*launcher, "normplace"]
    subprocess.run(
        [sys.executable, *words, "train", *settings.split(), "--out", str(out)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=True,
        capture_output=True,
    )
    result = json.loads((out / "result.json").read_text())
    return {
        "processes": result["processes"],
        "command": f"{launch(processes)} {settings}",
        "losses": [line["loss"] for line in read_log(out) if line["event"] == "step"],
        "held_out_loss": result["held_out_loss"],
        "bits_per_byte": result["bits_per_byte"],
        "sha256": result["text"]["sha256"],
    }


def compare(runs: list[dict[str, Any]]) -> None:
    """Add to each run its differences to the first one."""
    alone = runs[0]
    for run in runs[1:]:
        gaps = [abs(one - other) for one, other in zip(run["losses"], alone["losses"], strict=True)]
        run["largest_gap"], run["first_gap"] = max(gaps), gaps[0]
        run["held_out_gap"] = abs(run["held_out_loss"] - alone["held_out_loss"])


def main() -> None:
    """Train on every number of processes and write the losses."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--settings", default=SETTINGS, help="options of 'normplace train'")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        runs = [
            train(processes, arguments.settings + options, Path(folder) / str(number))
            for number, (processes, options) in enumerate(RUNS)
        ]
    compare(runs)
    for run in runs:
        gaps = {name: run[name] for name in ("first_gap", "largest_gap", "held_out_gap") if name in run}
        print(f"{run['command']}: {run['bits_per_byte']:.6f} bits per byte", gaps)
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(run_environment() | {"runs": runs}, indent=1) + "\n")


if __name__ == "__main__":
    main()

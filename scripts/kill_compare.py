"""Kill a comparison with SIGKILL at random moments, finish it, and check its result file.

    python scripts/kill_compare.py --kills 20

Every finished training must be in the file exactly once, and every line must equal that of an uninterrupted run but for
times. If a comparison finishes before the last kill, it is checked and started again in a new folder.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

import normplace as npl
from normplace.lab.compare.run import RESULT_FILE
from normplace.lab.trials.results import TrialRecord, read_records

TIMES = {"step_ms", "train_seconds"}
EDITS = ["as-is", "pre", "peri"]
MOST_LINES = 8
"""A comparison is killed when it has added fewer lines than this, at random."""


class Network(nn.Module):
    """A Transformer encoder that predicts one number per position."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(4, 16), nn.Linear(16, 1)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Predict."""
        x = self.embed(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x).squeeze(-1)


def make(seed: int) -> tuple[object, ...]:
    """The task: running sums of a function of the input, with dropout and a random data order."""
    x = torch.randn(256, 6, 4, generator=torch.Generator().manual_seed(7))
    y = torch.sin(x.sum(-1)).cumsum(1)
    data = torch.utils.data.TensorDataset(x, y)
    torch.manual_seed(seed)
    loader = torch.utils.data.DataLoader(data, batch_size=16, shuffle=True)
    return Network(), loader, lambda model, batch: F.mse_loss(model(batch[0]), batch[1])


def compare(out: Path) -> None:
    """Run the comparison, or resume it."""
    npl.compare(f"{__file__}:make", EDITS, rates=[1e-3, 1e-2], seeds=3, budget=40, jobs=2, out=out)


def start(out: Path) -> subprocess.Popen[bytes]:
    """Start the comparison in a process group."""
    command = [sys.executable, __file__, "--run", str(out)]
    with (out.parent / "log.txt").open("a") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)


def finish(process: subprocess.Popen[bytes], out: Path) -> None:
    """Wait until the comparison is finished.

    Raises:
        SystemExit: If it fails.
    """
    if process.wait(1200):
        raise SystemExit((out.parent / "log.txt").read_text()[-3000:])


def run_and_kill(out: Path, lines: int, delay: float) -> bool:
    """Kill the comparison ``delay`` seconds after it added ``lines`` lines; return whether it was still running."""
    process, goal = start(out), count_lines(out) + lines
    while count_lines(out) < goal and process.poll() is None:
        time.sleep(0.01)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(delay)
        finish(process, out)
        return False
    process.kill()  # only the driver: its workers must notice and exit
    process.wait()
    time.sleep(0.5)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    return True


def count_lines(out: Path) -> int:
    """Number of lines in the result file."""
    file = out / RESULT_FILE
    return file.read_bytes().count(b"\n") if file.exists() else 0


def facts(lines: list[TrialRecord]) -> dict[str, str]:
    """What must not depend on interruptions, by trial."""
    return {
        line.hash: json.dumps(
            [line.part, line.config, line.series, {k: v for k, v in line.metrics.items() if k not in TIMES}]
        )
        for line in lines
    }


def check(out: Path, expected: dict[str, str]) -> None:
    """Compare a finished file with that of the uninterrupted run.

    Raises:
        SystemExit: If they differ.
    """
    lines = read_records(out / RESULT_FILE)
    repeated = {key: count for key, count in Counter(line.hash for line in lines).items() if count > 1}
    problems = [f"trainings recorded more than once: {repeated}"] if repeated else []
    problems += [] if facts(lines) == expected else ["the recorded lines differ"]
    if problems:
        raise SystemExit("; ".join(problems))


def main() -> None:
    """Kill, resume and check."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--run", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run is not None:
        compare(arguments.run)
        return
    moments = random.Random(arguments.seed)
    with tempfile.TemporaryDirectory() as folder:
        begin, reference = time.monotonic(), Path(folder, "reference")
        finish(start(reference), reference)
        seconds = time.monotonic() - begin
        expected = facts(read_records(reference / RESULT_FILE))
        print(f"{len(expected)} lines in {seconds:.0f} s without interruption", flush=True)
        kills = finished = 0
        while kills < arguments.kills:
            out = Path(folder, f"killed-{finished}")
            while kills < arguments.kills:
                lines = moments.randrange(MOST_LINES)
                if not run_and_kill(out, lines, moments.uniform(0, 1.0 if lines else seconds / 2)):
                    break
                kills += 1
                print(f"kill {kills}: {count_lines(out)} of {len(expected)} lines", flush=True)
            finish(start(out), out)
            check(out, expected)
            finished += 1
    print(f"{kills} kills, {finished} comparisons finished: each has the {len(expected)} uninterrupted lines")


if __name__ == "__main__":
    main()

"""Kill training with SIGKILL at random steps, resume it, and compare it with an uninterrupted run.

    python scripts/kill_training.py --kills 20

Two processes train under torchrun. In odd rounds one of them is killed, and torchrun restarts both; in even rounds all
processes are killed and the command is run again. After each kill the newest checkpoint must be readable. At the end,
every logged loss, also of steps that were computed twice, the result and the weights must equal those of the
uninterrupted run to the last bit.
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
from pathlib import Path
from typing import Any

import torch

from normplace.lab.train import checkpoint
from normplace.lab.train.distributed import ProcessGroup
from normplace.lab.train.log import FILE, read_log

CHECKPOINT_EVERY = 5
SETTINGS = ["--dim", "16", "--depth", "2", "--heads", "2", "--context", "16", "--batch", "4", "--device", "cpu"]


def start(out: Path, steps: int, restarts: int) -> subprocess.Popen[bytes]:
    """Start a run, or resume it."""
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", str(restarts)]
    words = ["-m", "normplace", "train", "--text", __file__, "--out", str(out), "--steps", str(steps), *SETTINGS]
    words += ["--set", f"checkpoint_every={CHECKPOINT_EVERY}", f"evaluate_every={steps}", "peak_tflops=1.0"]
    with out.with_suffix(".txt").open("ab") as log:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        return subprocess.Popen([sys.executable, *launch, *words], env=environment, stdout=log, stderr=log)


def finish(run: subprocess.Popen[bytes], out: Path) -> None:
    """Wait until a run ends.

    Raises:
        SystemExit: If it failed.
    """
    if run.wait(timeout=300):
        raise SystemExit(f"{out.with_suffix('.txt').read_text()}\nthe run ended with code {run.returncode}")


def reach(run: subprocess.Popen[bytes], out: Path, step: int) -> None:
    """Wait until a step is logged.

    Raises:
        SystemExit: If the run ends before it.
    """
    while run.poll() is None:
        if (out / FILE).exists() and any(line["step"] >= step for line in read_log(out)):
            return
        time.sleep(0.005)
    raise SystemExit(f"the run ended with code {run.returncode} before step {step}")


def workers(launcher: int) -> list[int]:
    """Return the processes that torchrun started."""
    return [int(pid) for pid in Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()]


def check_readable(out: Path) -> int:
    """Verify the newest checkpoint and return its step; 0 if there is none."""
    newest = checkpoint.newest(out / "checkpoints")
    if newest is None:
        return 0
    checkpoint.verify(newest, ProcessGroup(0, 1, torch.device("cpu"), is_distributed=False))
    return checkpoint.read_manifest(newest)["step"]


def reproducible_facts(out: Path) -> tuple[dict[int, set[str]], dict[str, Any], bytes]:
    """Return what must not depend on interruptions: losses and gradient norms of each step, result and weights."""
    steps: dict[int, set[str]] = {}
    for line in read_log(out):
        if line["event"] == "step":
            steps.setdefault(line["step"], set()).add(
                json.dumps([line["loss"], line["gradient_norm"], line["learning_rate"]])
            )
    result = json.loads((out / "result.json").read_text())
    outcome = {key: result[key] for key in ("status", "step", "loss", "held_out_loss", "spikes", "tokens")}
    return steps, outcome, (out / "model" / "model.safetensors").read_bytes()


def disturb(out: Path, steps: int, rng: random.Random, one: bool) -> tuple[int, int]:
    """Train with one kill; return the last step logged before it, and the step that the run resumed from."""
    run = start(out, steps, restarts=int(one))
    victims: list[int] = []
    try:
        reach(run, out, rng.randint(1, steps * 4 // 5))
        time.sleep(rng.uniform(0, 0.05))
        victims = workers(run.pid)
        kill([rng.choice(victims)] if one else [run.pid, *victims])
        killed = max(line["step"] for line in read_log(out))
        check_readable(out)
        if not one:
            run.wait()
            run = start(out, steps, restarts=0)
        finish(run, out)
    except BaseException:
        kill([*workers(run.pid), run.pid] if run.poll() is None else victims)
        raise
    return killed, max((line["step"] for line in read_log(out) if line["event"] == "resume"), default=0)


def kill(processes: list[int]) -> None:
    """Kill processes, and wait until they have ended."""
    for pid in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    while any(_alive(pid) for pid in processes):
        time.sleep(0.01)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def main() -> None:
    """Kill, resume, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    rng, start_time = random.Random(arguments.seed), time.monotonic()
    from_checkpoint = 0
    with tempfile.TemporaryDirectory() as folder:
        uninterrupted = Path(folder) / "uninterrupted"
        finish(start(uninterrupted, arguments.steps, restarts=0), uninterrupted)
        expected = reproducible_facts(uninterrupted)
        for number in range(1, arguments.kills + 1):
            out = Path(folder) / f"round{number}"
            one = number % 2 == 1
            killed, resumed = disturb(out, arguments.steps, rng, one)
            from_checkpoint += resumed > 0
            if reproducible_facts(out) != expected:
                raise SystemExit(f"round {number}, killed after step {killed}, differs from the uninterrupted run")
            what = "one process" if one else "all processes"
            print(f"round {number}: {what} killed after step {killed}, resumed from step {resumed}", flush=True)
    minutes = (time.monotonic() - start_time) / 60
    print(
        f"{arguments.kills} kills in {minutes:.1f} minutes, {from_checkpoint} of them after a checkpoint: every "
        "checkpoint readable, every loss, result and weight as without interruption, to the last bit"
    )


if __name__ == "__main__":
    main()

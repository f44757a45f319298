"""Damage training checkpoints and resume: a one-line error with exit code 2, or the bits of the undamaged run.

    nice python scripts/fuzz_checkpoints.py --cases 300

Two runs are stopped between two checkpoints, one of a single process and one of two processes. Each case copies one of
them, damages it (bits, lengths, missing, renamed, extra and swapped files, edited manifests, and wrong dtypes, shapes
and rows with valid hashes), and runs the command again. If the error offers an intact checkpoint, its command is run,
and training must then end with the bits of the undamaged run.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from normplace.cli import main as command
from normplace.lab.train.config import NetworkConfig, TrainConfig
from normplace.lab.train.language import train_language
from normplace.lab.train.observer import StepStats, TrainingObserver
from normplace.models.weights import read_sealed, seal, write_tensors

STEPS, EVERY, STOP = 12, 4, 10
SECONDS = 60
VALUES: list[Any] = [None, True, -1, 0, 1_000_000, 2.5, "x", [], {}, [[1]], {"a": 1}, "é" * 300, 10**40]
TEXT = "".join(f"{n} and one are {n + 1}.\n" for n in range(300))
WORDS = ["--dim", "16", "--depth", "1", "--heads", "2", "--context", "8", "--batch", "4", "--device", "cpu"]
WORDS += ["--steps", str(STEPS), "--set", f"checkpoint_every={EVERY}", "evaluate_every=12", "evaluate_sequences=8"]
WORDS += ["peak_tflops=1.0"]
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


class Stopped(Exception):
    """Ends a run between two checkpoints."""


class Interruption(TrainingObserver):
    """Stops a run."""

    def on_step(self, stats: StepStats) -> None:
        """Raise :class:`Stopped` at the step."""
        if stats.number == STOP:
            raise Stopped


def train_and_stop(folder: Path) -> None:
    """Train up to a step between two checkpoints, in this process or under torchrun."""
    torch.set_num_threads(1)
    small = {
        "context": 8,
        "batch": 4,
        "device": "cpu",
        "evaluate_sequences": 8,
        "peak_tflops": 1.0,
        "evaluate_every": 12,
    }
    config = TrainConfig(steps=STEPS, checkpoint_every=EVERY, **small)
    with contextlib.suppress(Stopped):
        train_language(
            NetworkConfig(dim=16, depth=1, heads=2),
            config,
            folder / "run",
            text=[str(folder / "text")],
            observer=Interruption(),
        )


def resume(folder: Path) -> tuple[int | str, str]:
    """Return the exit code of the resumed run, or its traceback, and its standard error."""
    stderr = io.StringIO()

    def hang(*_: Any) -> None:
        raise TimeoutError(f"no result in {SECONDS} seconds")

    signal.signal(signal.SIGALRM, hang)
    signal.alarm(SECONDS)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(stderr):
            text = ["--text", str(folder / "text")]
            code: int | str = command(["train", *text, "--out", str(folder / "run"), *WORDS])
    except (Exception, SystemExit):
        code = traceback.format_exc()
    finally:
        signal.alarm(0)
    return code, stderr.getvalue()


def outcome(folder: Path) -> tuple[Any, ...]:
    """Return what must not depend on damage."""
    result = json.loads((folder / "run" / "result.json").read_text())
    kept = ("status", "step", "loss", "held_out_loss", "spikes", "tokens")
    weights = folder / "run" / "model" / "model.safetensors"
    return *(result[key] for key in kept), weights.read_bytes() if weights.is_file() else None


def flip(file: Path, rng: random.Random, bits: int = 1) -> None:
    """Flip bits."""
    content = bytearray(file.read_bytes())
    for _ in range(bits):
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    file.write_bytes(content)


def resize(file: Path, rng: random.Random) -> None:
    """Cut a file short, or append to it."""
    content = file.read_bytes()
    choices = [content[: rng.randrange(len(content))], content + rng.randbytes(rng.randint(1, 64)), b""]
    file.write_bytes(rng.choice(choices))


def overwrite(file: Path, rng: random.Random) -> None:
    """Overwrite a block with zeros or random bytes, as a bad sector or a lost page would."""
    content = bytearray(file.read_bytes())
    begin = rng.randrange(len(content))
    end = min(len(content), begin + rng.randint(1, 4096))
    content[begin:end] = rng.randbytes(end - begin) if rng.random() < 0.5 else bytes(end - begin)
    file.write_bytes(content)


def edit_manifest(path: Path, rng: random.Random) -> None:
    """Change, remove or rename a field, as a manual edit would."""
    manifest = json.loads((path / "manifest.json").read_text())
    holder = rng.choice([manifest, *(value for value in manifest.values() if isinstance(value, dict) and value)])
    key = rng.choice(list(holder))
    change = rng.randrange(3)
    if change == 0:
        holder[key] = rng.choice(VALUES)
    elif change == 1:
        del holder[key]
    else:
        holder[f"{key}2"] = holder.pop(key)
    (path / "manifest.json").write_text(json.dumps(manifest))


def reseal_field(path: Path, rng: random.Random) -> None:
    """Write an impossible field with a valid hash, as a faulty program would."""
    manifest = read_sealed(path / "manifest.json")
    key = rng.choice(["step", "processes", "files"])
    values = [value for value in VALUES if value != manifest[key] and not (value is True and manifest[key] == 1)]
    (path / "manifest.json").write_text(json.dumps(seal({**manifest, key: rng.choice(values)})))


def reseal_tensor(path: Path, rng: random.Random) -> None:
    """Write a tensor with another dtype, shape or row range and a valid hash, or leave one out."""
    file = rng.choice(sorted(path.glob("*.safetensors")))
    with safe_open(str(file), framework="pt") as reader:
        tensors = {key: reader.get_tensor(key).clone() for key in reader.keys()}  # noqa: SIM118 (not a mapping)
        ranges = json.loads(reader.metadata()["rows"])
    key = rng.choice([key for key, value in sorted(tensors.items()) if value.numel()])
    change = rng.randrange(5)
    if change == 0:
        tensors[key] = tensors[key].to(torch.float16 if tensors[key].is_floating_point() else torch.int64)
    elif change == 1:
        tensors[key] = tensors[key][None] if tensors[key].ndim == 0 else tensors[key][:-1]
    elif change == 2:
        del tensors[key]
    elif change == 3:
        tensors[f"{key}.more"] = tensors.pop(key)
    elif key in ranges:
        ranges[key] = rng.choice([[ranges[key][0] + 1, ranges[key][1]], [ranges[key][0], ranges[key][1] + 1], None])
    else:
        tensors[key] = torch.zeros(3)
    manifest = read_sealed(path / "manifest.json")
    with file.open("wb") as stream:
        sha256 = write_tensors(stream, tensors, {"rows": json.dumps(ranges)})
    manifest["files"][file.name] = {"bytes": file.stat().st_size, "sha256": sha256}
    (path / "manifest.json").write_text(json.dumps(seal(manifest)))


def move_files(path: Path, rng: random.Random) -> None:
    """Remove, rename, add or swap files."""
    file = rng.choice(sorted(path.iterdir()))
    change = rng.randrange(6)
    if change == 0:
        file.unlink()
    elif change == 1:
        file.rename(path / f"{file.name}.bak")
    elif change == 2:
        (path / "process-7.safetensors").write_bytes(file.read_bytes())
    elif change == 3:
        other = next(one for one in sorted(path.parent.glob("step-*")) if one != path)
        shutil.copy(other / file.name, file)
    elif change == 4:
        file.unlink()
        file.mkdir()
    else:
        shutil.rmtree(path)


def change_pointer(path: Path, rng: random.Random) -> None:
    """Damage the file that names the newest checkpoint, or remove it."""
    pointer = path.parent / "latest"
    change = rng.randrange(4)
    if change == 0:
        pointer.unlink()
    elif change == 1:
        flip(pointer, rng)
    elif change == 2:
        pointer.write_bytes(
            rng.choice([b"", b"\xff\xfe", b"..\n", b"step-\n", b"/etc", b"step-00000004\n\n\n", b"x" * 999])
        )
    else:
        pointer.unlink()
        pointer.mkdir()


def tensors_of(path: Path, rng: random.Random) -> Path:
    """Return a random tensor file."""
    return rng.choice(sorted(path.glob("process-*")))


DAMAGES: dict[str, tuple[int, Callable[[Path, random.Random], None]]] = {
    "bit of a tensor file": (6, lambda path, rng: flip(tensors_of(path, rng), rng)),
    "bits of a tensor file": (2, lambda path, rng: flip(tensors_of(path, rng), rng, 50)),
    "length of a tensor file": (3, lambda path, rng: resize(tensors_of(path, rng), rng)),
    "block of a tensor file": (2, lambda path, rng: overwrite(tensors_of(path, rng), rng)),
    "bit of the manifest": (3, lambda path, rng: flip(path / "manifest.json", rng)),
    "length of the manifest": (1, lambda path, rng: resize(path / "manifest.json", rng)),
    "block of the manifest": (1, lambda path, rng: overwrite(path / "manifest.json", rng)),
    "field of the manifest": (4, edit_manifest),
    "field of the manifest, sealed": (2, reseal_field),
    "tensor, sealed": (4, reseal_tensor),
    "files": (3, move_files),
    "pointer": (2, change_pointer),
}


def check(folder: Path, expected: dict[int, Any]) -> str:
    """Resume, follow the remedy, and return the result, which starts with WRONG for a problem."""
    code, stderr = resume(folder)
    if isinstance(code, str):
        return f"WRONG: {code.strip().splitlines()[-1]}"
    if code == 0:
        return "same bits" if outcome(folder) in expected.values() else "WRONG: other bits, exit code 0"
    lines = [line for line in stderr.splitlines() if not re.match(r"[\d,]+ parameters, ", line)]
    if code != 2 or len(lines) != 1:
        return f"WRONG: exit code {code}, {len(lines)} lines"
    offered = re.search(r"run `(.*?)` and the same", lines[0])
    if offered is None:
        return "error"
    subprocess.run(offered[1], shell=True, check=True)
    code, stderr = resume(folder)
    if code != 0:
        return f"WRONG: the offered checkpoint gave {code}: {stderr}"
    same = outcome(folder) == expected[int(re.findall(r"step-(\d+)", offered[1])[0])]
    return "error, then same bits" if same else "WRONG: other bits after the remedy"


def main() -> int:
    """Damage, resume, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--alone", action="store_true", help="only the run of one process, without torchrun")
    parser.add_argument("--prepare", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.prepare is not None:
        train_and_stop(arguments.prepare)
        return 0
    torch.set_num_threads(1)
    rng, start, counts = random.Random(arguments.seed), time.monotonic(), Counter()
    names = [name for name, (weight, _) in DAMAGES.items() for _ in range(weight)]
    with tempfile.TemporaryDirectory() as scratch:
        bases = [prepare(Path(scratch) / "one")]
        if not arguments.alone:
            bases.append(prepare(Path(scratch) / "two", *TORCHRUN))
        # One process that resumes a run of two adds in another order, so each start has a different outcome.
        expected: dict[Path, dict[int, Any]] = {base: {} for base in bases}
        for base in bases:
            for step in (EVERY, 2 * EVERY):
                shutil.copytree(base, undamaged := base.with_name(f"{base.name}-{step}"))
                (undamaged / "run" / "checkpoints" / "latest").write_text(f"step-{step:08}\n")
                assert resume(undamaged)[0] == 0
                expected[base][step] = outcome(undamaged)
        assert expected[bases[0]][EVERY] == expected[bases[0]][2 * EVERY]
        for case in range(arguments.cases):
            base, name, folder = rng.choice(bases), names[case % len(names)], Path(scratch) / "case"
            shutil.copytree(base, folder)
            path = folder / "run" / "checkpoints" / "step-00000008"
            DAMAGES[name][1](path, rng)
            result = check(folder, expected[base])
            counts[result.partition(":")[0]] += 1
            if result.startswith("WRONG"):
                print(f"case {case}, {name}: {result}", flush=True)
            shutil.rmtree(folder)
    print(f"{arguments.cases} damaged checkpoints in {time.monotonic() - start:.0f} s: {dict(counts)}")
    return int(counts["WRONG"] > 0)


def prepare(folder: Path, *launcher: str) -> Path:
    """Return a folder with a run that was stopped after its second checkpoint."""
    folder.mkdir()
    (folder / "text").write_text(TEXT)
    if launcher:  # the first process stops, and torchrun then ends the second
        words = [sys.executable, *launcher, __file__, "--prepare", str(folder)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run(words, env=environment, capture_output=True, timeout=300, check=False)
    else:
        train_and_stop(folder)
    checkpoints = sorted(path.name for path in (folder / "run" / "checkpoints").glob("step-*"))
    assert checkpoints == ["step-00000004", "step-00000008"], checkpoints
    return folder


if __name__ == "__main__":
    sys.exit(main())

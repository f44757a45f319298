"""Damage training checkpoints and resume from them: one sentence and exit code 2, or the bits of the undamaged run.

    nice python scripts/fuzz_checkpoints.py --cases 300

Two runs are stopped between two checkpoints, one of a single process and one that two processes shared. Each case
copies one of them, damages it (bits, lengths, missing, renamed, extra and swapped files, edited manifests, wrong
dtypes, shapes and rows with fitting hashes), and gives the same command again. Where the sentence offers an intact
checkpoint, its command is run and training must then end with the bits of the run that was never damaged.
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


def train_and_stop(folder: Path) -> None:
    """Train up to a step between two checkpoints, in this process or under torchrun."""

    def watch(step: Any) -> None:
        if step.number == STOP:
            raise Stopped

    torch.set_num_threads(1)
    small = {
        "context": 8,
        "batch": 4,
        "device": "cpu",
        "evaluate_sequences": 8,
        "peak_tflops": 1.0,
        "evaluate_every": 12,
    }
    recipe = TrainConfig(steps=STEPS, checkpoint_every=EVERY, **small)
    with contextlib.suppress(Stopped):
        train_language(
            NetworkConfig(dim=16, depth=1, heads=2), recipe, folder / "run", text=[str(folder / "text")], on_step=watch
        )


def resume(folder: Path) -> tuple[int | str, str]:
    """The exit code of the resumed run, or its traceback, and what it wrote to stderr."""
    said = io.StringIO()

    def hang(*_: Any) -> None:
        raise TimeoutError(f"no answer in {SECONDS} seconds")

    signal.signal(signal.SIGALRM, hang)
    signal.alarm(SECONDS)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
            text = ["--text", str(folder / "text")]
            code: int | str = command(["train", *text, "--out", str(folder / "run"), *WORDS])
    except (Exception, SystemExit):
        code = traceback.format_exc()
    finally:
        signal.alarm(0)
    return code, said.getvalue()


def outcome(folder: Path) -> tuple[Any, ...]:
    """What must not depend on damage."""
    result = json.loads((folder / "run" / "result.json").read_text())
    kept = ("status", "step", "loss", "held_out_loss", "spikes", "tokens")
    weights = folder / "run" / "model" / "model.safetensors"
    return *(result[key] for key in kept), weights.read_bytes() if weights.is_file() else None


def flip(file: Path, chance: random.Random, bits: int = 1) -> None:
    """Flip bits."""
    content = bytearray(file.read_bytes())
    for _ in range(bits):
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    file.write_bytes(content)


def resize(file: Path, chance: random.Random) -> None:
    """Cut a file short, or append to it."""
    content = file.read_bytes()
    choices = [content[: chance.randrange(len(content))], content + chance.randbytes(chance.randint(1, 64)), b""]
    file.write_bytes(chance.choice(choices))


def overwrite(file: Path, chance: random.Random) -> None:
    """Put zeros or noise in the place of a block, as a bad sector or a lost page would."""
    content = bytearray(file.read_bytes())
    begin = chance.randrange(len(content))
    end = min(len(content), begin + chance.randint(1, 4096))
    content[begin:end] = chance.randbytes(end - begin) if chance.random() < 0.5 else bytes(end - begin)
    file.write_bytes(content)


def edit_manifest(path: Path, chance: random.Random) -> None:
    """Change, drop or add a field, as a person would."""
    said = json.loads((path / "manifest.json").read_text())
    holder = chance.choice([said, *(value for value in said.values() if isinstance(value, dict) and value)])
    key = chance.choice(list(holder))
    change = chance.randrange(3)
    if change == 0:
        holder[key] = chance.choice(VALUES)
    elif change == 1:
        del holder[key]
    else:
        holder[f"{key}2"] = holder.pop(key)
    (path / "manifest.json").write_text(json.dumps(said))


def reseal_field(path: Path, chance: random.Random) -> None:
    """Write an impossible field with a hash that fits, as a faulty program would."""
    said = read_sealed(path / "manifest.json")
    key = chance.choice(["step", "processes", "files"])
    values = [value for value in VALUES if value != said[key] and not (value is True and said[key] == 1)]
    (path / "manifest.json").write_text(json.dumps(seal({**said, key: chance.choice(values)})))


def reseal_tensor(path: Path, chance: random.Random) -> None:
    """Write a tensor of another dtype, shape or place with hashes that fit, or leave one out."""
    file = chance.choice(sorted(path.glob("*.safetensors")))
    with safe_open(str(file), framework="pt") as reader:
        tensors = {key: reader.get_tensor(key).clone() for key in reader.keys()}  # noqa: SIM118 (no mapping)
        places = json.loads(reader.metadata()["rows"])
    key = chance.choice([key for key, value in sorted(tensors.items()) if value.numel()])
    change = chance.randrange(5)
    if change == 0:
        tensors[key] = tensors[key].to(torch.float16 if tensors[key].is_floating_point() else torch.int64)
    elif change == 1:
        tensors[key] = tensors[key][None] if tensors[key].ndim == 0 else tensors[key][:-1]
    elif change == 2:
        del tensors[key]
    elif change == 3:
        tensors[f"{key}.more"] = tensors.pop(key)
    elif key in places:
        places[key] = chance.choice([[places[key][0] + 1, places[key][1]], [places[key][0], places[key][1] + 1], None])
    else:
        tensors[key] = torch.zeros(3)
    said = read_sealed(path / "manifest.json")
    with file.open("wb") as stream:
        sha256 = write_tensors(stream, tensors, {"rows": json.dumps(places)})
    said["files"][file.name] = {"bytes": file.stat().st_size, "sha256": sha256}
    (path / "manifest.json").write_text(json.dumps(seal(said)))


def move_files(path: Path, chance: random.Random) -> None:
    """Remove, rename, add or swap files."""
    file = chance.choice(sorted(path.iterdir()))
    change = chance.randrange(6)
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


def change_pointer(path: Path, chance: random.Random) -> None:
    """Damage the file that names the newest checkpoint, or remove it."""
    pointer = path.parent / "latest"
    change = chance.randrange(4)
    if change == 0:
        pointer.unlink()
    elif change == 1:
        flip(pointer, chance)
    elif change == 2:
        pointer.write_bytes(
            chance.choice([b"", b"\xff\xfe", b"..\n", b"step-\n", b"/etc", b"step-00000004\n\n\n", b"x" * 999])
        )
    else:
        pointer.unlink()
        pointer.mkdir()


def tensors_of(path: Path, chance: random.Random) -> Path:
    """A file of tensors."""
    return chance.choice(sorted(path.glob("process-*")))


DAMAGES: dict[str, tuple[int, Callable[[Path, random.Random], None]]] = {
    "bit of a tensor file": (6, lambda path, chance: flip(tensors_of(path, chance), chance)),
    "bits of a tensor file": (2, lambda path, chance: flip(tensors_of(path, chance), chance, 50)),
    "length of a tensor file": (3, lambda path, chance: resize(tensors_of(path, chance), chance)),
    "block of a tensor file": (2, lambda path, chance: overwrite(tensors_of(path, chance), chance)),
    "bit of the manifest": (3, lambda path, chance: flip(path / "manifest.json", chance)),
    "length of the manifest": (1, lambda path, chance: resize(path / "manifest.json", chance)),
    "block of the manifest": (1, lambda path, chance: overwrite(path / "manifest.json", chance)),
    "field of the manifest": (4, edit_manifest),
    "field of the manifest, sealed": (2, reseal_field),
    "tensor, sealed": (4, reseal_tensor),
    "files": (3, move_files),
    "pointer": (2, change_pointer),
}


def judge(folder: Path, expected: dict[int, Any]) -> str:
    """Resume, follow the remedy, and return what was wrong, or how it ended."""
    code, said = resume(folder)
    if isinstance(code, str):
        return f"WRONG: {code.strip().splitlines()[-1]}"
    if code == 0:
        return "same bits" if outcome(folder) in expected.values() else "WRONG: other bits, exit code 0"
    lines = [line for line in said.splitlines() if not re.match(r"[\d,]+ parameters, ", line)]
    if code != 2 or len(lines) != 1:
        return f"WRONG: exit code {code}, {len(lines)} lines"
    offered = re.search(r"run `(.*?)` and the same", lines[0])
    if offered is None:
        return "refused"
    subprocess.run(offered[1], shell=True, check=True)
    code, said = resume(folder)
    if code != 0:
        return f"WRONG: the offered checkpoint gave {code}: {said}"
    same = outcome(folder) == expected[int(re.findall(r"step-(\d+)", offered[1])[0])]
    return "refused, then same bits" if same else "WRONG: other bits after the remedy"


def main() -> int:
    """Damage, resume, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--alone", action="store_true", help="only the run of one process, which needs no torchrun")
    parser.add_argument("--prepare", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.prepare is not None:
        train_and_stop(arguments.prepare)
        return 0
    torch.set_num_threads(1)
    chance, begin, counts = random.Random(arguments.seed), time.monotonic(), Counter()
    names = [name for name, (weight, _) in DAMAGES.items() for _ in range(weight)]
    with tempfile.TemporaryDirectory() as scratch:
        bases = [prepare(Path(scratch) / "one")]
        if not arguments.alone:
            bases.append(
                prepare(Path(scratch) / "two", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
            )
        # What two processes began, one goes on with in another order of additions: so each start has its own outcome.
        expected: dict[Path, dict[int, Any]] = {base: {} for base in bases}
        for base in bases:
            for step in (EVERY, 2 * EVERY):
                shutil.copytree(base, whole := base.with_name(f"{base.name}-{step}"))
                (whole / "run" / "checkpoints" / "latest").write_text(f"step-{step:08}\n")
                assert resume(whole)[0] == 0
                expected[base][step] = outcome(whole)
        assert expected[bases[0]][EVERY] == expected[bases[0]][2 * EVERY]
        for case in range(arguments.cases):
            base, name, folder = chance.choice(bases), names[case % len(names)], Path(scratch) / "case"
            shutil.copytree(base, folder)
            path = folder / "run" / "checkpoints" / "step-00000008"
            DAMAGES[name][1](path, chance)
            result = judge(folder, expected[base])
            counts[result.partition(":")[0]] += 1
            if result.startswith("WRONG"):
                print(f"case {case}, {name}: {result}", flush=True)
            shutil.rmtree(folder)
    print(f"{arguments.cases} damaged checkpoints in {time.monotonic() - begin:.0f} s: {dict(counts)}")
    return int(counts["WRONG"] > 0)


def prepare(folder: Path, *launcher: str) -> Path:
    """A folder with a run that was stopped after its second checkpoint."""
    folder.mkdir()
    (folder / "text").write_text(TEXT)
    if launcher:  # the first process leaves the second alone, which torchrun then ends
        words = [sys.executable, *launcher, __file__, "--prepare", str(folder)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run(words, env=environment, capture_output=True, timeout=300, check=False)
    else:
        train_and_stop(folder)
    found = sorted(path.name for path in (folder / "run" / "checkpoints").glob("step-*"))
    assert found == ["step-00000004", "step-00000008"], found
    return folder


if __name__ == "__main__":
    sys.exit(main())

"""Call every verb of the command line with random and malicious arguments, paths and environment variables.

    python scripts/fuzz_cli.py --calls 3000 --seed 0 --workers 2

No call may print a traceback, hang, exit with a code other than 0, 1, 2 and 130, refuse in more than one line, or
change a pipe or a link that was there before. Most calls run in forked processes; one in fifty is a process of its own.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import random
import shutil
import stat
import tempfile
import time
from collections import Counter
from pathlib import Path

from forked_call import call, call_apart, described, in_workers, no_further_processes, preload

MODULE = """
import sys
import torch
from torch import nn
from dataclasses import dataclass
from normplace.lab.trials.study import Outcome, Part, Study

def good():
    return nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), torch.randn(1, 3, 8)

def alone():
    return nn.LayerNorm(4)

def wrong():
    return 5

def fails():
    raise RuntimeError("two\\nlines")

def leaves():
    sys.exit(3)

def deep():
    return deep()

@dataclass(frozen=True)
class Trial:
    seed: int
    width: int = 2
    rate: float = 0.5
    sizes: tuple[int, ...] = (1, 2)

def plan(scale):
    return [Trial(seed) for seed in range(2)]

STUDY = Study("tiny", "t", "p", "s", "fuzzed:STUDY", (Part("only", Trial, plan, lambda t: Outcome({"m": 1.0})),), (),
              lambda lines: [])
"""
LLAMA = {
    "model_type": "llama", "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1,
    "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 16,
}  # fmt: skip
ODD = [
    "", " ", ".", "..", "-", "--", "-1", "0", "nan", "inf", "1e999", "9" * 5000, "x" * 300, "x" * 5000, "a\nb", "a\tb",
    "\x1b[31m", "é", "日本", "\U0001f600", "\udcff", "a\0b", "%s%n", "{0}", "$HOME", "`id`", "'", '"', "\\", "*", "[",
    "(" * 300,
    "..x:y", "x:y", ":", "::", "os:path", "os:", ":x", "a b:c", "fuzzed:good", "fuzzed:none", "__main__:x", "=", "a=b",
    "None",
    "True", "[1]", "{}", "1j", "0x10", "1_0", "--help", "--version", "-h", "--no-such", "=x",
]  # fmt: skip
NAMES = ["peri", "pre", "post", "layernorm", "rmsnorm", "lns", "layerscale", "cpu", "cuda", "auto", "smoke", "laptop"]
VERBS = ["study", "report", "verify", "audit", "move", "bench", "train", "doctor", "stduy"]
PATHS = [
    "good.jsonl", "good.jsonl.gz", "cut.jsonl.gz", "damaged.jsonl", "binary.jsonl", "empty.jsonl", "folder", "hollow",
    "pipe", "loop", "dangling", "link.jsonl", "config.json", "ill.json", "list.json", "record.json", "text.txt", "none",
    "good.jsonl/inside", "loop/inside", "/proc/self/mem", "/dev/full", "/dev/null", "/nonexistent/a/b", "x" * 300,
]  # fmt: skip
WRITABLE = ["out", "new/out", "good.jsonl/inside", "loop", "loop/x", "dangling", "pipe", "folder", "", "device",
            "/proc/x", "x" * 300, "a\nb", "a\0b", "\udcff", "é"]  # fmt: skip
TRAIN = ["--text", "text.txt", "--steps", "1", "--layers", "1", "--width", "16", "--heads", "1", "--context", "8",
         "--batch", "1"]  # fmt: skip


def fixtures(folder: Path) -> None:
    """Files of every kind that an argument may name."""
    lines = b""
    for seed in range(2):
        from normplace.lab.trials.record import TrialRecord, trial_hash

        config = {"seed": seed, "width": 2, "rate": 0.5, "sizes": [1, 2]}
        line = TrialRecord("tiny", "only", "smoke", trial_hash("tiny", "only", config), config, seed, "ok", {"m": 1.0})
        lines += line.to_json().encode() + b"\n"
    files = {
        "fuzzed.py": MODULE.encode(), "broken.py": b"def\n", "good.jsonl": lines, "damaged.jsonl": lines + b"\xff{}\n",
        "good.jsonl.gz": gzip.compress(lines), "cut.jsonl.gz": gzip.compress(lines)[:-9], "empty.jsonl": b"",
        "binary.jsonl": random.Random(0).randbytes(5000), "config.json": json.dumps(LLAMA).encode(),
        "ill.json": json.dumps(LLAMA | {"hidden_size": "eight"}).encode(), "list.json": b"[1, 2]",
        "record.json": b'{"format": 1, "cases": 5}', "text.txt": b"the quick brown fox jumps over it\n" * 200,
    }  # fmt: skip
    for name, content in files.items():
        (folder / name).write_bytes(content)
    (folder / "folder").mkdir()
    (folder / "folder" / "tiny-smoke.jsonl").write_bytes(lines)
    (folder / "hollow").mkdir()
    os.mkfifo(folder / "pipe")
    if os.geteuid() == 0:  # root could destroy a device: never offer it one of the machine's own to write to
        os.mknod(folder / "device", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    (folder / "loop").symlink_to("loop")
    (folder / "dangling").symlink_to("made-by-link")
    (folder / "link.jsonl").symlink_to("good.jsonl")


def words(chance: random.Random) -> list[str]:
    """The arguments of one call; those that would train or measure for minutes are kept small."""
    odd = lambda: chance.choice(chance.choice([ODD, NAMES, PATHS]))  # noqa: E731
    path, target = lambda: chance.choice([*PATHS, odd()]), lambda: chance.choice(WRITABLE)
    verb = chance.choice(VERBS) if chance.random() < 0.97 else odd()
    chosen = [verb]
    if verb == "study":
        chosen += [
            chance.choice(["fuzzed:STUDY", odd(), "broken:STUDY", "tniy"]),
            "--scale",
            chance.choice(["smoke", odd()]),
        ]
        chosen += ["--jobs", chance.choice(["1", "0", "-3", odd()]), "--out", target()]
        key = chance.choice(["width", "rate", "sizes", "seed", odd()])
        options = [[], ["--part", odd()], ["--set", f"{key}={odd()}"], ["--engine", odd()], ["--address", odd()]]
        chosen += chance.choice(options)
    elif verb in ("report", "verify"):
        chosen += [path() for _ in range(chance.randint(1, 3))]
        chosen += chance.choice([["--study", "fuzzed:STUDY"], ["--study", odd()], []])
        chosen += ["--out", target()] if verb == "report" else chance.choice([[], ["--markdown"], ["--json"]])
    elif verb in ("audit", "move"):
        factory = chance.choice(["good", "alone", "wrong", "fails", "leaves", "deep", "none"])
        chosen += chance.choice([[f"fuzzed:{factory}"], ["--hf", path()], [odd()], ["broken:f"], []])
        chosen += chance.choice([[], ["--json"], ["--html", target()]]) if verb == "audit" else ["--out", target()]
        chosen += chance.choice([[], ["--to", odd()], ["--qk", odd()], ["--norm", odd()]]) if verb == "move" else []
    elif verb == "bench":
        chosen += [
            "--show",
            path(),
            *chance.choice([[], ["--against", path()], ["--html", target()], ["--device", odd()], [odd()]]),
        ]
    elif verb == "train":
        names = [
            "steps",
            "layers",
            "width",
            "heads",
            "context",
            "batch",
            "seed",
            "text",
            "tokenizer",
            "rate",
            "log",
            "set",
        ]
        option = "--" + chance.choice(names)
        value = (
            odd() if option != "--set" else f"{chance.choice(['beta1', 'checkpoint_every', 'warmup', odd()])}={odd()}"
        )
        chosen += [*TRAIN, "--out", target(), option, value]
    if chance.random() < 0.15:
        chosen.insert(chance.randint(0, len(chosen)), odd())
    if chance.random() < 0.1:
        chosen.pop(chance.randrange(len(chosen)))
    return chosen


def too_long(chosen: list[str]) -> bool:
    """Whether a call would run for minutes: a benchmark, a whole study, a report of all results."""
    verb = next((word for word in chosen if not word.startswith("-")), "")
    rest = chosen[chosen.index(verb) + 1 :] if verb else []
    if verb == "bench":
        return "--show" not in rest
    if verb in ("report", "verify"):
        return all(word.startswith("-") for word in rest) or not rest
    numbers = [word for word in rest if word.strip("-").isdigit() and len(word) > 2]
    return bool(numbers) or (verb == "train" and rest[: len(TRAIN)] != TRAIN) or any(w in rest for w in ("ray", "dask"))


def environment(chance: random.Random, folder: Path) -> dict[str, str]:
    """Environment variables that the package reads, some of them odd."""
    chosen = {"PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]), "NORMPLACE_OFFLINE": "1",
              "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "NORMPLACE_CACHE": str(folder / "cache")}  # fmt: skip
    if chance.random() < 0.3:
        name = chance.choice(["NORMPLACE_CACHE", "NORMPLACE_DATA", "PYTHONIOENCODING", "COLUMNS", "TERM", "HOME"])
        values = (
            ["ascii", "latin-1", "utf-8"]
            if name == "PYTHONIOENCODING"
            else ["", "0", "-1", "pipe", "loop", "good.jsonl", "x" * 300]
        )
        chosen[name] = chance.choice(values)
    return chosen


def one(seed: int, index: int, base: Path, limit: float, apart: float) -> dict:
    """One call in a folder of its own."""
    chance = random.Random(f"{seed}:{index}")
    chosen = words(chance)
    while too_long(chosen):
        chosen = words(chance)
    folder = base / f"call-{index}"
    folder.mkdir()
    fixtures(folder)
    real = chance.random() < apart and not any("\0" in word for word in chosen)
    variables = environment(chance, folder)
    if real:
        outcome = call_apart(chosen, folder, variables, limit)
    else:
        outcome = call(chosen, folder, variables, limit, no_further_processes)
    found = described(outcome)
    device = folder / "device"
    special = stat.S_ISFIFO((folder / "pipe").lstat().st_mode) and (folder / "loop").is_symlink()
    if not special or (os.geteuid() == 0 and not stat.S_ISCHR(device.lstat().st_mode)):
        found["problem"] = "a pipe, a link or a device was replaced"
    shutil.rmtree(folder)
    return {**found, "index": index, "out": found["out"][-2000:]}


def main() -> int:
    """Fuzz and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=3000)
    parser.add_argument("--first", type=int, default=0, help="index of the first call, to repeat one of a seed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--apart", type=float, default=0.02, help="share of calls that are processes of their own")
    parser.add_argument("--limit", type=float, default=180.0, help="seconds after which a call counts as a hang")
    parser.add_argument("--problems", type=Path, help="write the calls with problems to this file")
    arguments = parser.parse_args()
    preload()
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        base = Path(name)
        task = lambda i: [one(arguments.seed, arguments.first + i, base, arguments.limit, arguments.apart)]  # noqa: E731
        outcomes = list(in_workers(task, arguments.calls, arguments.workers, base))
    wrong = [outcome for outcome in outcomes if outcome["problem"]]
    if arguments.problems:
        arguments.problems.write_text("".join(json.dumps(outcome) + "\n" for outcome in wrong))
    for outcome in wrong[:20]:
        print(f"{outcome['index']}: {outcome['problem']}: {outcome['words']}\n{outcome['err'][-600:]}")
    codes = Counter(outcome["code"] for outcome in outcomes)
    minutes = (time.monotonic() - start) / 60
    print(f"{len(outcomes)} calls in {minutes:.1f} minutes, {len(wrong)} with a problem; exit codes {dict(codes)}")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())

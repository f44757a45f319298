"""Call every verb of the command line with random and malicious arguments, paths and environment variables.

    python scripts/fuzz_cli.py --calls 3000 --seed 0 --workers 2

No call may print a traceback, hang, exit with a code other than 0, 1, 2 and 130, print a usage error of more than one
line, or replace an existing pipe, link or device. Most calls run in forked processes; one in fifty starts a new one.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import shutil
import stat
import tempfile
import time
from pathlib import Path

from forked_call import (
    call,
    call_in_new_process,
    fuzz_parser,
    in_workers,
    no_further_processes,
    preload,
    report_outcomes,
    to_dict,
)

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

def problems():
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

STUDY = Study("tiny", "t", "p", "s", (Part("only", Trial, plan, lambda t: Outcome({"m": 1.0})),), (), lambda lines: [])
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
VERBS = ["study", "report", "verify", "rerun", "audit", "move", "fuse", "bench", "train", "generate", "export",
         "evaluate", "list", "doctor", "stduy"]  # fmt: skip
PATHS = [
    "good.jsonl", "good.jsonl.gz", "cut.jsonl.gz", "damaged.jsonl", "binary.jsonl", "empty.jsonl", "folder", "hollow",
    "pipe", "loop", "dangling", "link.jsonl", "config.json", "ill.json", "list.json", "record.json", "text.txt", "none",
    "run", "model", "run.toml", "ill.toml",
    "good.jsonl/inside", "loop/inside", "/proc/self/mem", "/dev/full", "/dev/null", "/nonexistent/a/b", "x" * 300,
]  # fmt: skip
WRITABLE = ["out", "new/out", "good.jsonl/inside", "loop", "loop/x", "dangling", "pipe", "folder", "", "device",
            "/proc/x", "x" * 300, "a\nb", "a\0b", "\udcff", "é"]  # fmt: skip
TRAIN = ["--text", "text.txt", "--steps", "1", "--depth", "1", "--dim", "16", "--heads", "1", "--context", "8",
         "--batch", "1", "--device", "cpu", "--peak-tflops", "1"]  # fmt: skip
TRAIN_OPTIONS = ["steps", "depth", "dim", "heads", "context", "batch", "seed", "text", "tokenizer", "rate",
                 "learning-rate", "precision", "schedule", "positions", "log", "set", "config", "signals"]  # fmt: skip


def fixtures(folder: Path) -> None:
    """Write files of every kind that an argument may name."""
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
        "record.json": b'{"format": 1, "cases": 5}', "run.toml": b"steps = 1\n",
        "ill.toml": b"steps = 'one'\nx = [", "text.txt": b"the quick brown fox jumps over it\n" * 200,
    }  # fmt: skip
    for name, content in files.items():
        (folder / name).write_bytes(content)
    write_run(folder / "run")
    shutil.copytree(folder / "run" / "model", folder / "model")
    (folder / "folder").mkdir()
    (folder / "folder" / "tiny-smoke.jsonl").write_bytes(lines)
    (folder / "hollow").mkdir()
    os.mkfifo(folder / "pipe")
    if os.geteuid() == 0:  # root could overwrite a real device, so the calls get a new one
        os.mknod(folder / "device", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    (folder / "loop").symlink_to("loop")
    (folder / "dangling").symlink_to("made-by-link")
    (folder / "link.jsonl").symlink_to("good.jsonl")


def write_run(folder: Path) -> None:
    """Write what ``normplace train`` leaves, without training."""
    from normplace.lab.train.config import NetworkConfig
    from normplace.lab.train.run_folder import write_model, write_result
    from normplace.lab.train.tokenizer import ByteTokenizer
    from normplace.models.transformer import Transformer

    config = NetworkConfig(dim=16, depth=1, heads=2).transformer_config(256, 16)
    folder.mkdir()
    write_model(folder, config, Transformer(config).state_dict(), ByteTokenizer())
    text = {"inputs": ["text.txt"], "tokenizer": "bytes", "sha256": "0" * 64}
    write_result(folder, {"status": "finished", "step": 1, "config": {"context": 16}, "text": text})


def words(rng: random.Random) -> list[str]:
    """Return the arguments of one call; training runs are kept small."""
    odd = lambda: rng.choice(rng.choice([ODD, NAMES, PATHS]))  # noqa: E731
    path, target = lambda: rng.choice([*PATHS, odd()]), lambda: rng.choice(WRITABLE)
    verb = rng.choice(VERBS) if rng.random() < 0.97 else odd()
    chosen = [verb]
    if verb == "study":
        chosen += [
            rng.choice(["fuzzed:STUDY", odd(), "broken:STUDY", "tniy"]),
            "--scale",
            rng.choice(["smoke", odd()]),
        ]
        chosen += ["--jobs", rng.choice(["1", "0", "-3", odd()]), "--out", target()]
        key = rng.choice(["width", "rate", "sizes", "seed", odd()])
        options = [[], ["--part", odd()], ["--set", f"{key}={odd()}"], ["--engine", odd()], ["--address", odd()]]
        chosen += rng.choice([*options, ["--seeds", rng.choice(["3", odd()])]])
        chosen += rng.choice([[], ["--dry-run"], ["--dry-run", "--json"]])
    elif verb in ("report", "verify", "rerun"):
        chosen += [path() for _ in range(rng.randint(1, 3))]
        chosen += rng.choice([["--study", "fuzzed:STUDY"], ["--study", odd()], []])
        outputs = {
            "report": [["--out", target()]],
            "verify": [[], ["--markdown"], ["--json"]],
            "rerun": [[], ["--json"], ["--trials", odd()], ["--longest", odd()], ["--seed", odd()], ["--jobs", odd()]],
        }
        chosen += rng.choice(outputs[verb])
        filters = [
            ["--only", "tiny"],
            ["--only", odd()],
            ["--verdict", "void"],
            ["--verdict", odd()],
            ["--text", odd()],
        ]
        chosen += rng.choice([[], ["--text", odd()], *filters]) if verb == "verify" else []
    elif verb in ("audit", "move", "fuse"):
        factory = rng.choice(["good", "alone", "problems", "fails", "leaves", "deep", "none"])
        factories = [f"fuzzed:{factory}", f"fuzzed.py:{factory}", f"{path()}:{factory}"]
        chosen += rng.choice([[rng.choice(factories)], ["--hf", path()], [path()], [odd()], ["broken:f"], []])
        chosen += rng.choice([[], ["--fail-on", rng.choice(["warning", odd()])]]) if verb == "audit" else []
        chosen += rng.choice([[], ["--json"], ["--html", target()]]) if verb == "audit" else []
        chosen += ["--out", target()] if verb == "move" else []
        chosen += rng.choice([[], ["--json"], ["--reach", odd()]]) if verb == "fuse" else []
        chosen += rng.choice([[], ["--to", odd()], ["--qk", odd()], ["--norm", odd()]]) if verb == "move" else []
    elif verb in ("generate", "export", "evaluate"):
        chosen += [rng.choice(["run", "run", "model", path(), odd()])]
        chosen += ["--hf", target()] if verb == "export" else ["--device", "cpu"]
        value = rng.choice([odd(), "3", "0.5"])
        more = {"generate": ["length", "prompt", "temperature", "top-k", "top-p", "seed", "device"],
                "export": ["family"], "evaluate": ["tasks", "text", "samples", "seed"]}[verb]  # fmt: skip
        chosen += rng.choice([[], ["--json"], [f"--{rng.choice(more)}", value], [f"--{rng.choice(more)}", path()]])
        chosen += ["--length", "4"] if verb == "generate" and "--length" not in chosen else []
    elif verb == "list":
        chosen += rng.choice([[], [odd()], [path()], ["fuzzed.py:STUDY"], ["placements", "--json"], ["norms"]])
    elif verb == "bench":
        chosen += [
            "--show",
            path(),
            *rng.choice([[], ["--against", path()], ["--html", target()], ["--device", odd()], [odd()]]),
        ]
    elif verb == "train":
        option = "--" + rng.choice(TRAIN_OPTIONS)
        key = rng.choice(["beta1", "checkpoint_every", "warm_up", "rate", odd()])
        value = f"{key}={odd()}" if option == "--set" else odd()
        chosen += [*TRAIN, "--out", target(), option, value]
    if rng.random() < 0.15:
        chosen.insert(rng.randint(0, len(chosen)), odd())
    if rng.random() < 0.1:
        chosen.pop(rng.randrange(len(chosen)))
    return chosen


def too_long(chosen: list[str]) -> bool:
    """Return whether a call would run for minutes: a benchmark, a large study, a report of all results."""
    verb = next((word for word in chosen if not word.startswith("-")), "")
    rest = chosen[chosen.index(verb) + 1 :] if verb else []
    if verb == "bench":
        return "--show" not in rest
    if verb in ("report", "verify", "rerun"):
        return all(word.startswith("-") for word in rest) or not rest
    large = [word for word in rest if word.strip("-").isdigit() and len(word) > 2]
    return bool(large) or (verb == "train" and rest[: len(TRAIN)] != TRAIN) or any(w in rest for w in ("ray", "dask"))


def environment(rng: random.Random, folder: Path) -> dict[str, str]:
    """Return environment variables that the package reads, some with odd values."""
    chosen = {"PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]), "NORMPLACE_OFFLINE": "1",
              "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "NORMPLACE_CACHE": str(folder / "cache")}  # fmt: skip
    if rng.random() < 0.3:
        name = rng.choice(["NORMPLACE_CACHE", "NORMPLACE_DATA", "PYTHONIOENCODING", "COLUMNS", "TERM", "HOME"])
        values = (
            ["ascii", "latin-1", "utf-8"]
            if name == "PYTHONIOENCODING"
            else ["", "0", "-1", "pipe", "loop", "good.jsonl", "x" * 300]
        )
        chosen[name] = rng.choice(values)
    return chosen


def run_call(seed: int, index: int, base: Path, limit: float, new_process_share: float) -> dict:
    """Run one call in a new folder."""
    rng = random.Random(f"{seed}:{index}")
    chosen = words(rng)
    while too_long(chosen):
        chosen = words(rng)
    folder = base / f"call-{index}"
    folder.mkdir()
    fixtures(folder)
    in_new_process = rng.random() < new_process_share and not any("\0" in word for word in chosen)
    variables = environment(rng, folder)
    if in_new_process:
        outcome = call_in_new_process(chosen, folder, variables, limit)
    else:
        outcome = call(chosen, folder, variables, limit, no_further_processes)
    result = to_dict(outcome)
    device = folder / "device"
    special = stat.S_ISFIFO((folder / "pipe").lstat().st_mode) and (folder / "loop").is_symlink()
    if not special or (os.geteuid() == 0 and not stat.S_ISCHR(device.lstat().st_mode)):
        result["problem"] = "a pipe, a link or a device was replaced"
    shutil.rmtree(folder)
    return {**result, "index": index, "out": result["out"][-2000:]}


def main() -> int:
    """Run the calls and print those with a problem."""
    parser = fuzz_parser(__doc__, calls=3000, limit=180.0)
    parser.add_argument("--new-processes", type=float, default=0.02, help="share of calls that start a new process")
    arguments = parser.parse_args()
    preload()
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        base = Path(name)
        task = lambda i: [run_call(arguments.seed, arguments.first + i, base, arguments.limit, arguments.new_processes)]  # noqa: E731
        outcomes = list(in_workers(task, arguments.calls, arguments.workers, base))
    return report_outcomes(outcomes, time.monotonic() - start, arguments.problems)


if __name__ == "__main__":
    raise SystemExit(main())

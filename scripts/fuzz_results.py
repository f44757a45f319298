"""Damage result files at random, and read them with ``verify``, ``report`` and ``study``.

    python scripts/fuzz_results.py --files 1000 --seed 0 --workers 2

No call may print a traceback, hang, or exit with a code other than 0, 1 and 2. ``verify`` must count exactly the
unchanged lines. After ``study`` has resumed, each of these lines is in the file once, every damaged line is in the
``.damaged`` file or still in the result file, and every trial is recorded.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import re
import shutil
import tempfile
import time
from collections import Counter
from pathlib import Path

from forked_call import (
    Outcome,
    call,
    fuzz_parser,
    in_workers,
    no_further_processes,
    preload,
    report_outcomes,
    to_dict,
)

STUDY = """
from dataclasses import dataclass
from normplace.lab.trials.claims import Check, Claim
from normplace.lab.trials.per_seed import metric
from normplace.lab.trials.study import Figure, Outcome, Part, Study

@dataclass(frozen=True)
class Trial:
    seed: int
    kind: str = "up"

def plan(scale):
    return [Trial(seed, kind) for seed in range(6) for kind in ("up", "down")]

def run(trial):
    return Outcome({"value": trial.seed + 0.5}, {"x": [0.0, 1.0, 2.0], "y": [0.1, 0.2, 0.3 + trial.seed]})

def figures(records):
    rows = [{"x": x, "y": y} for record in records for x, y in zip(record.series["x"], record.series["y"], strict=True)]
    return [Figure("F", "c", rows, {"mark": "point", "encoding": {"x": {"field": "x"}, "y": {"field": "y"}}}, "alt")]

STUDY = Study("tiny", "t", "p", "s", "damaged_study:STUDY", (Part("only", Trial, plan, run),),
              (Claim("c", "p", "Up.", (Check("v", metric("only", "value", kind="up"), at_least=0.0),), seeds=5),),
              figures)
"""
NAME = "tiny-smoke.jsonl"
RUN_STUDY = ["study", "damaged_study:STUDY", "--scale", "smoke", "--jobs", "1"]
VALUES = [
    None,
    True,
    -1,
    1.5,
    "x",
    "\ud800",
    [],
    {},
    [[1]],
    {"a": {"b": []}},
    10**400,
    float("nan"),
    float("inf"),
    "1" * 500,
]
TOKENS = [
    b"\xff",
    b"\x00",
    b"\n",
    b"\r\n",
    b"\\ud800",
    b"{",
    b"}",
    b'"',
    b"[" * 3000,
    b"NaN",
    b"1e999",
    b"9" * 6000,
    b"null",
    b"\xef\xbb\xbf",
]


def flip(lines: list[bytes], rng: random.Random) -> None:
    """Flip bits of one line."""
    index = rng.randrange(len(lines))
    line = bytearray(lines[index])
    for _ in range(rng.choice([1, 1, 1, 3, 20])):
        line[rng.randrange(len(line))] ^= 1 << rng.randrange(8)
    lines[index] = bytes(line)


def insert(lines: list[bytes], rng: random.Random) -> None:
    """Insert a token into a line."""
    index = rng.randrange(len(lines))
    position = rng.randint(0, len(lines[index]))
    lines[index] = lines[index][:position] + rng.choice(TOKENS) + lines[index][position:]


def cut(lines: list[bytes], rng: random.Random) -> None:
    """Remove bytes from a line, or its end."""
    index = rng.randrange(len(lines))
    position = rng.randrange(len(lines[index]))
    rest = lines[index][position + rng.randint(1, 40) :] if rng.random() < 0.5 else b"\n"
    lines[index] = lines[index][:position] + rest


def retype(lines: list[bytes], rng: random.Random) -> None:
    """Give a field a value of another type, in a line without a checksum."""
    index = rng.randrange(len(lines))
    try:
        data = json.loads(lines[index])
        data.pop("crc32", None)
        field = rng.choice(list(data))
        inner = data[field] if isinstance(data[field], dict) and data[field] and rng.random() < 0.5 else data
        inner[rng.choice(list(inner)) if inner is not data else field] = rng.choice(VALUES)
        lines[index] = json.dumps(data).encode() + b"\n"
    except (ValueError, AttributeError, TypeError, IndexError):
        return  # already damaged


def drop_field(lines: list[bytes], rng: random.Random) -> None:
    """Remove a field from a line."""
    index = rng.randrange(len(lines))
    try:
        data = json.loads(lines[index])
        data.pop(rng.choice(list(data)))
        lines[index] = json.dumps(data).encode() + b"\n"
    except (ValueError, AttributeError, TypeError, IndexError):
        return  # already damaged


def garble(lines: list[bytes], rng: random.Random) -> None:
    """Replace or insert a line of random bytes."""
    noise = rng.randbytes(rng.randint(0, 300)).replace(b"\n", b"") + b"\n"
    lines.insert(rng.randint(0, len(lines)), noise) if rng.random() < 0.5 else lines.__setitem__(0, noise)


def cut_file(lines: list[bytes], rng: random.Random) -> None:
    """Truncate the file."""
    whole = b"".join(lines)
    lines[:] = whole[: rng.randint(0, len(whole))].splitlines(keepends=True) or [b""]


DAMAGES = [flip, flip, insert, cut, retype, drop_field, garble, cut_file]


def damaged(lines: list[bytes], rng: random.Random) -> bytes:
    """Return the file after random damage."""
    lines = list(lines)
    for _ in range(rng.choice([1, 1, 2, 4])):
        lines = lines if all(lines) and lines else [b"\n"]
        rng.choice(DAMAGES)(lines, rng)
    return b"".join(lines)


def checked_outcome(outcome: Outcome, allowed: set[int], problems: list[str]) -> dict:
    """Return the outcome with its first problem: its own, an unexpected exit code, or one of ``problems``."""
    result = to_dict(outcome)
    exit_problem = f"exit code {outcome.code}" if outcome.code not in allowed else None
    result["problem"] = result["problem"] or exit_problem or next(iter(problems), None)
    return {**result, "out": result["out"][-500:]}


def fuzz_file(seed: int, index: int, base: Path, original: list[bytes], limit: float) -> list[dict]:
    """Damage one file and read it with three verbs."""
    rng = random.Random(f"{seed}:{index}")
    folder = base / f"file-{index}"
    (folder / "runs").mkdir(parents=True)
    (folder / "damaged_study.py").write_text(STUDY)
    path = folder / "runs" / NAME
    content = damaged(original, rng)
    intact = [line for line in original if line.rstrip(b"\n") in content.split(b"\n")]
    path.write_bytes(content)
    packed = rng.random() < 0.1
    if packed:
        data = bytearray(gzip.compress(content))
        if rng.random() < 0.5:
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        (folder / "runs" / f"{NAME}.gz").write_bytes(bytes(data))
    environment = {
        "PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]),
        "NORMPLACE_CACHE": str(base / "cache"),
    }
    studies = ["--study", "damaged_study:STUDY"]
    checked = call(["verify", f"runs/{NAME}", *studies], folder, environment, limit)
    counted = re.search(r", (\d+) trials in", checked.out)
    problems = []
    if counted and int(counted[1]) < len(intact):
        problems.append(f"{counted[1]} trials counted of {len(intact)} intact lines")
    if checked.code == 2 and intact and "cannot read its results" not in checked.err:
        problems.append(f"usage error although {len(intact)} lines are intact")
    if path.read_bytes() != content:
        problems.append("verify changed the file")
    outcomes = [checked_outcome(checked, {0, 1, 2}, problems)]
    target = f"runs/{NAME}.gz" if packed else "runs"
    outcomes.append(
        checked_outcome(
            call(["report", target, *studies], folder, environment, limit, no_further_processes), {0, 1, 2}, []
        )
    )
    resumed = call(RUN_STUDY, folder, environment, limit, no_further_processes)
    after = path.read_bytes()
    aside = path.with_suffix(".damaged")
    kept = after + (aside.read_bytes() if aside.exists() else b"")
    problems = []
    if resumed.code == 0:
        from normplace.lab.trials.results import read_records

        done = Counter(record.hash for record in read_records(path) if record.status == "ok")
        problems += [] if len(done) == len(original) else [f"{len(done)} of {len(original)} trials recorded"]
    elif after != content and resumed.code == 2:
        problems.append("a study with a usage error changed the file")
    problems += [] if all(line in after for line in intact) else ["an intact line is lost"]
    pieces = [piece.strip() for piece in content.split(b"\n") if piece.strip()]
    problems += [] if all(piece in kept for piece in pieces) else ["a damaged line is lost"]
    outcomes.append(checked_outcome(resumed, {0, 2}, problems))
    shutil.rmtree(folder)
    return [{**outcome, "index": index} for outcome in outcomes]


def main() -> int:
    """Damage and read the files, and print the calls with a problem."""
    arguments = fuzz_parser(__doc__, calls=1000, limit=300.0).parse_args()
    preload()
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        base = Path(name)
        (base / "damaged_study.py").write_text(STUDY)
        environment = {"PYTHONPATH": os.pathsep.join([str(base), os.environ.get("PYTHONPATH", "")])}
        undamaged = call(RUN_STUDY, base, environment, 600, no_further_processes)
        if undamaged.code:
            raise SystemExit(f"the undamaged study failed: {undamaged.err}")
        original = (base / "runs" / NAME).read_bytes().splitlines(keepends=True)
        task = lambda i: fuzz_file(arguments.seed, arguments.first + i, base, original, arguments.limit)  # noqa: E731
        outcomes = list(in_workers(task, arguments.calls, arguments.workers, base))
    return report_outcomes(outcomes, time.monotonic() - start, arguments.problems)


if __name__ == "__main__":
    raise SystemExit(main())

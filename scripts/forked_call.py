"""Run the command line many times quickly: each call in a forked process, with a time limit."""

from __future__ import annotations

import argparse
import importlib
import io
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

CODES = {0, 1, 2, 130}
CRASHED, HUNG = 70, 71
PRELOADED = (
    "rich.live", "safetensors.torch", "scipy.stats", "transformers", "torch._dynamo", "normplace.lab.bench.run",
    "normplace.lab.bench.table",
    "normplace.cli",
    "normplace.edit.saving.files", "normplace.lab.report", "normplace.lab.trials.runner",
    "normplace.lab.studies", "normplace.lab.train.language",
)  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """The outcome of one call of the command line.

    Args:
        words: Its arguments.
        code: The exit code; :data:`CRASHED` after an uncaught exception, :data:`HUNG` after the time limit.
        out: Standard output.
        err: Standard error.
        seconds: Wall time.
    """

    words: list[str]
    code: int
    out: str
    err: str
    seconds: float

    def problem(self) -> str | None:
        """Return what is wrong with the outcome, or None."""
        if self.code == HUNG:
            return "hang"
        if self.code not in CODES:
            return f"exit code {self.code}"
        if "Traceback (most recent call last)" in self.err:
            return "traceback"
        if self.code == 2 and (self.err.count("\n") != 1 or not self.err.startswith("normplace: ")):
            return f"{self.err.count(chr(10))} lines for a usage error"
        return None


def preload() -> None:
    """Import modules before the forks, so that the calls need not."""
    for name in PRELOADED:
        importlib.import_module(name)


def no_further_processes() -> None:
    """Run trials in the process of the call and draw empty charts, since starting processes for them is slow."""
    from normplace.lab.report.chart_renderer import ChartRenderer
    from normplace.lab.trials.engines import LocalEngine

    def run(self: LocalEngine, function: Callable, items: Sequence, started: Callable[[int], None]) -> Iterator:
        for index, item in enumerate(items):
            started(index)
            yield index, function(item)

    LocalEngine.run = run
    ChartRenderer.render_uncached = lambda self, request: "<svg></svg>"


def call(
    words: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    limit: float,
    prepare: Callable[[], None] = lambda: None,
) -> Outcome:
    """Run ``normplace WORDS`` in a forked process, after calling ``prepare`` there."""
    start = time.monotonic()
    paths = [folder / f".fuzz-{name}" for name in ("out", "err")]
    child = os.fork()
    if child == 0:
        _run(words, folder, environment, paths, prepare)
    code = _wait(child, limit)
    out, err = (path.read_bytes().decode(errors="backslashreplace") for path in paths)
    return Outcome(list(words), code, out, err, time.monotonic() - start)


def call_in_new_process(words: Sequence[str], folder: Path, environment: Mapping[str, str], limit: float) -> Outcome:
    """Run ``python -m normplace WORDS`` in a new process."""
    start = time.monotonic()
    command = [sys.executable, "-m", "normplace", *words]
    options = {"stdin": subprocess.DEVNULL, "capture_output": True, "cwd": folder, "timeout": limit}
    try:
        done = subprocess.run(command, env={**os.environ, **environment}, check=False, **options)
    except subprocess.TimeoutExpired:
        return Outcome(list(words), HUNG, "", "", limit)
    out, err = done.stdout.decode(errors="backslashreplace"), done.stderr.decode(errors="backslashreplace")
    return Outcome(list(words), done.returncode, out, err, time.monotonic() - start)


def _run(
    words: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    paths: Sequence[Path],
    prepare: Callable[[], None],
) -> None:
    """Redirect the streams of the child to files and run the command line; never returns."""
    code = CRASHED
    try:
        os.setpgid(0, 0)
        os.chdir(folder)
        os.environ.update(environment)
        encoding = environment.get("PYTHONIOENCODING", "utf-8")
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for number, path in enumerate(paths, start=1):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), number)
        sys.stdout = io.TextIOWrapper(io.FileIO(1, "w", closefd=False), encoding=encoding, write_through=True)
        sys.stderr = io.TextIOWrapper(io.FileIO(2, "w", closefd=False), encoding="utf-8", write_through=True)
        sys.path[:0] = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
        from normplace.cli import main

        prepare()
        code = main(list(words))
    except BaseException:
        os.write(2, traceback.format_exc().encode(errors="backslashreplace"))
    finally:
        os._exit(code)


def _wait(child: int, limit: float) -> int:
    deadline = time.monotonic() + limit
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return HUNG


def in_workers(task: Callable[[int], list[dict]], count: int, workers: int, folder: Path) -> Iterator[dict]:
    """Call ``task`` with 0 … count - 1, divided among forked processes, and yield the entries it returns."""
    children: dict[int, Path] = {}
    for worker in range(workers):
        path = folder / f"worker-{worker}.jsonl"
        child = os.fork()
        if child == 0:
            code = 1
            try:
                with path.open("w") as file:
                    for index in range(worker, count, workers):
                        for entry in task(index):
                            file.write(json.dumps(entry) + "\n")
                        file.flush()
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        children[child] = path
    for child, path in children.items():
        _, status = os.waitpid(child, 0)
        for text in path.read_text().splitlines():
            yield json.loads(text)
        if status:
            raise SystemExit(f"a worker of the fuzzer failed, see above ({path})")


def to_dict(outcome: Outcome) -> dict:
    """Return an outcome with its problem, as JSON types."""
    return {**asdict(outcome), "problem": outcome.problem()}


def fuzz_parser(description: str | None, *, calls: int, limit: float) -> argparse.ArgumentParser:
    """Return a parser with the options that every fuzzer of the command line has.

    Args:
        description: Description of the script.
        calls: Default number of calls, or of files that are read.
        limit: Default of the time limit in seconds.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", "--files", type=int, default=calls)
    parser.add_argument("--first", type=int, default=0, help="index of the first one, to repeat one of a seed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--limit", type=float, default=limit, help="seconds after which a call counts as a hang")
    parser.add_argument("--problems", type=Path, help="write the calls with problems to this file")
    return parser


def report_outcomes(outcomes: Sequence[dict], seconds: float, problems_file: Path | None) -> int:
    """Print the calls with a problem and a summary, and return the exit code: 1 if there are problems."""
    problems = [outcome for outcome in outcomes if outcome["problem"]]
    if problems_file:
        problems_file.write_text("".join(json.dumps(outcome) + "\n" for outcome in problems))
    for outcome in problems[:20]:
        print(f"{outcome['index']}: {outcome['problem']}: {outcome['words']}\n{outcome['err'][-600:]}")
    codes = Counter(outcome["code"] for outcome in outcomes)
    minutes = seconds / 60
    print(f"{len(outcomes)} calls in {minutes:.1f} minutes, {len(problems)} with a problem; exit codes {dict(codes)}")
    return 1 if problems else 0

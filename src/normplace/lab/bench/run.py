"""Run cases: check, then time, all methods of each."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch

from normplace.lab.bench.allocator import SETTINGS, keep_freed, return_freed
from normplace.lab.bench.case import Case, Op
from normplace.lab.bench.ceilings import ceilings
from normplace.lab.bench.check import WrongKernel, check
from normplace.lab.bench.isolation import SubprocessDied, run_in_subprocess
from normplace.lab.bench.memory import peak_bytes
from normplace.lab.bench.precompile import precompile
from normplace.lab.bench.progress import Progress
from normplace.lab.bench.record import Record, Row, run_environment
from normplace.lab.bench.timing import Effort, Spread, interleaved

# Time for one pass of one case, all methods together.
EFFORTS = {
    ("cpu", False): Effort(seconds=5.0, min_rounds=5, max_rounds=50),
    ("cpu", True): Effort(seconds=1.0, min_rounds=3, max_rounds=20),
    ("cuda", False): Effort(seconds=0.5, min_rounds=10, max_rounds=100),
    ("cuda", True): Effort(seconds=0.1, min_rounds=5, max_rounds=30),
}


@dataclass
class Outcome:
    """The result of a case."""

    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)


def plan(ops: Sequence[Op], device: str, quick: bool) -> list[Case]:
    """The cases of the ops, in order."""
    return [case for op in ops for case in op.cases(device, quick)]


def run(cases: Sequence[Case], device: str, quick: bool, progress: Progress, command: str) -> Iterator[Record]:
    """Measure the cases.

    Yields:
        After each case, the record of all cases so far.
    """
    precompile(cases, device)
    machine, limits = run_environment(), ceilings(device)
    total = Outcome(notes=[SETTINGS] if device == "cpu" else [])
    measure_case = functools.partial(measure, device=device, quick=quick)
    for index, outcome in enumerate(_outcomes(measure_case, cases, device, progress)):
        total.rows += outcome.rows
        total.notes += [note for note in outcome.notes if note not in total.notes]
        total.refused += outcome.refused
        progress.finished(index, not outcome.refused)
        results = {"rows": [*total.rows], "notes": [*total.notes], "refused": [*total.refused]}
        yield Record(**{"device": device, "command": command, "ceilings": limits} | machine | results)


def _outcomes(
    measure_case: Callable[[Case], Outcome], cases: Sequence[Case], device: str, progress: Progress
) -> Iterator[Outcome]:
    """The outcome of each case, measured in this process on a GPU and in a subprocess on a CPU."""
    for index, case in enumerate(cases):
        progress.started(index)
        if device == "cuda":
            yield measure_case(case)
            gc.collect()
            torch.cuda.empty_cache()
            continue
        try:
            yield run_in_subprocess(measure_case, case)
        except SubprocessDied as error:
            yield Outcome(notes=[f"{case}: {error}; is there enough memory?"])


def measure(case: Case, device: str, quick: bool) -> Outcome:
    """Check one case, then measure it; on a CPU in a process that does nothing else.

    Args:
        case: The case.
        device: ``cpu`` or ``cuda``.
        quick: Whether to measure few rounds.
    """
    return_freed()
    try:
        problem = case.build(device)
        errors, failed = check(case, problem)
    except WrongKernel as error:
        return Outcome(refused=[str(error)])
    except torch.OutOfMemoryError:
        return Outcome(notes=[f"{case}: the GPU has too little memory to check it"])
    outcome = Outcome(notes=[*problem.notes, *(f"{case}: {name} fails: {why}" for name, why in failed.items())])
    methods = {method.name: method for method in problem.methods if method.name not in failed}
    calls: dict[str, dict[str, Callable[[], object]]] = {}
    for name, method in methods.items():
        for step, call in method.calls(problem.seeds).items():
            calls.setdefault(step, {})[name] = call
    peaks = {step: {name: peak_bytes(call, device) for name, call in runs.items()} for step, runs in calls.items()}
    keep_freed()
    for step, runs in calls.items():
        times = interleaved(runs, device, EFFORTS[device, quick], problem.burst)
        floor, reference = problem.floors.get(step), times[problem.normplace.name]
        for name, durations in times.items():
            slower = Spread.of([peer / own for peer, own in zip(durations, reference, strict=True)])
            outcome.rows.append(
                Row(
                    op=case.op,
                    case=case.label,
                    step=step,
                    method=name,
                    seconds=Spread.of(durations),
                    slower=None if durations is reference else slower,
                    peak_bytes=peaks[step][name],
                    error=errors.get(name),
                    ceiling=floor.ceiling if floor else None,
                    amount=floor.amount if floor else None,
                    instead=methods[name].instead,
                    burst=problem.burst,
                )
            )
    return outcome

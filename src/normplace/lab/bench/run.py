"""A run: every case checked, then timed, beside its peers."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch

from normplace.lab.bench.ahead import compile_ahead
from normplace.lab.bench.allocator import SETTINGS, keep_freed, return_freed
from normplace.lab.bench.apart import Died, apart
from normplace.lab.bench.case import Case, Op
from normplace.lab.bench.ceilings import ceilings
from normplace.lab.bench.check import WrongKernel, check
from normplace.lab.bench.memory import peak_bytes
from normplace.lab.bench.progress import Progress
from normplace.lab.bench.record import Record, Row, surroundings
from normplace.lab.bench.timing import Effort, Spread, interleaved

# For one pass of one case, all methods together.
EFFORTS = {
    ("cpu", False): Effort(seconds=5.0, least=5, most=50),
    ("cpu", True): Effort(seconds=1.0, least=3, most=20),
    ("cuda", False): Effort(seconds=0.5, least=10, most=100),
    ("cuda", True): Effort(seconds=0.1, least=5, most=30),
}


@dataclass
class Outcome:
    """What became of a case."""

    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)


def plan(ops: Sequence[Op], device: str, quick: bool) -> list[Case]:
    """The cases of the ops, in their order."""
    return [case for op in ops for case in op.cases(device, quick)]


def run(cases: Sequence[Case], device: str, quick: bool, progress: Progress, command: str) -> Iterator[Record]:
    """Measure the cases.

    Args:
        cases: What to measure.
        device: ``cpu`` or ``cuda``.
        quick: Whether to take few times only.
        progress: Is told how far it is.
        command: What was typed, for the record.

    Yields:
        After each case, the record of all so far.
    """
    compile_ahead(cases, device)
    here, limits = surroundings(), ceilings(device)
    whole = Outcome(notes=[SETTINGS] if device == "cpu" else [])
    measured = functools.partial(measure, device=device, quick=quick)
    for index, outcome in enumerate(_outcomes(measured, cases, device, progress)):
        whole.rows += outcome.rows
        whole.notes += [note for note in outcome.notes if note not in whole.notes]
        whole.refused += outcome.refused
        progress.finished(index, not outcome.refused)
        kept = {"rows": [*whole.rows], "notes": [*whole.notes], "refused": [*whole.refused]}
        yield Record(**{"device": device, "command": command, "ceilings": limits} | here | kept)


def _outcomes(
    measured: Callable[[Case], Outcome], cases: Sequence[Case], device: str, progress: Progress
) -> Iterator[Outcome]:
    """Each case's outcome: on a GPU from here, on a CPU from a process of its own."""
    for index, case in enumerate(cases):
        progress.started(index)
        if device == "cuda":
            yield measured(case)
            gc.collect()
            torch.cuda.empty_cache()
            continue
        try:
            yield apart(measured, case)
        except Died as error:
            yield Outcome(notes=[f"{case}: {error}; is there memory enough?"])


def measure(case: Case, device: str, quick: bool) -> Outcome:
    """Check one case, then measure it; on a CPU in a process that does nothing else.

    Args:
        case: What to measure.
        device: ``cpu`` or ``cuda``.
        quick: Whether to take few times only.
    """
    return_freed()
    try:
        problem = case.build(device)
        errors, failed = check(case, problem)
    except WrongKernel as error:
        return Outcome(refused=[str(error)])
    except torch.OutOfMemoryError:
        return Outcome(notes=[f"{case}: the GPU's memory is too small to check it"])
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
        floor, ours = problem.floors.get(step), times[problem.ours.name]
        for name, taken in times.items():
            slower = Spread.of([their / our for their, our in zip(taken, ours, strict=True)])
            outcome.rows.append(
                Row(
                    op=case.op,
                    case=case.label,
                    step=step,
                    method=name,
                    seconds=Spread.of(taken),
                    slower=None if taken is ours else slower,
                    peak_bytes=peaks[step][name],
                    error=errors.get(name),
                    ceiling=floor.ceiling if floor else None,
                    amount=floor.amount if floor else None,
                    instead=methods[name].instead,
                    burst=problem.burst,
                )
            )
    return outcome

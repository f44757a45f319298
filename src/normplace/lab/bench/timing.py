"""Times of several calls taken turn by turn, so that what disturbs one disturbs all."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

# Larger than the second-level cache of any GPU so far: what a call finds there is not what the call before left.
FLUSHED_BYTES = 256 * 2**20
# Four milliseconds on an H200, in which the launches of a call are queued: a step of training has them queued, too.
FLUSHES = 64


@dataclass(frozen=True)
class Effort:
    """How long to measure.

    Args:
        seconds: To spend on one comparison, after warming up.
        least: Rounds even if they take longer.
        most: Rounds even if there is time left.
    """

    seconds: float
    least: int
    most: int


@dataclass(frozen=True)
class Spread:
    """The middle of some numbers, and the quartiles around it."""

    median: float
    low: float
    high: float
    runs: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Of two numbers or more."""
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median, low, high, len(values))


def interleaved(
    calls: Mapping[str, Callable[[], object]], device: str, effort: Effort, burst: int = 1
) -> dict[str, list[float]]:
    """Seconds of each call, one of each in every round.

    On a GPU these are times between events around a call whose inputs are not in the cache. While the cache is flushed
    the call's launches are queued, so only what launching takes beyond that shows. Before a burst nothing is flushed or
    queued: it shows what launching takes.

    Args:
        calls: What to time, by name.
        device: ``cpu`` or ``cuda``.
        effort: How long.
        burst: Calls on end that are timed as one; their time is divided by it.
    """
    calls = {name: _repeated(call, burst) for name, call in calls.items()}
    turn = _cuda_round(FLUSHES if burst == 1 else 0) if device == "cuda" else _cpu_round
    for _ in range(2 if device == "cuda" else 0):  # clocks rise, and the allocator finds its sizes
        turn(calls)
    start = time.perf_counter()
    turn(calls)
    took = time.perf_counter() - start
    rounds = min(effort.most, max(effort.least, int(effort.seconds / took)))
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, seconds in turn(calls).items():
            times[name].append(seconds / burst)
    return times


def _repeated(call: Callable[[], object], times: int) -> Callable[[], object]:
    def calls() -> None:
        for _ in range(times):
            call()

    return call if times == 1 else calls


def _cpu_round(calls: Mapping[str, Callable[[], object]]) -> dict[str, float]:
    found = {}
    for name, call in calls.items():
        start = time.perf_counter()
        call()
        found[name] = time.perf_counter() - start
    return found


def _cuda_round(flushes: int) -> Callable[[Mapping[str, Callable[[], object]]], dict[str, float]]:
    flushed = torch.zeros(FLUSHED_BYTES // 4, device="cuda")

    def turn(calls: Mapping[str, Callable[[], object]]) -> dict[str, float]:
        events = {}
        for name, call in calls.items():
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            if not flushes:
                torch.cuda.synchronize()  # what is still queued would hide the launches
            for _ in range(flushes):
                flushed.sum()  # read, not written: what is written would be written back at the call's expense
            start.record()
            call()
            end.record()
            events[name] = start, end
        torch.cuda.synchronize()
        return {name: start.elapsed_time(end) * 1e-3 for name, (start, end) in events.items()}

    return turn


def seconds(call: Callable[[], object], device: str, rounds: int) -> list[float]:
    """The times of one call alone, which has been warmed up."""
    return interleaved({"": call}, device, Effort(0.0, rounds, rounds))[""]


def median_seconds(call: Callable[[], object], device: str, rounds: int = 20) -> float:
    """The median time of one call alone."""
    return statistics.median(seconds(call, device, rounds))

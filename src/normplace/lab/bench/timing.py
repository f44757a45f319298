"""Interleaved timing of several calls, so that a disturbance affects all of them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

# Larger than the L2 cache of any GPU, so that a call does not find its inputs there.
FLUSHED_BYTES = 256 * 2**20
# Four milliseconds on an H200, in which the launches of a call are queued, as they are in a training step.
FLUSHES = 64


@dataclass(frozen=True)
class Effort:
    """How long to measure.

    Args:
        seconds: Time for one comparison, after warm-up.
        min_rounds: Fewest rounds, even if they take longer.
        max_rounds: Most rounds, even if time is left.
    """

    seconds: float
    min_rounds: int
    max_rounds: int


@dataclass(frozen=True)
class Spread:
    """Median and quartiles."""

    median: float
    low: float
    high: float
    runs: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Median and quartiles of two or more values."""
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median, low, high, len(values))


def interleaved(
    calls: Mapping[str, Callable[[], object]], device: str, effort: Effort, burst: int = 1
) -> dict[str, list[float]]:
    """Seconds of each call, with one of each in every round.

    On a GPU this is the time between events around a call whose inputs are not in the cache. The call's launches are
    queued while the cache is flushed, so launch overhead shows only if it exceeds the flush. Before a burst nothing is
    flushed or queued, so its time includes launch overhead.

    Args:
        calls: The calls, by name.
        device: ``cpu`` or ``cuda``.
        effort: How long to measure.
        burst: Calls timed back to back; the time is divided by their number.
    """
    calls = {name: _repeated(call, burst) for name, call in calls.items()}
    run_round = _cuda_round(FLUSHES if burst == 1 else 0) if device == "cuda" else _cpu_round
    for _ in range(2 if device == "cuda" else 0):  # warm up clocks and the allocator
        run_round(calls)
    start = time.perf_counter()
    run_round(calls)
    duration = time.perf_counter() - start
    rounds = min(effort.max_rounds, max(effort.min_rounds, int(effort.seconds / duration)))
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, seconds in run_round(calls).items():
            times[name].append(seconds / burst)
    return times


def _repeated(call: Callable[[], object], times: int) -> Callable[[], object]:
    def calls() -> None:
        for _ in range(times):
            call()

    return call if times == 1 else calls


def _cpu_round(calls: Mapping[str, Callable[[], object]]) -> dict[str, float]:
    durations = {}
    for name, call in calls.items():
        start = time.perf_counter()
        call()
        durations[name] = time.perf_counter() - start
    return durations


def _cuda_round(flushes: int) -> Callable[[Mapping[str, Callable[[], object]]], dict[str, float]]:
    flushed = torch.zeros(FLUSHED_BYTES // 4, device="cuda")

    def run_round(calls: Mapping[str, Callable[[], object]]) -> dict[str, float]:
        events = {}
        for name, call in calls.items():
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            if not flushes:
                torch.cuda.synchronize()  # queued work would hide the launches
            for _ in range(flushes):
                flushed.sum()  # reads only: written lines would be written back during the call
            start.record()
            call()
            end.record()
            events[name] = start, end
        torch.cuda.synchronize()
        return {name: start.elapsed_time(end) * 1e-3 for name, (start, end) in events.items()}

    return run_round


def seconds(call: Callable[[], object], device: str, rounds: int) -> list[float]:
    """Durations of one call."""
    return interleaved({"": call}, device, Effort(0.0, rounds, rounds))[""]


def median_seconds(call: Callable[[], object], device: str, rounds: int = 20) -> float:
    """Median duration of one call."""
    return statistics.median(seconds(call, device, rounds))

"""Interleaved timing, quartiles and peak memory."""

from __future__ import annotations

import sys
import time

import numpy as np
import pytest
import torch
from tests.lab.bench import sample

from normplace.lab.bench.isolation import run_in_subprocess
from normplace.lab.bench.memory import peak_bytes
from normplace.lab.bench.timing import Effort, Spread, interleaved


def test_the_spread_is_the_quartiles():
    values = [5.0, 1.0, 4.0, 2.0, 9.0, 7.0]
    low, median, high = np.quantile(values, [0.25, 0.5, 0.75])
    assert Spread.of(values) == Spread(median, low, high, 6)


def test_calls_are_interleaved():
    order = []
    calls = {name: lambda name=name: order.append(name) for name in "ab"}
    times = interleaved(calls, "cpu", Effort(seconds=0.0, min_rounds=4, max_rounds=9))
    assert order == ["a", "b"] * 5  # one round to see how long it takes
    assert {name: len(taken) for name, taken in times.items()} == {"a": 4, "b": 4}


def test_rounds_fill_the_available_time():
    calls = {"sleep": lambda: time.sleep(0.01)}
    assert len(interleaved(calls, "cpu", Effort(seconds=10.0, min_rounds=2, max_rounds=5))["sleep"]) == 5
    taken = interleaved(calls, "cpu", Effort(seconds=0.001, min_rounds=3, max_rounds=5))["sleep"]
    assert len(taken) == 3
    assert min(taken) >= 0.01


def test_a_burst_is_timed_together_and_divided():
    (taken,) = interleaved({"sleep": lambda: time.sleep(0.002)}, "cpu", Effort(0.0, 1, 1), burst=5)["sleep"]
    assert 0.002 <= taken < 0.008


@pytest.mark.skipif(sys.platform != "linux", reason="the resident set's high-water mark is Linux's")
def test_memory_on_a_cpu_is_what_was_taken_at_a_time():
    found = run_in_subprocess(sample.take, 64)
    assert found is not None
    assert 63 < found / 2**20 < 68


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_memory_and_times_on_a_gpu():
    x = torch.ones(2**20, device="cuda")
    assert peak_bytes(lambda: x + 1, "cuda") == 4 * 2**20
    times = interleaved({"one": lambda: x + 1, "forty": lambda: [x + 1 for _ in range(40)]}, "cuda", Effort(0.0, 9, 9))
    assert Spread.of(times["forty"]).median > 5 * Spread.of(times["one"]).median

"""Compile the kernels of all cases in parallel before the first measurement.

Compilers cache their results on disk. Compiling one case after the other would take minutes and use one core.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

from normplace.lab.bench.case import Case

MAX_PROCESSES = 8
"""Each process has the tensors of a case on the GPU."""


def precompile(cases: Sequence[Case], device: str) -> None:
    """Call every method of every case once in parallel processes, if that saves time.

    Args:
        cases: The cases that will be measured.
        device: ``cuda``; on any other device little is compiled and nothing is done.
    """
    processes = min(len(cases), (os.cpu_count() or 1) // 2, MAX_PROCESSES)
    if device != "cuda" or processes < 2:
        return
    print(f"compiling for {len(cases)} cases, {processes} at a time", file=sys.stderr, flush=True)
    try:
        with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
            list(pool.map(functools.partial(call_once, device=device), cases))
    except BrokenProcessPool:
        print("a compiling process died: the remaining kernels are compiled during the run", file=sys.stderr)


def call_once(case: Case, device: str) -> None:
    """Call every method of a case once; errors are printed and ignored."""
    try:
        problem = case.build(device)
        for method in problem.methods:
            for call in method.calls(problem.seeds).values():
                call()
    except Exception as error:  # the check of the case raises and reports it again
        print(f"{case}: {type(error).__name__} while compiling", file=sys.stderr)

"""Kernels of all cases compiled side by side before the first is measured.

Compilers keep what they make on disk. A run that compiled for one case after the other would take minutes for it, in
which all but one core wait.
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

MOST = 8
"""Processes at once, each with a case's tensors on the GPU."""


def compile_ahead(cases: Sequence[Case], device: str) -> None:
    """Use every method of every case once, in processes of their own, where that saves time.

    Args:
        cases: What will be measured.
        device: ``cuda``, or one where little is compiled and nothing is done.
    """
    processes = min(len(cases), (os.cpu_count() or 1) // 2, MOST)
    if device != "cuda" or processes < 2:
        return
    print(f"compiling for {len(cases)} cases, {processes} at a time", file=sys.stderr, flush=True)
    try:
        with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
            list(pool.map(functools.partial(use_once, device=device), cases))
    except BrokenProcessPool:
        print("a compiling process ended early: what is left is compiled on the way", file=sys.stderr)


def use_once(case: Case, device: str) -> None:
    """Call every method of a case once, whatever becomes of it.

    Args:
        case: What will be measured.
        device: Where.
    """
    try:
        problem = case.build(device)
        for method in problem.methods:
            for call in method.calls(problem.seeds).values():
                call()
    except Exception as error:  # it will be met again, and told, when the case is checked
        print(f"{case}: {type(error).__name__} while compiling", file=sys.stderr)

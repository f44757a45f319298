"""Blocks of work on a pool of threads."""

from __future__ import annotations

import multiprocessing
import threading

import pytest

from normplace.ops import threads


@pytest.mark.parametrize("number", [1, 2, 5])
def test_every_block_runs_once(number):
    done = []
    threads.run_blocks(lambda first, last: done.append((first, last)), [(n, n + 1) for n in range(40)], number)
    assert sorted(done) == [(n, n + 1) for n in range(40)]


def test_the_requested_threads_run_concurrently_and_persist():
    def names() -> set[str]:
        found, both = set(), threading.Barrier(2, timeout=30)

        def task(n: int) -> None:
            both.wait()
            found.add(threading.current_thread().name)

        threads.run_blocks(task, [(0,), (1,)], 2)
        return found

    first = names()
    assert len(first) == 2
    assert threading.current_thread().name in first
    assert names() == first


def test_an_error_in_a_block_is_raised():
    def task(n: int) -> None:
        if n == 3:
            raise ValueError("three")

    for number in (1, 2):
        with pytest.raises(ValueError, match="three"):
            threads.run_blocks(task, [(n,) for n in range(8)], number)


def _in_child(results) -> None:
    done = []
    threads.run_blocks(done.append, [(n,) for n in range(8)], 3)
    results.put(sorted(done))


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_process_creates_new_threads():
    threads.run_blocks(lambda n: None, [(n,) for n in range(8)], 3)
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    child = context.Process(target=_in_child, args=(results,))
    child.start()
    child.join(30)
    assert child.exitcode == 0
    assert results.get() == list(range(8))

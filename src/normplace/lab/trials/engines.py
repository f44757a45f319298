"""Where trials run: processes of this machine, a Ray cluster, or a Dask cluster.

An engine takes a function and its arguments and yields each result as it is ready. A worker that dies costs the trial
it ran, which is tried again; only a trial that kills its worker repeatedly is given up, as :class:`WorkerLost`.
"""

from __future__ import annotations

import importlib.util
import logging
import multiprocessing
import os
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Protocol

from normplace.errors import UsageError, unknown

RETRIES = 2


class WorkerLost(Exception):
    """A trial whose worker died every time it was tried."""


class Engine(Protocol):
    """Runs trials somewhere."""

    def run(
        self, function: Callable[[Any], Any], items: Sequence[Any], started: Callable[[int], None]
    ) -> Iterator[tuple[int, Any]]:
        """Yield (index, result) as items finish, in any order.

        Args:
            function: Importable by the workers.
            items: Its arguments, one call each.
            started: Called with an item's index when it is handed to a worker.
        """
        ...

    def close(self) -> None:
        """Stop what the engine started."""
        ...


class LocalEngine:
    """Processes on this machine, one pool each, so that a dying process takes no other's trial with it.

    Args:
        jobs: How many at once.
    """

    def __init__(self, jobs: int) -> None:
        self.jobs = jobs

    def close(self) -> None:
        """Nothing: the processes end with each run."""

    def run(
        self, function: Callable[[Any], Any], items: Sequence[Any], started: Callable[[int], None]
    ) -> Iterator[tuple[int, Any]]:
        """Yield (index, result) as items finish."""
        queue = list(enumerate(items))[::-1]
        lives = dict.fromkeys(range(len(items)), RETRIES)
        running: dict[Future[Any], tuple[int, ProcessPoolExecutor]] = {}
        idle = [_one_process() for _ in range(min(self.jobs, len(items)))]
        try:
            while queue or running:
                while queue and idle:
                    index, item = queue.pop()
                    pool = idle.pop()
                    running[pool.submit(function, item)] = (index, pool)
                    started(index)
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    index, pool = running.pop(future)
                    try:
                        result = future.result()
                    except BrokenProcessPool:
                        pool.shutdown(wait=False)
                        idle.append(_one_process())
                        if lives[index]:
                            lives[index] -= 1
                            queue.append((index, items[index]))
                            continue
                        result = WorkerLost(f"its process died {RETRIES + 1} times (out of memory, or killed)")
                    else:
                        idle.append(pool)
                    yield index, result
        finally:
            for pool in [*idle, *(pool for _, pool in running.values())]:
                for process in (pool._processes or {}).values():  # a trial that is no longer wanted must not go on
                    process.kill()
                pool.shutdown(wait=True, cancel_futures=True)


def _one_process() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), initializer=_end_with_parent)


def _end_with_parent() -> None:
    """Make the worker exit when the process that started it is gone, even if that was killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


class RayEngine:
    """Tasks on a Ray cluster; Ray itself tries a task again when its worker or node dies.

    Args:
        address: The cluster's; None uses ``RAY_ADDRESS`` or starts one on this machine.
        jobs: Processors of a cluster started here.
    """

    def __init__(self, address: str | None, jobs: int) -> None:
        import ray

        self._ray = ray
        self._owned = not ray.is_initialized()
        if not ray.is_initialized():
            address = address or os.environ.get("RAY_ADDRESS")
            _check_answers("Ray cluster", address)
            where: dict[str, Any] = {"address": address} if address else {"num_cpus": jobs, "include_dashboard": False}
            ray.init(log_to_driver=False, logging_level=logging.ERROR, **where)

    def close(self) -> None:
        """Leave the cluster, and end it if it was started here."""
        if self._owned:
            self._ray.shutdown()

    def run(
        self, function: Callable[[Any], Any], items: Sequence[Any], started: Callable[[int], None]
    ) -> Iterator[tuple[int, Any]]:
        """Yield (index, result) as items finish."""
        from ray.exceptions import NodeDiedError, OutOfMemoryError, WorkerCrashedError

        ray = self._ray
        task = ray.remote(function).options(num_cpus=1, max_retries=RETRIES)
        running = {}
        for index, item in enumerate(items):
            running[task.remote(item)] = index
            started(index)
        while running:
            (ready, *_), _ = ray.wait(list(running), num_returns=1)
            index = running.pop(ready)
            try:
                yield index, ray.get(ready)
            except (WorkerCrashedError, NodeDiedError, OutOfMemoryError):
                yield index, WorkerLost(f"its Ray worker died {RETRIES + 1} times")


class DaskEngine:
    """Tasks on a Dask cluster, which moves the tasks of a dead worker to another.

    Args:
        address: The scheduler's; None starts a cluster on this machine.
        jobs: Workers of a cluster started here.
    """

    def __init__(self, address: str | None, jobs: int) -> None:
        from dask import config
        from distributed import Client, LocalCluster

        config.set({"distributed.scheduler.allowed-failures": RETRIES})
        _check_answers("Dask scheduler", address)
        self._cluster = None
        if address is None:
            self._cluster = LocalCluster(n_workers=jobs, threads_per_worker=1, dashboard_address=":0")
        self._client = Client(address or self._cluster)

    def close(self) -> None:
        """Leave the cluster, and end it if it was started here."""
        self._client.close()
        if self._cluster is not None:
            self._cluster.close()

    def run(
        self, function: Callable[[Any], Any], items: Sequence[Any], started: Callable[[int], None]
    ) -> Iterator[tuple[int, Any]]:
        """Yield (index, result) as items finish."""
        from distributed import as_completed
        from distributed.scheduler import KilledWorker

        running = {}
        for index, item in enumerate(items):
            running[self._client.submit(function, item, pure=False)] = index
            started(index)
        for future in as_completed(list(running)):
            index = running.pop(future)
            try:
                yield index, future.result()
            except KilledWorker:
                yield index, WorkerLost(f"its Dask worker died {RETRIES + 1} times")


def _check_answers(what: str, address: str | None) -> None:
    """Refuse an address where nothing listens at once; the cluster libraries would try for minutes."""
    host, colon, port = (address or "").rpartition("//")[2].rpartition(":")
    if not colon:
        return  # none, or a word such as "auto" that the library resolves
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except (OSError, ValueError) as error:
        raise UsageError(f"no {what} answers at {address!r}: check --address or start one.") from error


ENGINES = {"local": None, "ray": "ray", "dask": "distributed"}


def open_engine(name: str, jobs: int, address: str | None = None) -> Engine:
    """The engine called ``name``.

    Args:
        name: A key of :data:`ENGINES`.
        jobs: How many trials at once, where the engine is started here.
        address: The cluster to join.

    Raises:
        UsageError: If there is no such engine, it is not installed, or its cluster does not answer.
    """
    if name not in ENGINES:
        raise unknown("engine", name, ENGINES)
    if jobs < 1:
        raise UsageError(f"--jobs must be at least 1, got {jobs}.")
    needs = ENGINES[name]
    if needs is None:
        if address:
            raise UsageError("--address names a cluster, which the local engine has none of: use --engine ray or dask.")
        return LocalEngine(jobs)
    if importlib.util.find_spec(needs) is None:
        raise UsageError(f"the {name} engine needs {needs!r}: pip install 'normplace[engines]'.")
    return RayEngine(address, jobs) if name == "ray" else DaskEngine(address, jobs)

"""Engines that run trials: processes on this machine, this process, a Ray cluster, or a Dask cluster.

An engine calls a function with each of several arguments and yields the results as they finish. If a worker dies, its
trial is retried up to twice; after that its result is a :class:`WorkerLost`. If a worker of a cluster cannot import
normplace, the result is a :class:`WorkerUnusable`.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import pickle
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Protocol

import torch

from normplace.errors import UsageError, expect_choice, expect_installed, expect_range
from normplace.lab.trials.spawn import WorkerContext, set_environment

RETRIES = 2


class WorkerLost(Exception):
    """The worker of a trial died in every attempt."""


class WorkerUnusable(Exception):
    """A worker cannot import what a trial needs.

    Args:
        host: The machine of the worker.
        reason: What cannot be imported, as the end of a sentence.
    """

    def __init__(self, host: str, reason: str) -> None:
        super().__init__(host, reason)
        self.host = host
        self.reason = reason


class Engine(Protocol):
    """Runs trials in parallel."""

    remote: bool
    """Whether workers may be on other machines, so that code and data must be sent to them."""

    def run(
        self, function: Callable[[Any], Any], items: Sequence[Any], started: Callable[[int], None]
    ) -> Iterator[tuple[int, Any]]:
        """Yield (index, result) as items finish, in any order.

        Args:
            function: A function of normplace, or a partial of one. It is sent to a cluster once for all items.
            items: Its arguments, one per call.
            started: Called with the index of an item when a worker receives it.
        """
        ...

    def close(self) -> None:
        """Stop the workers that the engine started."""
        ...


class LocalEngine:
    """Processes on this machine. Each has its own pool, so that a process that dies does not affect other trials.

    Idle processes are kept for the next run, because a new one imports the study again.

    Args:
        jobs: Number of processes.
        gpus: Names of GPUs as in ``CUDA_VISIBLE_DEVICES``. The processes take turns, and each sees one of them; without
            names, every process sees all GPUs.
    """

    remote = False

    def __init__(self, jobs: int, gpus: Sequence[str] = ()) -> None:
        self.jobs, self.gpus = jobs, gpus
        self._idle: list[LocalWorker] = []

    def close(self) -> None:
        """Stop the processes."""
        _stop(self._idle)
        self._idle = []

    def run(
        self, function: Callable[[Any], Any], items: Sequence[Any], started: Callable[[int], None]
    ) -> Iterator[tuple[int, Any]]:
        """Yield (index, result) as items finish."""
        queue = list(enumerate(items))[::-1]
        retries_left = dict.fromkeys(range(len(items)), RETRIES)
        running: dict[Future[Any], tuple[int, LocalWorker]] = {}
        idle = self._idle
        idle += [self._worker(number) for number in range(len(idle), min(self.jobs, len(items)))]
        try:
            while queue or running:
                while queue and idle:
                    index, item = queue.pop()
                    worker = idle.pop()
                    running[worker.pool.submit(function, item)] = (index, worker)
                    started(index)
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    index, worker = running.pop(future)
                    try:
                        result = future.result()
                    except BrokenProcessPool:
                        worker.pool.shutdown(wait=False)
                        idle.append(LocalWorker(worker.gpu))
                        if retries_left[index]:
                            retries_left[index] -= 1
                            queue.append((index, items[index]))
                            continue
                        result = WorkerLost(f"its process died {RETRIES + 1} times (out of memory, or killed)")
                    else:
                        idle.append(worker)
                    yield index, result
        finally:
            _stop([worker for _, worker in running.values()])

    def _worker(self, number: int) -> LocalWorker:
        return LocalWorker(self.gpus[number % len(self.gpus)] if self.gpus else None)


class LocalWorker:
    """A process that runs one trial at a time.

    Args:
        gpu: The only GPU that it sees; None for all.
    """

    def __init__(self, gpu: str | None = None) -> None:
        self.gpu = gpu
        self.pool = ProcessPoolExecutor(1, WorkerContext(), _start_worker, (gpu, dict(os.environ)))


class InProcessEngine:
    """This process, which runs trials one after another; for code that other processes cannot import."""

    remote = False

    def close(self) -> None:
        """Nothing to stop."""

    def run(
        self, function: Callable[[Any], Any], items: Sequence[Any], started: Callable[[int], None]
    ) -> Iterator[tuple[int, Any]]:
        """Yield (index, result) as items finish."""
        for index, item in enumerate(items):
            started(index)
            yield index, function(item)


def _stop(workers: Sequence[LocalWorker]) -> None:
    for worker in workers:
        for process in (worker.pool._processes or {}).values():  # ends a trial that still runs
            process.kill()
        worker.pool.shutdown(wait=True, cancel_futures=True)


def visible_gpus() -> list[str]:
    """The GPUs of this process, named as in ``CUDA_VISIBLE_DEVICES``."""
    names = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = torch.cuda.device_count()
    return [str(index) for index in range(count)] if names is None else names.split(",")[:count]


def _start_worker(gpu: str | None, environment: Mapping[str, str]) -> None:
    """Set the environment and the GPU of a worker, and make it exit when its parent process exits or is killed."""
    set_environment(environment)
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu  # read when CUDA starts, which is later
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


class RayEngine:
    """Tasks on a Ray cluster; Ray retries a task if its worker or node dies.

    Args:
        address: Address of the cluster; None uses ``RAY_ADDRESS`` or starts a cluster on this machine.
        jobs: Number of CPUs of a cluster that is started here.
        gpu_share: Part of a GPU that each trial needs; Ray hides the GPUs from trials that need none.

    Raises:
        UsageError: If the cluster is not reachable, or has another version of Ray or Python.
    """

    remote = True

    def __init__(self, address: str | None, jobs: int, gpu_share: float = 0.0) -> None:
        import ray

        self._ray, self._gpu_share = ray, gpu_share
        self._owned = not ray.is_initialized()
        if not ray.is_initialized():
            address = address or os.environ.get("RAY_ADDRESS")
            _check_reachable("Ray cluster", address)
            options: dict[str, Any] = {"num_cpus": jobs, "include_dashboard": False}
            if address:
                options = {"address": address}
            try:
                ray.init(log_to_driver=False, logging_level=logging.ERROR, **options)
            except (ConnectionError, RuntimeError) as error:
                reason = str(error).partition("\n")[0].rstrip(".: ")
                raise UsageError(f"cannot join the Ray cluster ({reason}): check --address.") from error

    def close(self) -> None:
        """Disconnect from the cluster, and stop it if it was started here."""
        if self._owned:
            self._ray.shutdown()

    def run(
        self, function: Callable[[Any], Any], items: Sequence[Any], started: Callable[[int], None]
    ) -> Iterator[tuple[int, Any]]:
        """Yield (index, result) as items finish."""
        from ray.exceptions import NodeDiedError, OutOfMemoryError, WorkerCrashedError

        ray = self._ray
        task = ray.remote(make_call()).options(num_cpus=1, num_gpus=self._gpu_share, max_retries=RETRIES)
        function_bytes = ray.put(pickle.dumps(function))
        running = {}
        for index, item in enumerate(items):
            running[task.remote(function_bytes, pickle.dumps(item))] = index
            started(index)
        while running:
            (finished, *_), _ = ray.wait(list(running), num_returns=1)
            index = running.pop(finished)
            try:
                yield index, read_answer(ray.get(finished))
            except (WorkerCrashedError, NodeDiedError, OutOfMemoryError):
                yield index, WorkerLost(f"its Ray worker died {RETRIES + 1} times")


class DaskEngine:
    """Tasks on a Dask cluster; Dask moves the tasks of a dead worker to another one.

    Args:
        address: Address of the scheduler; None starts a cluster on this machine.
        jobs: Number of workers of a cluster that is started here.
    """

    remote = True

    def __init__(self, address: str | None, jobs: int) -> None:
        from dask import config
        from distributed import Client, LocalCluster

        config.set({"distributed.scheduler.allowed-failures": RETRIES})
        _check_reachable("Dask scheduler", address)
        self._cluster = None
        if address is None:
            self._cluster = LocalCluster(n_workers=jobs, threads_per_worker=1, dashboard_address=":0")
        self._client = Client(address or self._cluster)

    def close(self) -> None:
        """Disconnect from the cluster, and stop it if it was started here."""
        self._client.close()
        if self._cluster is not None:
            self._cluster.close()

    def run(
        self, function: Callable[[Any], Any], items: Sequence[Any], started: Callable[[int], None]
    ) -> Iterator[tuple[int, Any]]:
        """Yield (index, result) as items finish."""
        from distributed import as_completed
        from distributed.scheduler import KilledWorker

        call = make_call()
        # A task, not scattered data: Dask repeats a task if the worker that has its result dies.
        function_bytes = self._client.submit(bytes, pickle.dumps(function), pure=False)
        running = {}
        for index, item in enumerate(items):
            running[self._client.submit(call, function_bytes, pickle.dumps(item), pure=False)] = index
            started(index)
        for future in as_completed(list(running)):
            index = running.pop(future)
            try:
                yield index, read_answer(future.result())
            except KilledWorker:
                yield index, WorkerLost(f"its Dask worker died {RETRIES + 1} times")


def make_call() -> Callable[[bytes, bytes], tuple[bool, Any]]:
    """Return the function that a worker of a cluster calls.

    It is a nested function without globals, so that it is sent as code: a worker without normplace can run it and
    report what is missing.
    """

    def call(function_bytes: bytes, item_bytes: bytes) -> tuple[bool, Any]:
        import pickle
        import socket

        try:
            function, item = pickle.loads(function_bytes), pickle.loads(item_bytes)
        except (ImportError, AttributeError) as error:
            return False, (socket.gethostname(), f"{type(error).__name__}: {error}")
        return True, function(item)

    return call


def read_answer(answer: tuple[bool, Any]) -> Any:
    """Return the result that a call returned, or a :class:`WorkerUnusable`."""
    succeeded, result = answer
    return result if succeeded else WorkerUnusable(*result)


def _check_reachable(kind: str, address: str | None) -> None:
    """Raise UsageError at once if nothing listens at an address; the cluster libraries would retry for minutes."""
    host, colon, port = (address or "").rpartition("//")[2].rpartition(":")
    if not colon:
        return  # no address, or a word such as "auto" that the library resolves
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except (OSError, ValueError) as error:
        raise UsageError(f"no {kind} is listening at {address!r}: check --address or start one.") from error


ENGINES = {"local": None, "ray": "ray", "dask": "distributed"}


def check_engine(name: str, address: str | None = None) -> None:
    """Check that an engine exists and is installed.

    Raises:
        UsageError: If not, or if an engine without a cluster is given an address.
    """
    expect_choice("engine", name, ENGINES)
    module = ENGINES[name]
    if module is not None:
        expect_installed(f"the {name} engine", module, "engines")
    elif address:
        raise UsageError("the local engine has no --address: use --engine ray or dask.")


def open_engine(name: str, jobs: int, address: str | None = None, gpu_share: float = 0.0) -> Engine:
    """Open an engine by its name.

    Args:
        name: A key of :data:`ENGINES`.
        jobs: Number of trials at once, if the engine starts its workers here.
        address: Address of a running cluster.
        gpu_share: Part of a GPU that each trial needs. Local processes take turns over the GPUs of this process, and
            Ray places trials by it; the trials of Dask see every GPU.

    Raises:
        UsageError: If there is no such engine, it is not installed, or its cluster is not reachable.
    """
    check_engine(name, address)
    expect_range("--jobs", jobs, least=1)
    if name == "local":
        return LocalEngine(jobs, visible_gpus() if gpu_share else ())
    return RayEngine(address, jobs, gpu_share) if name == "ray" else DaskEngine(address, jobs)

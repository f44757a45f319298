"""Ray and Dask clusters whose processes are started by separate commands, in a folder without the study."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

import normplace

BIN = Path(sys.executable).parent
SECONDS = 120
QUIET = {"DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED": "false"}
"""Dask samples the stack of each worker a hundred times a second."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def command(folder: Path, *words: str) -> Iterator[Path]:
    """Run a command in a folder, with normplace importable and nothing else; yield the file of its output."""
    log = folder / f"{words[1]}-{len(list(folder.glob('*.log')))}.log"
    environment = {**os.environ, "PYTHONPATH": str(Path(normplace.__file__).parents[1]), **QUIET}
    with log.open("w") as stream:
        process = subprocess.Popen(
            [str(BIN / words[0]), *words[1:]],
            cwd=folder,
            env=environment,
            stdout=stream,
            stderr=stream,
            start_new_session=True,
        )
    try:
        yield log
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(SECONDS)


def wait_for(log: Path, text: str, times: int = 1) -> None:
    """Wait until a command has printed a text."""
    deadline = time.monotonic() + SECONDS
    while log.read_text().count(text) < times:
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)


@contextmanager
def ray_cluster(folder: Path) -> Iterator[str]:
    """Two nodes with one CPU each; yield the address."""
    address = f"127.0.0.1:{free_port()}"
    shared = ("--num-cpus=1", "--disable-usage-stats", "--block", "--dashboard-agent-listen-port=0")
    shared += ("--include-log-monitor=false",)  # a process per node that sends the workers' output to the driver
    with ExitStack() as stack:
        # A token that another program left in the home folder would be used by a part of the processes only.
        stack.enter_context(pytest.MonkeyPatch.context()).setenv("RAY_AUTH_MODE", "disabled")
        # The sockets of Ray need a short path.
        session = stack.enter_context(tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True))
        port = f"--port={address.rpartition(':')[2]}"
        head = ("--head", port, "--include-dashboard=false", "--no-monitor", f"--temp-dir={session}")
        wait_for(stack.enter_context(command(folder, "ray", "start", *head, *shared)), "Ray runtime started")
        node = command(folder, "ray", "start", f"--address={address}", *shared)
        wait_for(stack.enter_context(node), "Ray runtime started")
        yield address


@contextmanager
def dask_cluster(folder: Path) -> Iterator[str]:
    """A scheduler and two workers; yield the address."""
    address = f"tcp://127.0.0.1:{free_port()}"
    workers = ("--nworkers", "2", "--nthreads", "1", "--no-dashboard")
    port = address.rpartition(":")[2]
    with (
        command(folder, "dask", "scheduler", "--host", "127.0.0.1", "--port", port, "--no-dashboard") as scheduler,
        command(folder, "dask", "worker", address, *workers) as log,
    ):
        wait_for(scheduler, "Scheduler at")
        wait_for(log, "Registered to", times=2)
        yield address

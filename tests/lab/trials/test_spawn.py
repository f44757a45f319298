"""Worker processes, the server that starts them on Linux, and the script that uses them."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
import torch

from normplace.lab.trials.engines import LocalEngine

SCRIPT = """
import os
from normplace.lab.trials.engines import LocalEngine

print("script", flush=True)
engine = LocalEngine(1)
print(list(engine.run(os.path.basename, ["a/b"], lambda index: None)))
engine.close()
print(__file__.rpartition("/")[2], __spec__)
"""

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="other platforms start each worker as a new process")


def test_a_script_without_a_guard_is_not_run_by_its_workers(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run([sys.executable, tmp_path / "script.py"], capture_output=True, text=True)
    assert done.stdout.splitlines() == ["script", "[(0, 'b')]", "script.py None"], done.stderr
    assert not done.stderr, "the server of the workers exits silently"


def results(function, *items):
    """The results of a function in new workers, one for each item."""
    with closing(LocalEngine(len(items))) as engine:
        return [result for _, result in sorted(engine.run(function, items, lambda index: None))]


def server_of(_: int) -> int:
    return os.getppid()


@on_linux
def test_workers_are_forks_of_one_process_that_has_imported_torch():
    servers = {*results(server_of, 0, 1), *results(server_of, 0)}
    (server,) = servers
    assert server != os.getpid()
    assert "libtorch" in Path(f"/proc/{server}/maps").read_text()
    threads = len(list(Path(f"/proc/{server}/task").iterdir()))
    assert threads == 1, "a fork does not have the threads of its parent, and waits for them forever"


def is_imported(module: str) -> bool:
    return module in sys.modules


@on_linux
@pytest.mark.skipif(torch.backends.cuda.is_built(), reason="not preloaded with a build of PyTorch for CUDA")
def test_the_first_optimizer_of_a_worker_imports_nothing():
    assert results(is_imported, "torch._dynamo") == [True]


@on_linux
def test_another_server_replaces_one_that_was_killed():
    (server,) = results(server_of, 0)
    os.kill(server, signal.SIGKILL)
    os.waitid(os.P_PID, server, os.WEXITED | os.WNOWAIT)
    (other,) = results(server_of, 0)
    assert other not in (server, os.getpid())


def test_a_worker_has_the_environment_and_the_folder_of_its_start(monkeypatch, tmp_path):
    monkeypatch.delenv("NORMPLACE_TEST_VARIABLE", raising=False)
    assert results(os.getenv, "NORMPLACE_TEST_VARIABLE") == [None]
    monkeypatch.setenv("NORMPLACE_TEST_VARIABLE", "set")
    monkeypatch.chdir(tmp_path)
    assert results(os.getenv, "NORMPLACE_TEST_VARIABLE") == ["set"]
    assert results(os.path.realpath, "file") == [str(tmp_path.resolve() / "file")]
    monkeypatch.delenv("NORMPLACE_TEST_VARIABLE")
    assert results(os.getenv, "NORMPLACE_TEST_VARIABLE") == [None]


def draw(_: int) -> float:
    return random.random()


def test_workers_do_not_share_random_numbers():
    first, second = results(draw, 0, 1)
    assert first != second

"""No test reads the user's data or the network: what needs a file is given one made for it."""

from __future__ import annotations

import atexit
import gc
import os

gc.disable()  # until all tests are collected: nothing that is imported is garbage
if "PYTEST_XDIST_WORKER" in os.environ:
    # A worker that exits has sent its results, and deleting its objects one by one would take seconds. Functions that
    # are registered later are called earlier.
    atexit.register(os._exit, 0)

import logging  # noqa: E402
import shutil  # noqa: E402
import tempfile  # noqa: E402
from collections.abc import Generator, Iterator  # noqa: E402
from pathlib import Path  # noqa: E402

import pytest  # noqa: E402
import torch  # noqa: E402
from hypothesis import HealthCheck, settings  # noqa: E402
from tests.browser import CHROME, Browser  # noqa: E402
from tests.chart_processes import ChartProcesses  # noqa: E402

# The time that an example takes depends on what else the machine does.
settings.register_profile("any load", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any load")

# Each process compiles for itself: the pool of processes that torch.compile starts otherwise has to import torch first.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
# Before its first kernel, torch.compile tries whether the compiler knows the vector instructions of the processor, and
# takes as long as ten kernels for it. An empty variable restores this.
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")

# While the trace log of torch has a handler, torch extracts a stack or prints a graph for each event of a trace or a
# compilation, which is half of the time of a trace. pytest gives its handler to every logger that does not propagate.
TRACE_LOG = logging.getLogger("torch.__trace")
if "TORCH_TRACE" not in os.environ:
    TRACE_LOG.propagate = True
    for handler in TRACE_LOG.handlers[:]:
        TRACE_LOG.removeHandler(handler)

# Allocations between two collections of garbage, and collections between two of an older generation. With Python's
# 700, 10 and 10, a tenth of the time of a test that traces or edits models is spent in collections.
GC_THRESHOLDS = (20_000, 20, 20)

# Files whose single tests or fixtures take longest start first, so that no worker waits for one at the end.
LONGEST = (
    "test_engines.py",
    "test_kill.py",
    "test_kill_training.py",
    "test_triton.py",
    "test_site.py",
    "test_distributed.py",
    "test_fuzz_checkpoints.py",
    "test_documents.py",
    "test_committed_report.py",
)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Hide the objects of imports and collection, which live until the end, from the garbage collector."""
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLDS)
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.name not in LONGEST)


def pytest_configure(config: pytest.Config) -> None:
    """Give the run a cache folder before any module is imported; workers inherit it."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        cache = os.environ["NORMPLACE_CACHE"] = tempfile.mkdtemp(prefix="normplace-tests-")
        config.add_cleanup(lambda: shutil.rmtree(cache, ignore_errors=True))


def pytest_unconfigure(config: pytest.Config) -> None:
    if "PYTEST_XDIST_WORKER" not in os.environ and not config.pluginmanager.hasplugin("dsession"):
        gc.unfreeze()  # Triton's library reports objects of tests that are left when the process exits


@pytest.fixture(autouse=True, scope="session")
def nothing_from_outside(tmp_path_factory):
    cache = tmp_path_factory.mktemp("cache")
    for name in ("charts", "numba"):  # several tests draw the same charts or compile the same loops, in any process
        shared = Path(os.environ["NORMPLACE_CACHE"]) / name
        shared.mkdir(exist_ok=True)
        (cache / name).symlink_to(shared)
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("NORMPLACE_DATA", raising=False)
        patch.setenv("NORMPLACE_OFFLINE", "1")
        patch.setenv("NORMPLACE_CACHE", str(cache))
        yield


@pytest.fixture(autouse=True, scope="session")
def kept_chart_processes() -> Iterator[None]:
    processes = ChartProcesses()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("normplace.lab.report.chart_renderer.subprocess", processes)
        yield
    processes.end()


@pytest.fixture
def one_thread():
    """As the runner trains: networks this small run fastest on one thread, more would only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def browser(tmp_path_factory) -> Iterator[Browser]:
    if CHROME is None:
        pytest.skip("no chromium, chromium-browser or google-chrome on this machine")
    with Browser(tmp_path_factory.mktemp("profile")) as browser:
        yield browser

"""The same study on every engine, and workers that are killed."""

from __future__ import annotations

import io
import os
from contextlib import closing
from pathlib import Path

import pytest
from tests.lab.sample import STUDY as SAMPLE
from tests.lab.sample import reproducible

from normplace import UsageError
from normplace.lab.studies.extrapolation import STUDY as EXTRAPOLATION
from normplace.lab.trials.engines import LocalEngine, open_engine
from normplace.lab.trials.progress import Progress
from normplace.lab.trials.runner import Run

ROOT = Path(__file__).parents[3]
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


def execute(study, out, engine, **overrides):
    return Run(study, "smoke", overrides).execute(out, engine, Progress(io.StringIO()))


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """The smoke study on local processes."""
    return reproducible(execute(EXTRAPOLATION, tmp_path_factory.mktemp("local"), LocalEngine(2)))


@pytest.fixture(scope="module")
def two_ray_nodes():
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    cluster.add_node(num_cpus=1)
    yield cluster.address
    ray.shutdown()
    cluster.shutdown()


@pytest.fixture(scope="module")
def dask_workers():
    distributed = pytest.importorskip("distributed")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster:
        yield cluster.scheduler_address


@pytest.mark.parametrize("engine", ["ray", "dask"])
def test_a_cluster_gives_the_records_of_local_processes(engine, reference, tmp_path, request):
    address = request.getfixturevalue("two_ray_nodes" if engine == "ray" else "dask_workers")
    with closing(open_engine(engine, 2, address)) as opened:
        assert reproducible(execute(EXTRAPOLATION, tmp_path, opened)) == reference


@pytest.mark.parametrize("engine", ["ray", "dask"])
def test_the_trial_of_a_killed_worker_is_retried(engine, tmp_path, request):
    address = request.getfixturevalue("two_ray_nodes" if engine == "ray" else "dask_workers")
    with closing(open_engine(engine, 2, address)) as opened:
        lines = execute(SAMPLE, tmp_path, opened, mark=f"die:up0:{tmp_path / 'died'}")
    assert (tmp_path / "died").exists()
    assert [line.status for line in lines] == ["ok"] * 4


@pytest.mark.parametrize("engine", ["ray", "dask"])
def test_an_unreachable_cluster_is_named(engine):
    pytest.importorskip({"ray": "ray", "dask": "distributed"}[engine])
    with pytest.raises(UsageError, match="check --address or start one"):
        open_engine(engine, 1, "127.0.0.1:9")


def test_a_missing_engine_names_the_package_to_install(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"normplace\[engines\]"):
        open_engine("ray", 1)

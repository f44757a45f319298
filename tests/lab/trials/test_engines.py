"""The same studies on every engine, and workers that are killed or cannot import a study."""

from __future__ import annotations

import io
import pickle
import subprocess
import sys
from contextlib import closing

import pytest
from tests.documents import ROOT, blocks_of
from tests.lab.sample import STUDY as SAMPLE
from tests.lab.sample import reproducible
from tests.lab.trials.clusters import dask_cluster, ray_cluster
from tests.lab.trials.in_process import Counting

from normplace import UsageError
from normplace.cli import main
from normplace.lab.studies import STUDIES
from normplace.lab.studies.extrapolation import STUDY as EXTRAPOLATION
from normplace.lab.trials.engines import LocalEngine, WorkerUnusable, make_call, open_engine, read_answer
from normplace.lab.trials.progress import Progress
from normplace.lab.trials.runner import Run
from normplace.lab.trials.study import load_study

SHORT = {"epochs": 2, "sequences": 8, "rounds": 2, "directions": 2, "steps": 5}
"""Every trial of the smoke study, with less training."""

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
    return reproducible(execute(EXTRAPOLATION, tmp_path_factory.mktemp("local"), LocalEngine(2), **SHORT))


@pytest.fixture(scope="module")
def ray_address(tmp_path_factory):
    pytest.importorskip("ray")
    with ray_cluster(tmp_path_factory.mktemp("ray")) as address:
        yield address


@pytest.fixture(scope="module")
def dask_address(tmp_path_factory):
    pytest.importorskip("distributed")
    with dask_cluster(tmp_path_factory.mktemp("dask")) as address:
        yield address


@pytest.fixture(scope="module", params=["ray", "dask"])
def cluster(request):
    """An engine whose workers were started by separate commands in another folder; all tests share its workers."""
    with closing(open_engine(request.param, 2, request.getfixturevalue(f"{request.param}_address"))) as engine:
        yield engine


@pytest.mark.parametrize("engine", ["ray", "dask"])
def test_an_unreachable_cluster_is_named(engine):
    """The first test: Ray has one connection per process, and the engine of the tests below stays connected."""
    pytest.importorskip({"ray": "ray", "dask": "distributed"}[engine])
    with pytest.raises(UsageError, match="check --address or start one"):
        open_engine(engine, 1, "127.0.0.1:9")


def test_a_cluster_gives_the_records_of_local_processes(cluster, reference, tmp_path):
    assert reproducible(execute(EXTRAPOLATION, tmp_path, cluster, **SHORT)) == reference


def test_the_trial_of_a_killed_worker_is_retried(cluster, tmp_path):
    lines = execute(SAMPLE, tmp_path, cluster, mark=f"die:up0:{tmp_path / 'died'}")
    assert (tmp_path / "died").exists()
    assert [line.status for line in lines] == ["ok"] * 4


def test_code_and_data_of_a_users_study_are_sent_to_the_workers(cluster, own_study, tmp_path):
    study = load_study(str(own_study), STUDIES)
    records = execute(study, tmp_path / "cluster", cluster)
    assert [record.metrics.pop("original") for record in records] == [0.0] * 4, "not read from the user's folder"
    here = execute(study, tmp_path / "here", Counting())
    assert [record.metrics.pop("original") for record in here] == [1.0] * 4
    assert reproducible(records) == reproducible(here)
    assert [record.source for record in records] == [record.source for record in here]


def test_changed_code_reaches_workers_that_ran_the_old_one(cluster, own_study, tmp_path):
    execute(load_study(str(own_study), STUDIES), tmp_path / "old", cluster)
    (own_study.parent / "late_import.py").write_text("FACTOR = 5.0\n")
    records = execute(load_study(str(own_study), STUDIES), tmp_path / "new", cluster)
    assert records[0].metrics["lifted"] == 70.0


def test_a_new_study_runs_on_a_cluster(cluster, forget_imports, tmp_path, monkeypatch, reference_of_template):
    monkeypatch.chdir(tmp_path)
    assert main(["new", "study", "cluster_study"]) == 0
    records = execute(load_study("cluster_study.py", STUDIES), tmp_path / "runs", cluster, steps=2)
    assert [record.metrics for record in records] == reference_of_template
    assert main(["verify", "runs"]) == 0


def test_the_study_of_the_tutorial_runs_on_a_cluster(cluster, forget_imports, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("NORMPLACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "project").mkdir()
    for block in blocks_of(ROOT / "docs" / "tutorials" / "own-study.md"):
        if block.title:
            (tmp_path / "project" / block.title).write_text(block.body)
    study = load_study("project/growth_study.py", STUDIES)
    records = Run(study, "laptop").execute(tmp_path / "cluster", cluster, Progress(io.StringIO()))
    assert [record.status for record in records] == ["ok"] * 24
    here = Run(study, "laptop").execute(tmp_path / "here", Counting(), Progress(io.StringIO()))
    assert reproducible(records) == reproducible(here)
    assert main(["verify", "cluster"]) == 0
    assert "reproduced: Without norms the variance at least doubles in every block." in capsys.readouterr().out
    assert main(["report", "cluster", "--out", "page.html"]) == 0
    page = (tmp_path / "page.html").read_text()
    assert "Norms turn exponential growth into linear growth" in page
    assert "normplace study project/growth_study.py" in page


@pytest.fixture(scope="module")
def reference_of_template(tmp_path_factory):
    """Metrics of the template of ``normplace new study``, run in this process."""
    study = load_study("normplace.cli.study_template:STUDY", {})
    return [record.metrics for record in execute(study, tmp_path_factory.mktemp("here"), Counting(), steps=2)]


def test_a_worker_that_lacks_a_package_is_one_sentence(cluster, own_study, tmp_path, monkeypatch):
    own_study.write_text(
        "import os\nif 'PACKAGE_IS_HERE' not in os.environ:\n    import a_missing_package\n" + own_study.read_text()
    )
    monkeypatch.setenv("PACKAGE_IS_HERE", "1")
    study = load_study(str(own_study), STUDIES)
    with pytest.raises(UsageError) as error:
        execute(study, tmp_path / "runs", cluster)
    message = str(error.value)
    assert message.startswith("a worker on ")
    assert "No module named 'a_missing_package'" in message
    assert message.endswith("install normplace and what the study imports on every worker.")
    assert "\n" not in message


WORKER = """
import pickle, sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "normplace":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
call, payload = pickle.load(sys.stdin.buffer)
print(call(payload, pickle.dumps(None)))
"""


def test_a_worker_without_normplace_reports_it():
    cloudpickle = pytest.importorskip("cloudpickle")
    sent = cloudpickle.dumps((make_call(), pickle.dumps(Run.plan)))
    done = subprocess.run([sys.executable, "-c", WORKER], input=sent, capture_output=True, check=True)
    answer = eval(done.stdout)
    unusable = read_answer(answer)
    assert isinstance(unusable, WorkerUnusable)
    assert unusable.host
    assert unusable.reason == "ModuleNotFoundError: No module named 'normplace'"


def test_a_missing_engine_names_the_package_to_install(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"normplace\[engines\]"):
        open_engine("ray", 1)

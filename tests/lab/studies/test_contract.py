"""The contract of every study: names, plans, smoke trials, claims and figures."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests.lab.committed import committed_run
from tests.lab.studies.support import draw, stand_in_data

from normplace.lab.studies import FOLDER, STUDIES, committed_results
from normplace.lab.trials.claims import Verdict, judge
from normplace.lab.trials.config import config_from_dict
from normplace.lab.trials.per_seed import SuccessfulRecords
from normplace.lab.trials.record import SCALES
from normplace.lab.trials.results import TrialRecord
from normplace.lab.trials.runner import Run
from normplace.lab.trials.study import Study, named_study
from normplace.lab.trials.trial import Trial, run_trial, trial_label

ROOT = Path(__file__).parents[3]
NOT_PLANNED = {
    ("causalrn", "laptop"): {"images", "lookup", "pretraining", "recall"}
    | {"published-copying", "published-ablation", "opponents", "generalization", "expansion"},
    ("deepergcn", "smoke"): {"anchors", "recipes"},
    ("deepergcn", "laptop"): {"anchors", "molhiv", "molhiv-official", "recipes"},
    ("periln", "laptop"): {"initialization", "pretraining"},
    ("postdeg", "smoke"): {"topologies", "transfer"},
}
"""Parts without trials at a scale."""
PENDING = {
    "causalrn": ("images-", "look-up-", "looks-up-", "pretraining-", "published-", "recall-", "recalls-"),
    "periln": "pretraining-",
    "postdeg": "plateau-gowalla-",
}
"""Start of the ids of claims that are declared, and whose trials have not all run yet."""
COMMITTED = {name: [path for path in committed_results() if path.name.startswith(f"{name}-")] for name in STUDIES}

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(params=STUDIES)
def study(request) -> Study:
    return named_study(request.param, STUDIES)


@pytest.fixture(scope="module", params=STUDIES)
def smoke(request, tmp_path_factory) -> Iterator[tuple[Study, list[tuple[Trial, TrialRecord]]]]:
    """A study, and the trials of a smoke run on stand-in data with their records."""
    with pytest.MonkeyPatch.context() as patch:
        overrides = stand_in_data(request.param, tmp_path_factory.mktemp(request.param), patch)
        run = Run(named_study(request.param, STUDIES), "smoke", overrides)
        yield run.study, [(trial, run_trial(trial)) for trial in run.plan().values()]


def test_a_study_has_one_name(study):
    assert study.reference == f"normplace.lab.studies.{study.name}:STUDY"
    assert (ROOT / "docs" / "papers" / f"{study.name}.md").is_file()
    folder = FOLDER / study.name
    names = {path.name.removesuffix(".gz") for path in (folder / "results").iterdir() if path.suffix != ".json"}
    assert names == {f"{study.name}-{scale}.jsonl" for scale in ("laptop", "full")}


def test_a_study_has_the_common_layout(study):
    folder = FOLDER / study.name
    for part in study.parts:
        assert (folder / f"{part.name.replace('-', '_')}.py").is_file()
    assert {"claims", "figures", "results"} <= {path.name for path in folder.iterdir() if path.is_dir()}


@pytest.mark.parametrize("scale", SCALES)
def test_plans_are_valid(study, scale):
    planned = Run(study, scale).plan()  # trial hashes are its keys; two equal trials raise an error
    assert {trial.part for trial in planned.values()} == {part.name for part in study.parts} - NOT_PLANNED.get(
        (study.name, scale), set()
    )
    for trial in planned.values():
        assert config_from_dict(study.part(trial.part).config, trial.config).seed == trial.config["seed"]
        assert trial_label(study, trial.part, trial.config)


def test_smoke_trials_succeed_and_are_deterministic(smoke):
    study, results = smoke
    assert [record.error for _, record in results if record.status != "ok"] == []
    assert {record.study for _, record in results} == {study.name}
    one_per_part = {trial.part: (trial, record) for trial, record in results}
    state = torch.get_rng_state()
    for trial, record in one_per_part.values():
        again = run_trial(trial)
        assert (again.metrics, again.series) == (record.metrics, record.series), trial.part
    assert torch.equal(torch.get_rng_state(), state), "a trial changed the global RNG"


def test_claims_and_figures_accept_smoke_records(smoke):
    pytest.importorskip("vl_convert", reason="vl-convert draws the charts")
    study, results = smoke
    records = SuccessfulRecords(record for _, record in results)
    judgements = [judge(claim, records) for claim in study.claims]
    assert any(measured.n for judgement in judgements for measured in judgement.measurements)
    assert all(chart.startswith("<svg") for chart in draw(study.figures(records)))


def test_claims_are_declared_once_and_tested_by_committed_results(study):
    assert len({claim.id for claim in study.claims}) == len(study.claims)
    pending = PENDING.get(study.name)
    verdicts = {claim.id: set() for claim in study.claims if pending is None or not claim.id.startswith(pending)}
    for path in COMMITTED[study.name]:
        records = SuccessfulRecords(committed_run(path).records)
        for claim in study.claims:
            if claim.id in verdicts:
                verdicts[claim.id].add(judge(claim, records).verdict)
    assert not [name for name, values in verdicts.items() if values == {Verdict.NOT_TESTED}]


def test_claims_need_no_more_seeds_than_planned(study):
    planned = [{trial.seed for trial in part.plan("full")} for part in study.parts]
    assert max(claim.seeds for claim in study.claims) <= max(map(len, planned))


def test_figures_draw_committed_results(study):
    pytest.importorskip("vl_convert", reason="vl-convert draws the charts")
    for path in COMMITTED[study.name]:
        records = SuccessfulRecords(committed_run(path).records)
        assert all(chart.startswith("<svg") for chart in draw(study.figures(records)))
    assert list(study.figures([])) == []

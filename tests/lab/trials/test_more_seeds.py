"""More seeds than a study plans: which trials they are, and that verdicts count them."""

from __future__ import annotations

import dataclasses
from collections import Counter

import pytest
from tests.lab.committed import committed_run
from tests.lab.sample import STUDY

from normplace.errors import UsageError
from normplace.lab.studies import STUDIES, committed_results
from normplace.lab.trials.claims import judge_all
from normplace.lab.trials.engines import LocalEngine
from normplace.lab.trials.more_seeds import Variants
from normplace.lab.trials.per_seed import SuccessfulRecords
from normplace.lab.trials.progress import Progress
from normplace.lab.trials.record import trial_hash
from normplace.lab.trials.runner import Run, read_run
from normplace.lab.trials.study import load_study


class InProcess:
    """Runs trials one after another in this process."""

    remote = False

    def run(self, function, trials, started):
        for index, trial in enumerate(trials):
            started(index)
            yield index, function(trial)


def config(kind: str, seed: int) -> dict[str, object]:
    return {"kind": kind, "seed": seed}


def variants(*plan: tuple[str, dict[str, object]]) -> Variants:
    return Variants("s", {trial_hash("s", part, fields): (part, fields) for part, fields in plan})


def test_each_variant_with_several_seeds_gets_the_number_asked_for():
    plan = [("a", config("x", 0)), ("a", config("x", 1)), ("a", config("y", 0))]
    plan += [("b", config("x", 3)), ("b", config("x", 5))]
    added = list(variants(*plan).add(4, {}))
    assert added == [
        ("a", config("x", 2)),
        ("a", config("x", 3)),
        ("b", config("x", 0)),
        ("b", config("x", 1)),
    ]


def test_a_part_with_few_splits_gets_no_more():
    plan = [(part, config("x", seed)) for part in "ab" for seed in range(2)]
    assert Counter(part for part, _ in variants(*plan).add(6, {"a": 3})) == {"a": 1, "b": 4}


@pytest.mark.parametrize("seeds", [1, 2])
def test_a_number_that_adds_nothing_is_an_error(seeds):
    with pytest.raises(UsageError, match="the study plans at least 2 seeds: pass a larger number"):
        list(variants(("a", config("x", 0)), ("a", config("x", 1))).add(seeds, {}))


def test_a_study_of_single_seeds_has_nothing_to_add():
    with pytest.raises(UsageError, match="adds no trial"):
        list(variants(("a", config("x", 0))).add(5, {}))


@pytest.mark.parametrize("seeds", [0, -1, True, 2.5])
def test_the_number_of_seeds_is_a_positive_whole_number(seeds):
    with pytest.raises(UsageError, match="--seeds must be a whole number of at least 1"):
        Run(STUDY, "smoke", seeds=seeds)


def test_the_planned_trials_keep_their_hashes():
    plan, more = Run(STUDY, "smoke").plan(), Run(STUDY, "smoke", seeds=4).plan()
    assert list(more)[: len(plan)] == list(plan)
    assert len(more) == 2 * len(plan)
    assert {trial.config["seed"] for trial in more.values()} == {0, 1, 2, 3}


def test_a_run_with_more_seeds_resumes_one_without_and_all_count(tmp_path):
    engine, progress = InProcess(), Progress()
    first = Run(STUDY, "laptop").execute(tmp_path, engine, progress)
    assert len(first) == 10
    more = Run(STUDY, "laptop", seeds=7).execute(tmp_path, engine, progress)
    assert [record.finished for record in more[:10]] == [record.finished for record in first]
    assert sorted({record.seed for record in more}) == list(range(7))
    again = Run(STUDY, "laptop").execute(tmp_path, engine, progress)
    assert again == more
    recorded = read_run(tmp_path / "sample-laptop.jsonl", {"sample": STUDY.reference})
    assert recorded.records == more
    assert recorded.run.seeds == 7
    assert recorded.run.command.endswith(" --scale laptop --seeds 7")
    assert {judgement.measurements[0].n for judgement in judge_all(STUDY.claims, recorded.records)} == {7}


def test_lines_of_other_variants_are_left_out(tmp_path):
    records = Run(STUDY, "smoke").execute(tmp_path, InProcess(), Progress())
    other = {**records[0].config, "slope": 9.0}
    foreign = dataclasses.replace(records[0], config=other, hash=trial_hash("sample", "lines", other))
    with (tmp_path / "sample-smoke.jsonl").open("a") as file:
        file.write(foreign.to_json() + "\n")
    recorded = read_run(tmp_path / "sample-smoke.jsonl", {"sample": STUDY.reference})
    assert recorded.records == records
    assert recorded.run.seeds is None


@pytest.mark.parametrize("path", list(committed_results()), ids=lambda path: path.name)
def test_every_study_reads_added_seeds(path):
    recorded = committed_run(path)
    study, scale = recorded.run.study, recorded.run.scale
    assert recorded.run.seeds is None
    most = max(record.seed for record in recorded.records)
    by_hash = {record.hash: record for record in recorded.records}
    added = []
    for trial in list(Run(study, scale, seeds=most + 2).plan().values())[len(Run(study, scale).plan()) :]:
        like = {**trial.config, "seed": 0}
        source = by_hash.get(trial_hash(study.hash_name, trial.part, like))
        if source is not None:
            added.append(dataclasses.replace(source, config=dict(trial.config), seed=trial.config["seed"], hash="-"))
    assert added
    total = 0
    for records in (recorded.records, [*recorded.records, *added]):
        judgements = judge_all(study.claims, records)
        before, total = total, sum(check.n for judgement in judgements for check in judgement.measurements)
    assert total > before
    assert study.figures(SuccessfulRecords([*recorded.records, *added]))


def test_parts_on_official_splits_declare_their_number():
    assert load_study("postdeg", STUDIES).part("social").most_seeds == 10
    assert load_study("deepergcn", STUDIES).part("anchors").most_seeds == 10


def test_the_local_engine_runs_added_seeds(tmp_path):
    records = Run(STUDY, "smoke", seeds=3).execute(tmp_path, LocalEngine(1), Progress())
    assert Counter(record.seed for record in records) == {0: 2, 1: 2, 2: 2}

"""No check passes on results without information: of untrained networks, or shuffled among variants."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace

import pytest
from tests.lab.committed import committed_run

from normplace.lab.studies import committed_results
from normplace.lab.studies.postdeg.measures import RANDOM_ORDER
from normplace.lab.trials.claims import Judgement, State, Verdict, judge
from normplace.lab.trials.per_seed import SuccessfulRecords
from normplace.lab.trials.results import TrialRecord
from normplace.lab.trials.study import Study

UNTRAINED = {
    **dict.fromkeys(("bits_per_byte", "choosing_bits"), 8.0),  # all bytes equally likely
    **dict.fromkeys(("test", "val"), 0.5),  # ROC-AUC of chance
    **dict.fromkeys(("t_low", "t_high", "p_low", "p_high"), 1.0),  # where temperatures and powers start
    **dict.fromkeys(("recall", "ndcg"), 0.1),
    **dict.fromkeys(("headroom_start", "headroom_end"), 13.0),
    # sizes and costs that are the same for every variant
    **dict.fromkeys(("elements", "peak_bytes", "state_rows", "peak_mb", "energy", "distance", "ood_p999"), 1.0),
    **dict.fromkeys(("train_mse", "largest_target", "reach_near", "reach_farthest"), 1.0),
    **dict.fromkeys((f"{name}_{when}" for name in ("gradient", "peak", "ratio") for when in ("start", "end")), 1.0),
}
"""Metrics of an untrained network; every other metric is 0."""
SHUFFLES = 4
EXCHANGEABLE = {
    "bound": "both norms have the same bound, so exchanging their numbers changes nothing",
    "self-regularising": "both norms have exactly the same exponents",
    "social-after-is-heard": "half of the exchanged results have a scale after the norm, so their mean passes, too",
    "anchor-tolokers": "both candidates reach the published score",
    "recipe-tolokers": "all candidates are within 0.006 of each other",
    "official-molhiv": "the networks with and without the scale have scores within the published deviation",
    "bound-holds": "the bound holds for every placement of the norm, so exchanging their ratios changes nothing",
    **dict.fromkeys(
        ("certificates-are-not-broken", "certificates-miss-few"), "a seed has one trial, so nothing is exchanged"
    ),
}
"""Claims whose checks may pass on shuffled results, and why."""

RUNS = {path.name: path for path in committed_results()}


def untrained(record: TrialRecord) -> TrialRecord:
    metrics = {name: UNTRAINED.get(name, 0.0) for name in record.metrics}
    if record.part in ("selection", "classical"):
        metrics["value"] = RANDOM_ORDER[record.config["task"]]
    if record.part == "topologies":
        metrics = dict.fromkeys(metrics, 0.5)
    return replace(
        record, metrics=metrics, series={name: [0.1] * len(values) for name, values in record.series.items()}
    )


def shuffled(records: list[TrialRecord], generator: random.Random) -> list[TrialRecord]:
    """The records with the results of each seed exchanged at random among the variants of a part."""
    groups = defaultdict(list)
    for record in records:
        groups[record.part, record.seed, tuple(record.metrics)].append(record)
    exchanged = []
    for group in groups.values():
        donors = generator.sample(group, len(group))
        exchanged += [
            replace(record, metrics=d.metrics, series=d.series) for record, d in zip(group, donors, strict=True)
        ]
    return exchanged


def judgements(study: Study, records: list[TrialRecord]) -> Iterator[Judgement]:
    records = SuccessfulRecords(records)
    for claim in study.claims:
        judgement = judge(claim, records)
        if judgement.verdict is not Verdict.NOT_TESTED:
            yield judgement


@pytest.fixture(scope="module", params=RUNS)
def recorded(request) -> tuple[Study, list[TrialRecord]]:
    recorded_run = committed_run(RUNS[request.param])
    return recorded_run.run.study, [record for record in recorded_run.records if record.status == "ok"]


def test_no_check_passes_for_untrained_networks(recorded):
    study, records = recorded
    untrained_judgements = list(judgements(study, [untrained(record) for record in records]))
    assert untrained_judgements
    passed = [
        f"{judgement.claim.id}: {measured.check.label}"
        for judgement in untrained_judgements
        for measured in judgement.measurements
        if measured.state is State.PASSED
    ]
    assert not passed


def test_no_check_passes_if_every_number_is_zero(recorded):
    study, records = recorded
    zeros = [
        replace(
            record,
            metrics=dict.fromkeys(record.metrics, 0.0),
            series={name: [0.0] * len(values) for name, values in record.series.items()},
        )
        for record in records
    ]
    passed = {
        judgement.claim.id
        for judgement in judgements(study, zeros)
        for measured in judgement.measurements
        if measured.state is State.PASSED
    }
    assert passed <= {"language-like-linear-attention"}  # 0 bits per byte is perfect, and equal for both


def test_no_check_keeps_passing_on_shuffled_results(recorded):
    """One check in forty passes by chance; none may pass in most shuffles, and few may pass in all."""
    study, records = recorded
    passed: Counter[str] = Counter()
    total = 0
    for seed in range(SHUFFLES):
        for judgement in judgements(study, shuffled(records, random.Random(seed))):
            if judgement.claim.id in EXCHANGEABLE:
                continue
            assert judgement.verdict is not Verdict.REPRODUCED or len(judgement.counted) == 1, judgement.claim.id
            total += len(judgement.counted)
            for measured in judgement.counted:
                passed[f"{judgement.claim.id}: {measured.check.label}"] += measured.state is State.PASSED
    assert not [label for label, n in passed.items() if n > SHUFFLES / 2]
    assert sum(passed.values()) < 0.1 * total


def test_the_battery_detects_a_vacuous_range():
    """The first range for learned temperatures passes for a network that never changes them."""
    recorded_run = committed_run(RUNS["deepergcn-laptop.jsonl"])
    (claim,) = (claim for claim in recorded_run.run.study.claims if claim.id == "learned-range-grid")
    window = replace(claim.checks[0], at_least=-0.5, at_most=2.5, gates=())
    moved = replace(claim, checks=(window,))
    assert (
        judge(moved, [untrained(record) for record in recorded_run.records if record.status == "ok"]).verdict
        is Verdict.REPRODUCED
    )

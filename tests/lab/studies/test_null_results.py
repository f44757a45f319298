"""Checks on results that show nothing: those of untrained networks, and real ones shuffled among the variants.

A check that holds on such results is no evidence.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace

import pytest

from normplace.lab.studies import STUDIES, committed_results
from normplace.lab.studies.postdeg.measures import RANDOM_ORDER
from normplace.lab.trials.claims import Judgement, State, Verdict, judge
from normplace.lab.trials.per_seed import SuccessfulRecords
from normplace.lab.trials.results import TrialRecord
from normplace.lab.trials.runner import read_run
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
"""What an untrained network would give; every other metric is 0."""
SHUFFLES = 4
EXCHANGEABLE = {
    "bound": "both norms obey the same bound, so that exchanging their numbers changes nothing",
    "self-regularising": "both norms have exactly the same powers",
    "social-after-is-heard": "half of the exchanged results are of a scale after the norm, so their mean passes too",
    "anchor-tolokers": "both networks that were tried reach the published score",
}
"""Claims that may hold on shuffled results, and why."""

RUNS = {path.name: path for path in committed_results()}


def untrained(line: TrialRecord) -> TrialRecord:
    metrics = {name: UNTRAINED.get(name, 0.0) for name in line.metrics}
    if line.part == "selection":
        metrics["value"] = RANDOM_ORDER[line.config["task"]]
    if line.part == "topologies":
        metrics = dict.fromkeys(metrics, 0.5)
    return replace(line, metrics=metrics, series={name: [0.1] * len(values) for name, values in line.series.items()})


def shuffled(lines: list[TrialRecord], generator: random.Random) -> list[TrialRecord]:
    """The same lines with the results of one seed exchanged at random among the variants of each part."""
    groups = defaultdict(list)
    for line in lines:
        groups[line.part, line.seed, tuple(line.metrics)].append(line)
    found = []
    for group in groups.values():
        donors = generator.sample(group, len(group))
        found += [replace(line, metrics=d.metrics, series=d.series) for line, d in zip(group, donors, strict=True)]
    return found


def judged(study: Study, lines: list[TrialRecord]) -> Iterator[Judgement]:
    records = SuccessfulRecords(lines)
    for claim in study.claims:
        judgement = judge(claim, records)
        if judgement.verdict is not Verdict.NOT_TESTED:
            yield judgement


@pytest.fixture(scope="module", params=RUNS)
def recorded(request) -> tuple[Study, list[TrialRecord]]:
    found = read_run(RUNS[request.param], dict(STUDIES))
    return found.run.study, [line for line in found.records if line.status == "ok"]


def test_no_check_holds_for_untrained_networks(recorded):
    study, lines = recorded
    found = list(judged(study, [untrained(line) for line in lines]))
    assert found
    held = [
        f"{judgement.claim.id}: {measured.check.label}"
        for judgement in found
        for measured in judgement.measurements
        if measured.state is State.PASSED
    ]
    assert not held


def test_no_check_holds_where_every_number_is_zero(recorded):
    study, lines = recorded
    zeros = [
        replace(
            line,
            metrics=dict.fromkeys(line.metrics, 0.0),
            series={name: [0.0] * len(values) for name, values in line.series.items()},
        )
        for line in lines
    ]
    held = {
        judgement.claim.id
        for judgement in judged(study, zeros)
        for measured in judgement.measurements
        if measured.state is State.PASSED
    }
    assert held <= {"language-like-linear-attention"}  # 0 bits per byte is a perfect score, and equal for both networks


def test_no_check_keeps_holding_on_shuffled_results(recorded):
    """Chance decides one check in forty; none may hold more often than not, nor all together often."""
    study, lines = recorded
    held: Counter[str] = Counter()
    total = 0
    for seed in range(SHUFFLES):
        for judgement in judged(study, shuffled(lines, random.Random(seed))):
            if judgement.claim.id in EXCHANGEABLE:
                continue
            assert judgement.verdict is not Verdict.REPRODUCED or len(judgement.counted) == 1, judgement.claim.id
            total += len(judgement.counted)
            for measured in judgement.counted:
                held[f"{judgement.claim.id}: {measured.check.label}"] += measured.state is State.PASSED
    assert not [label for label, n in held.items() if n > SHUFFLES / 2]
    assert sum(held.values()) < 0.1 * total


def test_a_vacuous_window_would_be_caught():
    """The window that learned temperatures were once judged by holds for a network that never moved them."""
    found = read_run(RUNS["deepergcn-laptop.jsonl"], dict(STUDIES))
    (claim,) = (claim for claim in found.run.study.claims if claim.id == "learned-range-grid")
    window = replace(claim.checks[0], at_least=-0.5, at_most=2.5, gates=())
    moved = replace(claim, checks=(window,))
    assert (
        judge(moved, [untrained(line) for line in found.records if line.status == "ok"]).verdict is Verdict.REPRODUCED
    )

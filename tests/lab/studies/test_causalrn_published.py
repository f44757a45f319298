"""The CausalRN study at the published size: maskings, windows, sizes, order of the trials, measures and claims."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
import torch
from scripts.orders.copying import STAGES, longest_seconds, pending
from tests.lab.studies.support import record, verdict
from tests.project_scripts import imported_script
from torch.nn import functional as F

from normplace import UsageError
from normplace.lab.studies.causalrn import expansion, generalization, opponents, published_ablation, published_copying
from normplace.lab.studies.causalrn.claims import CLAIMS
from normplace.lab.studies.causalrn.generalization import HARD_ALIBI, WINDOWS, GeneralizationTrial
from normplace.lab.studies.causalrn.masking import MASKINGS, MaskedBefore
from normplace.lab.studies.causalrn.opponents import OPPONENTS, PAIRWISE, RATES, TRANSFORMERS, OpponentTrial
from normplace.lab.studies.causalrn.published_ablation import COMPLETE, GRID, ONE_CHANGE, PublishedAblationTrial
from normplace.lab.studies.causalrn.published_copying import PublishedCopyTrial
from normplace.lab.studies.causalrn.published_measures import accuracy_after, chosen_rate, lead_at_equal_time
from normplace.lab.studies.causalrn.published_size import BUDGET, LONGER, first_copy, in_budget
from normplace.lab.studies.causalrn.windows import WindowedBranch, windowed_mean
from normplace.lab.tasks.sequences import FixedCopy
from normplace.lab.trials.claims import Verdict
from normplace.lab.trials.config import config_dict
from normplace.lab.trials.per_seed import SuccessfulRecords
from normplace.lab.trials.results import TrialRecord, read_records
from normplace.lab.trials.study import Outcome
from normplace.models.sequence import RelationBranch, count_parameters

pytestmark = pytest.mark.usefixtures("one_thread")
ACTIVATIONS = {"exp": torch.exp, "relu": F.relu, "gelu": F.gelu, "elu": F.elu}
EPS = 1e-5


def rows(length=7, width=6):
    return torch.randn(2, 3, length, width, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def direct(a, b, activation, masking, norm="joint"):
    """Every pair at once: the mask as minus infinity before the activation, or as zero after it."""
    pairs = a[:, :, None] + b[:, None]
    if norm == "joint":
        pairs = F.layer_norm(pairs, pairs.shape[-1:], eps=EPS)
    later = torch.ones(a.shape[1], a.shape[1], dtype=torch.bool).triu(1)[None, :, :, None]
    if masking == "before":
        values = ACTIVATIONS[activation](pairs.masked_fill(later, -torch.inf))
    else:
        values = ACTIVATIONS[activation](pairs).masked_fill(later, 0)
    return values.sum(2) / torch.arange(1, a.shape[1] + 1)[:, None]


@pytest.mark.parametrize("norm", ["joint", "none"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("masking", MASKINGS)
def test_both_maskings_are_those_of_the_pairs(activation, masking, norm):
    a, b = rows()
    kind = MaskedBefore if masking == "before" else RelationBranch
    for post_norm in (False, True):
        branch = kind(6, norm=norm, activation=activation, post_norm=post_norm, eps=EPS)
        wanted = direct(a, b, activation, masking, norm)
        wanted = F.layer_norm(wanted, wanted.shape[-1:], eps=EPS) if post_norm else wanted
        # The difference of both readings is computed in float32.
        torch.testing.assert_close(branch.relate(a, b, None), wanted, rtol=1e-5, atol=1e-5, equal_nan=True)


def test_the_published_gelu_is_not_a_number_and_the_published_elu_differs_only_without_post_norm():
    a, b = rows()
    assert direct(a, b, "gelu", "before")[:, :-1].isnan().all()
    before, after = (direct(a, b, "elu", masking) for masking in MASKINGS[::-1])
    count = torch.arange(1, 8)[:, None]
    torch.testing.assert_close(after - before, ((7 - count) / count).expand_as(after).double())
    torch.testing.assert_close(*(F.layer_norm(y, (6,), eps=EPS) for y in (before, after)))
    with pytest.raises(UsageError, match="is not a number"):
        PublishedAblationTrial(pair_norm="joint", activation="gelu", post_norm=True, masking="before", length=4, seed=0)


def test_a_window_reads_the_last_tokens_only():
    a, b = rows()
    pairs = F.layer_norm(a[:, :, None] + b[:, None], (6,), eps=EPS).exp()
    for window in (1, 3, 20):
        wanted = [pairs[:, i, max(0, i + 1 - window) : i + 1].mean(1) for i in range(7)]
        torch.testing.assert_close(windowed_mean(a, b, window, EPS), torch.stack(wanted, 1))
    branch = WindowedBranch(6, heads=3, post_norm=False)
    branch.windows = 2
    parts = [windowed_mean(a[..., at : at + 2], b[..., at : at + 2], n, EPS) for n, at in ((1, 0), (2, 2), (99, 4))]
    torch.testing.assert_close(branch.relate(a, b, None), torch.cat(parts, -1), rtol=1e-5, atol=1e-5)


def test_sizes_are_the_published_ones_and_equal():
    trial = PublishedCopyTrial(network="pairwise", length=128, seed=0)
    assert (trial.dim, trial.depth, trial.batch_size, trial.steps, trial.learning_rate) == (192, 12, 320, 2000, 5e-4)
    with torch.device("meta"):
        pairwise = count_parameters(published_copying.network_for(trial, FixedCopy(128)))
        # The published count of the linear maps, which includes the head, and the embeddings of tokens and positions.
        assert pairwise == 1_337_280 + (29 + 258) * 192
        for opponent in (TRANSFORMERS[3], opponents.RECURRENT[-1]):
            model = opponents.network_for(opponents.opponent_trial(opponent, 128, 1e-3, 0), FixedCopy(128))
            wanted = pairwise - (0 if opponent.positions == "learned" else 258 * 192)
            assert count_parameters(model) == pytest.approx(wanted, rel=0.02), opponent.title


def test_a_longer_training_contains_the_published_one():
    steps, strings = [50, 100, 150], [0.1, 0.96, 1.0]
    assert in_budget(steps, strings, 120) == in_budget(steps, strings, 100) == 0.96
    assert in_budget([50], [0.4], 120) == 0.4
    assert (first_copy(strings), first_copy(strings[:1])) == (1, None)
    trial = next(iter(published_copying.plan("smoke")))
    short, long = (published_copying.PART.run(replace(trial, steps=n, device="cpu", decoded=0)) for n in (2, 4))
    assert long.metrics["character_in_budget"] == short.metrics["character_in_budget"]
    assert long.series["character"][:1] == short.series["character"]
    assert "seconds" not in long.series


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda: OpponentTrial(network="mamba-3", length=4, seed=0), "did you mean 'mamba-2'"),
        (lambda: OpponentTrial(network="mamba-2", length=4, seed=0, budget=10), "budget must be at least 50"),
        (lambda: GeneralizationTrial(network="pairwise", positions="rotary", seed=0), "does not extend 'rotary'"),
        (lambda: expansion.ExpansionTrial(form="scam", length=4, seed=0), "did you mean 'scan'"),
        (lambda: pending([], ["gird"]), "did you mean 'grid'"),
    ],
)
def test_mistakes(call, reason):
    with pytest.raises(UsageError, match=reason):
        call()


def line(request, **metrics) -> TrialRecord:
    """A made-up record of a trial."""
    config = config_dict(request.trial)
    return record(request.part.name, config.pop("seed"), metrics, **config)


def made_up(request) -> TrialRecord:
    """Numbers as if CausalRN copied after 400 steps at the higher rate, Transformers after 1,600, and others never."""
    trial = request.trial
    network = getattr(trial, "network", "pairwise")
    complete = not isinstance(trial, PublishedAblationTrial) or (trial.pair_norm, trial.activation) == ("joint", "exp")
    copies = network in ("pairwise", "transformer") and complete
    steps = (400 if network == "pairwise" else 1600) * (1 if getattr(trial, "learning_rate", 1e-3) == 1e-3 else 1.2)
    seconds, accuracy = {"pairwise": 0.03}.get(network, 0.01), float(copies or getattr(trial, "length", 0) <= 32)
    numbers = dict.fromkeys(("string", "string_in_budget", "character", "character_in_budget"), accuracy)
    numbers |= {"steps_to_copy": steps, "seconds_to_copy": steps * seconds, "step_seconds": seconds}
    numbers |= {"reach": 2.0, "string_at_twice": accuracy, "character_at_twice": accuracy}
    found = line(request, **numbers)
    return replace(found, series={"seconds": [steps * seconds], "string": [accuracy], "character": [accuracy]})


def test_stages_reach_the_whole_order_and_wait_for_the_learning_rates():
    records: list[TrialRecord] = []
    assert not pending([], ["opponents"])
    planned = {
        (part.PART.name, str(config_dict(trial)))
        for part in (published_copying, published_ablation, opponents, generalization, expansion)
        for trial in part.plan("full")
    }
    while requests := pending(SuccessfulRecords(records)):
        assert {(one.part.name, str(config_dict(one.trial))) for one in requests} <= planned
        records += [made_up(request) for request in requests]
    assert {chosen_rate(records, opponent) for opponent in OPPONENTS[:6]} == {RATES[1]}
    trained = [one for one in records if one.part == opponents.PART.name]
    assert len(trained) == len(OPPONENTS) * (2 + 4 + 3)
    unreached = len(planned) - len(records)
    assert unreached == len(OPPONENTS) * (4 + 3)  # the other learning rate of further seeds and of short strings
    reproduced = {claim.id for claim in CLAIMS if verdict(CLAIMS, claim.id, records) == Verdict.REPRODUCED}
    assert {
        "published-copies-like-a-transformer",
        "published-norm-of-pairs-is-not-only-faster",
        "published-exponential-is-not-only-faster",
        "published-converges-in-fewer-steps",
        "published-converges-in-less-time",
        "published-matches-at-equal-time",
        "published-recurrent-networks-copy-less",
        "published-windows-copy-twice-the-length",
    } <= reproduced
    assert "published-copies-without-post-norm" not in reproduced  # it took as many steps
    assert verdict(CLAIMS, "published-larger-state-helps-the-scan", records) == Verdict.NOT_REPRODUCED  # all alike


def test_the_first_stages_have_the_main_claims():
    order = [request.part.name for request in pending([])]
    assert order[:60] == ["published-copying"] * 60
    assert list(STAGES)[:3] == ["copying", "rates", "ablation"]
    assert COMPLETE in ONE_CHANGE and len(ONE_CHANGE) == 7 and len(GRID) == 24 - 7 + 1
    first = pending([], ["ablation"])[0].trial
    assert (first.steps, pending([], ["ablation-seeds"])[0].trial.steps) == (LONGER, BUDGET)
    assert 60 < longest_seconds(replace(first, steps=BUDGET)) < 90  # one training at 128 characters takes a minute


def opponent_lines(opponent, strings, length=128, seeds=5, **metrics) -> list[TrialRecord]:
    numbers = {"string_in_budget": strings, "steps_to_copy": 500.0, "character_in_budget": strings, **metrics}
    fields = {**opponent._asdict(), "learning_rate": RATES[0], "length": length}
    return [record(opponents.PART.name, seed, numbers, **fields) for seed in range(seeds)]


def test_an_opponent_that_copies_nothing_voids_its_check():
    records = opponent_lines(PAIRWISE, 1.0)
    for opponent in (*TRANSFORMERS, *opponents.WIDE):
        records += opponent_lines(opponent, 0.0)
    assert verdict(CLAIMS, "published-matches-every-position", records) == Verdict.VOID
    for opponent in (*TRANSFORMERS, *opponents.WIDE):
        records += opponent_lines(opponent, 1.0, length=32)
    records += opponent_lines(PAIRWISE, 1.0, length=32)
    assert verdict(CLAIMS, "published-matches-every-position", records) == Verdict.REPRODUCED


def test_equal_time_is_that_of_the_budget():
    pairwise = opponent_lines(PAIRWISE, 1.0, seeds=1, step_seconds=0.03)
    (other,) = opponent_lines(TRANSFORMERS[0], 0.0, seeds=1)
    other = replace(other, series={"seconds": [20.0, 59.0, 61.0], "string": [0.1, 0.4, 0.9]})
    assert lead_at_equal_time(TRANSFORMERS[0])([*pairwise, other])[0] == pytest.approx(1 - 0.4)
    assert accuracy_after(other, 10.0) == 0


def test_hard_alibi_that_did_not_learn_voids_the_comparison():
    numbers = {"string": 0.0, "character_at_twice": 0.0, "string_at_twice": 0.0, "reach": 0.0}
    records = [
        record(generalization.PART.name, seed, numbers, **variant._asdict(), longest=64)
        for variant in (WINDOWS, HARD_ALIBI)
        for seed in range(5)
    ]
    assert verdict(CLAIMS, "published-windows-extend-like-hard-alibi", records) == Verdict.VOID
    assert verdict(CLAIMS, "published-windows-copy-twice-the-length", records) == Verdict.VOID


@pytest.fixture
def script():
    with imported_script("run_copying") as module:
        yield module


def test_the_runner_appends_lines_and_resumes(script, tmp_path, monkeypatch, capsys):
    real = script.run_trial

    def quick(trial, run):
        return real(trial, lambda config: Outcome({"string": 1.0, "string_in_budget": 1.0}))

    monkeypatch.setattr(script, "run_trial", quick)
    runner = script.Runner(tmp_path, ["grid"], time.monotonic() + 3600)
    assert runner.run() == len(GRID)
    lines = read_records(tmp_path / "causalrn-full.jsonl")
    assert {(one.part, one.scale, one.status) for one in lines} == {("published-ablation", "full", "ok")}
    assert script.Runner(tmp_path, ["grid"], time.monotonic() + 3600).run() == 0
    assert script.Runner(tmp_path, ["expansion"], time.monotonic() + 5).run() == 0  # nothing fits
    script.main(["--list", "--out", str(tmp_path), "--trials", "grid", "generalization"])
    assert [line.split()[:2] for line in capsys.readouterr().out.splitlines()[-2:]] == [
        ["grid", "0"],
        ["generalization", "30"],
    ]
    if not torch.cuda.is_available():
        assert script.main(["--minutes", "1", "--out", str(tmp_path)]) == 2

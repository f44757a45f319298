"""Comparisons evaluated from result lines."""

from __future__ import annotations

import json

import pytest
from tests.lab.compare.lines import comparison_lines, line

from normplace.errors import UsageError
from normplace.lab.compare.result import Comparison

SCORES = {
    "as-is": [2.0, 2.1, 2.05, 1.98, 2.02],
    "peri": [1.9, 2.02, 1.95, 1.9, 1.93],
    "output": [2.01, 2.08, 2.0, 1.99, 2.04],
    "post": [None] * 5,
}


def evaluated(scores=SCORES, better="smaller", baseline=None, **fields):
    return Comparison.from_records(comparison_lines(scores, **fields), better=better, baseline=baseline)


def test_rows_are_ranked_with_verdicts():
    comparison = evaluated()
    assert [(row.edit, row.verdict) for row in comparison.rows] == [
        ("peri", "better"),
        ("output", "tied"),
        ("as-is", "baseline"),
        ("post", "worse"),
    ]
    assert comparison.best == comparison.winner == "peri"
    assert comparison.row("post").diverged == 5
    assert comparison.row("peri").interior is True


def test_advice_names_the_winner_and_the_limits():
    advice = evaluated().advice
    assert advice.sentence.startswith("Use peri: its held-out loss is 0.09 lower than that of as-is (95% interval ")
    assert "200 steps from fresh weights" in advice.limits
    assert "other model sizes" in advice.limits
    assert advice.warnings == ()


@pytest.mark.parametrize(
    ("scores", "sentence"),
    [
        ({"as-is": [1.0, 1.1]}, "Only as-is was measured, so there is nothing to compare."),
        ({"as-is": [1.0, 1.1, 1.0], "post": [2.0, 2.1, 2.1]}, "Keep as-is: it is better than post."),
        (
            {"as-is": [1.0, 1.1, 1.0], "post": [1.01, 1.2, 0.99]},
            "Keep as-is: it ranks first, and 3 seeds did not show that another edit is better.",
        ),
        (
            {"as-is": [1.03, 1.2, 1.06], "post": [1.0, 1.1, 1.0]},
            "Keep as-is: post ranks first, but 3 seeds cannot separate the two; "
            "about 5 seeds (4 to more than 24) would separate a difference of this size.",
        ),
        ({"as-is": [1.2], "post": [1.0]}, "Keep as-is: post ranks first, but 1 seed cannot separate the two."),
        ({"as-is": [None] * 3, "peri": [1.0, 1.1, 1.0]}, "Use peri: as-is diverged with 3 of 3 seeds."),
        (
            {"as-is": [1.0, 2.0, 2.0], "post": [1.1, 1.5, 1.5], "peri": [1.05]},
            "Keep as-is: post ranks first, but 3 seeds cannot separate the two; about 19 seeds (7 to more than 24) "
            "would separate a difference of this size.",
        ),
        (
            {"as-is": [1.0, 1.11, 1.0], "peri": [0.5, 0.51, 0.5, 0.5, None]},
            "Use peri: its held-out loss is 0.533 lower than that of as-is (95% interval 0.373 to 0.694, 3 seeds); "
            "as-is ranks first only by seeds that the two do not share.",
        ),
        (
            {"as-is": [2.0, 2.11, 2.0], "peri": [1.5, 1.6, 1.5], "post": [1.0, 1.11, 1.0, None]},
            "Use peri: its held-out loss is 0.503 lower than that of as-is (95% interval 0.48 to 0.526, 3 seeds); the "
            "seeds cannot separate it from post.",
        ),
        (
            {"as-is": [None] * 7, "peri": [1.0, 1.1, 1.0, 1.1, 1.0, 1.1, None]},
            "Use peri: as-is diverged with 7 of 7 seeds, and peri with 1.",
        ),
        (
            {"as-is": [1.0, 1.1, 1.0, 1.2] + [None] * 12, "peri": [1.5, 1.61, 1.52, 1.73] + [1.5] * 12},
            "Use peri: as-is diverged with 12 of 16 seeds, although the held-out loss of peri is 0.515 higher where "
            "neither diverged (95% interval 0.488 to 0.542, 4 seeds).",
        ),
        (
            {"as-is": [1.5, 1.61, 1.52, 1.73] + [None] * 12, "peri": [1.0, 1.1, 1.0, 1.2] + [1.0] * 12},
            "Use peri: its held-out loss is 0.515 lower than that of as-is (95% interval 0.488 to 0.542, 4 seeds), and "
            "as-is diverged with 12 of 16 seeds.",
        ),
        (
            {"as-is": [2.0, 2.1, 2.0, 2.2], "wild": [1.0, 1.9, 0.2, 1.3], "peri": [1.5, 1.61, 1.5, 1.71]},
            "Use peri: its held-out loss is 0.495 lower than that of as-is (95% interval 0.482 to 0.508, 4 seeds); "
            "wild ranks first, but the seeds cannot separate it from as-is.",
        ),
    ],
)
def test_sentences(scores, sentence):
    assert evaluated(scores).advice.sentence == sentence


def test_a_larger_score_can_be_better():
    comparison = evaluated({"as-is": [0.5, 0.52, 0.51], "degree": [0.7, 0.71, 0.72]}, better="larger")
    assert comparison.winner == "degree"
    assert "its held-out score is 0.2 higher than" in comparison.advice.sentence


def test_the_baseline_is_as_is_else_the_first_edit_else_the_one_named():
    scores = {"pre": [1.0, 1.1], "as-is": [1.0, 1.2]}
    assert evaluated(scores).baseline == "as-is"
    assert evaluated({"pre": [1.0, 1.1], "peri": [1.0, 1.2]}).baseline == "pre"
    assert evaluated(scores, baseline="pre").baseline == "pre"
    with pytest.raises(UsageError, match="unknown baseline 'prr': did you mean 'pre'"):
        evaluated(scores, baseline="prr")


def test_warnings():
    lines = comparison_lines({"as-is": [1.0, 1.1, 1.0], "peri": [1.0, 1.2]}, rates=(1e-3, 3e-3))
    lines.append(line("keel", 0, None, status="failed", error="Traceback\nRuntimeError: out of memory"))
    warnings = Comparison.from_records(lines).advice.warnings
    assert warnings == (
        "The best learning rate of as-is and peri is the lowest or highest tried: a better one may lie beyond.",
        "The edits have different seeds; only seeds that two edits share are compared.",
        "No trial of keel is finished.",
        "1 trial failed and is left out: RuntimeError: out of memory",
    )


@pytest.mark.parametrize(
    ("loser", "gap", "warns"),
    [("as-is", 0.01, True), ("as-is", 0.3, False), ("as-is", None, False), ("peri", 0.01, False)],
)
def test_a_close_second_learning_rate_of_the_edit_that_loses_is_a_warning(loser, gap, warns):
    lines = comparison_lines({"as-is": [2.0, 2.1, 2.04, 1.97, 2.05], "peri": [1.92, 2.03, 1.95, 1.9, 1.98]})
    for edit in ("as-is", "peri"):
        own = gap if edit == loser else 0.5
        for rate, choose in ((1e-3, 2.0), (3e-3, None if own is None else 2.0 + own)):
            lines.append(line(edit, 0, choose, part="search", rate=rate, steps=150, rung=1))
    comparison = Comparison.from_records(lines)
    assert comparison.winner == "peri"
    assert comparison.advice.warnings == (
        (
            "The learning rate of as-is is uncertain: the search trained 0.001 and 0.003 once each, and they differ by "
            "less than seeds may. With 0.003, as-is may not be worse: compare with that learning rate alone to check.",
        )
        if warns
        else ()
    )


def test_no_warning_on_learning_rates_if_the_edit_loses_by_far():
    lines = comparison_lines({"as-is": [3.0, 3.1, 3.04, 2.97, 3.05], "peri": [1.92, 2.03, 1.95, 1.9, 1.98]})
    lines += [line("as-is", 0, 3.0 + rate, part="search", rate=rate, steps=150, rung=1) for rate in (1e-3, 3e-3)]
    assert Comparison.from_records(lines).advice.warnings == ()


@pytest.mark.parametrize(("start", "warns"), [(5.5, False), (5.501, False), (5.9, True)])
def test_trainings_of_a_seed_that_start_differently_are_a_warning(start, warns):
    lines = comparison_lines(SCORES)
    series = {"held_out": [start, 3.0], "held_out_step": [0, 100]}
    lines.append(line("as-is", 0, 3.0, part="search", rate=1e-2, steps=100, rung=0, series=series))
    warnings = " ".join(Comparison.from_records(lines).advice.warnings)
    assert ("Trainings of as-is with the same seed started from different held-out measures" in warnings) is warns


def test_lines_that_cannot_be_evaluated_are_refused():
    with pytest.raises(UsageError, match="no reported trial is finished"):
        Comparison.from_records([line("pre", 0, 1.0, part="search")])
    with pytest.raises(UsageError, match="the tasks notes, other: pass the lines of one task"):
        Comparison.from_records([line("pre", 0, 1.0), line("pre", 0, 1.0, config={"task": "other"})])
    with pytest.raises(UsageError, match="part 'training' is not a trial of a comparison"):
        Comparison.from_records([line("pre", 0, 1.0, part="training")])
    with pytest.raises(UsageError, match="unknown value of better 'small'"):
        Comparison.from_records([line("pre", 0, 1.0)], better="small")  # pyright: ignore[reportArgumentType]


def test_the_rate_with_the_best_choosing_split_is_reported():
    lines = [line("pre", seed, 1.0, rate=1e-3, choose=2.0) for seed in range(3)]
    lines += [line("pre", seed, 1.5, rate=3e-3, choose=1.9) for seed in range(3)]
    lines += [line("pre", seed, 0.1, rate=9e-3, choose=0.1 if seed else None) for seed in range(3)]
    lines[-3] = line("pre", 0, None, rate=9e-3)
    row = Comparison.from_records(lines).rows[0]
    assert (row.learning_rate, row.score, row.seeds) == (3e-3, 1.5, 3)


def test_raised_steps_replace_shorter_trials():
    lines = [line("pre", seed, 2.0, steps=100) for seed in range(3)]
    lines += [line("pre", seed, 1.0, steps=400) for seed in range(2)]
    row = Comparison.from_records(lines).rows[0]
    assert (row.score, row.seeds) == (1.0, 2)


@pytest.mark.parametrize(("can_rise", "start"), [(False, "fresh"), (True, "fresh"), (False, "weights")])
def test_an_edit_that_ends_far_worse_than_the_untrained_baseline_diverged(can_rise, start):
    ends = {"as-is": [1.0, 1.2, 1.1, 1.05], "exploding": [9e4, 3e3, 2e5, 4e5], "slow": [1.7, 1.6, 1.9, 1.8]}
    untrained = {"as-is": 1.5, "exploding": 1e9, "slow": 1.5}
    lines = [
        line(
            edit,
            seed,
            end,
            metrics={"train_loss": end} | ({"can_rise": 1.0} if can_rise else {}),
            series={"loss": [untrained[edit], end], "held_out": [untrained[edit], end]},
            config={"start": start},
        )
        for edit, values in ends.items()
        for seed, end in enumerate(values)
    ]
    exempt = can_rise or start == "weights"
    comparison = Comparison.from_records(lines)
    rows = {row.edit: (row.diverged, row.verdict) for row in comparison.rows}
    assert all(bool(record.series) is exempt for record in comparison.trials()["exploding"].final)
    assert rows["exploding"] == ((0, "tied") if exempt else (4, "worse"))
    assert rows["slow"] == (0, "worse")


def test_json_has_no_infinite_numbers():
    written = evaluated().to_dict()
    assert json.loads(json.dumps(written, allow_nan=False)) == written
    assert written["winner"] == "peri"
    assert written["rows"][3]["score"] is None
    assert written["rows"][1]["difference"]["most_seeds"] == 40
    assert written["seconds"] == 2.0 * written["trials"]


def test_the_table_shows_rows_signals_and_advice():
    comparison = evaluated()
    text = str(comparison)
    assert text.splitlines()[0] == "notes: 4 edits, 32 trials, 1.1 min of training"
    assert "peri    1.94 ± 0.049        -0.09 [-0.108, -0.0717]     better" in text
    assert "tied      more than 40 seeds" in text
    assert "spikes/1000" in text
    assert comparison.advice.sentence in text
    assert "It does not mean that they are equal." in text


def test_two_seeds_with_the_same_difference_do_not_decide():
    comparison = evaluated({"as-is": [0.60, 0.65], "peri": [0.55, 0.60]})
    assert comparison.winner == "as-is"
    assert comparison.advice.sentence == (
        "Keep as-is: peri ranks first, but 2 seeds with the same difference do not measure how much it varies; "
        "at least 3 seeds or a finer measure would decide."
    )
    shown = "-0.05 (no interval) tied at least 3 seeds or a finer measure"
    assert shown in " ".join(str(comparison).split())


def test_an_edit_under_two_names_is_equal_with_every_seed():
    twice = str(evaluated({"pre": [1.0, 1.1, 1.2], "again": [1.0, 1.1, 1.2]}))
    assert "0 [0, 0] tied equal with every seed" in " ".join(twice.split())
    twice = str(evaluated({"pre": [1.0, 1.1], "again": [1.0, 1.1]}))
    assert "0 (no interval) tied equal with every seed" in " ".join(twice.split())
    assert "(no interval) tied more seeds" in " ".join(str(evaluated({"pre": [1.0], "post": [1.2]})).split())

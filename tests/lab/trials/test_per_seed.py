"""Selection of records, and arithmetic on one number per seed."""

from __future__ import annotations

import math

import pytest

from normplace.lab.trials.per_seed import (
    Measure,
    PerSeed,
    SuccessfulRecords,
    config_values,
    mean,
    measure,
    metric,
    pick,
)
from normplace.lab.trials.results import TrialRecord


def record(seed, part="copying", status="ok", length=8, **metrics):
    config = {"seed": seed, "length": length}
    return TrialRecord("sample", part, "full", f"{part}{length}{seed}", config, seed, status, metrics)


RECORDS = [record(seed, length=length, accuracy=length + seed) for length in (8, 4) for seed in (0, 1)]


def test_pick_selects_by_part_and_configuration():
    records = [*RECORDS, record(0, part="recall")]
    assert pick(records, "copying", length=4) == RECORDS[2:]
    assert pick(records, "copying", width=4) == []


def test_successful_records_leave_out_failures_and_cache_selections():
    records = SuccessfulRecords([*RECORDS, record(2, status="failed")])
    assert records == RECORDS
    assert pick(records, "copying", length=4) == RECORDS[2:]
    assert pick(records, "copying", length=4) is pick(records, "copying", length=4)


def test_config_values_are_distinct_and_sorted():
    assert config_values(RECORDS, "copying", "length") == [4, 8]
    assert config_values(RECORDS, "recall", "length") == []


def test_a_missing_or_infinite_metric_is_nan():
    values = PerSeed.of([record(0, accuracy=None), record(1), record(2, accuracy=0.5)], "accuracy")
    assert math.isnan(values[0])
    assert math.isnan(values[1])
    assert values[2] == 0.5


def test_a_function_of_the_record_gives_its_number():
    assert PerSeed.of(RECORDS[:2], lambda record: record.config["length"] * 2) == {0: 16, 1: 16}


def test_two_records_of_one_seed_are_refused():
    with pytest.raises(AssertionError, match="two records of seed 0"):
        PerSeed.of(RECORDS, "accuracy")


def test_operators_pair_seeds_and_drop_the_unpaired():
    a, b = PerSeed({2: 6.0, 0: 3.0, 1: -5.0}), PerSeed({0: 2.0, 2: 0.0})
    assert a - b == {0: 1.0, 2: 6.0}
    assert a * b == {0: 6.0, 2: 0.0}
    assert (a / b)[0] == 1.5
    assert math.isnan((a / b)[2])
    assert a - 1 == {0: 2.0, 1: -6.0, 2: 5.0}
    assert 2 * a == a * 2 == {0: 6.0, 1: -10.0, 2: 12.0}
    assert abs(a) == {0: 3.0, 1: 5.0, 2: 6.0}
    assert a.map(max, b) == {0: 3.0, 2: 6.0}


def test_nan_stays_nan_and_logarithms_are_of_positive_numbers():
    values = PerSeed({0: math.nan, 1: 8.0, 2: -1.0, 3: 0.0})
    assert math.isnan((values - 1)[0])
    assert values.log(2)[1] == 3
    assert all(math.isnan(values.log(2)[seed]) for seed in (0, 2, 3))


def test_cells_are_reduced_seed_by_seed():
    cells = [PerSeed({0: 1.0, 1: 2.0, 2: 3.0}), PerSeed({0: 5.0, 1: 0.0})]
    assert PerSeed.over(cells, min) == {0: 1.0, 1: 0.0}
    assert PerSeed.over(cells, mean) == {0: 3.0, 1: 1.0}
    assert PerSeed.over(cells[:1], max) == cells[0]
    assert PerSeed.over([], min) == {}


def test_summaries_over_seeds():
    values = PerSeed({0: 1.0, 1: 2.0, 2: 6.0})
    assert (values.mean(), values.median()) == (3.0, 2.0)
    assert math.isnan(PerSeed().mean())
    assert math.isnan(PerSeed().median())


def test_measures_have_the_same_arithmetic():
    long, short = metric("copying", "accuracy", length=8), metric("copying", "accuracy", length=4)
    assert (long - short)(RECORDS) == {0: 4, 1: 4}
    assert (long / short)(RECORDS) == {0: 2, 1: 9 / 5}
    assert abs(-1 * long / 2)(RECORDS) == {0: 4, 1: 4.5}


def test_a_decorated_function_is_bound_to_its_arguments():
    @measure
    def at_longest(records, name):
        """Docstring."""
        return PerSeed.of(pick(records, "copying", length=max(config_values(records, "copying", "length"))), name)

    assert isinstance(at_longest("accuracy"), Measure)
    assert at_longest(name="accuracy")(RECORDS) == {0: 8, 1: 9}
    assert at_longest.__doc__ == "Docstring."

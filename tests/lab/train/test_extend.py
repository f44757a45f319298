"""A run with a constant or wsd schedule is extended by a larger number of steps."""

from __future__ import annotations

import pytest
from tests.lab.train.training_cases import ALONE, StepObserver, corpus, network, train_config

from normplace.errors import UsageError
from normplace.lab.train.log import read_log
from normplace.lab.train.loop import fit


def losses(out):
    return {line["step"]: line["loss"] for line in read_log(out) if line["event"] == "step"}


def trained(out, steps, **changes):
    model = network()
    result = fit(model, corpus(), train_config(**{"steps": steps, "warm_up": 0.0, **changes}), out, ALONE)
    return result, {name: value.clone() for name, value in model.state_dict().items()}


def same(first, second):
    return first.keys() == second.keys() and all(first[name].equal(second[name]) for name in first)


@pytest.mark.parametrize(("schedule", "resumed_from"), [("constant", 8), ("wsd", 5)])
def test_an_extended_run_has_the_bits_of_a_longer_one(tmp_path, schedule, resumed_from):
    # A decay of 0.4 begins at step 5 of 8, which checkpoint_every does not divide, and at step 7 of 12.
    changes = {"schedule": schedule, "decay": 0.4}
    trained(tmp_path / "extended", 8, **changes)
    result, weights = trained(tmp_path / "extended", 12, **changes)
    longer, expected = trained(tmp_path / "longer", 12, **changes)
    assert (result.resumed_from, result.step) == (resumed_from, 12)
    assert same(weights, expected)
    assert losses(tmp_path / "extended") == losses(tmp_path / "longer")
    assert (result.held_out_loss, result.loss) == (longer.held_out_loss, longer.loss)
    again, _ = trained(tmp_path / "extended", 12, **changes)
    assert again.resumed_from == 12


def test_a_run_is_extended_twice_and_after_an_interruption(tmp_path):
    class Stopped(Exception):
        pass

    def stop(step):
        if step.number == 11:
            raise Stopped

    changes = {"schedule": "wsd", "warm_up": 0.25, "decay": 0.25}
    trained(tmp_path, 8, **changes)
    with pytest.raises(Stopped):
        fit(network(), corpus(), train_config(steps=16, **changes), tmp_path, ALONE, observer=StepObserver(stop))
    _, weights = trained(tmp_path, 24, **changes)  # from the checkpoint of step 8
    rates = {line["step"]: line["learning_rate"] for line in read_log(tmp_path) if line["event"] == "step"}
    assert [rates[step] for step in range(1, 5)] == [0.005, 0.01, 0.01, 0.01]  # the warm-up keeps its 2 steps
    assert rates[19] == 0.01
    assert rates[20] < 0.01
    # The warm-up of 24 steps would take 6 of them, so the fraction is that of 2 steps.
    _, expected = trained(tmp_path / "longer", 24, **{**changes, "warm_up": 2 / 24})
    assert same(weights, expected)


@pytest.mark.parametrize(
    ("schedule", "steps", "message"),
    [
        (
            "cosine",
            16,
            "trained for 8 steps, and the cosine schedule depends on that number: choose another --out; only runs with",
        ),
        ("wsd", 4, "was trained with steps=8, not 4"),
        ("constant", 4, "was trained with steps=8, not 4"),
    ],
)
def test_steps_that_cannot_be_changed_are_errors(tmp_path, schedule, steps, message):
    trained(tmp_path, 8, schedule=schedule)
    with pytest.raises(UsageError, match=message):
        trained(tmp_path, steps, schedule=schedule)


def test_a_decayed_run_without_an_earlier_checkpoint_is_an_error(tmp_path):
    trained(tmp_path, 8, schedule="wsd", decay=0.4)
    for step in (4, 5):
        for path in (tmp_path / "checkpoints").glob(f"step-{step:08}"):
            path.rename(tmp_path / path.name)
    with pytest.raises(UsageError, match=r"no checkpoint from before the decay of the learning rate, .* at step 5"):
        trained(tmp_path, 16, schedule="wsd", decay=0.4)


def test_other_mismatches_are_reported_first(tmp_path):
    trained(tmp_path, 8)
    with pytest.raises(UsageError, match="was trained with seed=0, not 1"):
        trained(tmp_path, 16, seed=1)

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from tests.lab.train.training_cases import ALONE, corpus, network, recipe
from torch.nn import functional as F

from normplace.errors import UsageError
from normplace.lab.train import checkpoint
from normplace.lab.train.data import TokenWindows
from normplace.lab.train.distributed import ProcessGroup
from normplace.lab.train.log import read_log
from normplace.lab.train.loop import fit
from normplace.models.transformer import PositionConfig


def losses(out):
    """The loss of every step, by the last line about it."""
    return {line["step"]: line["loss"] for line in read_log(out) if line["event"] == "step"}


def trained(out, placement="peri", group=ALONE, watch=None, **changes):
    return fit(network(placement), corpus(), recipe(**changes), out, group, watch=watch)


def test_the_steps_are_adamw_on_the_rows_in_order(tmp_path):
    asked = recipe(weight_decay=0.3, clip=0.5)
    course = fit(network(), corpus(), asked, tmp_path, ALONE)
    model, rows = network(), TokenWindows(corpus().train, 8, asked.seed)
    first, second = ({p: torch.zeros_like(p) for p in model.parameters()} for _ in range(2))
    expected = []
    for step in range(8):
        batch = rows.rows(4 * step, 4)
        loss = F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        expected.append(loss.item())
        model.zero_grad()
        loss.backward()
        norm = math.sqrt(sum(float(p.grad.square().sum()) for p in model.parameters()))
        rate = asked.rates().rate(step)
        with torch.no_grad():
            for p in model.parameters():
                grad = p.grad * min(1.0, 0.5 / (norm + 1e-6))
                first[p] = 0.9 * first[p] + 0.1 * grad
                second[p] = 0.95 * second[p] + 0.05 * grad.square()
                p *= 1 - rate * (0.3 if p.ndim >= 2 else 0.0)
                moved = first[p] / (1 - 0.9 ** (step + 1))
                p -= rate * moved / ((second[p] / (1 - 0.95 ** (step + 1))).sqrt() + 1e-8)
    assert list(losses(tmp_path).values()) == pytest.approx(expected, abs=1e-5)
    tokens = corpus().held_out.astype("int64")
    exam = torch.stack([torch.from_numpy(tokens[start : start + 9]) for start in range(0, 64, 8)])
    held_out = F.cross_entropy(model(exam[:, :-1]).flatten(0, 1), exam[:, 1:].flatten()).item()
    assert course.held_out == pytest.approx(held_out, abs=1e-5)
    assert (course.status, course.step, course.tokens) == ("finished", 8, 8 * 4 * 8)
    assert course.loss == pytest.approx(sum(expected) / 8, abs=1e-5)


def test_parts_of_a_step_add_up_to_it(tmp_path):
    trained(tmp_path / "whole")
    trained(tmp_path / "parts", accumulate=4)
    parts, whole = losses(tmp_path / "parts"), losses(tmp_path / "whole")
    assert parts == pytest.approx(whole, abs=1e-6)


def test_a_network_learns_and_says_how(tmp_path):
    seen = []
    course = trained(tmp_path, steps=60, watch=seen.append, schedule="wsd")
    assert course.loss < seen[0].loss - 1  # from log 31 towards log 2
    assert [step.number for step in seen] == list(range(1, 61))
    assert [step.number for step in seen if step.held_out is not None] == list(range(4, 61, 4))
    assert seen[-1].held_out == course.held_out
    assert all(step.tokens_per_second > 0 and step.utilisation > 0 for step in seen)


class Stopped(Exception):
    pass


@pytest.mark.parametrize("at", [3, 4, 6])
def test_a_run_that_was_stopped_goes_on_with_the_same_bits(tmp_path, at):
    def stop(step):
        if step.number == at:
            raise Stopped

    whole = trained(tmp_path / "whole")
    with pytest.raises(Stopped):
        trained(tmp_path / "stopped", watch=stop)
    course = trained(tmp_path / "stopped")
    assert course.resumed == (0 if at <= 4 else 4)  # the stop at 4 comes before its checkpoint
    assert losses(tmp_path / "stopped") == losses(tmp_path / "whole")
    again = [line["loss"] for line in read_log(tmp_path / "stopped") if line["event"] == "step" and line["step"] <= at]
    assert set(again) <= set(losses(tmp_path / "whole").values())
    assert (course.held_out, course.loss, course.spikes) == (whole.held_out, whole.loss, whole.spikes)
    finished = trained(tmp_path / "stopped")  # nothing is left to do
    assert (finished.resumed, finished.held_out, finished.loss) == (8, whole.held_out, whole.loss)


class Noisy(torch.nn.Module):
    """Drops out, so that its course depends on the state of chance."""

    def __init__(self):
        super().__init__()
        self.network = network()

    def forward(self, ids):
        return F.dropout(self.network(ids), 0.5, self.training)


def test_the_state_of_chance_is_kept_too(tmp_path):
    def stop(step):
        if step.number == 6:
            raise Stopped

    before = torch.get_rng_state()
    fit(Noisy(), corpus(), recipe(), tmp_path / "whole", ALONE)
    with pytest.raises(Stopped):
        fit(Noisy(), corpus(), recipe(), tmp_path / "stopped", ALONE, watch=stop)
    fit(Noisy(), corpus(), recipe(), tmp_path / "stopped", ALONE)
    assert losses(tmp_path / "stopped") == losses(tmp_path / "whole")
    assert torch.equal(torch.get_rng_state(), before)


def test_a_divergence_is_the_result(tmp_path):
    class Breaks(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.network, self.calls = network(), 0

        def forward(self, ids):
            self.calls += self.training
            return self.network(ids) * (math.nan if self.calls == 6 else 1.0)

    course = fit(Breaks(), corpus(), recipe(), tmp_path, ALONE)
    assert (course.status, course.reason, course.step) == ("diverged", "the loss is nan", 6)
    assert course.held_out is None
    assert math.isfinite(course.loss)
    lines = read_log(tmp_path)
    assert lines[-1] == {"event": "diverged", "step": 6, "reason": "the loss is nan"}
    newest = checkpoint.newest(tmp_path / "checkpoints")
    assert newest is not None
    assert newest.name == "step-00000004"  # from before


def test_a_rate_far_too_high_is_noticed_as_spikes(tmp_path):
    course = trained(tmp_path, "none", steps=60, rate=30.0, clip=1e9, patience=3)
    assert course.status == "diverged"
    assert course.step < 60
    assert course.spikes >= 3 or "overflowed" in course.reason or "the loss is" in course.reason


def test_half_precision_computes_in_bfloat16_and_keeps_float32(tmp_path):
    trained(tmp_path / "single")
    model = network()
    fit(model, corpus(), recipe(precision="bfloat16"), tmp_path / "half", ALONE)
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    single, half = losses(tmp_path / "single"), losses(tmp_path / "half")
    assert half != single
    assert half == pytest.approx(single, abs=0.05)


def test_deterministic_mode_ends_with_the_run(tmp_path):
    modes = []
    fit(network(), corpus(), recipe(deterministic=True), tmp_path, ALONE,
        watch=lambda step: modes.append(torch.are_deterministic_algorithms_enabled()))  # fmt: skip
    assert set(modes) == {True}
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"placement": "pre"}, "is of a Transformer with placement peri, x .*, but this is .* pre, x"),
        ({"rate": 2e-2}, "was trained with rate=0.01, not 0.02: ask for the same"),
        ({"seed": 1}, "was trained with seed=0, not 1"),
    ],
)
def test_another_run_in_the_same_folder_is_refused(tmp_path, change, complaint):
    trained(tmp_path, steps=4)
    with pytest.raises(UsageError, match=complaint):
        trained(tmp_path, **{"steps": 4, **change})


def test_other_text_and_shapes_in_the_same_folder_are_refused(tmp_path):
    fit(Noisy(), corpus(), recipe(steps=4), tmp_path, ALONE)
    other = Noisy()
    other.network = network(positions=PositionConfig("learned", length=9))
    with pytest.raises(UsageError, match=r"'network.positions.weight' is absent, here it is 9×16"):
        fit(other, corpus(), recipe(steps=4), tmp_path, ALONE)
    with pytest.raises(UsageError, match="learned from other text, of digest 000000000000 and not 111111111111"):
        fit(Noisy(), dataclasses.replace(corpus(), digest="1" * 64), recipe(steps=4), tmp_path, ALONE)


@pytest.mark.parametrize(
    ("model", "group", "changes", "complaint"),
    [
        ({"positions": PositionConfig("learned", length=7)}, 1, {}, "8 positions are longer than the 7"),
        ({}, 3, {}, "4 rows cannot be shared by 3 processes in 1 equal parts"),
        ({}, 1, {"accumulate": 3}, "shared by one process in 3 equal parts each: make it a multiple of 3"),
        ({}, 4, {"evaluate_rows": 2}, "cannot be shared by 4 processes: give more text"),
    ],
)
def test_what_does_not_fit_is_refused_before_the_first_step(tmp_path, model, group, changes, complaint):
    processes = ProcessGroup(0, group, torch.device("cpu"), joined=False)
    with pytest.raises(UsageError, match=complaint):
        fit(network(**model), corpus(), recipe(**changes), tmp_path / "run", processes)
    assert not (tmp_path / "run").exists()

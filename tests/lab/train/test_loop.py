from __future__ import annotations

import dataclasses
import json
import math

import pytest
import torch
from tests.lab.train.training_cases import ALONE, StepObserver, corpus, network, train_config
from torch.nn import functional as F

from normplace.errors import UsageError
from normplace.lab.train import checkpoint
from normplace.lab.train.checks import SETTINGS
from normplace.lab.train.config import OLD_NAMES
from normplace.lab.train.data import TokenWindows
from normplace.lab.train.distributed import ProcessGroup
from normplace.lab.train.log import read_log
from normplace.lab.train.loop import fit
from normplace.models.transformer import MLPConfig, PositionConfig
from normplace.models.weights import read_sealed, seal


def losses(out):
    """The loss of every step, by the last line about it."""
    return {line["step"]: line["loss"] for line in read_log(out) if line["event"] == "step"}


def trained(out, placement="peri", group=ALONE, observer=None, **changes):
    return fit(network(placement), corpus(), train_config(**changes), out, group, observer=observer)


def test_the_steps_are_adamw_on_the_sequences_in_order(tmp_path):
    config = train_config(weight_decay=0.3, clip=0.5)
    result = fit(network(), corpus(), config, tmp_path, ALONE)
    model, windows = network(), TokenWindows(corpus().train, 8, config.seed)
    first, second = ({p: torch.zeros_like(p) for p in model.parameters()} for _ in range(2))
    expected = []
    for step in range(8):
        batch = windows.sequences(4 * step, 4)
        loss = F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        expected.append(loss.item())
        model.zero_grad()
        loss.backward()
        norm = math.sqrt(sum(float(p.grad.square().sum()) for p in model.parameters()))
        learning_rate = config.learning_rate_schedule().learning_rate(step)
        with torch.no_grad():
            for p in model.parameters():
                grad = p.grad * min(1.0, 0.5 / (norm + 1e-6))
                first[p] = 0.9 * first[p] + 0.1 * grad
                second[p] = 0.95 * second[p] + 0.05 * grad.square()
                p *= 1 - learning_rate * (0.3 if p.ndim >= 2 else 0.0)
                moved = first[p] / (1 - 0.9 ** (step + 1))
                p -= learning_rate * moved / ((second[p] / (1 - 0.95 ** (step + 1))).sqrt() + 1e-8)
    assert list(losses(tmp_path).values()) == pytest.approx(expected, abs=1e-5)
    tokens = corpus().held_out.astype("int64")
    held_out = torch.stack([torch.from_numpy(tokens[start : start + 9]) for start in range(0, 64, 8)])
    held_out_loss = F.cross_entropy(model(held_out[:, :-1]).flatten(0, 1), held_out[:, 1:].flatten()).item()
    assert result.held_out_loss == pytest.approx(held_out_loss, abs=1e-5)
    assert (result.status, result.step, result.tokens) == ("finished", 8, 8 * 4 * 8)
    assert result.loss == pytest.approx(sum(expected) / 8, abs=1e-5)


def test_gradient_accumulation_gives_the_same_steps(tmp_path):
    trained(tmp_path / "whole")
    trained(tmp_path / "parts", accumulate=4)
    parts, whole = losses(tmp_path / "parts"), losses(tmp_path / "whole")
    assert parts == pytest.approx(whole, abs=1e-6)


def test_a_network_learns_and_reports_its_steps(tmp_path):
    seen = []
    result = trained(tmp_path, steps=60, observer=StepObserver(seen.append), schedule="wsd")
    assert result.loss < seen[0].loss - 1  # from log 31 towards log 2
    assert [step.number for step in seen] == list(range(1, 61))
    assert [step.number for step in seen if step.held_out_loss is not None] == list(range(4, 61, 4))
    assert seen[-1].held_out_loss == result.held_out_loss
    assert all(step.tokens_per_second > 0 and step.mfu > 0 for step in seen)


class Stopped(Exception):
    pass


@pytest.mark.parametrize("last_step", [3, 4, 6])
def test_an_interrupted_run_resumes_with_the_same_bits(tmp_path, last_step):
    def stop(step):
        if step.number == last_step:
            raise Stopped

    whole = trained(tmp_path / "whole")
    with pytest.raises(Stopped):
        trained(tmp_path / "stopped", observer=StepObserver(stop))
    result = trained(tmp_path / "stopped")
    assert result.resumed_from == (0 if last_step <= 4 else 4)  # the stop at 4 comes before its checkpoint
    assert losses(tmp_path / "stopped") == losses(tmp_path / "whole")
    again = [
        line["loss"] for line in read_log(tmp_path / "stopped") if line["event"] == "step" and line["step"] <= last_step
    ]
    assert set(again) <= set(losses(tmp_path / "whole").values())
    assert (result.held_out_loss, result.loss, result.spikes) == (whole.held_out_loss, whole.loss, whole.spikes)
    finished = trained(tmp_path / "stopped")  # nothing is left to do
    assert (finished.resumed_from, finished.held_out_loss, finished.loss) == (8, whole.held_out_loss, whole.loss)


def with_old_names(value):
    """Return JSON data with the names of an earlier version."""
    old = {new: old for old, new in OLD_NAMES.items()}
    return {old.get(key, key): with_old_names(inner) for key, inner in value.items()} if type(value) is dict else value


def test_a_checkpoint_of_an_earlier_version_is_resumed(tmp_path):
    complete = trained(tmp_path / "complete")
    trained(tmp_path / "old")
    checkpoints = tmp_path / "old" / "checkpoints"
    (checkpoints / "latest").write_text("step-00000004\n")
    path = checkpoints / "step-00000004" / "manifest.json"
    manifest = with_old_names(read_sealed(path))
    assert manifest["recipe"]["rate"] == 1e-2
    del manifest[SETTINGS]
    path.write_text(json.dumps(seal(manifest)))
    result = trained(tmp_path / "old")
    assert (result.resumed_from, result.held_out_loss, result.loss) == (4, complete.held_out_loss, complete.loss)


class Noisy(torch.nn.Module):
    """Has dropout, so that its losses depend on the RNG state."""

    def __init__(self):
        super().__init__()
        self.network = network()

    def forward(self, ids):
        return F.dropout(self.network(ids), 0.5, self.training)


def test_the_rng_state_is_restored(tmp_path):
    def stop(step):
        if step.number == 6:
            raise Stopped

    before = torch.get_rng_state()
    fit(Noisy(), corpus(), train_config(), tmp_path / "whole", ALONE)
    with pytest.raises(Stopped):
        fit(Noisy(), corpus(), train_config(), tmp_path / "stopped", ALONE, observer=StepObserver(stop))
    fit(Noisy(), corpus(), train_config(), tmp_path / "stopped", ALONE)
    assert losses(tmp_path / "stopped") == losses(tmp_path / "whole")
    assert torch.equal(torch.get_rng_state(), before)


def test_divergence_is_a_result(tmp_path):
    class Breaks(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.network, self.calls = network(), 0

        def forward(self, ids):
            self.calls += self.training
            return self.network(ids) * (math.nan if self.calls == 6 else 1.0)

    result = fit(Breaks(), corpus(), train_config(), tmp_path, ALONE)
    assert (result.status, result.reason, result.step) == ("diverged", "the loss is nan", 6)
    assert result.held_out_loss is None
    assert math.isfinite(result.loss)
    lines = read_log(tmp_path)
    assert lines[-1] == {"event": "diverged", "step": 6, "reason": "the loss is nan"}
    newest = checkpoint.newest(tmp_path / "checkpoints")
    assert newest is not None
    assert newest.name == "step-00000004"  # from before


def test_a_learning_rate_far_too_high_is_a_divergence(tmp_path):
    result = trained(tmp_path, "none", steps=60, learning_rate=30.0, clip=1e9, patience=3)
    assert result.status == "diverged"
    assert result.step < 60
    assert result.spikes >= 3 or "overflowed" in result.reason or "the loss is" in result.reason


def test_bfloat16_computes_in_bfloat16_and_keeps_float32(tmp_path):
    trained(tmp_path / "single")
    model = network()
    fit(model, corpus(), train_config(precision="bfloat16"), tmp_path / "half", ALONE)
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    single, half = losses(tmp_path / "single"), losses(tmp_path / "half")
    assert half != single
    assert half == pytest.approx(single, abs=0.05)


def test_deterministic_mode_ends_with_the_run(tmp_path):
    modes = []
    fit(network(), corpus(), train_config(deterministic=True), tmp_path, ALONE,
        observer=StepObserver(lambda step: modes.append(torch.are_deterministic_algorithms_enabled())))  # fmt: skip
    assert set(modes) == {True}
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"placement": "pre"}, "is of a Transformer with placement peri, x .*, but this is .* pre, x"),
        ({"learning_rate": 2e-2}, "was trained with learning_rate=0.01, not 0.02: use the same settings"),
        ({"seed": 1}, "was trained with seed=0, not 1"),
    ],
)
def test_another_run_in_the_same_folder_is_an_error(tmp_path, change, message):
    trained(tmp_path, steps=4)
    with pytest.raises(UsageError, match=message):
        trained(tmp_path, **{"steps": 4, **change})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"positions": PositionConfig("none")}, "is of a network with positions.kind=rotary, not none: use the same"),
        ({"mlp": MLPConfig(kind="geglu")}, "is of a network with mlp.kind=swiglu, not geglu"),
    ],
)
def test_another_network_with_parameters_of_the_same_shapes_is_an_error(tmp_path, changes, message):
    trained(tmp_path, steps=4)
    with pytest.raises(UsageError, match=message):
        fit(network(**changes), corpus(), train_config(steps=4), tmp_path, ALONE)


def test_other_text_and_shapes_in_the_same_folder_are_errors(tmp_path):
    fit(Noisy(), corpus(), train_config(steps=4), tmp_path, ALONE)
    other = Noisy()
    other.network = network(positions=PositionConfig("learned", length=9))
    with pytest.raises(UsageError, match=r"'network.positions.weight' is absent, here it is 9×16"):
        fit(other, corpus(), train_config(steps=4), tmp_path, ALONE)
    with pytest.raises(UsageError, match=r"trained on different text .SHA-256 000000000000…, now 111111111111…"):
        fit(Noisy(), dataclasses.replace(corpus(), sha256="1" * 64), train_config(steps=4), tmp_path, ALONE)


@pytest.mark.parametrize(
    ("model", "group", "changes", "message"),
    [
        ({"positions": PositionConfig("learned", length=7)}, 1, {}, "8 tokens is longer than the 7 learned positions"),
        ({}, 3, {}, "4 sequences cannot be split evenly over 3 processes and 1 accumulation"),
        ({}, 1, {"accumulate": 3}, "over one process and 3 accumulation steps: make it a multiple of 3"),
        ({}, 4, {"evaluate_sequences": 2}, "cannot be shared by 4 processes: give more text"),
    ],
)
def test_settings_that_do_not_fit_are_errors_before_the_first_step(tmp_path, model, group, changes, message):
    processes = ProcessGroup(0, group, torch.device("cpu"), is_distributed=False)
    with pytest.raises(UsageError, match=message):
        fit(network(**model), corpus(), train_config(**changes), tmp_path / "run", processes)
    assert not (tmp_path / "run").exists()

"""Mistakes in a task are one clear sentence before anything long starts."""

from __future__ import annotations

import math

import pytest
import torch
from tests.lab.compare.tiny_task import TinyNet, data, loss, make
from torch import nn

from normplace.errors import UsageError
from normplace.lab.compare.checks import check_batches, check_task
from normplace.lab.compare.edits import parse_edits
from normplace.lab.compare.factory import FactoryTask
from normplace.lab.compare.rng import seed_all
from normplace.lab.compare.task import Start, first_call
from normplace.lab.compare.trial import validated

SHARED = TinyNet()
AS_IS = parse_edits(["as-is"])


def batches(seed):
    x, y = data()
    order = torch.randperm(64, generator=torch.Generator().manual_seed(seed))
    return [(x[rows], y[rows]) for rows in order.split(8)]


def with_loss(function):
    return lambda seed: (TinyNet(), batches(seed), function)


def with_validate(function):
    return lambda seed: (TinyNet(), batches(seed), loss, function)


def same_weights(seed):
    torch.manual_seed(0)
    return TinyNet(), batches(seed), loss


def lazy(seed):
    model = TinyNet()
    model.embed = nn.LazyLinear(model.head.in_features)
    return model, batches(seed), loss


STATISTICS = nn.BatchNorm1d(2, affine=False)


def shared_statistics(seed):
    model = TinyNet()
    model.embed = nn.Sequential(STATISTICS, model.embed)
    return model, batches(seed), loss


CALLS = []


def counting(model, batch):
    CALLS.append(None)
    return loss(model, batch) * (1 + len(CALLS) / 100)


def overwriting(seed):
    def write(model, batch):
        batch[0].mul_(0.9)
        return loss(model, batch)

    return TinyNet(), [(WRITTEN[0][rows], WRITTEN[1][rows]) for rows in (slice(seed, 32), slice(32, 64))], write, plain


GIVEN, WRITTEN = data(), data()


def plain(model, split):
    return loss(model, GIVEN)


def deaf_optimizer(seed):
    model, data, function, validate = make(seed)
    return Start(
        model, data, function, validate, optimizer=lambda model, _: torch.optim.SGD(model.parameters(), lr=0.1)
    )


MISTAKES = {
    "the optimizer of deaf_optimizer ignores its learning rate": deaf_optimizer,
    "has lazy layers without weights: call it once": lazy,
    "validate returns a dict: return the one number": with_validate(lambda model, split: {"loss": 1.0}),
    "the measure on split 'choose' of shared_statistics with the same seed changes from": shared_statistics,
    "the loss of the first batch of <lambda> with the same seed changes from": with_loss(counting),
    "do not write to batches": overwriting,
    "must return (model, batches, loss)": lambda seed: (TinyNet(), batches(seed)),
    "got 3 elements (list, list, function)": lambda seed: ([], batches(seed), loss),
    "got NoneType": lambda seed: None,
    "failed (ZeroDivisionError: division by zero)": lambda seed: 1 / 0,
    "is a float: return a tensor": with_loss(lambda model, batch: 1.0),
    "has shape (8,): reduce it": with_loss(lambda model, batch: model(batch[0])),
    "has no gradient": with_loss(lambda model, batch: loss(model, batch).detach()),
    "depends on no parameter": with_loss(lambda model, batch: (model(batch[0]) * 0).sum().detach().requires_grad_()),
    "is nan before training": with_loss(lambda model, batch: loss(model, batch) * math.nan),
    "failed (KeyError: 'x')": with_loss(lambda model, batch: {}["x"]),
    "does not call the model itself": with_loss(lambda model, batch: model.head(model.embed(batch[0])).mean()),
    "has no trainable parameter": lambda seed: (TinyNet().requires_grad_(False), batches(seed), loss),
    "has no batch": lambda seed: (TinyNet(), [], loss, lambda model, split: 1.0),
    "returns nan on split 'choose'": with_validate(lambda model, split: math.nan),
    "returns inf on split 'report'": with_validate(lambda model, split: math.inf if split == "report" else 1.0),
    "validate of <lambda> on split 'choose' failed (KeyError: 'choose')": with_validate(lambda model, split: {}[split]),
    "validate must be a function": lambda seed: (TinyNet(), batches(seed), loss, 3.0),
    "returns the same parameters at every call": lambda seed: (SHARED, batches(seed), loss),
    "ignores its seed, because seeds 0 and 1 have the same weights": same_weights,
}


@pytest.mark.parametrize("message", MISTAKES)
def test_a_mistake_is_one_sentence(message):
    with pytest.raises(UsageError) as error:
        check_task(FactoryTask(MISTAKES[message]), AS_IS, "fresh")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_weights_and_batches_must_follow_from_the_seed():
    generator = torch.Generator()

    def unseeded_weights(seed):
        model = TinyNet()
        nn.init.normal_(model.head.weight, generator=generator)
        return model, batches(seed), loss

    def unseeded_batches(seed):
        return TinyNet(), batches(int(torch.randint(1000, (), generator=generator))), loss

    for function, what in ((unseeded_weights, "weights"), (unseeded_batches, "batches")):
        with pytest.raises(UsageError, match=f"returns other {what} for the same seed"):
            check_task(FactoryTask(function), AS_IS, "fresh")


def test_the_same_measure_on_both_splits_is_noted():
    def on_all(model, split):
        return loss(model, GIVEN)

    notes = check_task(FactoryTask(with_validate(on_all)), AS_IS, "fresh").notes
    assert any("the same number on both held-out splits" in note for note in notes)
    assert not any("both held-out splits" in note for note in check_task(FactoryTask(make), AS_IS, "fresh").notes)


def test_given_weights_may_be_the_same_for_every_seed():
    assert check_task(FactoryTask(same_weights), AS_IS, "weights").costs["as-is"].step > 0


def test_given_weights_need_another_data_order():
    with pytest.raises(UsageError, match="have the same weights and batches"):
        check_task(FactoryTask(lambda seed: (same_weights(0)[0], batches(0), loss)), AS_IS, "weights")


def test_a_model_that_cannot_be_edited_names_the_edit():
    task = FactoryTask(lambda seed: (nn.Sequential(nn.Linear(2, 1), nn.Flatten(0)), batches(seed), loss))
    with pytest.raises(UsageError, match="the edit 'peri' does not apply to <lambda>: Sequential has no residual add"):
        check_task(task, parse_edits(["as-is", "peri"]), "fresh")


def test_a_model_without_a_stream_is_compared_without_signals():
    task = FactoryTask(lambda seed: (nn.Sequential(nn.Linear(2, 1), nn.Flatten(0)), batches(seed), loss))
    checked = check_task(task, AS_IS, "fresh")
    assert any("Signals of 'as-is' are not measured: Sequential has no residual add" in note for note in checked.notes)


def test_costs_are_measured_and_nothing_of_the_caller_changes():
    torch.manual_seed(5)
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    cost = check_task(FactoryTask(make), AS_IS, "fresh").costs["as-is"]
    assert 0 < cost.step < 1 and cost.validate > 0 and cost.measure > 0
    assert torch.equal(state, torch.get_rng_state()) and torch.get_num_threads() == threads


@pytest.mark.parametrize("part", ["the loss", "validate"])
def test_a_task_must_use_the_model_that_it_is_given(part):
    def ignores_argument(seed):
        own, batches, loss, validate = make(seed)
        if part == "validate":
            return own, batches, loss, lambda model, split: validate(own, split)
        return own, batches, lambda model, batch: loss(own, batch) + 0 * model(batch[0]).detach().sum(), validate

    with pytest.raises(UsageError, match=f"{part} of ignores_argument ignores its first argument"):
        check_task(FactoryTask(ignores_argument), parse_edits(["post"]), "fresh")


def test_batches_without_tensors_are_not_compared():
    def strings(seed):
        x, y = data()
        return (
            same_weights(seed)[0],
            ["a", "b"],
            lambda model, batch: loss(model, (x, y)),
            lambda model, split: model(x).mean(),
        )

    assert check_task(FactoryTask(strings), AS_IS, "weights").costs


def test_iterators_are_checked_for_the_whole_length():
    task = FactoryTask(lambda seed: (TinyNet(), iter(batches(seed)), loss, lambda model, split: 1.0))
    check_batches(task, 8)
    with pytest.raises(UsageError, match="the training batches ran out after 8"):
        check_batches(task, 9)
    check_batches(FactoryTask(make), 10**9)  # a list is repeated


def test_a_start_is_accepted_as_it_is():
    start = Start(TinyNet(), batches(0), loss, lambda model, split: 1.0, clip=None)
    assert FactoryTask(lambda seed: start).start(0) is start


def test_validation_without_splits_is_reported_and_the_loss_chooses():
    task = FactoryTask(with_validate(lambda model: 0.75), better="larger")
    seed_all(0)
    start = task.start(0)
    assert validated(start, "report") == 0.75
    assert validated(start, "choose") < 0  # minus a loss: larger is better
    assert "choose the learning rate only" in task.notes[0]


def test_a_loss_cannot_be_better_if_larger():
    with pytest.raises(UsageError, match="leave better='larger' out"):
        FactoryTask(with_loss(loss), better="larger").start(0)


def test_inputs_are_recorded_from_the_loss():
    model, ((x, y), *_) = TinyNet(), batches(0)
    args, kwargs = first_call(model, lambda model, batch: model(x=batch[0]).mean(), (x, y))
    assert args == () and kwargs["x"] is x
    assert not model._forward_pre_hooks


def test_a_function_without_a_seed_and_batches_that_fail():
    with pytest.raises(UsageError, match=r"must take a seed, and return \(model, batches, loss\)"):
        FactoryTask(lambda: (TinyNet(), torch.zeros(1))).start(0)

    def broken():
        yield from ()
        raise ImportError("a sampler is missing")

    with pytest.raises(UsageError, match=r"cannot be read \(ImportError: a sampler is missing\)"):
        FactoryTask(lambda seed: (TinyNet(), broken(), loss)).start(0)

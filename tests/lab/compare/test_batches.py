"""The data order depends on the seed only, and held-out batches are never trained on."""

from __future__ import annotations

import random
from itertools import cycle, islice

import numpy as np
import pytest
import torch
from tests.lab.compare.tiny_task import loss
from torch import nn
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from normplace.errors import UsageError
from normplace.lab.compare import held_out
from normplace.lab.compare.batches import BatchStream
from normplace.lab.compare.held_out import hold_out
from normplace.lab.compare.rng import preserved_random_state


def random_epoch(epoch):
    """Two batches that read every global generator."""
    for _ in range(2):
        yield float(torch.rand(())), random.random(), float(np.random.rand()), epoch  # noqa: NPY002


def take(batches, count, seed=0, disturb=False):
    stream = BatchStream(batches, seed)
    taken = []
    for batch in islice(stream, count):
        taken.append(batch)
        if disturb:  # as a model with dropout does
            torch.rand(3), random.random(), np.random.rand()  # noqa: NPY002
    return taken


def test_random_numbers_of_the_model_do_not_change_the_data():
    assert take(random_epoch, 5) == take(random_epoch, 5, disturb=True)
    assert take(random_epoch, 5) != take(random_epoch, 5, seed=1)


def test_the_data_does_not_change_the_random_numbers_of_the_model():
    torch.manual_seed(0)
    expected = torch.rand(2)
    torch.manual_seed(0)
    take(random_epoch, 3)
    assert torch.equal(torch.rand(2), expected)


def test_lists_and_functions_are_repeated():
    assert take([1, 2], 5) == [1, 2, 1, 2, 1]
    assert [batch[-1] for batch in take(random_epoch, 5)] == [0, 0, 1, 1, 2]


def test_a_peeked_batch_stays_the_next():
    stream = BatchStream([1, 2], 0)
    assert (stream.peek(), stream.peek(), next(stream), next(stream)) == (1, 1, 1, 2)


def test_an_iterator_that_runs_out_is_an_error():
    with pytest.raises(UsageError, match="the training batches ran out after 2"):
        take(iter([1, 2]), 3)


@pytest.mark.parametrize("empty", [[], lambda epoch: []])
def test_no_batches_are_an_error(empty):
    with pytest.raises(UsageError, match="the training data has no batch"):
        take(empty, 1)


def test_the_random_state_is_restored():
    state = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()  # noqa: NPY002
    with preserved_random_state():
        torch.rand(1), random.random(), np.random.rand()  # noqa: NPY002
    assert torch.equal(state[0], torch.get_rng_state()) and state[1] == random.getstate()
    assert np.array_equal(state[2], np.random.get_state()[1])  # noqa: NPY002


class First(nn.Module):
    """Predicts the first feature, so that the loss identifies the batch."""

    def forward(self, x):
        return x[:, 0]


def batch(number):
    return torch.full((2, 1), float(number)), torch.zeros(2)


def means(held):
    return [held.validate(First(), split) for split in ("choose", "report")]


@pytest.mark.parametrize("kind", ["list", "iterator", "function"])
def test_the_first_batches_are_held_out(kind):
    batches = [batch(number) for number in range(40)]
    data = {"list": batches, "iterator": iter(batches), "function": lambda epoch: batches}[kind]
    held = hold_out(data, loss, "make")
    each = 4
    numbers = range(2 * each)
    assert means(held) == [pytest.approx(sum(number**2 for number in numbers[side::2]) / each) for side in (0, 1)]
    epochs = 1 if kind == "iterator" else 3
    seen = [float(x[0, 0]) for x, _ in take(held.batches, epochs * (40 - 2 * each))]
    assert sorted(seen) == sorted([*range(2 * each, 40)] * epochs)
    assert f"{each} and {each} training batches are held out" in held.note


@pytest.mark.parametrize("total", [16, 20, 100])
def test_a_stream_without_a_length_keeps_most_batches_for_training(total):
    class Stream(IterableDataset):
        def __iter__(self):
            yield from (batch(number) for number in range(total))

    for data in (DataLoader(Stream(), batch_size=None), lambda epoch: iter(Stream()), iter(Stream())):
        held = hold_out(data, loss, "make")
        each = min(8, total // 10)
        assert f"{each} and {each} training batches" in held.note
        seen = [float(x[0, 0]) for x, _ in take(held.batches, total - 2 * each)]
        assert sorted(seen) == list(range(2 * each, total))


@pytest.mark.parametrize("kind", ["list", "copies", "cycle", "function"])
def test_training_batches_that_repeat_held_out_ones_are_refused(kind):
    batches = [batch(number) for number in range(12)]
    data = {
        "list": batches * 5,
        "copies": [(x.clone(), y.clone()) for x, y in batches * 2],
        "cycle": cycle(batches),
        "function": lambda epoch: cycle(batches),
    }[kind]
    with pytest.raises(UsageError, match="the training batches of make contain the same batch twice"):
        hold_out(data, loss, "make")


def test_an_iterator_is_noted_because_it_may_repeat_samples():
    batches = [batch(number) for number in range(40)]
    assert "if it repeats samples, it trains on those held out" in hold_out(iter(batches), loss, "make").note
    assert "iterator" not in hold_out(batches, loss, "make").note


@pytest.mark.parametrize("shuffle", [False, True])
def test_samples_of_a_loader_are_held_out_of_every_epoch(shuffle):
    samples = TensorDataset(torch.arange(60.0)[:, None], torch.zeros(60))
    held = hold_out(DataLoader(samples, batch_size=3, shuffle=shuffle), loss, "make")
    stream = BatchStream(held.batches, 0)
    epochs = [[int(x) for batch in islice(stream, 16) for x in batch[0]] for _ in range(2)]
    assert sorted(epochs[0]) == sorted(epochs[1]) and len(set(epochs[0])) == 48
    assert (epochs[0] != sorted(epochs[0])) == shuffle
    chosen, reported = means(held)
    assert chosen != reported


@pytest.mark.parametrize(("replacement", "count"), [(True, 600), (True, 60), (False, 20)])
def test_a_sampler_keeps_its_draws_and_loses_only_the_held_out_samples(replacement, count):
    samples = TensorDataset(torch.arange(60.0)[:, None], torch.zeros(60))
    sampler = RandomSampler(samples, replacement=replacement, num_samples=count)
    held = hold_out(DataLoader(samples, batch_size=3, sampler=sampler), loss, "make")
    assert "2 and 2 training batches" in held.note
    epoch = [int(x) for batch in held.batches for x in batch[0]]
    assert len(epoch) == count * 48 // 60
    assert (len(set(epoch)) < len(epoch)) == replacement
    assert len(set(epoch)) > 40 or count < 600


@pytest.mark.parametrize("sampler", [RandomSampler, SequentialSampler])
def test_samples_that_a_sampler_leaves_out_stay_out(sampler):
    samples = TensorDataset(torch.arange(60.0)[:, None], torch.zeros(60))
    held = hold_out(DataLoader(samples, batch_size=3, sampler=sampler(range(30))), loss, "make")
    seen = {float(x) for batch in take(held.batches, 40, 0) for x in batch[0]}
    assert len(seen) == 24 and max(seen) < 30


def test_samples_that_are_drawn_by_weight_are_held_out_of_every_epoch():
    samples = TensorDataset(torch.arange(70.0)[:, None], torch.zeros(70))
    sampler = WeightedRandomSampler([5.0] * 30 + [1.0] * 30 + [0.0] * 10, 60)
    validated = set()

    def record(model, batch):
        validated.update(batch[0].flatten().tolist())
        return loss(model, batch)

    held = hold_out(DataLoader(samples, batch_size=3, sampler=sampler), record, "make")
    means(held)
    epochs = [[float(x) for batch in take(held.batches, 160, seed) for x in batch[0]] for seed in range(2)]
    assert validated and not validated & {*epochs[0], *epochs[1]} and max(*validated, *epochs[0]) < 60
    assert epochs[0] != epochs[1] and len(set(epochs[0])) > 40
    assert sum(x < 30 for x in epochs[0]) > 0.75 * len(epochs[0])


def test_an_unknown_sampler_that_repeats_samples_is_refused():
    class Balanced(WeightedRandomSampler):
        """As the balanced samplers of other packages."""

    samples = TensorDataset(torch.arange(60.0)[:, None], torch.zeros(60))
    repeated = DataLoader(samples, batch_size=3, sampler=Balanced([1.0] * 60, 60))
    with pytest.raises(UsageError, match="the sampler of make repeats samples"):
        hold_out(repeated, loss, "make")
    shuffled = DataLoader(samples, batch_size=3, sampler=Balanced([1.0] * 60, 60, replacement=False))
    assert "2 and 2 training batches" in hold_out(shuffled, loss, "make").note


@pytest.mark.parametrize("kind", [torch.tensor, np.array])
def test_samplers_of_tensors_and_arrays(kind):
    samples = TensorDataset(torch.arange(60.0)[:, None], torch.zeros(60))
    for repeats in (False, True):
        indices = torch.arange(60) // (1 + repeats)
        for loader in (
            DataLoader(samples, batch_size=3, sampler=[kind(index) for index in indices.tolist()]),
            DataLoader(samples, batch_sampler=[kind(batch) for batch in indices.reshape(20, 3).tolist()]),
        ):
            for data in (loader, lambda epoch, loader=loader: loader):
                if repeats:
                    with pytest.raises(UsageError, match="the sampler of make repeats samples"):
                        hold_out(data, loss, "make")
                else:
                    assert "2 and 2 training batches" in hold_out(data, loss, "make").note


def test_too_few_samples_with_weight_to_hold_some_out():
    samples, sampler = TensorDataset(torch.ones(60, 1)), WeightedRandomSampler([1.0, 1.0] + [0.0] * 58, 60)
    with pytest.raises(UsageError, match="too few training batches to hold some out"):
        hold_out(DataLoader(samples, batch_size=3, sampler=sampler), loss, "make")


class Sampled(DataLoader):
    """A loader that makes its batches after collating, as PyG's loaders of neighbours do."""

    def _get_iterator(self):
        batches = super()._get_iterator()
        return ((x + 100, y) for x, y in batches)


def test_a_loader_that_makes_its_own_batches_is_read_as_it_is():
    samples = TensorDataset(torch.arange(60.0)[:, None], torch.zeros(60))
    held = hold_out(Sampled(samples, batch_size=3), loss, "make")
    assert min(means(held)) >= 100**2
    assert all(float(x.min()) >= 100 for x, _ in take(held.batches, 30))


class Streamed(IterableDataset):
    """Samples without a length."""

    def __iter__(self):
        return ((torch.tensor([float(number)]), torch.zeros(())) for number in range(60))


def test_batches_of_a_stream_are_held_out_of_every_epoch():
    held = hold_out(DataLoader(Streamed(), batch_size=2), loss, "make")
    assert "3 and 3 training batches" in held.note
    seen = [int(x) for batch in take(held.batches, 48) for x in batch[0]]
    assert sorted(seen) == sorted([*range(12, 60)] * 2)


@pytest.mark.parametrize("count", [0, 1, 2])
def test_too_few_batches_to_hold_out(count):
    with pytest.raises(UsageError, match="make has too few training batches to hold some out: return validate"):
        hold_out([batch(number) for number in range(count)], loss, "make")


@pytest.mark.parametrize("kind", [iter, lambda batches: lambda epoch: iter(batches)], ids=["iterator", "function"])
def test_a_short_epoch_of_unknown_length_keeps_most_of_its_batches(kind):
    held = hold_out(kind([batch(number) for number in range(8)]), loss, "make")
    assert "1 and 1 training batches" in held.note
    seen = [int(x[0, 0]) for x, _ in take(held.batches, 12)]
    assert sorted(seen) == sorted([*range(2, 8)] * 2)


def test_a_large_epoch_cannot_be_repeated_from_memory(monkeypatch):
    monkeypatch.setattr(held_out, "MOST_KEPT", 100)
    held = hold_out(lambda epoch: (batch(number) for number in range(40)), loss, "make")
    with pytest.raises(UsageError, match="too large to hold batches out"):
        take(held.batches, 40)

"""Hold training batches out for validation, where a task has no validation data."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass
from itertools import chain, islice
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    Subset,
    WeightedRandomSampler,
)

from normplace.analysis.recording.structures import tensors_of
from normplace.errors import UsageError
from normplace.lab.compare.rng import preserved_random_state
from normplace.lab.compare.task import Batches, Loss, Validate

MOST = 8
"""Largest number of batches held out for each split."""
FRACTION = 0.1
"""Largest fraction of the batches held out for each split."""
READ_AHEAD = round(MOST / FRACTION)
"""Batches of a stream that are read before some are held out: as many as the largest number of held-out ones needs."""
MOST_KEPT = 2**30
"""Bytes of batches that are kept in memory to be repeated."""


@dataclass(frozen=True)
class HeldOut:
    """Training data without the batches that were held out.

    Args:
        batches: The rest of the training data.
        validate: The mean loss on the held-out batches of a split.
        note: What was held out, in a sentence.
    """

    batches: Batches
    validate: Validate
    note: str


def hold_out(batches: Batches, loss: Loss, name: str) -> HeldOut:
    """Hold out batches for choosing and for reporting, which no epoch trains on.

    A ``DataLoader`` over a dataset keeps its order and batch size over the remaining samples; one that draws samples by
    weight draws those of the held-out batches by weight too. Of a list, the first batches are held out. Other data is
    kept in memory during its first epoch and repeated in another order.

    Raises:
        UsageError: If there are too few batches, or an unknown sampler repeats samples.
    """
    if isinstance(batches, DataLoader) and (parts := _split_loader(batches)) is not None:
        batches_out, rest = parts
    else:
        batches_out, rest = _split_batches(batches, name)
    if len(batches_out) < 2:
        raise UsageError(
            f"{name} has too few training batches to hold some out: return validate(model, split) as the fourth "
            "element."
        )
    by_split = {"choose": batches_out[0::2], "report": batches_out[1::2]}

    def validate(model: nn.Module, split: str) -> float:
        return fmean(float(loss(model, batch)) for batch in by_split[split])

    counts = f"{len(by_split['choose'])} and {len(by_split['report'])}"
    note = f"The task has no splits for validation: {counts} training batches are held out to choose and to report."
    if isinstance(batches, Iterator):
        note += " The batches are an iterator: if it repeats samples, it trains on those held out."
    return HeldOut(rest, validate, note)


def _number(total: int) -> int:
    """How many batches are held out in all; 0 if there are too few."""
    return 2 * min(MOST, max(1, int(FRACTION * total))) if total >= 3 else 0


def _split_batches(batches: Batches, name: str) -> tuple[list[Any], Batches]:
    """The first batches, and the data after them."""
    if isinstance(batches, list | tuple):
        number = _number(len(batches))
        _require_different(batches, number, name)
        return list(batches[:number]), batches[number:]
    epoch: Iterable[Any] = batches(0) if callable(batches) else batches
    if isinstance(epoch, DataLoader) and _repeats_samples(epoch):
        raise UsageError(
            f"the sampler of {name} repeats samples, so that held-out ones would be trained on: return "
            "validate(model, split) as the fourth element."
        )
    first = iter(epoch)
    length = _length(epoch)
    ahead = list(islice(first, READ_AHEAD if length is None else _number(length)))
    number = _number(len(ahead)) if length is None else len(ahead)  # a stream may end before it is long enough
    _require_different(epoch if isinstance(epoch, list | tuple) else ahead, number, name)
    rest = chain(ahead[number:], first)
    has_ended = length is None and len(ahead) < READ_AHEAD
    return ahead[:number], RepeatedBatches(rest) if has_ended or first is not batches else rest


def _require_different(batches: Sequence[Any], held: int, name: str) -> None:
    """Check that no batch that is trained on equals one that is held out, as in a list that repeats its epochs.

    Raises:
        UsageError: If one is repeated.
    """
    samples = [_sample(batch) for batch in batches]
    first = {sample: index for index, sample in reversed(list(enumerate(samples[:held])))}
    for index, sample in enumerate(samples):
        earlier = first.get(sample, index) if sample else index
        if earlier < index and _are_equal(batches[earlier], batches[index]):
            raise UsageError(
                f"the training batches of {name} contain the same batch twice, so that held-out ones would be trained "
                "on: return those of one epoch, which are repeated, or validate(model, split) as the fourth element."
            )


def _sample(batch: Any) -> tuple[Any, ...]:
    """Some numbers of a batch, which differ between most batches; empty if it has no tensors."""
    flat = [tensor.detach().flatten() for tensor in tensors_of(batch)]
    return tuple((len(one), *one[:: max(1, len(one) // 16)].tolist()) for one in flat)


def _are_equal(first: Any, second: Any) -> bool:
    return all(torch.equal(one, two) for one, two in zip(tensors_of(first), tensors_of(second), strict=True))


def _length(epoch: Iterable[Any]) -> int | None:
    """The number of batches; None if it is not known, as of a loader whose dataset is a stream."""
    if isinstance(epoch, DataLoader) and isinstance(epoch.dataset, IterableDataset):
        return None  # a declared length need not be that of the stream
    return len(epoch) if isinstance(epoch, Sized) else None


class RepeatedBatches:
    """Data that is read once, and repeated from memory in another order in later epochs."""

    def __init__(self, first: Iterator[Any]) -> None:
        self._first: Iterator[Any] | None = first
        self._kept: list[Any] = []
        self._bytes = 0

    def __iter__(self) -> Iterator[Any]:
        if self._first is None:
            for index in torch.randperm(len(self._kept)).tolist():
                yield self._kept[index]
            return
        for batch in self._first:
            self._keep(batch)
            yield batch
        if self._bytes > MOST_KEPT:
            raise UsageError(
                f"an epoch of the training data is larger than {MOST_KEPT >> 30} GB, too large to hold batches out and "
                "repeat it: return validate(model, split) as the fourth element."
            )
        self._first = None

    def _keep(self, batch: Any) -> None:
        if self._bytes <= MOST_KEPT:
            self._kept.append(batch)
            self._bytes += _bytes_of(batch)
        else:
            self._kept.clear()


def _bytes_of(batch: Any) -> int:
    return sum(tensor.nbytes for tensor in tensors_of(batch))


def _makes_own_batches(loader: DataLoader[Any]) -> bool:
    """Whether a subclass changes the batches after they are collated, as PyG's loaders of neighbours do."""
    return any(getattr(type(loader), name) is not getattr(DataLoader, name) for name in ("__iter__", "_get_iterator"))


def _repeats_samples(loader: DataLoader[Any]) -> bool:
    """Whether an epoch of a loader with a sampler of the user's has a sample twice."""
    dataset = loader.dataset
    if isinstance(dataset, IterableDataset) or not isinstance(dataset, Sized) or _makes_own_batches(loader):
        return False
    seen: set[int | str] = set()
    with preserved_random_state():
        for batch in loader.sampler if loader.batch_sampler is None else loader.batch_sampler:
            indices = _plain(batch)
            for index in indices if isinstance(indices, list | tuple) else [indices]:
                number = _plain(index)
                key = number if isinstance(number, int) else str(number)
                if key in seen or len(seen) > len(dataset):  # or its indices are not those of samples
                    return key in seen
                seen.add(key)
    return False


def _plain(index: Any) -> Any:
    """An index, or several, without tensors and arrays, which do not compare as numbers."""
    return index.tolist() if isinstance(index, torch.Tensor | np.ndarray | np.generic) else index


def _drawn_again(sampler: Any, indices: list[int], total: int) -> Sampler[int] | None:
    """The sampler of the remaining samples, if an epoch draws them by weight, with replacement, or another number."""
    if isinstance(sampler, SequentialSampler) or not (sampler.replacement or sampler.num_samples != total):
        return None
    count = max(1, round(sampler.num_samples * len(indices) / total))
    if isinstance(sampler, WeightedRandomSampler):
        return WeightedRandomSampler(sampler.weights[indices].tolist(), count, sampler.replacement, sampler.generator)
    return RandomSampler(indices, sampler.replacement, count, sampler.generator)


def _split_loader(loader: DataLoader[Any]) -> tuple[list[Any], Batches] | None:
    """Hold samples of a loader's dataset out; None if the loader has an order or batches of its own."""
    dataset, size, sampler = loader.dataset, loader.batch_size, loader.sampler
    samplers = (RandomSampler, SequentialSampler, WeightedRandomSampler)
    known = type(sampler) in samplers and not _makes_own_batches(loader)
    if not known or size is None or not isinstance(dataset, Sized):
        return None
    if isinstance(sampler, RandomSampler | SequentialSampler) and len(sampler.data_source) != len(dataset):
        return None  # it draws from a part of the data
    by_weight = isinstance(sampler, WeightedRandomSampler)
    drawn = sampler.weights.nonzero().flatten() if by_weight else torch.arange(len(dataset))
    # An epoch may have more or fewer samples than the data.
    total = len(drawn) // size if loader.drop_last else math.ceil(len(drawn) / size)
    number = _number(total) * size
    generator = torch.Generator().manual_seed(0)
    order = drawn[torch.randperm(len(drawn), generator=generator)].tolist()
    held, rest = order[:number], sorted(order[number:])
    remaining = Subset(dataset, rest)
    drawn_again = _drawn_again(sampler, rest, len(drawn))
    shared = {"batch_size": size, "collate_fn": loader.collate_fn}
    held_by_weight = (
        WeightedRandomSampler(sampler.weights[held].tolist(), number, True, generator) if by_weight and held else None
    )
    batches = list(DataLoader(Subset(dataset, held), sampler=held_by_weight, **shared))
    training = DataLoader(
        remaining,
        **shared,
        shuffle=not isinstance(sampler, SequentialSampler) and drawn_again is None,
        sampler=drawn_again,
        drop_last=loader.drop_last,
        num_workers=loader.num_workers,
        pin_memory=loader.pin_memory,
        generator=loader.generator,
        worker_init_fn=loader.worker_init_fn,
    )
    return batches, training

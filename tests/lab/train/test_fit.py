"""Fitting: batches, their order and the mode of the model."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from normplace import UsageError
from normplace.lab.train.fit import fit
from normplace.norms import BatchNorm

X = torch.randn(50, 3, generator=torch.Generator().manual_seed(0))
Y = X.sum(1, keepdim=True)


class Watched(nn.Linear):
    """A linear model that remembers how many rows it was trained on, and which."""

    def __init__(self):
        super().__init__(3, 1)
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)
        self.seen = []

    def forward(self, x):
        if self.training:
            self.seen.append(x)
        return super().forward(x)


def test_the_error_decreases():
    assert fit(Watched(), X, Y, epochs=300, learning_rate=0.05) < 1e-3


def test_every_epoch_has_every_sample_once_in_a_new_order():
    model = Watched()
    fit(model, X, Y, epochs=2, learning_rate=0.01, batch_size=16, generator=torch.Generator().manual_seed(0))
    assert [len(batch) for batch in model.seen] == [16, 16, 16, 2] * 2
    first, second = torch.cat(model.seen[:4]), torch.cat(model.seen[4:])
    assert not torch.equal(first, second)
    for epoch in (first, second):
        assert torch.equal(epoch.sort(0).values, X.sort(0).values)


def test_the_order_depends_on_the_generator_only():
    weights = []
    for seed in (1, 1, 2):
        model = Watched()
        fit(model, X, Y, epochs=3, learning_rate=0.1, batch_size=7, generator=torch.Generator().manual_seed(seed))
        weights.append(model.weight.detach())
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_a_batch_as_large_as_the_data_needs_no_generator():
    model = Watched()
    fit(model, X, Y, epochs=3, learning_rate=0.01, batch_size=50)
    assert all(torch.equal(batch, X) for batch in model.seen)


def test_the_model_trains_in_training_mode_and_ends_in_evaluation():
    model = nn.Sequential(BatchNorm(3), nn.Linear(3, 1)).eval()
    loss = fit(model, X + 5, Y, epochs=200, learning_rate=0.05)
    assert not model.training
    assert float(model[0].running_mean.min()) > 4
    assert loss == pytest.approx(float((model(X + 5) - Y).detach().square().mean()))


def test_bad_arguments_are_errors():
    with pytest.raises(UsageError, match="batch_size must be at least 1"):
        fit(Watched(), X, Y, epochs=1, learning_rate=0.1, batch_size=0)
    with pytest.raises(UsageError, match="pass a generator"):
        fit(Watched(), X, Y, epochs=1, learning_rate=0.1, batch_size=8)

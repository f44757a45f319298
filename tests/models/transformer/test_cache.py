"""What a cache holds and refuses; that it changes nothing is tested with attention and the network."""

from __future__ import annotations

import pytest
import torch

from normplace import UsageError
from normplace.models.transformer import LayerCache


def test_it_returns_all_that_was_appended():
    cache, x = LayerCache(), torch.randn(2, 3, 200, 4, generator=torch.Generator().manual_seed(0))
    for start, stop in ((0, 1), (1, 64), (64, 65), (65, 200)):
        keys, values = cache.append(x[:, :, start:stop], -x[:, :, start:stop])
    assert cache.length == 200
    assert torch.equal(keys, x)
    assert torch.equal(values, -x)


def test_gradients_and_other_batches_are_refused():
    cache, x = LayerCache(), torch.zeros(2, 1, 1, 4)
    with pytest.raises(UsageError, match="holds no gradients"):
        cache.append(x.clone().requires_grad_(), x)
    cache.append(x, x)
    with pytest.raises(UsageError, match="has 2 sequences, but got 3"):
        cache.append(torch.zeros(3, 1, 1, 4), torch.zeros(3, 1, 1, 4))

"""MessageNorm and PairNorm with PyG's arguments, compared with PyG's in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("torch_geometric", reason="compares with PyG")

from torch_geometric import nn as geometric

from normplace import pyg
from normplace.analysis.norms.classes import known_norm_modules

# A few operations in float64.
CLOSE: dict[str, Any] = {"rtol": 1e-12, "atol": 1e-12}
BATCH = torch.tensor([0, 0, 0, 2, 2, 1, 1, 1, 1, 0])


def rows(seed=0):
    return torch.randn(10, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0])
@pytest.mark.parametrize("learn", [True, False])
def test_message_norm(learn, p):
    results = []
    for norm in (pyg.MessageNorm(learn).double(), geometric.MessageNorm(learn).double()):
        with torch.no_grad():
            norm.scale.fill_(1.7)
        leaves = [rows(0).requires_grad_(), rows(1).requires_grad_()]
        y = norm(*leaves, p=p)
        (y * rows(2)).sum().backward()
        results.append([y, *(leaf.grad for leaf in leaves), *([norm.scale.grad] if learn else [])])
        norm.reset_parameters()
        assert norm.scale.item() == 1
        results[-1].append(torch.tensor(str(norm) == f"MessageNorm(learn_scale={learn})"))
    for mine, theirs in zip(*results, strict=True):
        torch.testing.assert_close(mine, theirs, **CLOSE)


def test_edits_find_the_norms():
    model = torch.nn.ModuleDict({"message": pyg.MessageNorm(), "pair": pyg.PairNorm()})
    assert list(known_norm_modules(model)) == ["message", "pair"]


@pytest.mark.parametrize("individually", [True, False])
@pytest.mark.parametrize("batch", [None, BATCH])
def test_pair_norm(batch, individually):
    options = {"scale": 2.0, "scale_individually": individually, "eps": 0.1}
    ours, peer = pyg.PairNorm(**options), geometric.PairNorm(**options)
    leaves = [rows().requires_grad_() for _ in range(2)]
    results = [norm(leaf, batch, None if batch is None else 3) for norm, leaf in zip((ours, peer), leaves, strict=True)]
    torch.testing.assert_close(*results, **CLOSE)
    for y in results:
        (y * rows(2)).sum().backward()
    torch.testing.assert_close(leaves[0].grad, leaves[1].grad, **CLOSE)
    assert str(ours) == str(peer)

"""Over-smoothing measures against closed forms and brute force."""

from __future__ import annotations

import math

import pytest
import torch
from tests.models.small_graph import RING, SumConv, features

from normplace import UsageError
from normplace.analysis import dirichlet_energy, mean_cosine, smoothing
from normplace.models import GraphStack


def cycle(n: int) -> torch.Tensor:
    ahead = torch.stack([torch.arange(n), (torch.arange(n) + 1) % n])
    return torch.cat([ahead, ahead.flip(0)], 1)


@pytest.mark.parametrize("k", [0, 1, 5, 6])
def test_the_energy_of_a_wave_on_a_cycle_is_its_eigenvalue(k):
    # The Laplacian of a cycle with self-loops, I - (A + I) / 3, has the eigenvalues (2 - 2 cos(2 pi k / n)) / 3.
    n = 12
    wave = torch.cos(2 * math.pi * k * torch.arange(n) / n)[:, None].repeat(1, 3)
    expected = (2 - 2 * math.cos(2 * math.pi * k / n)) / 3
    assert dirichlet_energy(wave, cycle(n)) == pytest.approx(expected, abs=1e-6)
    assert dirichlet_energy(5 * wave, cycle(n), relative=False) == pytest.approx(
        expected * 25 * float(wave.square().sum()), rel=1e-6
    )


def test_the_energy_by_brute_force_and_its_kernel():
    x = features(5, 4).double()
    degree = torch.bincount(RING[1], minlength=5).double()
    total = sum(
        float((x[i] / math.sqrt(1 + degree[i]) - x[j] / math.sqrt(1 + degree[j])).square().sum())
        for i, j in RING.T.tolist()
    )
    assert dirichlet_energy(x, RING, relative=False) == pytest.approx(total / 2, rel=1e-12)
    loops = torch.cat([RING, torch.arange(5).repeat(2, 1)], 1)
    assert dirichlet_energy(x, loops) == dirichlet_energy(x, RING)
    smooth = (1 + degree).sqrt()[:, None] * torch.ones(1, 3)
    assert dirichlet_energy(smooth, RING) == pytest.approx(0, abs=1e-15)
    assert dirichlet_energy(torch.zeros(5, 2), RING) == 0


def test_the_mean_cosine_by_brute_force():
    x = features(7, 4).double()
    pairs = [torch.cosine_similarity(x[i], x[j], dim=0) for i in range(7) for j in range(7) if i != j]
    assert mean_cosine(x) == pytest.approx(float(sum(pairs) / 42), rel=1e-12)
    assert mean_cosine(torch.ones(3, 2) * torch.tensor([[1.0], [2.0], [7.0]])) == pytest.approx(1)
    assert mean_cosine(torch.eye(4)) == 0
    assert mean_cosine(torch.tensor([[1.0], [-1.0]])) == pytest.approx(-1)


@pytest.mark.parametrize("memory", ["store", "reversible"])
def test_the_measures_of_a_network_are_those_of_its_streams(memory):
    torch.manual_seed(0)
    net = GraphStack(SumConv, 3, 8, 2, 3, groups=2, memory=memory, dropout=0.5)
    found = smoothing(net, features(), RING)
    assert net.training
    net.eval()
    streams = [net.embed(features())]
    for block in net.blocks:
        streams.append(block(streams[-1], RING))
    assert found.energy == pytest.approx([dirichlet_energy(h, RING) for h in streams], rel=1e-6)
    assert found.cosine == pytest.approx([mean_cosine(h) for h in streams], rel=1e-6)
    assert not net.blocks[0]._forward_hooks


def test_mistakes_are_named():
    with pytest.raises(UsageError, match="nodes 0 to 2"):
        dirichlet_energy(torch.ones(3, 1), RING)
    with pytest.raises(UsageError, match="two nodes or more, got 1"):
        mean_cosine(torch.ones(1, 3))
    with pytest.raises(UsageError, match="Linear has no module list `blocks`"):
        smoothing(torch.nn.Linear(3, 3), features(), RING)

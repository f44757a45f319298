"""Wide networks of the MLP family approach the infinite-width kernel, for any placement of the norms."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from normplace.models import MLP
from normplace.norms import LayerNorm, RMSNorm
from normplace.ntk import FullyConnected, empirical, infinite

NORMS = {"layer": partial(LayerNorm, elementwise_affine=False), "rms": partial(RMSNorm, elementwise_affine=False)}


CASES = [
    ("layer", "none", "before"),
    ("layer", "first", "before"),
    ("layer", "every", "before"),
    ("layer", "every", "after"),
    ("rms", "last", "after"),
]


@pytest.mark.parametrize(("norm", "norm_at", "where"), CASES)
def test_mean_kernel_at_width_4096_is_within_two_percent(norm, norm_at, where):
    x = torch.linspace(-3, 3, 12)[:, None]
    seeds = 16
    mean = torch.zeros(len(x), len(x))
    for seed in range(seeds):
        net = MLP(
            (1, 4096, 4096, 1),
            norm=NORMS[norm],
            norm_at=norm_at,
            norm_where=where,
            parametrization="ntk",
            bias_std=0.3,
            generator=torch.Generator().manual_seed(seed),
        )
        mean += empirical(net, x) / seeds
    spec = FullyConnected(
        bias_variance=0.09, last_weight_variance=None, norm=norm, norm_at=norm_at, norm_position=where
    )
    limit = infinite(spec, x)
    assert float((mean.double() - limit).norm() / limit.norm()) < 0.02

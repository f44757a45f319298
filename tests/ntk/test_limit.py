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
SEEDS = 16
SAMPLES = torch.linspace(-3, 3, 12)[:, None]


def network(seed: int, norm: str, norm_at: str, where: str) -> MLP:
    return MLP(
        (1, 4096, 4096, 1),
        norm=NORMS[norm],
        norm_at=norm_at,
        norm_where=where,
        parametrization="ntk",
        bias_std=0.3,
        generator=torch.Generator().manual_seed(seed),
    )


@pytest.fixture(scope="module")
def mean_kernels() -> dict[tuple[str, str, str], torch.Tensor]:
    """The mean kernel of each case; the networks of a seed have the same weights, which are drawn once."""
    means = {case: torch.zeros(len(SAMPLES), len(SAMPLES)) for case in CASES}
    for seed in range(SEEDS):
        weights = network(seed, *CASES[0]).state_dict()
        for case, mean in means.items():
            with torch.device("meta"):
                net = network(seed, *case)
            net.load_state_dict(weights, assign=True)
            mean += empirical(net, SAMPLES) / SEEDS
    return means


@pytest.mark.parametrize(("norm", "norm_at", "where"), CASES)
def test_mean_kernel_at_width_4096_is_within_two_percent(mean_kernels, norm, norm_at, where):
    spec = FullyConnected(
        bias_variance=0.09, last_weight_variance=None, norm=norm, norm_at=norm_at, norm_position=where
    )
    limit = infinite(spec, SAMPLES)
    assert float((mean_kernels[norm, norm_at, where].double() - limit).norm() / limit.norm()) < 0.02

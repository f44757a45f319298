"""Mean-field theory of Transformers at initialization, compared with small networks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from normplace.analysis.signal_probe.probe import signals
from normplace.lab.studies.periln.claims.theory import largest_factor
from normplace.lab.studies.periln.mean_field import powers, predict, series, silu, zipf
from normplace.lab.studies.periln.pretraining import PretrainingTrial, build, config_of
from normplace.lab.studies.periln.training import summary

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("entropy", [1.0, 5.0, 7.9])
def test_frequencies_have_the_entropy(entropy):
    frequencies = zipf(entropy, 256)
    assert frequencies.sum() == pytest.approx(1)
    assert -(frequencies * np.log2(frequencies)).sum() == pytest.approx(entropy)


@pytest.mark.parametrize("correlation", [0.0, 0.6, 1.0])
def test_the_kernel_of_the_activation(correlation):
    draws = np.random.default_rng(0).standard_normal((2, 400_000))
    first, second = draws[0], correlation * draws[0] + np.sqrt(1 - correlation**2) * draws[1]
    sampled = (silu(0.7 * first) * silu(0.7 * second)).mean()
    kernel = series(powers(silu, 0.7), torch.tensor([[correlation]], dtype=torch.float64))
    # The standard error of the mean of 400,000 products of size below 1 is below 1 / sqrt(400,000) = 0.0016.
    assert float(kernel) == pytest.approx(sampled, abs=0.005)


@pytest.mark.parametrize("placement", ["pre", "peri", "post", "output", "mix", "sub", "normformer"])
def test_theory_predicts_a_small_network(placement):
    trial = PretrainingTrial(
        placement=placement, learning_rate=1e-3, seed=0, tokens=1000, dim=192, depth=4, heads=6, device="cpu"
    )
    generator = torch.Generator().manual_seed(0)
    frequencies = torch.from_numpy(zipf(5.0, 256))
    ids = torch.multinomial(frequencies, 2 * 129, replacement=True, generator=generator).view(2, 129)
    targets = ids[:, 1:].flatten()
    measured = signals(build(trial), ids[:, :-1], lambda logits: F.cross_entropy(logits.flatten(0, 1), targets))
    predicted = predict(config_of(trial), 5.0)
    variance = [depth.variance for depth in measured.depths[2::2]]
    _, lists = summary(measured.depths)
    # One network of width 192: fluctuations of a layer are of the order of sqrt(2 / 192) = 10%, and they add up.
    assert largest_factor(predicted.variance[1:], variance) < 1.4
    assert largest_factor(predicted.gradient, lists["gradient"], relative=True) < 1.4

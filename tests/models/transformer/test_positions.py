"""Rotations and slopes."""

from __future__ import annotations

import json

import pytest
import torch
from tests.models.transformer.reference import turned

from normplace import UsageError
from normplace.models.transformer import Attention, PositionConfig, TransformerConfig
from normplace.models.transformer.positions import ALiBi, Rotary, rotate
from normplace.models.transformer.rotary_scaling import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongScaling,
    YarnScaling,
)


def test_rotation_is_that_of_complex_numbers():
    x = torch.randn(7, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    got = rotate(x, Rotary(50.0).table(3, 7, 6))
    wanted = torch.stack([turned(row, 3 + t, 50.0) for t, row in enumerate(x)])
    torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-12)


def test_scores_depend_on_the_distance_alone():
    q, k = torch.randn(2, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def score(at, distance):
        table = Rotary().table(at, distance + 1, 8)
        first, last = (tuple(part[row] for part in table) for row in (0, distance))
        return rotate(q, last) @ rotate(k, first)

    assert float(score(0, 5)) == pytest.approx(float(score(100_000, 5)), rel=1e-9)


def test_slopes_are_those_of_the_paper():
    assert ALiBi().slopes(8) == [2**-i for i in range(1, 9)]
    assert ALiBi().slopes(4) == [2**-2, 2**-4, 2**-6, 2**-8]
    assert ALiBi().slopes(6) == [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3]


def test_interleaved_pairs_are_a_permutation_of_the_halves():
    x = torch.randn(3, 7, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    order = [0, 2, 4, 1, 3, 5]  # the first of every pair, then the second
    halves, pairs = Rotary(50.0), Rotary(50.0, interleaved=True)
    expected = halves.rotate(x[..., order], halves.table(3, 7, 6, dtype=x.dtype))
    assert torch.equal(pairs.rotate(x, pairs.table(3, 7, 6, dtype=x.dtype))[..., order], expected)


def test_a_part_of_a_head_rotates():
    x = torch.randn(3, 7, 10, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    part = Rotary(50.0, features=4)
    got = part.rotate(x, part.table(0, 7, 10, dtype=x.dtype))
    assert torch.equal(got[..., 4:], x[..., 4:])
    assert torch.equal(got[..., :4], rotate(x[..., :4], Rotary(50.0).table(0, 7, 4, dtype=x.dtype)))


def frequencies(scaling, length=1):
    exponents = torch.arange(0, 8, 2, dtype=torch.float64) / 8
    return scaling.frequencies(100.0, exponents, length)


def test_scaled_frequencies():
    plain = 100.0 ** -(torch.arange(0, 8, 2, dtype=torch.float64) / 8)
    torch.testing.assert_close(frequencies(LinearScaling(4.0)), plain / 4)
    assert torch.equal(frequencies(DynamicScaling(4.0, 16), 16), plain)
    # At twice the length, the base grows by (4 * 2 - 3)^(8 / 6).
    grown = (100 * 5 ** (8 / 6)) ** -(torch.arange(0, 8, 2, dtype=torch.float64) / 8)
    torch.testing.assert_close(frequencies(DynamicScaling(4.0, 16), 32), grown)
    # Rotations over the original length of 60: 9.5, 3.0, 0.95 and 0.3; low 1 and high 4 are 68% apart for the second.
    share = (60 * plain[1] / (2 * torch.pi) - 1) / 3
    expected = torch.stack((plain[0], share * plain[1] + (1 - share) * plain[1] / 8, plain[2] / 8, plain[3] / 8))
    torch.testing.assert_close(frequencies(Llama3Scaling(8.0, 60, 1.0, 4.0)), expected)
    divisors = LongScaling((1.0, 1.0, 2.0, 2.0), (3.0, 4.0, 5.0, 6.0), 16)
    torch.testing.assert_close(frequencies(divisors, 16), plain / torch.tensor([1, 1, 2, 2]))
    torch.testing.assert_close(frequencies(divisors, 17), plain / torch.tensor([3, 4, 5, 6]))
    # All frequencies of YaRN lie between the kept and the divided ones, in order.
    yarn = frequencies(YarnScaling(4.0, 60, fast=4.0, slow=1.0))
    assert ((plain / 4 <= yarn + 1e-15) & (yarn <= plain + 1e-15)).all()
    assert yarn[0] == plain[0]
    torch.testing.assert_close(yarn[-1], plain[-1] / 4)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: LinearScaling(0.0), "factor must be above 0"),
        (lambda: DynamicScaling(0.5), "factor must be at least 1"),
        (lambda: Llama3Scaling(low=4.0, high=1.0), "low must be less than high"),
        (lambda: LinearScaling("x"), "factor takes a number"),
        (lambda: PositionConfig(scaling={"kind": "liner"}), "did you mean 'linear'"),
        (lambda: PositionConfig(scaling={"kind": "linear", "factors": 2.0}), "did you mean 'factor'"),
        (lambda: frequencies(LongScaling((1.0,), (1.0,))), "4 rotary frequencies need one divisor each, got 1"),
        (lambda: PositionConfig(offset=-1), "offset must be at least 0"),
        (lambda: Attention(8, 2, positions=Rotary(features=6)), "cannot rotate 6 of them"),
        (lambda: Attention(8, 2, positions=Rotary(features=3)), "must be even, got 3"),
    ],
)
def test_impossible_positions_are_refused(build, message):
    with pytest.raises(UsageError, match=message):
        build()


def test_positions_are_saved():
    scaling = LongScaling((1.0, 2.0), (3.0, 4.0), 16, 1.5)
    positions = PositionConfig(scaling=scaling, rotary_layers=(True, False), rotary_features=4, window_theta=7.0)
    config = TransformerConfig(11, 16, 2, positions=positions, norm_parameters="none", embedding_dim=5)
    assert TransformerConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config

"""Widths of equal size."""

from __future__ import annotations

from functools import partial

import pytest
from torch import nn

from normplace import UsageError
from normplace.models import SequenceModel
from normplace.models.sequence import Relation, count_parameters, matched_width


@pytest.mark.parametrize("mixer", ["attention", "linear-attention", "gated-linear"])
def test_the_width_found_is_the_nearest(mixer):
    target = count_parameters(SequenceModel(29, 128, 4, context=130, device="meta"))
    make = partial(SequenceModel, 29, depth=4, mixer=mixer, context=130, device="meta")
    width = matched_width(make, target, multiple=2)
    away = {other: abs(count_parameters(make(other)) - target) for other in (width - 2, width, width + 2)}
    assert min(away, key=lambda other: away[other]) == width
    assert away[width] <= 0.02 * target


def test_any_width_can_be_varied():
    target = count_parameters(SequenceModel(29, 64, 2, mixer="attention", context=50, device="meta"))
    hidden = matched_width(lambda n: SequenceModel(29, 64, 2, mixer=Relation(hidden=n), context=50), target, multiple=8)
    assert hidden == 256


def test_a_number_that_no_width_has_is_refused():
    with pytest.raises(UsageError, match="the nearest, 64, has 4,160"):
        matched_width(lambda width: nn.Linear(width, width), 5000, multiple=32)

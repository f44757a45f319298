"""What rules of streams refuse; that they equal their equations is tested with the placements."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from normplace import BlockSpec, Placement, Residual, UsageError
from normplace.models import MLP


@pytest.mark.parametrize("name", ["b2t", "residual-dual", "siamese"])
def test_a_single_block_cannot_carry_two_streams(name):
    for build in (lambda: Residual(nn.Linear(4, 4), 4, name), lambda: MLP((2, 4, 4, 1), placement=name)):
        with pytest.raises(UsageError, match="spans several blocks"):
            build()


@pytest.mark.parametrize(
    ("streams", "block", "final", "reason"),
    [
        ("dual", BlockSpec(), True, "set stream=True in every block"),
        ("dual", BlockSpec(stream=True), False, "and final=True"),
        ("dual", BlockSpec(stream=True, skip_scale=2.0), True, "leave the skip alone"),
        ("siamese", BlockSpec(stream=True), True, "set input=True"),
        ("b2t", BlockSpec(), False, "set stream=True in the last block"),
        ("b2t", BlockSpec(stream=True), True, "normalize twice"),
        ("tripple", BlockSpec(), False, "unknown kind of streams"),
    ],
)
def test_contradictions_cannot_be_built(streams, block, final, reason):
    with pytest.raises(UsageError, match=reason):
        Placement(((1.0, block),), final=final, streams=streams)


def test_a_stack_can_add_to_the_skip():
    block = Residual(nn.Linear(4, 4), 4, "post")
    x, extra = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(block(x, extra_residual=extra), block.stream_norm(extra + x + block.branch(x)))
    torch.testing.assert_close(block.add_to_stream(x, extra), block.stream_norm(x + extra))

"""What a stack carries from block to block: one stream, or the two that some placements need.

A rule begins with the embedding, passes its streams through the layers, and ends with what the head reads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from normplace.errors import UsageError
from normplace.models.transformer.layer import Layer, SequentialLayer, calls_of
from normplace.placement import STREAMS
from normplace.residual import NormLike, Residual, build_slot_norm
from normplace.stack import BlockCall, explain_fusion, run_blocks

LayerCall = tuple[nn.Module, Mapping[str, Any]]
"""A layer, and what its attention is given."""


class OneStream(nn.Module):
    """The stream of every placement that a single block can state."""

    def calls(self, layers: Sequence[LayerCall]) -> list[BlockCall]:
        """The blocks in turn, for the rules that a plain stack of them can state."""
        return [call for layer, read in layers for call in calls_of(layer, **read)]

    def through(self, x: Tensor, layers: Sequence[LayerCall], final_norm: nn.Module | None) -> Tensor:
        """What the head reads.

        Args:
            x: The embedding.
            layers: The layers in turn.
            final_norm: The final norm, where the placement has one.
        """
        return run_blocks(self.calls(layers), x, final_norm)

    def explain_fusion(self, layers: Sequence[LayerCall], final_norm: nn.Module | None) -> str:
        """What is computed in one pass, and why not where it is not, as :func:`normplace.fusion` says it."""
        return explain_fusion(self.calls(layers), final_norm)


class BottomToTop(OneStream):
    """B2T (Takase et al. 2022, arXiv 2206.00330): the input of a layer is added once more before its last norm."""

    def through(self, x: Tensor, layers: Sequence[LayerCall], final_norm: nn.Module | None) -> Tensor:
        """What the head reads, as in :class:`OneStream`."""
        for layer, read in layers:
            *first, last = blocks_of(layer, read)
            x = run_blocks([*first, last._replace(kwargs={**last.kwargs, "extra_residual": x})], x)
        return x if final_norm is None else final_norm(x)

    def explain_fusion(self, layers: Sequence[LayerCall], final_norm: nn.Module | None) -> str:
        """That of the blocks; the last of each layer adds more than its skip."""
        calls = [blocks_of(layer, read) for layer, read in layers]
        extra = {"extra_residual": True}
        return explain_fusion(
            [call for *first, last in calls for call in (*first, last._replace(kwargs=extra))], final_norm
        )


class DualStream(OneStream):
    """ResiDual (Xie et al. 2023, arXiv 2304.14802): a post-norm stream x, and r, which sums what the branches add."""

    def through(self, x: Tensor, layers: Sequence[LayerCall], final_norm: nn.Module | None) -> Tensor:
        """``x + N(r)``, both streams starting as the embedding."""
        r, number = x, 0
        for layer, read in layers:
            for call in blocks_of(layer, read):
                number += 1
                x, r = self.step(x, r, number, call)
        return x + (r if final_norm is None else final_norm(r))

    def step(self, x: Tensor, r: Tensor, number: int, call: BlockCall) -> tuple[Tensor, Tensor]:
        """Both streams after a block.

        Args:
            x: The first.
            r: The second.
            number: Which block it is, counted from 1 through the whole stack.
            call: The block and what its branch is given.
        """
        block = residual_of(call)
        out = block.branch_output(x, **call.kwargs)
        return block.add_to_stream(x, out), r + out

    def explain_fusion(self, layers: Sequence[LayerCall], final_norm: nn.Module | None) -> str:
        """Nothing: what the branch adds goes to two streams."""
        return "not fused: what the branches add goes to two streams"


class SiameseStreams(DualStream):
    """SiameseNorm (Li et al. 2026, arXiv 2602.08064): branches read a post-norm stream x and a pre-norm stream y.

    In layer l, ``z = F(N(x + N(y)))``, ``x' = N(x + z / sqrt(2 l))`` and ``y' = y + z``; the head reads ``x + N(y)``.
    The factor is that of the authors' code.

    Args:
        norm: Builds the norms of y.
        dim: Width of the streams.
        branches: How many branches the stack has.
    """

    def __init__(self, norm: NormLike, dim: int, branches: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(build_slot_norm(norm, "stream", dim) for _ in range(branches))

    def step(self, x: Tensor, r: Tensor, number: int, call: BlockCall) -> tuple[Tensor, Tensor]:
        """Both streams after a block, as in :class:`DualStream`."""
        block = residual_of(call)
        z = block.branch_output(x + self.norms[number - 1](r), **call.kwargs)
        return block.add_to_stream(x, z / math.sqrt(2 * block.layer)), r + z


def blocks_of(layer: nn.Module, read: Mapping[str, Any]) -> list[BlockCall]:
    """The blocks of a layer, for a rule that must have them one by one.

    Raises:
        UsageError: If something else was put in its place.
    """
    if not isinstance(layer, Layer | SequentialLayer):
        raise UsageError(
            f"the placement carries more than one stream through a layer, so {type(layer).__name__} cannot stand in "
            "its place: wrap its blocks, or the branches in them."
        )
    return layer.calls(**read)


def residual_of(call: BlockCall) -> Residual:
    """The block of a call, which two streams ask for what it adds."""
    assert isinstance(call.block, Residual)
    return call.block


def build_streams(rule: str, norm: NormLike, dim: int, branches: int) -> OneStream:
    """The rule of that name.

    Args:
        rule: A key of :data:`normplace.placement.STREAMS`.
        norm: Builds norms the rule has of its own.
        dim: Width of the stream.
        branches: How many branches the stack has.
    """
    assert rule in STREAMS
    if rule == "siamese":
        return SiameseStreams(norm, dim, branches)
    return {"one": OneStream, "b2t": BottomToTop, "dual": DualStream}[rule]()

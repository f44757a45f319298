"""What a stack carries from block to block: one stream, or the two that some placements need.

A rule begins with the embedding, passes its streams through the blocks of each layer, and ends with what the head
reads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from normplace.placement import STREAMS
from normplace.residual import NormLike, Residual, build_slot_norm

Call = tuple[Residual, Mapping[str, Any]]
Streams = tuple[Tensor, ...]


class OneStream(nn.Module):
    """The stream of every placement that a single block can state."""

    def begin(self, x: Tensor) -> Streams:
        """The streams that start from an embedding."""
        return (x,)

    def layer(self, streams: Streams, layer: int, calls: Sequence[Call]) -> Streams:
        """The streams after one layer.

        Args:
            streams: Those before it.
            layer: Which it is, counted from 1.
            calls: Its blocks in turn, each with what its branch is called with.
        """
        (x,) = streams
        for block, kwargs in calls:
            x = block(x, **kwargs)
        return (x,)

    def end(self, streams: Streams, final: Callable[[Tensor], Tensor]) -> Tensor:
        """What the head reads.

        Args:
            streams: Those after the last layer.
            final: The final norm, which does nothing where the placement has none.
        """
        return final(streams[0])


class BottomToTop(OneStream):
    """B2T (Takase et al. 2022, arXiv 2206.00330): the input of a layer is added once more before its last norm."""

    def layer(self, streams: Streams, layer: int, calls: Sequence[Call]) -> Streams:
        """The stream after one layer, as in :class:`OneStream`."""
        (bottom,) = (x,) = streams
        for block, kwargs in calls[:-1]:
            x = block(x, **kwargs)
        block, kwargs = calls[-1]
        return (block(x, also=bottom, **kwargs),)


class DualStream(OneStream):
    """ResiDual (Xie et al. 2023, arXiv 2304.14802): a post-norm stream x, and r, which sums what the branches add."""

    def begin(self, x: Tensor) -> Streams:
        """Both streams start as the embedding."""
        return (x, x)

    def layer(self, streams: Streams, layer: int, calls: Sequence[Call]) -> Streams:
        """The streams after one layer, as in :class:`OneStream`."""
        x, r = streams
        for block, kwargs in calls:
            out = block.added(x, **kwargs)
            x, r = block.joined(x, out), r + out
        return (x, r)

    def end(self, streams: Streams, final: Callable[[Tensor], Tensor]) -> Tensor:
        """``x + N(r)``."""
        x, r = streams
        return x + final(r)


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

    def layer(self, streams: Streams, layer: int, calls: Sequence[Call]) -> Streams:
        """The streams after one layer, as in :class:`OneStream`."""
        x, y = streams
        for at, (block, kwargs) in enumerate(calls, start=(layer - 1) * len(calls)):
            z = block.added(x + self.norms[at](y), **kwargs)
            x, y = block.joined(x, z / math.sqrt(2 * layer)), y + z
        return (x, y)


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

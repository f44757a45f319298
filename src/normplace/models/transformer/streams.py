"""How a stack carries its stream from block to block: one stream, or the two streams of some placements.

Each class takes the embedding, runs the layers, and returns the head's input.
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
"""A layer, and the arguments of its first branch."""


class OneStream(nn.Module):
    """One stream through all blocks, as in most placements."""

    def calls(self, layers: Sequence[LayerCall]) -> list[BlockCall]:
        """The blocks of all layers in order."""
        return [call for layer, arguments in layers for call in calls_of(layer, **arguments)]

    def run(self, x: Tensor, layers: Sequence[LayerCall], final_norm: nn.Module | None) -> Tensor:
        """The head's input."""
        return run_blocks(self.calls(layers), x, final_norm)

    def explain_fusion(self, layers: Sequence[LayerCall], final_norm: nn.Module | None) -> str:
        """What is fused; see :func:`normplace.explain_fusion`."""
        return explain_fusion(self.calls(layers), final_norm)


class BottomToTop(OneStream):
    """B2T (Takase et al. 2022, arXiv 2206.00330): the input of a layer is added again before its last norm."""

    def run(self, x: Tensor, layers: Sequence[LayerCall], final_norm: nn.Module | None) -> Tensor:
        """The head's input, as in :class:`OneStream`."""
        for layer, arguments in layers:
            *first, last = blocks_of(layer, arguments)
            x = run_blocks([*first, last._replace(kwargs={**last.kwargs, "extra_residual": x})], x)
        return x if final_norm is None else final_norm(x)

    def explain_fusion(self, layers: Sequence[LayerCall], final_norm: nn.Module | None) -> str:
        """What is fused; the last block of each layer has an extra residual."""
        calls = [blocks_of(layer, arguments) for layer, arguments in layers]
        extra = {"extra_residual": True}
        return explain_fusion(
            [call for *first, last in calls for call in (*first, last._replace(kwargs=extra))], final_norm
        )


class DualStream(OneStream):
    """ResiDual (Xie et al. 2023, arXiv 2304.14802): a post-norm stream x, and the sum r of all branch outputs."""

    def run(self, x: Tensor, layers: Sequence[LayerCall], final_norm: nn.Module | None) -> Tensor:
        """``x + N(r)``; both streams are initially the embedding."""
        r, number = x, 0
        for layer, arguments in layers:
            for call in blocks_of(layer, arguments):
                number += 1
                x, r = self.step(x, r, number, call)
        return x + (r if final_norm is None else final_norm(r))

    def step(self, x: Tensor, r: Tensor, number: int, call: BlockCall) -> tuple[Tensor, Tensor]:
        """Both streams after a block."""
        block = residual_of(call)
        out = block.branch_output(x, **call.kwargs)
        return block.add_to_stream(x, out), r + out

    def explain_fusion(self, layers: Sequence[LayerCall], final_norm: nn.Module | None) -> str:
        """Nothing is fused: branch outputs are added to two streams."""
        return "not fused: the branches' outputs are added to two streams"


class SiameseStreams(DualStream):
    """SiameseNorm (Li et al. 2026, arXiv 2602.08064): branches read a post-norm stream x and a pre-norm stream y.

    In layer l, ``z = F(N(x + N(y)))``, ``x' = N(x + z / sqrt(2 l))`` and ``y' = y + z``; the head reads ``x + N(y)``.
    The factor is taken from the authors' code.
    """

    def __init__(self, norm: NormLike, dim: int, branches: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(build_slot_norm(norm, "stream", dim) for _ in range(branches))

    def step(self, x: Tensor, r: Tensor, number: int, call: BlockCall) -> tuple[Tensor, Tensor]:
        """Both streams after a block, as in :class:`DualStream`."""
        block = residual_of(call)
        z = block.branch_output(x + self.norms[number - 1](r), **call.kwargs)
        return block.add_to_stream(x, z / math.sqrt(2 * block.layer)), r + z


class ParallelBranches(OneStream):
    """One stream that all branches of a layer read at the same point, as in GPT-J and GPT-NeoX.

    Args:
        shared: Whether all branches of a layer read it through the input norm of the first.
    """

    def __init__(self, shared: bool) -> None:
        super().__init__()
        self.shared = shared

    def run(self, x: Tensor, layers: Sequence[LayerCall], final_norm: nn.Module | None) -> Tensor:
        """The head's input, as in :class:`OneStream`."""
        for layer, arguments in layers:
            x = self.step(x, blocks_of(layer, arguments))
        return x if final_norm is None else final_norm(x)

    def step(self, x: Tensor, calls: Sequence[BlockCall]) -> Tensor:
        """The stream after a layer."""
        total, normed = x, None
        for call in calls:
            block = residual_of(call)
            rows = block.row_inputs()
            if normed is None or not self.shared:
                normed = block.read(x, rows)
            total = total + block.scale_output(block.run_branch(normed, *call.args, **call.kwargs), x, rows)
        return total

    def explain_fusion(self, layers: Sequence[LayerCall], final_norm: nn.Module | None) -> str:
        """Nothing is fused: the fused pass adds one branch."""
        return "not fused: the branches of a layer are added together"


def blocks_of(layer: nn.Module, arguments: Mapping[str, Any]) -> list[BlockCall]:
    """The blocks of a layer, for streams that need each block separately.

    Raises:
        UsageError: If the layer is another module.
    """
    if not isinstance(layer, Layer | SequentialLayer):
        raise UsageError(
            f"the placement carries more than one stream through a layer, so a {type(layer).__name__} cannot replace "
            "it: wrap its blocks, or the branches in them."
        )
    return layer.calls(**arguments)


def residual_of(call: BlockCall) -> Residual:
    """The residual block of a call."""
    assert isinstance(call.block, Residual)
    return call.block


def build_streams(kind: str, norm: NormLike, dim: int, branches: int) -> OneStream:
    """The streams of a placement."""
    assert kind in STREAMS
    if kind == "siamese":
        return SiameseStreams(norm, dim, branches)
    if kind in ("parallel", "parallel-shared"):
        return ParallelBranches(shared=kind == "parallel-shared")
    return {"one": OneStream, "b2t": BottomToTop, "dual": DualStream}[kind]()

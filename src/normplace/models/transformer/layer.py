"""Layers: residual blocks that share the arguments of one mixing branch."""

from __future__ import annotations

from torch import Tensor, nn

from normplace.models.transformer.cache import LayerCache
from normplace.models.transformer.positions import Table
from normplace.residual import Residual
from normplace.stack import BlockCall, has_global_hooks, has_hooks, run_blocks


class Layer(nn.Module):
    """A Transformer layer: the attention block, the cross-attention block of a decoder with an encoder, the MLP block.

    Args:
        attention: The block around attention.
        mlp: The block around the MLP.
        cross: The block around cross-attention, if there is one.
    """

    def __init__(self, attention: Residual, mlp: Residual, cross: Residual | None = None) -> None:
        super().__init__()
        self.attention, self.cross, self.mlp = attention, cross, mlp

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        cache: LayerCache | None = None,
        table: Table | None = None,
        bias: Tensor | None = None,
        memory: Tensor | None = None,
        memory_mask: Tensor | None = None,
    ) -> Tensor:
        """The stream after the layer; arguments as in :class:`Attention` and :class:`CrossAttention`."""
        arguments = {"mask": mask, "cache": cache, "table": table, "bias": bias}
        return run_blocks(self.calls(**arguments, memory=memory, memory_mask=memory_mask), x)

    def calls(self, memory: object = None, memory_mask: object = None, **arguments: object) -> list[BlockCall]:
        """The blocks; the arguments are those of :meth:`forward`."""
        calls = [BlockCall(self.attention, kwargs=arguments)]
        if self.cross is not None:
            shared = {"memory": memory, "mask": memory_mask, "cache": arguments.get("cache")}
            calls.append(BlockCall(self.cross, kwargs=shared))
        return [*calls, BlockCall(self.mlp)]


class SequentialLayer(nn.Sequential):
    """A layer of any blocks, the first of which mixes tokens."""

    def forward(self, input: Tensor, **arguments: object) -> Tensor:
        """The stream after the layer; the arguments are those of the first branch."""
        return run_blocks(self.calls(**arguments), input)

    def calls(self, **arguments: object) -> list[BlockCall]:
        """The blocks, with the arguments of the first."""
        first, *rest = self
        return [BlockCall(first, kwargs=arguments), *map(BlockCall, rest)]


def calls_of(layer: nn.Module, **arguments: object) -> list[BlockCall]:
    """The blocks of a layer, or the layer itself if it has hooks or is another module."""
    if (type(layer) is Layer or type(layer) is SequentialLayer) and not has_hooks(layer) and not has_global_hooks():
        return layer.calls(**arguments)
    return [BlockCall(layer, kwargs=arguments)]

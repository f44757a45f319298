"""Layers: residual blocks that share the arguments of one mixing branch."""

from __future__ import annotations

from torch import Tensor, nn

from normplace.models.transformer.cache import LayerCache
from normplace.models.transformer.positions import Table
from normplace.residual import Residual
from normplace.stack import BlockCall, has_global_hooks, has_hooks, run_blocks


class Layer(nn.Module):
    """A Transformer layer: the attention block, then the MLP block.

    Args:
        attention: The block around attention.
        mlp: The block around the MLP.
    """

    def __init__(self, attention: Residual, mlp: Residual) -> None:
        super().__init__()
        self.attention, self.mlp = attention, mlp

    def forward(
        self, x: Tensor, mask: Tensor | None = None, cache: LayerCache | None = None, table: Table | None = None
    ) -> Tensor:
        """The stream after the layer; the arguments are those of the attention branch."""
        return run_blocks(self.calls(mask=mask, cache=cache, table=table), x)

    def calls(self, **arguments: object) -> list[BlockCall]:
        """Both blocks, with the arguments of attention."""
        return [BlockCall(self.attention, kwargs=arguments), BlockCall(self.mlp)]


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
    """The blocks of a layer, or the layer itself if it has hooks or is another module.

    Args:
        layer: A layer of the stack.
        **arguments: Arguments of its first branch.
    """
    if (type(layer) is Layer or type(layer) is SequentialLayer) and not has_hooks(layer) and not has_global_hooks():
        return layer.calls(**arguments)
    return [BlockCall(layer, kwargs=arguments)]

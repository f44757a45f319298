"""One layer: what its tokens read of each other, and what each makes of it."""

from __future__ import annotations

from torch import Tensor, nn

from normplace.models.transformer.cache import LayerCache
from normplace.models.transformer.positions import Table
from normplace.residual import Residual
from normplace.stack import BlockCall, has_global_hooks, has_hooks, run_blocks


class Layer(nn.Module):
    """Two blocks in turn.

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
        """The stream after the layer, for the arguments of its attention."""
        return run_blocks(self.calls(mask=mask, cache=cache, table=table), x)

    def calls(self, **read: object) -> list[BlockCall]:
        """Both blocks, with what attention is given."""
        return [BlockCall(self.attention, kwargs=read), BlockCall(self.mlp)]


class SequentialLayer(nn.Sequential):
    """One layer of any blocks in turn, the first of which mixes tokens."""

    def forward(self, input: Tensor, **read: object) -> Tensor:
        """The stream after the layer, for the arguments of its first branch."""
        return run_blocks(self.calls(**read), input)

    def calls(self, **read: object) -> list[BlockCall]:
        """The blocks, with what the first is given."""
        first, *rest = self
        return [BlockCall(first, kwargs=read), *map(BlockCall, rest)]


def calls_of(layer: nn.Module, **read: object) -> list[BlockCall]:
    """The blocks of a layer, or the layer itself where it must be called: it has hooks, or was put in its place.

    Args:
        layer: What stands in the stack.
        **read: What attention is given.
    """
    if (type(layer) is Layer or type(layer) is SequentialLayer) and not has_hooks(layer) and not has_global_hooks():
        return layer.calls(**read)
    return [BlockCall(layer, kwargs=read)]

"""Two models on one batch, block by block: what a move changed in the stream, the gradients and the norms."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from normplace.analysis.api import audit
from normplace.analysis.results import Audit
from normplace.analysis.scale_survival.measure import Survival, survival
from normplace.errors import UsageError


@dataclass(frozen=True)
class BlockSignals:
    """What one residual block did on a batch.

    Attributes:
        module: The module whose output it adds, or the one that adds it.
        equation: Its arithmetic.
        peak: The largest magnitude of the stream behind it.
        gradient: The norm of the gradient of its branches' parameters; None without a loss.
    """

    module: str
    equation: str
    peak: float | None
    gradient: float | None


@dataclass(frozen=True)
class Signals:
    """One model on one batch.

    Attributes:
        placement: By name, where it has one.
        blocks: In the order they run.
        survival: What of a row's length gets through each norm; None where there is no norm.
    """

    placement: str | None
    blocks: tuple[BlockSignals, ...]
    survival: Survival | None


@dataclass(frozen=True)
class Comparison:
    """The signals of a model before and after a change.

    Attributes:
        before: Of the first model.
        after: Of the second.
    """

    before: Signals
    after: Signals

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready form."""
        return asdict(self)

    def __str__(self) -> str:
        sides = ("before", self.before), ("after", self.after)
        lines = []
        for name, side in sides:
            width = max(len(block.module) for block in side.blocks)
            lines += [f"{name}: {side.placement or 'no published placement'}"]
            lines += [f"{'branch':{width}}  {'stream peak':>11} {'gradient':>9}  equation"]
            for block in side.blocks:
                peak, gradient = ("-" if x is None else f"{x:.3g}" for x in (block.peak, block.gradient))
                lines.append(f"{block.module:{width}}  {peak:>11} {gradient:>9}  {block.equation}")
            lines += [*([] if side.survival is None else [str(side.survival)]), ""]
        return "\n".join(lines).rstrip()


def compare(
    before: nn.Module, after: nn.Module, *inputs: Any, loss: Callable[[Any], Tensor] | None = None, **kwargs: Any
) -> Comparison:
    """Measure two models, such as one and its moved copy, on the same batch.

    Neither is touched: copies run, in evaluation mode.

    Args:
        before: A model with residual blocks.
        after: Another that takes the same arguments.
        *inputs: The batch.
        loss: From a model's output to a scalar, for gradients.
        **kwargs: More of what the models are called with.

    Raises:
        UsageError: If a model cannot be run or has no residual blocks, or the loss is no scalar.

    Example:
        >>> layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        >>> x = torch.randn(2, 5, 16)
        >>> from normplace.edit.move import move
        >>> found = compare(layer, move(layer, x, to="pre"), x, loss=lambda y: y.square().mean())
        >>> found.before.placement, found.after.placement
        ('post', 'pre')
    """
    return Comparison(*(_signals(model, inputs, kwargs, loss) for model in (before, after)))


def _signals(
    model: nn.Module, inputs: tuple[Any, ...], kwargs: dict[str, Any], loss: Callable[[Any], Tensor] | None
) -> Signals:
    found = audit(model, *inputs, **kwargs)
    if not found.blocks:
        raise UsageError(f"{type(model).__name__} has no residual block to compare: give models that have.")
    gradients = [None] * len(found.blocks) if loss is None else _gradients(model, found, inputs, kwargs, loss)
    blocks = tuple(
        BlockSignals(
            block.branches[0].module or block.module,
            block.equation,
            max((arm.peak for arm in block.branches if arm.peak is not None), default=None),
            gradient,
        )
        for block, gradient in zip(found.blocks, gradients, strict=True)
    )
    return Signals(found.placement, blocks, survival(model, *inputs, **kwargs) if found.sites else None)


def _gradients(
    model: nn.Module,
    found: Audit,
    inputs: tuple[Any, ...],
    kwargs: dict[str, Any],
    loss: Callable[[Any], Tensor],
) -> list[float | None]:
    """The norm of the gradients in every block's branches; None where no module is the branch."""
    copied = copy.deepcopy(model).eval()
    copied.zero_grad(set_to_none=True)
    with torch.enable_grad():
        value = loss(copied(*inputs, **kwargs))
        if not isinstance(value, Tensor) or value.numel() != 1:
            raise UsageError("the loss must be a tensor of one number: reduce it, by a mean for example.")
        value.backward()
    norms: list[float | None] = []
    for block in found.blocks:
        branches = [copied.get_submodule(arm.module) for arm in block.branches if arm.module is not None]
        own = {parameter for branch in branches for parameter in branch.parameters() if parameter.grad is not None}
        squares = [float(parameter.grad.double().square().sum()) for parameter in own if parameter.grad is not None]
        norms.append(math.sqrt(math.fsum(squares)) if own else None)
    return norms

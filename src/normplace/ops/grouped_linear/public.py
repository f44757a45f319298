"""The public grouped linear map and the checks of its arguments."""

from __future__ import annotations

import torch
from torch import Tensor

from normplace.errors import UsageError
from normplace.ops.grouped_linear.op import GROUPED_LINEAR, GroupedLinearSpec


def grouped_linear(x: Tensor, weight: Tensor, group: Tensor) -> Tensor:
    """Map each row by the matrix of its group; the rows are sorted by group.

    One matrix product for each group that has rows, without padding. Autocast applies, as to :class:`torch.nn.Linear`.

    Args:
        x: Rows × in features.
        weight: Groups × out features × in features.
        group: The group of each row, as integers in ascending order; the order is not checked.

    Returns:
        Rows × out features.

    Raises:
        UsageError: If the shapes do not fit, or a group has no matrix.

    Example:
        >>> weight = torch.tensor([[[1.0, 0.0]], [[0.0, 10.0]]])
        >>> grouped_linear(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), weight, torch.tensor([0, 1]))
        tensor([[ 1.],
                [40.]])
    """
    if x.dim() != 2 or weight.dim() != 3 or x.shape[1] != weight.shape[2] or group.shape != x.shape[:1]:
        raise UsageError(
            "expected x as rows × in, weight as groups × out × in and group as rows, got "
            f"{tuple(x.shape)}, {tuple(weight.shape)} and {tuple(group.shape)}."
        )
    if torch.is_autocast_enabled(x.device.type):
        dtype = torch.get_autocast_dtype(x.device.type)
        x, weight = (tensor.to(dtype) if tensor.dtype != torch.float64 else tensor for tensor in (x, weight))
    return GROUPED_LINEAR((x, weight, group), GroupedLinearSpec())[0]

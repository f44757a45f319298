"""Checks of tensors that hold indices: no index may reach outside the tensor it is used on."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from normplace.errors import UsageError
from normplace.ops.calling import mapped, plain, traced, transformed

# For a tensor on a GPU, the version and bound of its last check: the result has to be waited for, so it is remembered.
# A kernel that reads indices there still ignores those out of range, since a capture or ``.data`` evades the check.
_checked: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def check_range(name: str, indices: Tensor, bound: int, advice: str) -> None:
    """Refuse indices that are not from 0 to ``bound - 1``.

    On a GPU this waits for the values, once for each tensor and version; while a CUDA graph is captured nothing can be
    waited for and nothing is checked.

    Args:
        name: What to call them in the error.
        indices: Whole numbers.
        bound: How many there are to choose from.
        advice: How to correct them.

    Raises:
        UsageError: If one is out of range.
    """
    if not indices.numel() or indices.device.type == "meta":
        return
    state = None  # to remember where values have to be waited for
    if indices.device.type != "cpu":
        if indices.is_cuda and torch.cuda.is_current_stream_capturing():
            return
        state = None if indices.is_inference() else (indices._version, bound)
        if state is not None and _checked.get(indices) == state:
            return
    low, high = (int(value) for value in indices.aminmax())
    if low < 0 or high >= bound:
        raise UsageError(f"{name} must be from 0 to {bound - 1}, got {low} to {high}: {advice}.")
    if state is not None:
        _checked[indices] = state


def checked(name: str, indices: Tensor, bound: int, advice: str, *, asserted: bool = False) -> Tensor:
    """The indices, refused as :func:`check_range` refuses them; compiled functions check at run time.

    A function compiled for a GPU does not wait for the values: there an index out of range ends in a device-side
    assertion, as it does in PyTorch's own indexing.

    Args:
        name: What to call them in the error.
        indices: Whole numbers.
        bound: How many there are to choose from.
        advice: How to correct them.
        asserted: Whether what reads them on a GPU is PyTorch's own indexing, whose assertion then suffices.

    Raises:
        UsageError: If one is out of range.
    """
    if traced() or not plain(indices):
        return _checked_when_run(indices, bound, name, advice)
    if transformed() and mapped(indices):
        raise UsageError(f"vmap cannot map over {name}: map over the features.")
    if not (asserted and indices.is_cuda):
        check_range(name, indices, bound, advice)
    return indices


@torch.library.custom_op(
    "normplace::checked_indices",
    mutates_args=(),
    schema="(Tensor indices, SymInt bound, str name, str advice) -> Tensor",
)
def _checked_when_run(indices: Tensor, bound: int, name: str, advice: str) -> Tensor:
    if indices.is_cuda and indices.numel():
        low, high = indices.aminmax()
        message = f"{name} must be from 0 to {bound - 1}: {advice}."
        torch.ops.aten._assert_async.msg((low >= 0) & (high < bound), message)
    else:
        check_range(name, indices, bound, advice)
    return indices.clone()  # an operator may not return what it was given


@_checked_when_run.register_fake
def _(indices: Tensor, bound: int, name: str, advice: str) -> Tensor:
    return torch.empty_like(indices)


def check_edge_index(edge_index: Tensor) -> None:
    """Refuse what is not a 2 × E tensor of whole numbers; their range is not checked.

    Raises:
        UsageError: If it is something else.
    """
    if not isinstance(edge_index, Tensor) or edge_index.dim() != 2 or edge_index.shape[0] != 2:
        found = tuple(edge_index.shape) if isinstance(edge_index, Tensor) else type(edge_index).__name__
        raise UsageError(f"edge_index must be a 2 × E tensor, got {found}.")
    if not is_integer(edge_index):
        raise UsageError(f"edge_index must hold whole numbers, got {edge_index.dtype}: convert it with .long().")
    if edge_index.layout != torch.strided:
        raise UsageError(f"edge_index must be a dense tensor, got {edge_index.layout}: convert it with .to_dense().")


def is_integer(tensor: Tensor) -> bool:
    """Whether a tensor can hold indices."""
    return not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)

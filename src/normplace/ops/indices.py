"""Checks of index tensors: no index may reach outside the tensor that it selects from."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from normplace.errors import UsageError
from normplace.ops.features import describe
from normplace.ops.tracing import all_plain, in_transform, is_batched, is_traced

# Version and bounds of the last check of each GPU tensor. A check synchronizes the GPU, so its result is remembered.
# Kernels that read indices still ignore those out of range, because CUDA graph capture and ``.data`` evade the check.
_checked: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def check_range(name: str, indices: Tensor, bound: int, advice: str) -> None:
    """Raise an error for indices that are not from 0 to ``bound - 1``.

    On a GPU this synchronizes, once for each tensor and version. Indices are not checked during CUDA graph capture.

    Args:
        name: Name of the indices in the error.
        indices: An integer tensor.
        bound: Number of entries to select from.
        advice: How to correct the indices.

    Raises:
        UsageError: If an index is out of range.
    """
    if _is_checked(indices, bound):
        return
    low, high = (int(value) for value in indices.aminmax())
    if low < 0 or high >= bound:
        raise _out_of_range(name, bound, advice, low, high)
    _remember(indices, bound)


def check_columns(name: str, indices: Tensor, bounds: tuple[int, ...], advice: str) -> None:
    """:func:`check_range` of every column of a matrix, each with its own bound, with one synchronization for all.

    Args:
        name: Name of a column in the error, before its number.
        indices: An integer matrix with a column for each bound.
        bounds: Number of entries to select from, of each column.
        advice: How to correct the indices.

    Raises:
        UsageError: If an index is out of range.
    """
    if _is_checked(indices, bounds):
        return
    limits = torch.stack(indices.aminmax(dim=0)).tolist()
    for number, (low, high, bound) in enumerate(zip(*limits, bounds, strict=True)):
        if low < 0 or high >= bound:
            raise _out_of_range(f"{name} {number}", bound, advice, low, high)
    _remember(indices, bounds)


def _is_checked(indices: Tensor, bound: int | tuple[int, ...]) -> bool:
    """Whether no check is needed: there is nothing to check, it is impossible now, or the last check still holds."""
    if not indices.numel() or indices.device.type == "meta":
        return True
    if indices.device.type == "cpu":
        return False
    if indices.is_cuda and torch.cuda.is_current_stream_capturing():
        return True
    return not indices.is_inference() and _checked.get(indices) == (indices._version, bound)


def _remember(indices: Tensor, bound: int | tuple[int, ...]) -> None:
    """Remember a check on devices where it synchronizes; inference tensors have no version."""
    if indices.device.type != "cpu" and not indices.is_inference():
        _checked[indices] = (indices._version, bound)


def _out_of_range(name: str, bound: int, advice: str, low: int, high: int) -> UsageError:
    return UsageError(f"{name} must be from 0 to {bound - 1}, got {low} to {high}: {advice}.")


def checked_indices(name: str, indices: Tensor, bound: int, advice: str, *, asserted: bool = False) -> Tensor:
    """The indices, after :func:`check_range`; compiled functions check at run time.

    A function compiled for a GPU does not synchronize. There an index out of range ends in a device-side assertion, as
    in PyTorch's own indexing.

    Args:
        name: Name of the indices in the error.
        indices: An integer tensor.
        bound: Number of entries to select from.
        advice: How to correct the indices.
        asserted: Skip the check on a GPU, because PyTorch's own indexing reads the indices and asserts their range.

    Raises:
        UsageError: If an index is out of range.
    """
    if is_traced() or not all_plain(indices):
        return _checked_at_run_time(indices, bound, name, advice)
    if in_transform() and is_batched(indices):
        raise UsageError(f"vmap cannot map over {name}: map over the features.")
    if not (asserted and indices.is_cuda):
        check_range(name, indices, bound, advice)
    return indices


def checked_columns(name: str, indices: Tensor, bounds: tuple[int, ...], advice: str) -> Tensor:
    """The matrix, after :func:`check_columns`; compiled functions check at run time.

    Args:
        name: Name of a column in the error, before its number.
        indices: An integer matrix with a column for each bound.
        bounds: Number of entries to select from, of each column.
        advice: How to correct the indices.

    Raises:
        UsageError: If an index is out of range.
    """
    if is_traced() or in_transform() or not all_plain(indices):
        columns = [
            checked_indices(f"{name} {number}", column, bound, advice)
            for number, (column, bound) in enumerate(zip(indices.unbind(1), bounds, strict=True))
        ]
        return torch.stack(columns, 1)
    check_columns(name, indices, bounds, advice)
    return indices


@torch.library.custom_op(
    "normplace::checked_indices",
    mutates_args=(),
    schema="(Tensor indices, SymInt bound, str name, str advice) -> Tensor",
)
def _checked_at_run_time(indices: Tensor, bound: int, name: str, advice: str) -> Tensor:
    if indices.is_cuda and indices.numel():
        low, high = indices.aminmax()
        message = f"{name} must be from 0 to {bound - 1}: {advice}."
        torch.ops.aten._assert_async.msg((low >= 0) & (high < bound), message)
    else:
        check_range(name, indices, bound, advice)
    return indices.clone()  # an operator may not return its input


@_checked_at_run_time.register_fake
def _(indices: Tensor, bound: int, name: str, advice: str) -> Tensor:
    return torch.empty_like(indices)


def check_edge_index(edge_index: Tensor) -> None:
    """Raise an error for anything but a 2 × E integer tensor; the range of its indices is not checked.

    Raises:
        UsageError: If it is something else.
    """
    if not isinstance(edge_index, Tensor) or edge_index.dim() != 2 or edge_index.shape[0] != 2:
        raise UsageError(f"edge_index must be a 2 × E tensor, got {describe(edge_index)}.")
    if not is_integer(edge_index):
        raise UsageError(f"edge_index must hold integers, got {edge_index.dtype}: convert it with .long().")
    if edge_index.layout != torch.strided:
        raise UsageError(f"edge_index must be a dense tensor, got {edge_index.layout}: convert it with .to_dense().")


def is_integer(tensor: Tensor) -> bool:
    """Whether a tensor has an integer dtype."""
    return not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)

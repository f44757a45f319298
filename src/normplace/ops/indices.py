"""Checks of index tensors: no index may reach outside the tensor that it selects from."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from normplace.errors import UsageError
from normplace.ops.features import describe
from normplace.ops.tracing import all_plain, in_transform, is_batched, is_traced

# Version and bound of the last check of each GPU tensor. A check synchronizes the GPU, so its result is remembered.
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
    if not indices.numel() or indices.device.type == "meta":
        return
    state = None  # remembered on devices where the check synchronizes
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

"""Detect what observes a call: a compiler, a tracer, a dispatch mode or a transform."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

PLAIN_TYPES = (Tensor, nn.Parameter)


def is_traced() -> bool:
    """Whether a compiler, a tracer or a dispatch mode records the calls that are made."""
    return (
        torch.compiler.is_compiling()
        or bool(torch._C._len_torch_dispatch_stack())
        or torch._C._get_tracing_state() is not None
    )


def all_plain(*tensors: Tensor | None) -> bool:
    """Whether no tensor is of a subclass: the data pointer of a subclass may not be the data."""
    for tensor in tensors:  # noqa: SIM110 - faster than all(...), and called for every op
        if tensor is not None and type(tensor) not in PLAIN_TYPES:
            return False
    return True


def in_transform() -> bool:
    """Whether a ``torch.func`` transform or forward-mode differentiation is active."""
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def is_observed() -> bool:
    """Whether anything apart from autograd sees the calls that are made."""
    return is_traced() or in_transform()


def any_requires_grad(tensors: Sequence[Tensor | None]) -> bool:
    """Whether autograd records a call with these tensors."""
    if torch.is_grad_enabled():
        for tensor in tensors:
            if tensor is not None and tensor.requires_grad:
                return True
    return False


def any_negative(tensors: Sequence[Tensor | None]) -> bool:
    """Whether a tensor has the negative bit, as the imaginary part of a conjugate: its memory has the other sign."""
    for tensor in tensors:  # noqa: SIM110 - faster than any(...), and called for every op
        if tensor is not None and tensor.is_neg():
            return True
    return False


def needs_differentiable_backward() -> bool:
    """Whether the backward pass that runs now is recorded or transformed in turn."""
    return torch.is_grad_enabled() or in_transform()


def is_grads_batched(grad: Tensor) -> bool:
    """Whether ``torch.autograd.grad(..., is_grads_batched=True)`` maps over the gradient."""
    functorch: Any = torch._C._functorch  # pyright: ignore[reportAttributeAccessIssue]
    return functorch.is_legacy_batchedtensor(grad)


def is_batched(tensor: Tensor) -> bool:
    """Whether ``torch.func.vmap`` maps over the tensor."""
    functorch: Any = torch._C._functorch  # pyright: ignore[reportAttributeAccessIssue]
    while functorch.is_functorch_wrapped_tensor(tensor):
        if functorch.is_batchedtensor(tensor):
            return True
        tensor = functorch.get_unwrapped(tensor)
    return False

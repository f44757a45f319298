"""How an operator is called: who watches, which decides how short a way it may take, and on which device."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

Result = TypeVar("Result")
PLAIN = (Tensor, nn.Parameter)


def traced() -> bool:
    """Whether a compiler, a recorder or a dispatch mode watches what is called."""
    return (
        torch.compiler.is_compiling()
        or bool(torch._C._len_torch_dispatch_stack())
        or torch._C._get_tracing_state() is not None
    )


def plain(*tensors: Tensor | None) -> bool:
    """Whether all are tensors of PyTorch's own: one of another class may hold what it computes with elsewhere."""
    return all(tensor is None or type(tensor) in PLAIN for tensor in tensors)


def transformed() -> bool:
    """Whether a ``torch.func`` transform or forward-mode differentiation is under way."""
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def on_its_device(tensor: Tensor, call: Callable[..., Result], *arguments: object) -> Result:
    """What ``call`` returns, made while the tensor's device is the current one, as a kernel's launch needs it."""
    if tensor.is_cuda and tensor.get_device() != torch.cuda.current_device():
        with torch.cuda.device_of(tensor):
            return call(*arguments)
    return call(*arguments)

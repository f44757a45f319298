"""Who watches an operator being called, which decides how short a way its call may take."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd import forward_ad


def traced() -> bool:
    """Whether a compiler, a recorder or a dispatch mode watches what is called."""
    return (
        torch.compiler.is_compiling()
        or bool(torch._C._len_torch_dispatch_stack())
        or torch._C._get_tracing_state() is not None
    )


def transformed() -> bool:
    """Whether a ``torch.func`` transform or forward-mode differentiation is under way."""
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def elsewhere(tensor: Tensor) -> bool:
    """Whether the tensor's device is not the current one."""
    return tensor.is_cuda and tensor.get_device() != torch.cuda.current_device()

"""How an operator is called: who watches, which decides how short a way it may take, and on which device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

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


def differentiated() -> bool:
    """Whether a backward pass under way must be made of differentiable operations: it is recorded or transformed."""
    return torch.is_grad_enabled() or transformed()


def mapped(tensor: Tensor) -> bool:
    """Whether ``torch.func.vmap`` maps over the tensor."""
    wrappers: Any = torch._C._functorch  # pyright: ignore[reportAttributeAccessIssue]
    while wrappers.is_functorch_wrapped_tensor(tensor):
        if wrappers.is_batchedtensor(tensor):
            return True
        tensor = wrappers.get_unwrapped(tensor)
    return False


def on_its_device(tensor: Tensor, call: Callable[..., Result], *arguments: object) -> Result:
    """What ``call`` returns, made while the tensor's device is the current one, as a kernel's launch needs it."""
    if tensor.is_cuda and tensor.get_device() != torch.cuda.current_device():
        with torch.cuda.device_of(tensor):
            return call(*arguments)
    return call(*arguments)


def gradients_with_graph(
    function: Callable[..., Tensor], inputs: Sequence[Tensor | None], wanted: Sequence[bool], grad: Tensor
) -> tuple[Tensor | None, ...]:
    """Gradients inside a backward pass that is itself differentiated or transformed.

    Args:
        function: The operator, written in differentiable PyTorch operations.
        inputs: What it reads, as it was saved.
        wanted: Which of the inputs need a gradient.
        grad: The gradient of its result.
    """
    differentiated = torch.is_grad_enabled()
    with torch.enable_grad():
        result = function(*inputs)
    asked = [tensor for tensor, want in zip(inputs, wanted, strict=True) if want and tensor is not None]
    found = iter(torch.autograd.grad(result, asked, grad, create_graph=differentiated, allow_unused=True))
    return tuple(next(found) if want and t is not None else None for t, want in zip(inputs, wanted, strict=True))

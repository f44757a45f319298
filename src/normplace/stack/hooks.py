"""Whether calls of a module are observed, so that the module must be called and not fused."""

from __future__ import annotations

from torch import nn
from torch.nn.modules import module as module_hooks


def has_hooks(module: nn.Module) -> bool:
    """Whether a call of the module is observable: it has hooks, a replaced ``forward``, or is compiled."""
    return has_call_hooks(module) or "forward" in module.__dict__


def has_call_hooks(module: nn.Module) -> bool:
    """Whether a call of the module runs more than its ``forward``: it has hooks, or is compiled."""
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or module._compiled_call_impl is not None
    )


def has_global_hooks() -> bool:
    """Whether hooks are registered on all modules at once."""
    return bool(
        module_hooks._global_forward_hooks
        or module_hooks._global_forward_pre_hooks
        or module_hooks._global_backward_hooks
        or module_hooks._global_backward_pre_hooks
    )

"""Keep the caller's model and torch settings as they were found."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext

import torch
from torch import nn

from normplace.errors import UsageError


@contextmanager
def buffers_kept(model: nn.Module) -> Iterator[None]:
    """Restore any buffer the model writes to in its forward pass, and refuse such a model.

    Raises:
        UsageError: If a buffer changed, since then the network is not one fixed function.
    """
    before = [
        (module, name, buffer, buffer._version, buffer.clone())
        for module in model.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]
    changed: list[str] = []
    try:
        yield
    finally:
        for module, name, buffer, version, copy in before:
            if buffer._version != version or module._buffers.get(name) is not buffer:
                with torch.no_grad():
                    buffer.copy_(copy)
                module._buffers[name] = buffer
                changed.append(f"{type(module).__name__}.{name}")
    if changed:
        raise UsageError(
            f"the model changes its buffer {changed[0]} in every forward pass, so it is not one fixed "
            "function: call model.eval() first."
        )


@contextmanager
def differentiable(model: nn.Module) -> Iterator[None]:
    """Run the model with kernels whose result can be differentiated in evaluation mode.

    cuDNN differentiates a recurrent network in training mode only; PyTorch's own kernels do it in any.
    """
    recurrent = any(isinstance(module, nn.RNNBase) for module in model.modules())
    with torch.backends.cudnn.flags(enabled=False) if recurrent else nullcontext():
        yield


@contextmanager
def running(what: str) -> Iterator[None]:
    """Turn an exception of the model's own code into one sentence.

    Args:
        what: What the model runs on.

    Raises:
        UsageError: If the model cannot run.
    """
    try:
        yield
    except UsageError:
        raise
    except Exception as error:
        lines = str(error).strip().splitlines()
        reason = f"{type(error).__name__}: {lines[0][:90].rstrip('.')}" if lines else type(error).__name__
        raise UsageError(
            f"the model cannot run on {what} ({reason}): wrap it so that it takes one tensor of independent "
            "samples (for a graph network, one sample is a whole graph)."
        ) from error


@contextmanager
def exact(device: torch.device) -> Iterator[None]:
    """No autograd, no inference tensors and no autocast, whatever the caller is in the middle of."""
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.no_grad())
        stack.enter_context(torch.autocast(device.type, enabled=False))
        yield

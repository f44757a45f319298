"""Check that a model is a fixed function of one sample, and leave the model and torch settings unchanged."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import nn

from normplace.errors import UsageError

BATCH_STATISTICS = (
    "mixes the samples of a batch through its statistics, so there is no kernel between two samples: "
    "call model.eval() first, and give the layer running statistics if it has none."
)
DROPOUT = "is active, so the network is random: call model.eval() first or set its p to 0."


def refuse_randomness(model: nn.Module) -> None:
    """Reject a model with a module that mixes samples or is random.

    Raises:
        UsageError: If a batch norm uses batch statistics, or a dropout is active.
    """
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and (module.training or module.running_mean is None):
            raise UsageError(f"{_label(name, module)} {BATCH_STATISTICS}")
        if not module.training:
            continue
        if isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0:
            raise UsageError(f"{_label(name, module)} in training mode {DROPOUT}")
        rate = 0.0
        if isinstance(module, nn.MultiheadAttention) or (isinstance(module, nn.RNNBase) and module.num_layers > 1):
            rate = module.dropout
        if rate > 0:
            raise UsageError(f"the dropout of {_label(name, module)} in training mode {DROPOUT}")


def _label(name: str, module: nn.Module) -> str:
    return f"{type(module).__name__} {name!r}" if name else type(module).__name__


@contextmanager
def unchanged_buffers(model: nn.Module) -> Iterator[None]:
    """Restore the buffers that the model changes in its forward pass, and reject such a model.

    Raises:
        UsageError: If a buffer changed, because the network is then not a fixed function.
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
            f"the model changes its buffer {changed[0]} in every forward pass, so it is not a fixed "
            "function: call model.eval() first."
        )


def differentiable(model: nn.Module) -> AbstractContextManager[None]:
    """Disable cuDNN for recurrent networks, because cuDNN differentiates them in training mode only."""
    # Without a GPU there is no cuDNN, and the modules need not be searched.
    if torch.backends.cudnn.is_available() and any(isinstance(module, nn.RNNBase) for module in model.modules()):
        return torch.backends.cudnn.flags(enabled=False)
    return nullcontext()


@contextmanager
def running(what: str) -> Iterator[None]:
    """Turn an exception of the model's code into a UsageError.

    Args:
        what: The model's input, in words.

    Raises:
        UsageError: If the model cannot run.
    """
    try:
        yield
    except UsageError:
        raise
    except Exception as error:
        raise cannot_run(what, error) from error


def cannot_run(what: str, error: Exception) -> UsageError:
    """The error of a model that cannot run.

    Args:
        what: The model's input, in words.
        error: The exception of the model's code.
    """
    return UsageError(
        f"the model cannot run on {what} ({_reason(error)}): wrap it so that it takes one tensor of independent "
        "samples (for a graph network, one sample is a whole graph)."
    )


@contextmanager
def differentiating() -> Iterator[None]:
    """Turn an exception of autograd, or of a model's backward pass, into a UsageError.

    Raises:
        UsageError: If the model cannot be differentiated.
    """
    try:
        yield
    except (UsageError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        raise UsageError(
            f"torch.autograd.grad cannot differentiate the model ({_reason(error)}): compute all that depends on "
            "parameters in the forward pass, without re-entrant checkpoints."
        ) from error


def _reason(error: Exception) -> str:
    """Type and first line of an exception, shortened."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:90].rstrip('.')}" if lines else type(error).__name__


@contextmanager
def plain_arithmetic(device: torch.device) -> Iterator[None]:
    """Disable autograd, inference mode and autocast, whatever the caller uses."""
    is_autocast = torch.is_autocast_enabled(device.type)
    with (
        torch.inference_mode(False),
        torch.no_grad(),
        torch.autocast(device.type, enabled=False) if is_autocast else nullcontext(),
    ):
        yield

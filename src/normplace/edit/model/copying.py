"""Copy a model before an edit, and check that the copy fits into memory."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from normplace._shared.modules import Model, count_parameters
from normplace._shared.resources import available_memory, in_words
from normplace.analysis.recording.structures import copy_module, require_shapes
from normplace.edit.fuse.apply import unfuse
from normplace.errors import UsageError

WRAPPERS = ("DataParallel", "DistributedDataParallel", "FullyShardedDataParallel")
"""Classes of PyTorch that distribute a model."""
COPIES = 2
"""The model and its edited copy."""
OVERHEAD = 1.1
"""Activations of a short input, the gradient of one tensor at a time, and the interpreter."""


def copy_model(model: Model) -> Model:
    """Deep-copy a model, without the parts that :func:`normplace.fuse` fused.

    Raises:
        UsageError: If a lazy layer has no shape yet, the model is distributed or offloaded, the copy does not fit into
            memory, or inference mode is active.
    """
    if torch.is_inference_mode_enabled():
        raise UsageError(
            "a copy that is made in torch.inference_mode never has gradients, so it could be neither verified nor "
            "trained: edit the model outside of it, or use torch.no_grad."
        )
    require_shapes(model)
    require_undistributed(model)
    if all(parameter.device.type == "cpu" for parameter in model.parameters()):
        require_memory(model, "free some, or use a smaller model or dtype", copies=1)
    return unfuse(copy_module(model))


def require_undistributed(model: nn.Module) -> None:
    """Check that a model holds its parameters, and that no wrapper would leave out new ones.

    Raises:
        UsageError: If it is distributed or offloaded.
    """
    for module in model.modules():
        if (name := type(module).__name__) in WRAPPERS and type(module).__module__.startswith("torch."):
            raise UsageError(
                f"{name} does not distribute what an edit adds: edit the model inside it, then wrap the result."
            )
        hook: Any = getattr(module, "_hf_hook", None)  # of accelerate
        if any(getattr(part, "offload", False) for part in (hook, *getattr(hook, "hooks", ()))):
            raise UsageError("the weights of this model are offloaded by accelerate: load it into memory as a whole.")
    distributed = sys.modules.get("torch.distributed.tensor")  # slow to import, and there if such a tensor exists
    if distributed is not None and any(isinstance(parameter, distributed.DTensor) for parameter in model.parameters()):
        raise UsageError("the parameters of this model are sharded (DTensor): edit the model before it is sharded.")


@contextmanager
def require_independent(original: nn.Module) -> Iterator[None]:
    """Check that the forward pass of a copy, run in this context, does not call modules of the original.

    Raises:
        UsageError: If it does.
    """
    originals, called = set(original.modules()), []
    handle = register_module_forward_pre_hook(lambda module, _: called.append(module) if module in originals else None)
    try:
        yield
    finally:
        handle.remove()
    if called:
        raise UsageError(
            f"a copy of {type(original).__name__} calls modules of the original, because a function or object in it "
            "refers to them: keep modules only in the module tree."
        )


def require_memory(model: nn.Module, remedy: str, copies: int = COPIES) -> None:
    """Refuse a model that does not fit into memory.

    Args:
        model: The model, which may be on the meta device.
        remedy: What the user can do, as the end of the error message.
        copies: How many copies of it are in memory.

    Raises:
        UsageError: If there is not enough memory, with the sizes.
    """
    free = available_memory()
    size = _size_of(model)
    needed = int(size * copies * OVERHEAD)
    if free is None or needed <= free:
        return
    count = count_parameters(model)
    dtype = next((str(parameter.dtype).removeprefix("torch.") for parameter in model.parameters()), "float32")
    noun = "copy needs" if copies == 1 else "copies need"
    raise UsageError(
        f"{type(model).__name__} has {count / 1e9:.3g} billion parameters in {dtype} ({in_words(size)}); {copies} "
        f"{noun} about {in_words(needed)}, but only {in_words(free)} are free: {remedy}."
    )


def _size_of(model: nn.Module) -> int:
    """Bytes of a model's parameters and buffers; shared tensors count once."""
    tensors = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())

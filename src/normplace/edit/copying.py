"""Whether a model and what is made of it fit into memory, asked before anything is built."""

from __future__ import annotations

from torch import nn

from normplace._shared.resources import available_memory, in_words
from normplace.errors import UsageError

COPIES = 2  # the model and its moved copy
REST = 1.1  # activations of a short input, gradients of one tensor at a time, and the interpreter


def size_of(model: nn.Module) -> int:
    """Bytes of a model's parameters and buffers, shared ones once."""
    tensors = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


def require_memory(model: nn.Module, remedy: str, copies: int = COPIES) -> None:
    """Refuse a model that does not fit.

    Args:
        model: The model, which may be on the meta device.
        remedy: What the user can do, as the end of the error message.
        copies: How many of it will be in memory.

    Raises:
        UsageError: If there is less memory than it needs, with the figures.
    """
    free = available_memory()
    size = size_of(model)
    need = int(size * copies * REST)
    if free is None or need <= free:
        return
    count = sum(parameter.numel() for parameter in model.parameters())
    dtype = next((str(parameter.dtype).removeprefix("torch.") for parameter in model.parameters()), "float32")
    raise UsageError(
        f"{type(model).__name__} has {count / 1e9:.3g} billion parameters in {dtype}, {in_words(size)}, and {copies} "
        f"copies need about {in_words(need)}, of which {in_words(free)} are free: {remedy}."
    )

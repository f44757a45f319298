"""Tensors in nested arguments and results."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from normplace._shared.modules import Model
from normplace.errors import UsageError

Structure = TypeVar("Structure")
Arguments = tuple[tuple[Any, ...], Mapping[str, Any]]
"""Positional and keyword arguments of a call."""


def tensors_of(structure: Any, seen: set[int] | None = None) -> Iterator[Tensor]:
    """The tensors in nested containers, and in the attributes of objects other than modules."""
    seen = set() if seen is None else seen
    if isinstance(structure, Tensor):
        yield structure
        return
    if isinstance(structure, str | bytes | int | float | bool | type(None) | type) or id(structure) in seen:
        return
    seen.add(id(structure))
    if isinstance(structure, Mapping):
        parts: Any = structure.values()
    elif isinstance(structure, list | tuple | set):
        parts = structure
    elif isinstance(structure, nn.Module):
        return
    else:
        slots = (vars(kind).get("__slots__", ()) for kind in type(structure).__mro__)
        names = (name for slot in slots for name in ((slot,) if isinstance(slot, str) else slot))
        parts = [*getattr(structure, "__dict__", {}).values(), *(getattr(structure, name, None) for name in names)]
    for part in parts:
        yield from tensors_of(part, seen)


def map_tensors(function: Callable[[Tensor], Tensor], structure: Structure) -> Structure:
    """A copy of nested containers and objects, such as dataclasses, with each tensor replaced."""
    return copy.deepcopy(structure, {id(tensor): function(tensor) for tensor in tensors_of(structure)})


def in_float64(structure: Structure) -> Structure:
    """A copy of nested containers with each floating-point tensor in float64."""
    return map_tensors(lambda tensor: tensor.double() if tensor.is_floating_point() else tensor, structure)


def require_shapes(model: nn.Module) -> None:
    """Check that the lazy layers of a model have read their widths.

    Raises:
        UsageError: If one has not, with the name of its parameter.
    """
    for name, tensor in itertools.chain(model.named_parameters(), model.named_buffers()):
        if is_lazy(tensor):
            raise UsageError(f"{name!r} has no shape yet: call the model once, so that lazy layers get their widths.")


def copy_module(model: Model) -> Model:
    """A deep copy of a model, in which tensors that it kept from a pass with gradients are detached."""
    kept = (tensor for module in model.modules() for tensor in tensors_of(vars(module)) if tensor.grad_fn is not None)
    return copy.deepcopy(model, {id(tensor): tensor.detach().clone() for tensor in kept})


@contextmanager
def detached_attributes(model: nn.Module) -> Iterator[None]:
    """Detach the tensors that modules keep as attributes from a pass with gradients, such as losses of routers.

    Those that a module had before keep their graph.
    """
    before = {module: dict(vars(module)) for module in model.modules()}
    try:
        yield
    finally:
        for module, own in before.items():
            for name, value in vars(module).items():
                if isinstance(value, Tensor) and value.grad_fn is not None and value is not own.get(name):
                    vars(module)[name] = value.detach()


def fresh_inputs(inputs: Structure) -> Structure:
    """A copy of a model's inputs for one pass, which may write to them or append to a cache among them."""
    try:
        return copy.deepcopy(inputs)
    except RuntimeError:  # a tensor that requires grad and is not a leaf cannot be copied
        return inputs

"""Attach a module to the input or output of another module, and detach it again.

An attached module is a child of the module that owns the edited code, in its ``placed`` dictionary. A hook calls it, or
rewritten code (:mod:`normplace.edit.code.rewrite`).
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from itertools import chain
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from normplace.edit.code.rewrite import PLACED, unwrap_sums
from normplace.edit.model.hook_guards import guard_hooks
from normplace.errors import UsageError

Key = int | str | None
"""Which tensor of a call: a position, a name, or None for an output that is a tensor itself."""


class _Hook:
    """Passes chosen tensors of a call through a module.

    The hook keeps its handle: unpickling a handle reserves its hook id, so later hooks get other ids.

    Args:
        attached: The module that the tensors pass through.
        keys: Which tensors.
        place: The parent of the hooked module and its name there, if it is a layer that an adapter may wrap.
    """

    place: tuple[nn.Module, str] | None = None

    def __init__(self, attached: nn.Module, keys: tuple[Key, ...], place: tuple[nn.Module, str] | None = None) -> None:
        self.attached, self.keys, self.place = attached, keys, place
        self.handle: RemovableHandle | None = None
        guard_hooks()

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        guard_hooks()

    def check_place(self, module: nn.Module) -> None:
        """Check that no adapter of PEFT wraps the hooked module, whose tensors would bypass the attached module.

        Raises:
            UsageError: If one does.
        """
        if self.place is not None:
            parent, name = self.place
            if getattr(getattr(parent, name, None), "base_layer", None) is module:
                raise UsageError(
                    f"an adapter was added to {name!r} of {type(parent).__name__}, which an edit attached a module to, "
                    "and would bypass that module: add adapters to other layers only."
                )


class InputHook(_Hook):
    """Forward pre-hook that passes chosen arguments through the attached module."""

    def __call__(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None
    ) -> tuple[Any, ...]:
        """Return the arguments of the call; a tensor passed twice is computed once.

        Dynamic quantization registers the hook again without keyword arguments.
        """
        self.check_place(module)
        positional, named = list(args), dict(kwargs or {})
        original, replacement = None, None
        for key in self.keys:
            container: Any = named if isinstance(key, str) else positional
            value = container[key]
            if replacement is None or value is not original:
                original, replacement = value, self.attached(value)
            container[key] = replacement
        return tuple(positional) if kwargs is None else (tuple(positional), named)


class OutputHook(_Hook):
    """Forward hook that passes one tensor of the output through the attached module."""

    def __call__(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        """Return the output of the call."""
        self.check_place(module)
        (key,) = self.keys
        if key is None:
            return self.attached(output)
        if isinstance(output, tuple | list):
            items = [self.attached(value) if index == key else value for index, value in enumerate(output)]
            return type(output)(*items) if hasattr(output, "_fields") else type(output)(items)
        output[key] = self.attached(output[key])
        return output


def add_placed(owner: nn.Module, name: str, module: nn.Module) -> str:
    """Add a module to the ``placed`` children of its owner.

    Args:
        owner: The module that gets the child.
        name: The child's name; a number is appended if it is taken.
        module: The child.

    Returns:
        The name it has.
    """
    if not hasattr(owner, PLACED):
        owner.add_module(PLACED, nn.ModuleDict().train(owner.training))
    placed = getattr(owner, PLACED)
    for known_name, known_module in placed.items():
        if known_module is module:
            return known_name
    free_name, number = name, 1
    while free_name in placed:
        number += 1
        free_name = f"{name}_{number}"
    placed[free_name] = module
    if not module.state_dict():  # keeps the state dict of the edited model from loading into the original
        placed.register_buffer(f"{free_name}_is_placed", torch.empty(0, device=device_of(owner)))
    return free_name


def device_of(module: nn.Module) -> torch.device | None:
    """The device of a module's first parameter or buffer."""
    return next((tensor.device for tensor in chain(module.parameters(), module.buffers())), None)


def place_of(model: nn.Module, path: str) -> tuple[nn.Module, str] | None:
    """The parent of a module and its name there, if it is a layer that an adapter may wrap.

    Raises:
        UsageError: If it has an adapter already.
    """
    module, (parent, _, name) = model.get_submodule(path), path.rpartition(".")
    if isinstance(getattr(module, "base_layer", None), nn.Module):
        raise UsageError(
            f"{path!r} has an adapter, and merging it would drop a module that an edit attached to it: merge the "
            "adapter before the edit, or add adapters to other layers."
        )
    return None if not path or any(True for _ in module.children()) else (model.get_submodule(parent), name)


def attach_to_input(
    module: nn.Module, attached: nn.Module, keys: tuple[Key, ...], place: tuple[nn.Module, str] | None = None
) -> None:
    """Pass arguments of a module through another module first."""
    hook = InputHook(attached, keys, place)
    hook.handle = module.register_forward_pre_hook(hook, with_kwargs=True)


def attach_to_output(
    module: nn.Module,
    attached: nn.Module,
    key: Key,
    first: bool = False,
    place: tuple[nn.Module, str] | None = None,
) -> None:
    """Pass an output of a module through another module."""
    hook = OutputHook(attached, (key,), place)
    hook.handle = module.register_forward_hook(hook, prepend=first)


def replace_module(model: nn.Module, old: nn.Module, new: nn.Module) -> None:
    """Put a module in the place of another, under all of its names."""
    for name in [name for name, module in model.named_modules(remove_duplicate=False) if module is old]:
        model.set_submodule(name, new)


def replace_attached(model: nn.Module, old: nn.Module, new: nn.Module) -> None:
    """Attach another module wherever a module is attached; rewritten code finds it by its name."""
    for module in model.modules():
        for hooks in (module._forward_hooks, module._forward_pre_hooks):
            for hook in hooks.values():
                if isinstance(hook, _Hook) and hook.attached is old:
                    hook.attached = new


def has_other_hooks(module: nn.Module) -> bool:
    """Whether a module has hooks that no edit attached."""
    hooks = [*module._forward_hooks.values(), *module._forward_pre_hooks.values()]
    return not all(isinstance(hook, _Hook) for hook in hooks) or bool(
        module._backward_hooks or module._backward_pre_hooks
    )


def without_hooks(module: nn.Module) -> nn.Module:
    """A module with the same parameters and children, and without hooks."""
    bare = copy.copy(module)
    bare._forward_hooks, bare._forward_pre_hooks = OrderedDict(), OrderedDict()
    bare._backward_hooks, bare._backward_pre_hooks = OrderedDict(), OrderedDict()
    return bare


def move_hooks(old: nn.Module, new: nn.Module) -> None:
    """Attach what is attached to one module to another instead."""
    for hook in (*old._forward_hooks.values(), *old._forward_pre_hooks.values()):
        if isinstance(hook, InputHook):
            attach_to_input(new, hook.attached, hook.keys, hook.place)
        elif isinstance(hook, OutputHook):
            attach_to_output(new, hook.attached, hook.keys[0], place=hook.place)
        if isinstance(hook, _Hook) and hook.handle is not None:
            hook.handle.remove()


def detach(model: nn.Module, path: str) -> bool:
    """Remove an attached module, its hooks and its calls in rewritten code.

    Returns:
        False if the module is not an attached one.
    """
    placed_path, _, name = path.rpartition(".")
    owner_path, _, child = placed_path.rpartition(".")
    if child != PLACED:
        return False
    attached, placed = model.get_submodule(path), model.get_submodule(placed_path)
    assert isinstance(placed, nn.ModuleDict)
    for module in model.modules():
        for hooks in (module._forward_hooks, module._forward_pre_hooks):
            for hook in list(hooks.values()):
                if isinstance(hook, _Hook) and hook.attached is attached and hook.handle is not None:
                    hook.handle.remove()
    del placed[name]
    placed._buffers.pop(f"{name}_is_placed", None)
    owner = model.get_submodule(owner_path)
    unwrap_sums(owner, name)
    if not len(placed):
        delattr(owner, PLACED)
    return True

"""What a moved model is made of besides its own modules: hooks with a norm in them, and empty places."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from normplace.edit.rewrite import PLACED, RewrittenMethod

Key = int | str | None


class NormPlaceholder(nn.Module):
    """Where a norm stood: returns what it is given.

    Args:
        slot: The slot the norm had.
        block: The block it belonged to, or ended the stream of, counted as an audit does.
        like: The norm's gain, whose dtype the code around may ask for.
    """

    def __init__(self, slot: str, block: int | None, like: Tensor | None = None) -> None:
        super().__init__()
        self.slot, self.block = slot, block
        if like is not None:
            self.register_buffer("weight", like.new_empty(0, requires_grad=False), persistent=False)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The first argument."""
        return args[0] if args else next(iter(kwargs.values()))

    def extra_repr(self) -> str:
        """Which norm is missing."""
        return self.slot if self.block is None else f"{self.slot} of block {self.block}"


class LearnedScaling(nn.Module):
    """A trained multiplier of what a branch adds: one number per channel (LayerScale), or one in all.

    Args:
        shape: Of the multiplier.
        start: Where it starts.
        device: Where it lives.
        dtype: Of the multiplier.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        start: float,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full(shape, start, device=device, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        """The scaled branch."""
        return x * self.weight.to(x.dtype)


class HeadNorm(nn.Module):
    """A norm over the features of each head, of what a projection makes for all of them.

    Args:
        norm: The norm, over the features of one head.
        size: How many those are.
    """

    def __init__(self, norm: nn.Module, size: int) -> None:
        super().__init__()
        self.norm, self.size = norm, size

    def forward(self, x: Tensor) -> Tensor:
        """The projection, normalized head by head."""
        return self.norm(x.unflatten(-1, (-1, self.size))).flatten(-2)


class FixedScaling(nn.Module):
    """A fixed multiplier, which a state dict names, so that weights do not load into a model without it.

    Args:
        factor: The number.
    """

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor
        self.register_buffer("number", torch.tensor(factor, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        """The product."""
        return x * self.factor

    def extra_repr(self) -> str:
        """The number."""
        return f"{self.factor:.6g}"


class _Hook:
    """Passes chosen tensors of a call through a module that lives elsewhere in the model.

    The handle is kept because a model read from a file then claims its hooks' numbers, which new ones would take.
    """

    def __init__(self, then: nn.Module, keys: tuple[Key, ...]) -> None:
        self.then, self.keys = then, keys
        self.handle: RemovableHandle | None = None


class OnArguments(_Hook):
    """Before a module: what it reads goes through another first."""

    def __call__(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments, changed; one tensor given twice is one tensor still."""
        positional, named = list(args), dict(kwargs)
        read, made = None, None
        for key in self.keys:
            held = named if isinstance(key, str) else positional
            value = held[key]  # pyright: ignore[reportArgumentType, reportCallIssue]
            if made is None or value is not read:
                read, made = value, self.then(value)
            held[key] = made  # pyright: ignore[reportArgumentType, reportCallIssue]
        return tuple(positional), named


class OnResult(_Hook):
    """After a module: what it returns goes through another."""

    def __call__(self, module: nn.Module, args: tuple[Any, ...], result: Any) -> Any:
        """The result, changed."""
        (key,) = self.keys
        if key is None:
            return self.then(result)
        if isinstance(result, tuple | list):
            parts = [self.then(value) if at == key else value for at, value in enumerate(result)]
            return type(result)(*parts) if hasattr(result, "_fields") else type(result)(parts)
        result[key] = self.then(result[key])
        return result


def put(owner: nn.Module, name: str, part: nn.Module) -> str:
    """Make a part a child of a module, under the name or one with a number after it, and return its name there."""
    if not hasattr(owner, PLACED):
        owner.add_module(PLACED, nn.ModuleDict().train(owner.training))
    placed = getattr(owner, PLACED)
    for known, held in placed.items():
        if held is part:
            return known
    chosen, number = name, 1
    while chosen in placed:
        number += 1
        chosen = f"{name}_{number}"
    placed[chosen] = part
    return chosen


def before(module: nn.Module, part: nn.Module, keys: tuple[Key, ...]) -> None:
    """Send what a module reads through a part."""
    hook = OnArguments(part, keys)
    hook.handle = module.register_forward_pre_hook(hook, with_kwargs=True)


def after(module: nn.Module, part: nn.Module, key: Key, first: bool = False) -> None:
    """Send what a module returns through a part, before other such parts if it is to be the first."""
    hook = OnResult(part, (key,))
    hook.handle = module.register_forward_hook(hook, prepend=first)


def take_out(model: nn.Module, path: str) -> bool:
    """Remove a part that :func:`put` placed, with all that calls it; False if it is none of those."""
    owner_path, _, name = path.rpartition(".")
    if owner_path.rpartition(".")[2] != PLACED:
        return False
    part, placed = model.get_submodule(path), model.get_submodule(owner_path)
    assert isinstance(placed, nn.ModuleDict)
    for module in model.modules():
        for hooks in (module._forward_hooks, module._forward_pre_hooks):
            for hook in list(hooks.values()):
                if isinstance(hook, _Hook) and hook.then is part and hook.handle is not None:
                    hook.handle.remove()
    del placed[name]
    owner = model.get_submodule(owner_path.rpartition(".")[0])
    for method, held in list(vars(owner).items()):
        if isinstance(held, RewrittenMethod):
            sums = {at: tuple(None if key == name else key for key in keys) for at, keys in held.sums.items()}
            sums = {at: keys for at, keys in sums.items() if any(keys)}
            delattr(owner, method)
            if sums:
                setattr(owner, method, RewrittenMethod(owner, method, sums))
    if not len(placed):
        delattr(owner, PLACED)
    return True

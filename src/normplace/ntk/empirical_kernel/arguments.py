"""What a caller hands in, checked before any work: samples, parameters, budget."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from normplace.errors import UsageError, unknown
from normplace.ntk.checks import require_choice

Chosen = str | nn.Parameter | Iterable[str] | Iterable[nn.Parameter] | Callable[[str, nn.Parameter], bool] | None


def check_samples(x1: Tensor, x2: Tensor | None) -> None:
    """Refuse samples that no kernel can be computed between.

    Raises:
        UsageError: If the samples are not finite tensors of one shape and kind.
    """
    for label, x in ({"x1": x1} if x2 is None else {"x1": x1, "x2": x2}).items():
        if not isinstance(x, Tensor):
            raise UsageError(f"{label} is a {type(x).__name__}: give a tensor with the samples on its first axis.")
        if x.is_nested or x.layout != torch.strided:
            raise UsageError(f"{label} is a sparse or nested tensor: give a dense one.")
        if x.ndim == 0 or x.shape[0] == 0:
            raise UsageError(f"{label} has shape {tuple(x.shape)} and holds no samples: give at least one row.")
        if x.numel() == 0:
            raise UsageError(f"{label} has shape {tuple(x.shape)}, so its samples are empty: give some features.")
    if x2 is not None:
        if x1.shape[1:] != x2.shape[1:]:
            one, other = tuple(x1.shape[1:]), tuple(x2.shape[1:])
            raise UsageError(f"a sample of x1 has shape {one} but one of x2 has {other}: give both the same.")
        if x1.dtype != x2.dtype:
            raise UsageError(f"x1 has dtype {x1.dtype} but x2 has {x2.dtype}: give both the same.")
        if x1.device != x2.device:
            raise UsageError(f"x1 is on {x1.device} but x2 is on {x2.device}: move both to one device.")
    for label, x in (("x1", x1), ("x2", x2)):
        if x is not None and x.device.type == "meta":
            raise UsageError(f"{label} is on the meta device and holds no numbers: give samples that do.")
        if x is not None and x.is_floating_point() and not bool(torch.isfinite(x).all()):
            raise UsageError(f"{label} holds NaN or infinite values: remove or replace those samples first.")


def check_output(output: str, diagonal: bool, x2: Tensor | None) -> None:
    """Refuse an unknown kind of output, or the diagonal of a cross kernel.

    Raises:
        UsageError: If either is asked for.
    """
    require_choice("output", output, ("auto", "full", "trace", "sum"))
    if not isinstance(diagonal, bool):
        raise UsageError(f"diagonal must be True or False, not of type {type(diagonal).__name__}.")
    if diagonal and x2 is not None:
        raise UsageError("diagonal=True is about pairs (x_i, x_i) of x1 alone: leave x2 out.")


def budget_bytes(memory_gb: float | None, device: torch.device) -> float:
    """The budget in bytes.

    Raises:
        UsageError: If it is not a positive number.
    """
    if memory_gb is None:
        return torch.cuda.mem_get_info(device)[0] / 2 if device.type == "cuda" else 4e9
    if not isinstance(memory_gb, int | float) or isinstance(memory_gb, bool):
        raise UsageError(f"memory_gb is of type {type(memory_gb).__name__}: give the gigabytes to work in, a number.")
    if not 0 < memory_gb < 1e9:
        raise UsageError(f"memory_gb is {float(min(memory_gb, 1e9))}: give the gigabytes to work in, a number above 0.")
    return memory_gb * 1e9


def check_fits(nbytes: int, device: torch.device) -> None:
    """Refuse a result larger than the machine's memory before anything is computed.

    Raises:
        UsageError: If the kernel cannot be held at once.
    """
    if device.type == "cuda":
        total = torch.cuda.get_device_properties(device).total_memory
    elif device.type == "cpu" and "SC_PHYS_PAGES" in os.sysconf_names:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    else:
        return
    if nbytes > total:
        raise UsageError(
            f"the kernel takes {nbytes / 1e9:.1f} GB but {device} has {total / 1e9:.1f} GB: "
            "stream it with ntk.empirical_blocks, or ask for output='trace' or 'sum'."
        )


def choose(model: nn.Module, parameters: Chosen, x: Tensor) -> dict[str, nn.Parameter]:
    """The trainable parameters to differentiate, by name; tied ones once.

    Raises:
        UsageError: If a name is unknown, nothing trainable is left, or a parameter cannot meet the samples.
    """
    if not isinstance(model, nn.Module):
        raise UsageError(f"model is a {type(model).__name__}: give a torch.nn.Module.")
    chosen = {name: p for name, p in _select(model, parameters).items() if p.requires_grad}
    if not chosen:
        raise UsageError(
            "no trainable parameters are chosen, so the kernel is empty: set requires_grad or choose others."
        )
    for name, p in chosen.items():
        if isinstance(p, nn.parameter.UninitializedParameter):
            raise UsageError(f"parameter {name!r} has no shape yet: run the lazy model once first.")
        if p.device != x.device:
            raise UsageError(
                f"parameter {name!r} is on {p.device} but the samples are on {x.device}: move both to one device."
            )
        if not p.is_floating_point():
            raise UsageError(f"parameter {name!r} has dtype {p.dtype}: the kernel is defined for real parameters.")
    kinds = {p.dtype for p in model.parameters()}
    if x.is_floating_point() and x.dtype not in kinds:
        found = ", ".join(sorted(map(str, kinds)))
        raise UsageError(
            f"the samples have dtype {x.dtype} but the model's parameters have {found}: convert one of them."
        )
    return chosen


def _select(model: nn.Module, parameters: Chosen) -> dict[str, nn.Parameter]:
    every = dict(model.named_parameters())
    if parameters is None:
        return every
    if callable(parameters):
        return {name: p for name, p in every.items() if parameters(name, p)}
    listed = isinstance(parameters, str | nn.Parameter) or not isinstance(parameters, Tensor)
    if not listed or not isinstance(parameters, Iterable):
        raise UsageError(
            f"parameters is of type {type(parameters).__name__}: give parameters, names or a function of both."
        )
    canonical = {id(p): name for name, p in every.items()}
    # A tied parameter may be asked for by any of its names.
    aliases = {name: canonical[id(p)] for name, p in model.named_parameters(remove_duplicate=False)}
    picked: set[str] = set()
    for item in [parameters] if isinstance(parameters, str | nn.Parameter) else parameters:
        if isinstance(item, str):
            found = {own for name, own in aliases.items() if name == item or name.startswith(f"{item}.")}
            if not found:
                raise unknown("parameter", item, aliases)
            picked |= found
        elif id(item) in canonical:
            picked.add(canonical[id(item)])
        else:
            raise UsageError(
                f"an object of type {type(item).__name__} in parameters is not a parameter of this model: "
                "give its parameters, their names, or a function of name and parameter."
            )
    return {name: p for name, p in every.items() if name in picked}

"""Checks of the arguments of the empirical kernel: samples, output, parameters, memory."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Iterable, Iterator
from typing import NoReturn, cast

import torch
from torch import Tensor, nn

from normplace.errors import UsageError, unknown
from normplace.ntk.checks import require_choice
from normplace.ntk.empirical_kernel.deferred_checks import DeferredChecks, are_few

ParameterChoice = (
    str | nn.Parameter | Iterable[str] | Iterable[nn.Parameter] | Callable[[str, nn.Parameter], bool] | None
)


def check_samples(x1: Tensor, x2: Tensor | None, checks: DeferredChecks) -> None:
    """Check the samples.

    Args:
        x1: Samples along the rows.
        x2: Samples along the columns, if they are others.
        checks: Receives the check that all values are finite.

    Raises:
        UsageError: If they are not dense tensors of one shape, dtype and device.
    """
    for label, x in ({"x1": x1} if x2 is None else {"x1": x1, "x2": x2}).items():
        if not isinstance(x, Tensor):
            raise UsageError(f"{label} is a {type(x).__name__}: use a tensor with the samples on its first axis.")
        if x.is_nested or x.layout != torch.strided:
            raise UsageError(f"{label} is a sparse or nested tensor: use a dense one.")
        if x.ndim == 0 or x.shape[0] == 0:
            raise UsageError(f"{label} has shape {tuple(x.shape)} and no samples: pass at least one.")
        if x.numel() == 0:
            raise UsageError(
                f"{label} has shape {tuple(x.shape)}, so its samples are empty: give at least one feature."
            )
    if x2 is not None:
        if x1.shape[1:] != x2.shape[1:]:
            shapes = tuple(x1.shape[1:]), tuple(x2.shape[1:])
            raise UsageError(f"samples of x1 have shape {shapes[0]}, but of x2 {shapes[1]}: use one shape.")
        if x1.dtype != x2.dtype:
            raise UsageError(f"x1 has dtype {x1.dtype}, but x2 has {x2.dtype}: use one dtype.")
        if x1.device != x2.device:
            raise UsageError(f"x1 is on {x1.device}, but x2 is on {x2.device}: move both to one device.")
    for label, x in (("x1", x1), ("x2", x2)):
        if x is not None and x.device.type == "meta":
            raise UsageError(f"{label} is on the meta device and has no values: use samples with values.")
        if x is not None and x.is_floating_point():
            refuse = functools.partial(_refuse_infinite, label)
            checks.require_values(x if are_few(x) else x.detach().abs().amax(), _are_finite, refuse)


def _are_finite(values: list[float]) -> bool:
    return all(map(math.isfinite, values))


def _refuse_infinite(label: str) -> NoReturn:
    raise UsageError(f"{label} has NaN or infinite values: remove or replace those samples.")


def check_output(output: str, diagonal: bool, x2: Tensor | None) -> None:
    """Check the kind of output.

    Raises:
        UsageError: If it is unknown, or ``diagonal`` is requested together with x2.
    """
    require_choice("output", output, ("auto", "full", "trace", "sum"))
    if not isinstance(diagonal, bool):
        raise UsageError(f"diagonal must be True or False, not of type {type(diagonal).__name__}.")
    if diagonal and x2 is not None:
        raise UsageError("diagonal=True computes pairs (x_i, x_i) of x1: do not pass x2.")


def budget_bytes(memory_gb: float | None, device: torch.device) -> float:
    """The working memory in bytes.

    Raises:
        UsageError: If ``memory_gb`` is not a positive number.
    """
    if memory_gb is None:
        return torch.cuda.mem_get_info(device)[0] / 2 if device.type == "cuda" else 4e9
    if not isinstance(memory_gb, int | float) or isinstance(memory_gb, bool):
        raise UsageError(f"memory_gb is of type {type(memory_gb).__name__}: use a number of gigabytes.")
    if not 0 < memory_gb < 1e9:
        raise UsageError(f"memory_gb is {float(min(memory_gb, 1e9))}: use a number of gigabytes above 0.")
    return memory_gb * 1e9


def check_fits(nbytes: int, device: torch.device) -> None:
    """Check that the kernel fits into memory.

    Raises:
        UsageError: If it does not.
    """
    total = _memory_bytes(device)
    if total is not None and nbytes > total:
        raise UsageError(
            f"the kernel takes {nbytes / 1e9:.1f} GB, but {device} has {total / 1e9:.1f} GB: "
            "stream it with ntk.empirical_blocks, or use output='trace' or 'sum'."
        )


@functools.cache
def _memory_bytes(device: torch.device) -> int | None:
    """The memory of a device, if it is known."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    if device.type == "cpu" and "SC_PHYS_PAGES" in os.sysconf_names:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


def select_parameters(model: nn.Module, parameters: ParameterChoice, x: Tensor) -> dict[str, nn.Parameter]:
    """The trainable parameters to differentiate, by name; tied ones once.

    Raises:
        UsageError: If a name is unknown, no trainable parameter is chosen, or dtype or device do not match the samples.
    """
    if not isinstance(model, nn.Module):
        raise UsageError(f"model is a {type(model).__name__}: use a torch.nn.Module.")
    every = dict(model.named_parameters())
    chosen = {name: p for name, p in _select(model, every, parameters).items() if p.requires_grad}
    if not chosen:
        raise UsageError(
            "no trainable parameters are chosen, so the kernel is empty: set requires_grad or choose others."
        )
    device = x.device
    for name, p in chosen.items():
        if nn.parameter.is_lazy(p):
            raise UsageError(f"parameter {name!r} has no shape yet: run the lazy model once first.")
        if p.device != device:
            raise UsageError(
                f"parameter {name!r} is on {p.device}, but the samples are on {device}: move both to one device."
            )
        if not p.is_floating_point():
            raise UsageError(
                f"parameter {name!r} has dtype {p.dtype}: the kernel needs real floating-point parameters."
            )
    kinds = {p.dtype for p in every.values()}
    if x.is_floating_point() and x.dtype not in kinds:
        names = ", ".join(sorted(map(str, kinds)))
        raise UsageError(
            f"the samples have dtype {x.dtype}, but the model's parameters have {names}: convert one of them."
        )
    return chosen


def repeatable(parameters: ParameterChoice) -> ParameterChoice:
    """The choice in a form that can be read several times: an iterator as a list."""
    return cast(ParameterChoice, list(parameters)) if isinstance(parameters, Iterator) else parameters


def _select(model: nn.Module, every: dict[str, nn.Parameter], parameters: ParameterChoice) -> dict[str, nn.Parameter]:
    if parameters is None:
        return every
    if callable(parameters):
        return {name: p for name, p in every.items() if parameters(name, p)}
    listed = isinstance(parameters, str | nn.Parameter) or not isinstance(parameters, Tensor)
    if not listed or not isinstance(parameters, Iterable):
        raise UsageError(
            f"parameters is of type {type(parameters).__name__}: use parameters, names or a function of both."
        )
    canonical = {id(p): name for name, p in every.items()}
    # A tied parameter may be chosen by any of its names.
    aliases = {name: canonical[id(p)] for name, p in model.named_parameters(remove_duplicate=False)}
    picked: set[str] = set()
    for item in [parameters] if isinstance(parameters, str | nn.Parameter) else parameters:
        if isinstance(item, str):
            matches = {own for name, own in aliases.items() if name == item or name.startswith(f"{item}.")}
            if not matches:
                raise unknown("parameter", item, aliases)
            picked |= matches
        elif id(item) in canonical:
            picked.add(canonical[id(item)])
        else:
            raise UsageError(
                f"an object of type {type(item).__name__} in parameters is not a parameter of this model: "
                "use its parameters, their names, or a function of name and parameter."
            )
    return {name: p for name, p in every.items() if name in picked}

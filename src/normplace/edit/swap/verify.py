"""Verify a swap: by the analysis of the copy, by numbers against the definition of the new norm, and by gradients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from normplace.analysis.api import analyze, summarize
from normplace.analysis.recording.passes import ForwardError, evaluating, uncompiled_calls
from normplace.analysis.recording.structures import fresh_inputs
from normplace.analysis.results import Audit
from normplace.edit.swap.build import Samples
from normplace.edit.swap.modules import FadingNorm, WrappedNorm
from normplace.edit.swap.source import NormSource
from normplace.edit.verify.capture import Arguments
from normplace.edit.verify.gradients import check_gradients
from normplace.edit.verify.numbers import TOLERANCE
from normplace.errors import UsageError
from normplace.norms import DyT

FOUND_AS = {"rms": {"rms"}, "layer": {"layer"}, "group": {"group", "instance"}, "batch": {"batch"}, "dyt": {"squash"}}
"""How the analysis names each kind; it does not see ``identity``."""


def verify_swap(
    original: nn.Module, swapped: nn.Module, sources: Mapping[str, NormSource], kind: str, arguments: Arguments
) -> Audit | None:
    """Verify a copy with swapped norms, and return its audit; None while old and new norms are mixed.

    Raises:
        UsageError: If a check fails, with the name of the norm.
    """
    inputs, kwargs = fresh_inputs(arguments)
    try:
        analysis = analyze(swapped, *inputs, **kwargs)
    except ForwardError as error:
        raise UsageError(
            f"the code of {type(original).__name__} does not allow a {kind} norm, because in the copy {error.reason}."
        ) from error
    called = {call.path for call in analysis.tape.calls}
    is_fading = any(isinstance(module, FadingNorm) for module in swapped.modules())
    for path, source in sources.items():
        if path not in called:
            raise UsageError(f"after the swap the model does not call {path!r}: its code keeps another reference.")
        if is_fading or kind not in FOUND_AS:
            continue
        sites = [site for site in analysis.sites if site.name == path or site.name.startswith(f"{path}.")]
        if not any(site.kind in FOUND_AS[kind] and site.slot == source.slot for site in sites):
            seen = ", ".join(f"{site.kind} in {site.slot}" for site in sites) or "no norm"
            raise UsageError(
                f"after the swap the audit finds {seen} instead of {kind} in {source.slot} at {path!r}, so the swap is "
                "refused."
            )
    if not any(parameter.is_meta for parameter in swapped.parameters()):
        _check_numbers(swapped, sources, kind, arguments)
        norms = {path: swapped.get_submodule(path) for path in sources}
        check_gradients(original, swapped, arguments, norms, "swap")
    return None if is_fading else summarize(analysis)


@torch.no_grad()
def _check_numbers(model: nn.Module, sources: Mapping[str, NormSource], kind: str, arguments: Arguments) -> None:
    """Compare each new norm on its inputs in the copy with its definition in float64."""
    wrong: list[str] = []

    def check(path: str, norm: nn.Module, axis: int) -> Any:
        def hook(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
            truth = definition(kind, norm, args[0].double(), axis)
            error = (output.double() - truth).abs().max()
            if not error <= TOLERANCE.get(output.dtype, 1e-3) * truth.abs().max().clamp(min=1e-30):
                wrong.append(path)

        return hook

    inputs, kwargs = fresh_inputs(arguments)
    with ExitStack() as stack, evaluating(model), uncompiled_calls():
        for path, source in sources.items():
            for module, norm in _new_norms(model.get_submodule(path)):
                handle = module.register_forward_hook(check(path, norm, source.axis), prepend=True)
                stack.callback(handle.remove)
        model(*inputs, **kwargs)
    if wrong:
        raise UsageError(f"after the swap {wrong[0]!r} does not return what a {kind} norm is, so the swap is refused.")


def _new_norms(module: nn.Module) -> Iterator[tuple[nn.Module, nn.Module]]:
    """The new norm with its wrapper, and without."""
    outer = module.new if isinstance(module, FadingNorm) else module
    assert isinstance(outer, nn.Module)
    yield outer, outer.norm if isinstance(outer, WrappedNorm) else outer  # pyright: ignore[reportReturnType]


def definition(kind: str, norm: nn.Module, x: Tensor, axis: int) -> Tensor:
    """What a norm returns by definition, in float64."""
    x = x.movedim(axis, -1)
    eps = float(getattr(norm, "eps", 0.0))
    match kind:
        case "layer":
            x = x - x.mean(-1, keepdim=True)
            x = x / (x.square().mean(-1, keepdim=True) + eps).sqrt()
        case "rms":
            x = x / (x.square().mean(-1, keepdim=True) + eps).sqrt()
        case "batch":
            x = (x - norm.get_buffer("running_mean").double()) / (norm.get_buffer("running_var").double() + eps).sqrt()
        case "group":
            assert isinstance(norm, nn.GroupNorm)
            grouped = x.unflatten(-1, (norm.num_groups, -1))
            dims = (-1,) if axis == -1 else (*range(1, x.ndim - 1), x.ndim)
            grouped = grouped - grouped.mean(dims, keepdim=True)
            x = (grouped / (grouped.square().mean(dims, keepdim=True) + eps).sqrt()).flatten(-2)
        case "dyt":
            assert isinstance(norm, DyT)
            x = torch.tanh(norm.alpha.double() * x)
    for name, combine in (("weight", torch.mul), ("bias", torch.add)):
        parameter = getattr(norm, name, None)
        x = x if parameter is None else combine(x, parameter.double())
    return x.movedim(-1, axis)


@torch.no_grad()
def relative_change(norm: nn.Module, samples: Samples) -> float:
    """The root mean square of the difference between a new norm and the old one, relative to the old one."""
    training = norm.training
    norm.eval()
    difference = sum(float((norm(x).double() - y.double()).square().sum()) for x, y in samples)
    norm.train(training)
    return (difference / max(sum(float(y.double().square().sum()) for _, y in samples), 1e-300)) ** 0.5

"""Copies of a model for the search: in float64, with perturbed parameters, without norms."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from normplace.errors import UsageError
from normplace.ntk.model_state import refuse_randomness

_NORMS = (nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, nn.LocalResponseNorm, _BatchNorm, _InstanceNorm)


def float64_copy(model: nn.Module) -> nn.Module:
    """A copy in float64.

    Raises:
        UsageError: If the model is random or mixes samples, cannot be copied, has no trainable parameters, or has
            parameters that are not finite.
    """
    refuse_randomness(model)
    try:
        double = copy.deepcopy(model).double()
    except RuntimeError as error:
        raise UsageError(f"the model cannot be copied: {error}") from error
    for name, parameter in double.named_parameters():
        if not bool(torch.isfinite(parameter).all()):
            raise UsageError(f"parameter {name} is not finite: restore finite values first.")
    if not any(p.requires_grad for p in double.parameters()):
        raise UsageError("the model has no trainable parameters: set requires_grad on some of them.")
    return double


@torch.no_grad()
def perturbed_copy(model: nn.Module, strength: float, generator: torch.Generator) -> nn.Module:
    """A copy with Gaussian noise of relative size ``strength`` added to each trainable parameter.

    The size of a parameter is its root mean square, or 1/√fan-in if that is larger, because some networks start with
    parameters of zero (a zeroed head, a zeroed gain).
    """
    perturbed = copy.deepcopy(model)
    for parameter in perturbed.parameters():
        if parameter.requires_grad:
            fan_in = parameter[0].numel() if parameter.ndim > 1 else parameter.numel()
            size = max(float(parameter.square().mean().sqrt()), 1 / math.sqrt(max(fan_in, 1)))
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter += strength * size * noise.to(parameter.device)
    return perturbed


def norm_modules(model: nn.Module) -> dict[str, nn.Module]:
    """Modules that an ablation replaces by the identity: PyTorch's norms, and leaf modules of a class named "…norm"."""
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, _NORMS)
        or (type(module).__name__.lower().endswith("norm") and not any(True for _ in module.children()))
    }


@contextmanager
def without_norms(model: nn.Module, names: Sequence[str]) -> Iterator[None]:
    """Replace some norms of the model by the identity within the context."""

    def identity(_module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        same = isinstance(output, Tensor) and inputs and inputs[0].shape == output.shape
        return inputs[0] if same else output

    handles = [model.get_submodule(name).register_forward_hook(identity) for name in names]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()

"""A model with new initial weights, from a model object that cannot be built again by a function."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.utils.parametrize import ParametrizationList

MOST = 3
"""Names of parameters that a note lists."""


@dataclass(frozen=True)
class FreshModel:
    """A model with new weights.

    Args:
        model: The model.
        note: How it was built, in a sentence.
    """

    model: nn.Module
    note: str


def fresh_model(model: nn.Module) -> FreshModel:
    """Build a model of the same shape with weights drawn from PyTorch's global generator; the model does not change.

    A model of transformers that has the modules of its configuration is built from it, in the dtypes of the model. Of
    another model, a copy is made, and ``reset_parameters`` of each submodule that has one is called. The other
    parameters, such as those of ``nn.MultiheadAttention`` and of parametrizations, keep their values in a random order,
    which has the distribution of a new draw if the entries were drawn independently. Frozen parameters keep their
    values and stay frozen.
    """
    built = _from_configuration(model)
    if built is not None:
        fresh, note = built, "Each seed builds the model from its configuration."
    else:
        fresh, note = _reset_copy(model)
    frozen = [name for name, parameter in model.named_parameters() if not parameter.requires_grad]
    with torch.no_grad():
        for name in frozen:
            fresh.get_parameter(name).copy_(model.get_parameter(name)).requires_grad_(False)
    if frozen:
        note += f" {_listed(frozen)} {'is' if len(frozen) == 1 else 'are'} frozen and keep{'s' * (len(frozen) == 1)} "
        note += f"{'its' if len(frozen) == 1 else 'their'} values."
    return FreshModel(fresh, note)


def _from_configuration(model: nn.Module) -> nn.Module | None:
    """A new model of transformers; None for other models, and for one that was changed after it was built."""
    if not any(kind.__name__ == "PreTrainedModel" for kind in type(model).__mro__):
        return None
    built = type(model)(copy.deepcopy(model.config))
    if _structure(built) != _structure(model):
        return None
    for (_, parameter), (_, loaded) in zip(built.named_parameters(), model.named_parameters(), strict=True):
        parameter.data = parameter.data.to(loaded.dtype)
    return built


def _structure(model: nn.Module) -> list[object]:
    modules = [(name, type(module)) for name, module in model.named_modules()]
    return [*modules, *((name, parameter.shape) for name, parameter in model.named_parameters())]


def _reset_copy(model: nn.Module) -> tuple[nn.Module, str]:
    """A copy with new weights, and how they were drawn, in a sentence."""
    copied = copy.deepcopy(model)
    reset: set[nn.Parameter] = set()
    _reset(copied, reset)
    others = [
        (name, parameter)
        for name, parameter in copied.named_parameters()
        if parameter not in reset and parameter.requires_grad
    ]
    with torch.no_grad():
        for _, parameter in others:
            order = torch.randperm(parameter.numel()).to(parameter.device)
            parameter.copy_(parameter.flatten()[order].view_as(parameter))
    note = "Each seed copies the model and calls reset_parameters of its submodules."
    if others:
        note += f" {_listed([name for name, _ in others])} have no reset_parameters, so their values are kept in a "
        note += "random order."
    return copied, note


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - MOST} more" if len(names) > MOST else ""
    return ", ".join(names[:MOST]) + more


def _reset(module: nn.Module, reset: set[nn.Parameter]) -> None:
    """Call ``reset_parameters`` on a module, or on its submodules; collect the parameters that it resets."""
    parameters = list(module.parameters())
    if parameters and not any(parameter.requires_grad for parameter in parameters):
        return  # frozen, with the statistics that belong to the weights
    if callable(function := getattr(module, "reset_parameters", None)):
        function()
        reset.update(
            parameter
            for part in module.modules()
            for name, parameter in part.named_parameters(recurse=False)
            if not _computes_weight(part, name)
        )
    else:
        for child in module.children():
            _reset(child, reset)


def _computes_weight(module: nn.Module, name: str) -> bool:
    """Whether a weight is computed from a parameter, so that a write to the weight does not reach the parameter."""
    if isinstance(module, ParametrizationList):
        return True
    stem, _, part = name.rpartition("_")  # of the older weight_norm and spectral_norm
    return part in ("g", "v", "orig") and stem not in module._parameters and hasattr(module, stem)

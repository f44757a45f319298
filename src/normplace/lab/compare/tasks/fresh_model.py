"""A model with new initial weights, from a model object that cannot be built again by a function."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import nn

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

    A model of transformers is built from its configuration. Of another model, a copy is made, and ``reset_parameters``
    of each submodule that has one is called. The other parameters, such as those of ``nn.MultiheadAttention``, keep
    their values in a random order, which has the distribution of a new draw if the entries were drawn independently.

    Args:
        model: The model.
    """
    config = getattr(model, "config", None)
    if any(kind.__name__ == "PreTrainedModel" for kind in type(model).__mro__):
        return FreshModel(type(model)(copy.deepcopy(config)), "Each seed builds the model from its configuration.")
    copied = copy.deepcopy(model)
    reset: set[nn.Parameter] = set()
    _reset(copied, reset)
    others = [(name, parameter) for name, parameter in copied.named_parameters() if parameter not in reset]
    with torch.no_grad():
        for _, parameter in others:
            order = torch.randperm(parameter.numel()).to(parameter.device)
            parameter.copy_(parameter.flatten()[order].view_as(parameter))
    note = "Each seed copies the model and calls reset_parameters of its submodules."
    if others:
        names = ", ".join(name for name, _ in others[:MOST])
        more = f" and {len(others) - MOST} more" if len(others) > MOST else ""
        note += f" {names}{more} have no reset_parameters, so their values are kept in a random order."
    return FreshModel(copied, note)


def _reset(module: nn.Module, reset: set[nn.Parameter]) -> None:
    """Call ``reset_parameters`` on a module, or on its submodules; collect the parameters that it resets."""
    if callable(function := getattr(module, "reset_parameters", None)):
        function()
        reset.update(module.parameters())
    else:
        for child in module.children():
            _reset(child, reset)

"""Untie a head from its embedding, so that the two weights can change separately."""

from __future__ import annotations

from typing import Any

from torch import nn


def untie_head(model: nn.Module) -> list[str]:
    """Give every linear map that shares its weight with an embedding a copy of it, in place.

    The configuration of a Hugging Face model then has ``tie_word_embeddings`` false.

    Returns:
        The names of the linear maps.
    """
    embedded = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    names = [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and id(module.weight) in embedded
    ]
    untie(model, names)
    return names


def untie(model: nn.Module, names: list[str]) -> None:
    """Give linear maps a copy of their weight."""
    for name in names:
        module = model.get_submodule(name)
        assert isinstance(module, nn.Linear)
        module.weight = nn.Parameter(module.weight.detach().clone(), requires_grad=module.weight.requires_grad)
    config: Any = getattr(model, "config", None)
    if names and getattr(config, "tie_word_embeddings", False):
        config.tie_word_embeddings = False

"""State dicts and files of sequence models under earlier parameter names."""

from __future__ import annotations

import torch
from torch import nn

from normplace.models import CausalRN
from normplace.models.sequence.model import RENAMED_PARAMETERS


def earlier_names(state):
    """A state dict under the earlier names."""
    renamed = {}
    for name, tensor in state.items():
        for old, new in RENAMED_PARAMETERS.items():
            name = old + name.removeprefix(new) if name.startswith(new) else name
        renamed[name] = tensor
    return renamed


def test_a_state_dict_of_earlier_names_loads():
    model, other = (CausalRN(7, 8, 2, context=5, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1))
    state = earlier_names(model.state_dict())
    assert "places.weight" in state and "blocks.1.0.branch.key.weight" in state
    other.load_state_dict(state)
    wrapped = nn.ModuleDict({"net": CausalRN(7, 8, 2, context=5)})
    wrapped.load_state_dict({f"net.{name}": tensor for name, tensor in state.items()})
    tokens = torch.arange(5)[None]
    assert torch.equal(other(tokens), model(tokens)) and torch.equal(wrapped["net"](tokens), model(tokens))

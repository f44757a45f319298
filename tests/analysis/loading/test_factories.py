"""Models from a user's function: which of its results are inputs, and which keyword arguments."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from normplace.analysis import audit
from normplace.analysis.loading.models import from_factory
from normplace.errors import UsageError


class Typed(nn.Module):
    """Nodes of two types, whose features and edges are dicts, as in PyG."""

    def __init__(self):
        super().__init__()
        self.norm, self.head = nn.LayerNorm(4), nn.Linear(4, 2)

    def forward(self, x_dict, edge_index_dict):
        source, target = edge_index_dict["author", "writes", "paper"]
        messages = self.norm(x_dict["author"])[source]
        return self.head(x_dict["paper"].index_add(0, target, messages))


def typed_inputs():
    edges = {("author", "writes", "paper"): torch.tensor([[0, 1], [1, 0]])}
    return {"author": torch.randn(2, 4), "paper": torch.randn(2, 4)}, edges


def positional():
    return Typed(), *typed_inputs()


def by_name():
    return Typed(), dict(zip(("x_dict", "edge_index_dict"), typed_inputs(), strict=True))


def mixed():
    x, edges = typed_inputs()
    return Typed(), x, {"edge_index_dict": edges}


@pytest.mark.parametrize(("factory", "sizes"), [("positional", (2, 0)), ("by_name", (0, 2)), ("mixed", (1, 1))])
def test_a_final_dict_is_an_input_unless_it_names_arguments(factory, sizes):
    model, inputs, kwargs = from_factory(f"{__name__}:{factory}")
    assert (len(inputs), len(kwargs)) == sizes
    assert len(audit(model, *inputs, **kwargs).sites) == 1


def needs_a_width(width):
    return None, width


def test_a_function_with_arguments_is_one_sentence():
    with pytest.raises(UsageError, match=r"needs arguments \(missing a required argument: 'width'\): write a function"):
        from_factory(f"{__name__}:needs_a_width")

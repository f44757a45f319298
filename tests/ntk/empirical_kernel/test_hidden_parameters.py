"""Parameters that a model uses through a reference outside its modules, which ``functional_call`` does not replace."""

from __future__ import annotations

import pytest
import torch
from tests.ntk.empirical_kernel.cases import contraction
from torch import Tensor, nn

from normplace.ntk import empirical


class Network(nn.Module):
    """A network with a second reference to one of its weights, in a list and in a function."""

    def __init__(self, mode: str) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 2)
        self.scale = nn.Parameter(torch.linspace(0.5, 1.5, 4))
        weight = self.second.weight
        self.weights, self.function, self.mode = [weight], lambda h: h @ weight, mode

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.first(x))
        match self.mode:
            case "list":
                h = h @ self.weights[0]
            case "list and layer":
                h = self.second(h) * (self.weights[0] @ self.weights[0]).sum(0)
            case "function":
                h = self.function(h)
            case "function and attribute":
                h = self.function(h) + h @ self.second.weight
        return self.third(h * self.scale)


@pytest.mark.parametrize("mode", ["list", "list and layer", "function", "function and attribute"])
def test_equals_the_definition(mode):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Network(mode).double()
    x = torch.randn(9, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = contraction(model, x, x)
    for _ in range(2):
        torch.testing.assert_close(empirical(model, x), expected, rtol=1e-10, atol=1e-10)
    for chosen in (["second"], ["scale", "first"]):
        parameters = [p for name, p in model.named_parameters() if name.split(".")[0] in chosen]
        expected = contraction(model, x, x, parameters)
        torch.testing.assert_close(empirical(model, x, parameters=chosen), expected, rtol=1e-10, atol=1e-10)

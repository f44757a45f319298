"""Every batch of samples is checked against the plan, which a few samples or an earlier call have made."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.ntk.empirical_kernel.cases import contraction
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, parametrize

from normplace.errors import UsageError
from normplace.ntk import empirical, empirical_blocks


class Network(nn.Module):
    """A network with attributes that change what it computes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.head = nn.Linear(4, 2)
        self.flipped = nn.Buffer(torch.zeros(()))
        self.order, self.mode, self.largest = torch.arange(100), "", 10

    def forward(self, x: Tensor) -> Tensor:
        if self.mode in {"sorts", "indexes"}:
            order = (x[:, 0] if self.mode == "sorts" else self.order[: len(x)]).argsort(stable=True)
            return self._layers(x[order])[order.argsort()]
        if self.mode == "permutes":
            one = torch.eye(len(x), dtype=x.dtype)
            matrix = one * (1 - self.flipped) + one.flip(0) * self.flipped
            return matrix @ self._layers(matrix @ x)
        return self._layers(x)

    def _layers(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.first(x))
        if self.mode == "mixes large batches" and len(h) > self.largest:
            h = h - h.mean(0)
        if self.mode == "mixes two samples" and len(h) > self.largest:
            h = torch.cat([h[:1], h[1:2] + h[2:3], h[2:]])
        if self.mode == "reads gradients":
            h = h * (2 if torch.is_grad_enabled() else 1)
        if (self.mode == "equal" and not torch.equal(x, x.clamp(-9, 9))) or (
            self.mode == "any" and bool((x.abs() > 9).any())
        ):
            h = h + torch.where((x.abs() > 9).any(1)[:, None], self.first.bias, 0)
        return self.head(torch.tanh((self.third if self.mode == "third" else self.second)(h)))


def network(mode: str = "") -> Network:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Network().double()
    model.mode = mode
    return model


def samples(n: int = 12, seed: int = 0) -> Tensor:
    return torch.randn(n, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def assert_exact(model: nn.Module, x1: Tensor, x2: Tensor | None = None) -> None:
    expected = contraction(copy.deepcopy(model), x1, x1 if x2 is None else x2)
    # Sums of products in float64, and outputs of size one.
    torch.testing.assert_close(empirical(model, x1, x2), expected, rtol=1e-10, atol=1e-10 * expected.abs().max().item())


def tie(model: Network) -> None:
    model.third.weight = model.second.weight


def exchange(model: Network) -> None:
    model.second, model.third = model.third, model.second


def add_bias(layer: Any, inputs: object, output: Tensor) -> Tensor:
    return output + layer.bias


def set_attribute(name: str, value: object) -> Callable[[Network], object]:
    return lambda model: setattr(model, name, value)


CHANGES: dict[str, Callable[[Network], object]] = {
    "weights in place": lambda model: [p.data.mul_(1.5) for p in model.parameters()],
    "loaded weights": lambda model: model.load_state_dict(
        {name: 2 * value for name, value in model.state_dict().items()}, assign=True
    ),
    "new parameter": lambda model: setattr(model.second, "weight", nn.Parameter(torch.ones(4, 4).double())),
    "new layer": set_attribute("second", nn.Linear(4, 4).double()),
    "no layer": set_attribute("second", nn.Identity()),
    "exchanged layers": exchange,
    "other layer": set_attribute("mode", "third"),
    "tied": lambda model: (tie(model), setattr(model, "mode", "third")),
    "frozen": lambda model: model.second.weight.requires_grad_(False),
    "parametrized": lambda model: parametrizations.weight_norm(model.second),
    "symmetric": lambda model: parametrize.register_parametrization(model.second, "weight", nn.Tanh()),
    "hook": lambda model: model.second.register_forward_hook(add_bias),
    "hook of gradients": lambda model: model.second.register_forward_hook(
        lambda layer, inputs, output: output.register_hook(lambda grad: None) and None
    ),
    "permuted by an index": lambda model: setattr(model, "order", model.order.flip(0)),
    "permuted by a matrix": lambda model: model.flipped.fill_(1),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_model_has_its_own_kernel(change):
    modes = {"permuted by an index": "indexes", "permuted by a matrix": "permutes"}
    model, x = network(modes.get(change, "")), samples()
    assert_exact(model, x)
    CHANGES[change](model)
    for _ in range(2):
        assert_exact(model, x)


@pytest.mark.parametrize("mode", ["sorts", "equal", "any", "reads gradients"])
@pytest.mark.parametrize("n", [6, 40])
def test_other_values_have_their_own_kernel(mode, n):
    model, x, other = network(mode), samples(n), samples(n, seed=1)
    x[:, 0] = 1.0  # nothing to sort
    other[3] = 10.0  # which is not in the probe of 40 samples
    for batch in (x, other, other, x):
        assert_exact(model, batch)
        assert_exact(model, samples(5), batch)


def test_the_order_of_few_samples_that_are_not_in_the_probe():
    model, x = network("sorts"), samples(20)
    x[:, 0] = 0.0
    x[3, 0] = x[9, 0] = -1.0
    assert_exact(model, x)
    assert_exact(model, x)
    own = torch.stack([empirical(copy.deepcopy(model), x[i : i + 1])[0, :, 0] for i in range(len(x))])
    torch.testing.assert_close(empirical(model, x, diagonal=True), own)
    with pytest.raises(UsageError, match=r"use ntk\.empirical"):
        list(empirical_blocks(model, x))


@pytest.mark.parametrize("arguments", [(samples(),), (samples(5), samples())], ids=["rows", "columns"])
def test_a_model_that_mixes_large_batches_is_refused(arguments):
    model = network()
    assert_exact(model, *arguments)
    model.mode = "mixes large batches"
    for _ in range(2):
        with pytest.raises(UsageError, match="other samples"):
            empirical(model, *arguments)
    with pytest.raises(UsageError, match="other samples"):
        list(empirical_blocks(model, *arguments))


def test_two_samples_that_are_mixed_only_in_the_batch_have_the_kernel_of_single_samples():
    model, x = network(), samples(40)  # neither of the two is in the probe
    assert_exact(model, x)
    model.mode = "mixes two samples"
    assert_exact(model, x)
    assert_exact(model, x)


@pytest.mark.parametrize("is_remembered", [False, True])
def test_transforms_are_refused(is_remembered):
    model, x = network(), samples(12)
    for batch in (x, x[:4]) if is_remembered else ():
        empirical(model, batch)
    for call in (
        lambda: torch.func.vmap(lambda part: empirical(model, part))(x.view(3, 4, 3)),
        lambda: torch.func.grad(lambda part: empirical(model, part).sum())(x),
        lambda: torch.func.jvp(lambda part: empirical(model, part), (x,), (x,)),
    ):
        with pytest.raises(UsageError, match="call it outside"):
            call()


def test_a_model_with_indices_does_not_see_nan():
    class Binned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.calls = nn.Embedding(100, 2), 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return self.table((10 * x + 50).long().clamp(0, 99)).sum(1)

    model, x = Binned().double(), samples()
    empirical(model, x)
    calls = model.calls
    x[5, 1] = torch.nan
    with pytest.raises(UsageError, match="NaN or infinite"):
        empirical(model, x)
    assert model.calls == calls  # on a GPU, an index out of range would end every later use of the device


@pytest.mark.parametrize("scale", [1e-30, 1e-12, 1.0, 1e12, 1e30])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_small_and_large_gradients_are_not_taken_for_those_of_another_sample(scale, dtype):
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.head = nn.Linear(3, 64), nn.Linear(64, 1)

        def forward(self, x: Tensor) -> Tensor:
            return scale * self.head(F.gelu(self.first(x)))

    blocks = empirical_blocks(Scaled().to(dtype), samples(40).to(dtype), output="sum")
    assert len(list(blocks)) == 1

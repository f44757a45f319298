"""A model that the checks of a batch could take for another gets the kernel of its definition, or an error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tests.ntk.empirical_kernel.cases import contraction, jacobian
from torch import Tensor, nn
from torch.nn import functional as F

from normplace.errors import UsageError
from normplace.ntk import empirical, empirical_blocks

Body = Callable[["Network", Tensor], Tensor]


class Network(nn.Module):
    """Two layers with a function that computes the outputs from them."""

    def __init__(self, body: Body, outputs: int = 2) -> None:
        super().__init__()
        self.first, self.head, self.idle = nn.Linear(3, 4), nn.Linear(4, outputs), nn.Linear(3, 3)
        self.heads = nn.ModuleList(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)) for _ in range(3))
        self.empty = nn.Parameter(torch.zeros(0))
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self, x)


def network(body: Body, outputs: int = 2) -> Network:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Network(body, outputs).double()


def samples(n: int, seed: int = 0) -> Tensor:
    return torch.randn(n, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def assert_exact(model: nn.Module, x: Tensor, parameters: str | None = None) -> None:
    chosen = [p for name, p in model.named_parameters() if name.startswith(parameters or "")]
    expected = contraction(model, x, x, chosen)
    # Sums of products in float64, and outputs of size one.
    torch.testing.assert_close(empirical(model, x, output="full", parameters=parameters), expected, rtol=0, atol=1e-10)


def plain(model: Network, x: Tensor) -> Tensor:
    return model.head(torch.tanh(model.first(x)))


@pytest.fixture
def memory_of_nan() -> Iterator[None]:
    """New memory is filled with NaN."""
    torch.use_deterministic_algorithms(True)
    assert torch.utils.deterministic.fill_uninitialized_memory
    assert torch.empty(3).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("memory_of_nan")
@pytest.mark.parametrize("name", ["idle", "empty"])
def test_parameters_without_effect_have_a_kernel_of_zeros(name):
    model, x = network(lambda model, x: plain(model, x) + model.empty.sum()), samples(5)
    for _ in range(2):
        assert_exact(model, x, name)
        assert torch.equal(empirical(model, x, diagonal=True, parameters=name), torch.zeros(5, 2, 2).double())
        for output in ("trace", "sum"):
            assert torch.equal(empirical(model, x, output=output, parameters=name), torch.zeros(5, 5).double())
    blocks = [block for *_, block in empirical_blocks(model, x, parameters=name, block=3)]
    assert sum(block.numel() for block in blocks) == 100
    assert not any(block.any() for block in blocks)


@pytest.mark.usefixtures("memory_of_nan")
@pytest.mark.parametrize("n", [1, 2, 150])
@pytest.mark.parametrize("outputs", [1, 2])
def test_no_entry_is_left_uninitialized(n, outputs):
    model, x = network(plain, outputs), samples(n)
    j = jacobian(model, x)
    expected = torch.einsum("aop,bqp->aobq", j, j)
    for gigabytes in (None, 1e-5):
        kernel = empirical(model, x, output="full", memory_gb=gigabytes)
        torch.testing.assert_close(kernel, expected, rtol=0, atol=1e-10)
    covered = torch.zeros_like(expected)
    for rows, columns, block in empirical_blocks(model, x, output="full", block=100):
        covered[rows, :, columns] += block
    torch.testing.assert_close(covered, expected, rtol=0, atol=1e-10)


def sorted_heads(model: Network, x: Tensor) -> Tensor:
    order = x[:, 0].argsort(stable=True)
    first, *others = model.heads  # the layers of the first head matter for one output only
    return torch.cat([first(x[order])[order.argsort()], *[head(x) for head in others]], 1)


@pytest.mark.parametrize("order", [[0, 2, 1, 3, 4], [0, 1, 4, 3, 2], [3, 1, 2, 0, 4], [0, 4, 2, 3, 1]])
def test_reordered_samples_are_noticed_by_every_output(order):
    for is_remembered in (False, True):
        model, x = network(sorted_heads), samples(5)
        x[:, 0] = torch.arange(5)
        if is_remembered:
            assert_exact(model, x)
        x[:, 0] = torch.tensor(order)
        for _ in range(2):
            assert_exact(model, x)
        j = jacobian(model, x)
        torch.testing.assert_close(empirical(model, x, diagonal=True), j @ j.mT, rtol=0, atol=1e-10)


@pytest.mark.parametrize("n", [32, 256, 512, 1024])
@pytest.mark.parametrize("change", ["halves", "square"])
def test_blocks_of_samples_that_change_places_are_noticed(n, change):
    side = int(n**0.5)

    def body(model: Network, x: Tensor) -> Tensor:
        if change == "halves":
            return plain(model, x.roll(len(x) // 2, 0)).roll(len(x) // 2, 0)
        if len(x) != side * side:
            return plain(model, x)
        y = plain(model, x.view(side, side, 3).transpose(0, 1).reshape(-1, 3))
        return y.view(side, side, -1).transpose(0, 1).reshape(len(x), -1)

    model, x = network(body, outputs=1), samples(n)
    expected = empirical(network(plain, outputs=1), x)
    torch.testing.assert_close(empirical(model, x), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("n", [2, 3, 5, 9])
def test_a_single_sample_that_runs_other_layers_is_refused(n):
    def body(model: Network, x: Tensor) -> Tensor:
        if len(x) > 1:
            return plain(model, x)
        return model.head(torch.tanh(F.linear(x, model.first.weight) + model.first.bias))

    with pytest.raises(UsageError, match="runs different layers"):
        empirical(network(body), samples(n))


def beside(places: slice, others: slice) -> Body:
    """Add the values of neighbours without their gradient."""

    def body(model: Network, x: Tensor) -> Tensor:
        h = model.first(x)
        change = torch.zeros_like(h)
        change[places] = h.detach()[others]
        return model.head(torch.tanh(h + change))

    return body


MIXING: dict[str, Body] = {
    "next": beside(slice(0, -1), slice(1, None)),
    "previous": beside(slice(1, None), slice(0, -1)),
    "last to first": beside(slice(0, 1), slice(-1, None)),
    "first to last": beside(slice(-1, None), slice(0, 1)),
    "first to second": beside(slice(1, 2), slice(0, 1)),
    "mean": lambda model, x: plain(model, x - x.mean(0)),
    "mean without gradient": lambda model, x: plain(model, x - x.mean(0).detach()),
}


@pytest.mark.parametrize("mixing", MIXING)
@pytest.mark.parametrize("n", range(2, 10))
def test_samples_that_change_others_without_a_gradient_are_refused(mixing, n):
    x = samples(n)
    for is_remembered in (False, True):
        model = network(plain)
        if is_remembered:
            empirical(model, x)
        model.body = MIXING[mixing]
        for _ in range(2):
            with pytest.raises(UsageError, match="other samples"):
                empirical(model, x)


@pytest.mark.parametrize("mixing", ["next", "previous"])
@pytest.mark.parametrize("period", [1, 2, 4, 8])
def test_repeated_samples_do_not_hide_their_neighbours(mixing, period):
    x = samples(period).repeat(8 // period, 1)
    model = network(plain)
    empirical(model, x)
    model.body = MIXING[mixing]
    with pytest.raises(UsageError, match="other samples"):
        empirical(model, x)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_samples_that_change_others_in_half_precision_are_refused(dtype):
    for n in (2, 9, 20):
        model, x = network(MIXING["mean without gradient"]).to(dtype), samples(n).to(dtype)
        with pytest.raises(UsageError, match="other samples"):  # outputs change by more than an eighth of the largest
            empirical(model, x)


class ByBatchSize(torch.autograd.Function):
    """The identity, whose gradient is divided by the number of samples."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.n = len(x)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0] / ctx.n


def divided_in_part(h: Tensor) -> Tensor:
    return h / len(h) + (h - h / len(h)).detach()


def divided_without_grad(h: Tensor) -> Tensor:
    with torch.no_grad():
        rest = h - h / len(h)
    return h / len(h) + rest


@pytest.mark.parametrize("divided", [ByBatchSize.apply, divided_in_part, divided_without_grad])
@pytest.mark.parametrize("outputs", [1, 2])
def test_gradients_that_only_the_batch_size_changes_are_noticed(divided, outputs):
    def body(model: Network, x: Tensor) -> Tensor:
        return model.head(torch.relu(divided(model.first(x))))

    model, x = network(body, outputs), samples(6)
    x[0] = 0.0
    model.first.bias.data.fill_(-0.1)  # the first sample has no gradient there
    for _ in range(2):
        assert_exact(model, x)
    with pytest.raises(UsageError, match=r"use ntk\.empirical"):
        list(empirical_blocks(model, x))


def test_an_iterator_of_parameters_is_read_once():
    model, x = network(sorted_heads), samples(5)
    expected = empirical(model, x, parameters="heads.0")
    assert torch.equal(empirical(model, x, parameters=model.heads[0].parameters()), expected)

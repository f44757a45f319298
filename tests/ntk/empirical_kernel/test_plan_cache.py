"""A remembered plan gives the same kernel, and is not used for a model that has changed."""

from __future__ import annotations

import copy
import gc
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from normplace.errors import UsageError
from normplace.ntk import empirical
from normplace.ntk.empirical_kernel import plan_cache


class Switched(nn.Module):
    """A network whose attribute ``mode`` changes what it computes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 2)
        self.a, self.b = nn.Parameter(torch.randn(4)), nn.Parameter(torch.randn(4))
        self.mode, self.calls = "", 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.mode == "centred":
            x = x - x.mean(0)
        if self.mode == "noise":
            x = x + torch.randn_like(x)
        h = self.first(x)
        h = torch.relu(h) if self.mode == "relu" else torch.tanh(h)
        h = h * (self.b if self.mode == "other parameter" else self.a)
        layer = self.first if self.mode == "other layer" else self.second
        h = h @ layer.weight[:, :4].T if self.mode == "matrix product" else self.second(h)
        if self.mode == "another use":
            h = h + self.second.bias
        if self.mode == "axis":
            return self.head(h.cumsum(1))
        return self.head(h.cumsum(-1) if self.mode == "last axis" else h)


def network() -> Switched:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Switched().double()


def samples(n: int, seed: int = 0) -> Tensor:
    return torch.randn(n, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def without_memory(model: Switched, *args: Any, **kwargs: Any) -> Tensor:
    return empirical(copy.deepcopy(model), *args, **kwargs)


@pytest.mark.parametrize("n", [1, 2, 7, 8, 9, 30])
def test_the_second_call_needs_one_small_batch_and_gives_the_same_bits(n):
    model, x = network(), samples(n)
    first, calls = empirical(model, x), model.calls
    second = empirical(model, x)
    assert torch.equal(first, second)
    # The probe, one sample alone, all samples, and the Jacobian of the parameters that are not in a layer, which is
    # checked if it is of several samples.
    check = int(n > 1)
    assert (calls, model.calls) == (4 + check, 7 + 2 * check)
    others = samples(n, 1)
    assert torch.equal(empirical(model, others), without_memory(model, others))
    assert model.calls == 4 + 2 * 3 + 3 * check


def test_columns_outputs_and_parameters_have_plans_of_their_own():
    model, x, y = network(), samples(9), samples(5, 1)
    options: list[dict[str, Any]] = [
        {}, {"x2": y}, {"output": "trace"}, {"parameters": "second"}, {"x2": samples(9, 2), "output": "sum"}
    ]  # fmt: skip
    for _ in range(2):
        for option in options:
            assert torch.equal(empirical(model, x, **option), without_memory(model, x, **option))
    model.second.weight.requires_grad_(False)
    assert torch.equal(empirical(model, x), without_memory(model, x))


def test_weights_may_change():
    model, x = network(), samples(9)
    empirical(model, x)
    with torch.no_grad():
        model.second.weight.mul_(2)
    model.head.weight.data.add_(1)
    calls = model.calls
    assert torch.equal(empirical(model, x), without_memory(model, x))
    assert model.calls == calls + 4


@pytest.mark.parametrize("before", ["", "last axis"])
@pytest.mark.parametrize(
    "mode", ["relu", "other parameter", "other layer", "matrix product", "another use", "axis", "last axis", ""]
)
def test_a_model_that_computes_something_else_is_probed_again(mode, before):
    model, x = network(), samples(9)
    model.mode = before
    empirical(model, x)
    model.mode = mode
    for _ in range(3):
        assert torch.equal(empirical(model, x), without_memory(model, x))


@pytest.mark.parametrize(("mode", "message"), [("centred", "other samples"), ("noise", "same input")])
@pytest.mark.parametrize("n", [2, 8, 20])
def test_a_model_that_loses_its_kernel_is_refused(mode, message, n):
    model, x = network(), samples(n)
    empirical(model, x)
    model.mode = mode
    for _ in range(2):
        with pytest.raises(UsageError, match=message):
            empirical(model, x)
    model.mode = ""
    assert torch.equal(empirical(model, x), without_memory(model, x))


def test_samples_that_are_mixed_by_a_hidden_call_are_noticed():
    class Hidden(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin, self.mixes = nn.Linear(3, 1), False

        def forward(self, x: Tensor) -> Tensor:
            with torch._C.DisableTorchFunction():  # not among the calls that the plan remembers
                x = x - x.mean(0) if self.mixes else x
            return self.lin(x)

    model, x = Hidden().double(), samples(9)
    empirical(model, x)
    model.mixes = True
    with pytest.raises(UsageError, match="other samples"):
        empirical(model, x)


def test_another_order_of_the_same_rows_is_noticed():
    class Folded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin, self.head, self.time_first = nn.Linear(3, 4), nn.Linear(4, 1), False

        def forward(self, x: Tensor) -> Tensor:
            rows = (x.transpose(0, 1) if self.time_first else x).reshape(-1, 3)
            h = torch.tanh(self.lin(rows))
            h = h.view(x.shape[1], x.shape[0], 4).transpose(0, 1) if self.time_first else h.view(*x.shape[:2], 4)
            return self.head(h.mean(1))

    model, x = Folded().double(), samples(20).view(4, 5, 3)
    for time_first in (False, True, False, True):
        model.time_first = time_first
        torch.testing.assert_close(empirical(model, x), empirical(copy.deepcopy(model), x))


def test_hooks_take_part_after_a_plan_was_remembered():
    model, x = network(), samples(9)
    empirical(model, x)
    model.second.register_forward_hook(lambda module, inputs, output: output.square())
    assert torch.equal(empirical(model, x), without_memory(model, x))


def test_nan_is_refused_after_a_plan_was_remembered():
    model, x = network(), samples(9)
    empirical(model, x)
    with pytest.raises(UsageError, match="NaN or infinite"):
        empirical(model, x.log())


def test_plans_do_not_keep_a_model_and_few_are_remembered(monkeypatch):
    monkeypatch.setattr(plan_cache, "MAX_PLANS", 2)
    model = network()
    for n in (2, 3, 4, 2, 3):
        assert torch.equal(empirical(model, samples(n)), without_memory(model, samples(n)))
    alive = weakref.ref(model)
    del model
    gc.collect()
    assert alive() is None


def test_a_model_that_reads_values_is_probed_every_time():
    class Reading(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.small, self.large, self.calls = nn.Linear(3, 1), nn.Linear(3, 1), 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            far = x.norm(dim=1) > 2
            return self.large(x) if bool(far.all()) else torch.where(far[:, None], self.large(x), self.small(x))

    model, x = Reading().double(), samples(9)
    empirical(model, x)
    calls = model.calls
    empirical(model, x)
    assert model.calls == 2 * calls

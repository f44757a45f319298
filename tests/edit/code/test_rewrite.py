"""A rewritten method differs from the original only in its wrapped sums."""

from __future__ import annotations

import functools
import inspect

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import normplace as npl

OFFSET = 0.25  # a global of the module


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up = nn.LayerNorm(8), nn.Linear(8, 8)

    def __private(self, x):
        return x

    def branch(self, x):
        return self.up(x)

    def forward(self, x, *, gain: float = 1.0):
        """Read the stream."""
        return self.__private(x) + gain * self.branch(self.norm(x)) + OFFSET


class Derived(Base):
    def branch(self, x):
        return super().branch(x).tanh()


def closed_over(factor):
    class Inner(Base):
        def forward(self, x):
            def scaled(value):
                return factor * value

            return x + scaled(super().branch(self.norm(x)))

    return Inner()


class Method(Base):
    """The sum is in a helper method, and the norm is called with a keyword."""

    def step(self, x):
        hidden = self.up(self.norm(input=x))
        return torch.add(x, hidden)

    def forward(self, x):
        return self.step(self.step(x))


def expected(model, x, branch):
    return F.layer_norm(x + branch(x), (8,), model.norm.weight, model.norm.bias)


@torch.no_grad()
def test_names_resolve_as_before():
    x = torch.randn(5, 8)
    model = Derived()
    moved = npl.move(model, x, to="post")
    torch.testing.assert_close(moved(x), expected(model, x, lambda h: model.up(h).tanh()) + OFFSET)
    half = expected(model, x, lambda h: 0.5 * model.up(h).tanh()) + OFFSET
    torch.testing.assert_close(moved(x, gain=0.5), half)
    assert inspect.signature(moved.forward) == inspect.signature(model.forward)
    assert moved.forward.function.__doc__ == "Read the stream."


@torch.no_grad()
def test_closures_keep_their_values():
    x, model = torch.randn(5, 8), closed_over(3.0)
    moved = npl.move(model, x, to="post")
    torch.testing.assert_close(moved(x), expected(model, x, lambda h: 3 * model.up(h)))


@torch.no_grad()
def test_a_sum_in_a_helper_that_is_called_twice():
    x, model = torch.randn(5, 8), Method()
    moved = npl.move(model, x, to="post", norm="layer")
    once = expected(model, x, model.up)
    torch.testing.assert_close(moved(x), expected(model, once, model.up))


def test_a_helper_that_adds_for_several_blocks_is_refused():
    class Helped(nn.Module):
        def __init__(self):
            super().__init__()
            self.norms = nn.ModuleList(nn.LayerNorm(8) for _ in range(2))
            self.maps = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))

        def step(self, x, index):
            return x + self.maps[index](self.norms[index](x))

        def forward(self, x):
            return self.step(self.step(x, 0), 1)

    with pytest.raises(npl.UsageError, match="maps_1_stream' does not normalize a value of the pass"):
        npl.move(Helped(), torch.randn(5, 8), to="post")


def add(x, y):
    """Adds outside the module, as some libraries do."""
    total = x + y
    return total.clone()


@torch.no_grad()
def test_a_function_that_adds():
    class Helped(Base):
        def forward(self, x):
            return add(x, self.up(self.norm(x)))

    x, model = torch.randn(5, 8), Helped()
    torch.testing.assert_close(npl.move(model, x, to="post")(x), expected(model, x, model.up))


def test_a_decorated_method():
    def with_instance(function):
        @functools.wraps(function)
        def call(self, *args):
            return function(self, *args)

        return call

    def without(function):
        @functools.wraps(function)
        def call(*args):
            return function(*args)

        return call

    def hiding(function):
        functions = [function]

        @functools.wraps(function)
        def call(self, *args):
            return functions[0](self, *args)

        return call

    class Decorated(Base):
        @with_instance
        def forward(self, x):
            return x + self.up(self.norm(x))

    class Twice(Base):
        @without
        @with_instance
        def forward(self, x):
            y = x + self.up(self.norm(x))
            return y + self.up(y)

    class Hidden(Base):
        @hiding
        def forward(self, x):
            return x + self.up(self.norm(x))

    x, model, twice = torch.randn(5, 8), Decorated(), Twice()
    torch.testing.assert_close(npl.move(model, x, to="post")(x), expected(model, x, model.up))
    moved = npl.move(twice, x, to="post", norm="layer")
    first = expected(twice, x, twice.up)
    second = moved.get_submodule(npl.changes(moved).where("added")[-1].name)
    torch.testing.assert_close(moved(x), second(first + twice.up(first)))
    with pytest.raises(npl.UsageError, match="remove the decorator"):
        npl.move(Hidden(), x, to="post")
    npl.move(Hidden(), x, to="peri")  # needs no rewrite


def test_a_class_without_source_is_refused():
    scope = {"nn": nn, "Base": Base}
    exec("class Typed(Base):\n    def forward(self, x):\n        return x + self.up(self.norm(x))\n", scope)
    with pytest.raises(npl.UsageError, match="define the class in a file"):
        npl.move(scope["Typed"](), torch.randn(5, 8), to="post")


class Post(Base):
    def forward(self, x):
        return self.norm(x + self.up(x))


def test_a_method_that_was_replaced_on_the_instance_is_not_rewritten():
    """As the hooks of accelerate do; the replacement calls the original method."""

    def halved(model, x):
        return model.original(x) / 2

    x = torch.randn(3, 8)
    before, after = Derived(), Post()
    for model in (before, after):
        model.original = model.forward
        model.forward = functools.partial(halved, model)
    reason = "'forward' of 'the model' was replaced on the instance"
    with pytest.raises(npl.UsageError, match=reason):
        npl.move(before, x, to="post")
    fused = npl.fuse(after, x, only_if_faster=False)
    assert reason in str(npl.changes(fused))
    assert torch.equal(fused(x), after(x))

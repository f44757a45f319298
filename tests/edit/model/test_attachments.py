"""Attached modules change one tensor of a call, and detaching restores the model."""

from __future__ import annotations

import copy
import pickle
from collections import namedtuple

import pytest
import torch
from torch import nn

from normplace.edit.model.attachments import add_placed, attach_to_input, attach_to_output, detach

Pair = namedtuple("Pair", ["first", "second"])


class Negate(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return -x


class Returns(nn.Module):
    """Returns its arguments in a container."""

    def __init__(self, container):
        super().__init__()
        self.container = container

    def forward(self, x, y=None):
        return self.container(x, y)


class Owner(nn.Module):
    def __init__(self, container):
        super().__init__()
        self.inner = Returns(container)

    def forward(self, *args, **kwargs):
        return self.inner(*args, **kwargs)


ONE, TWO = torch.ones(2), 2 * torch.ones(2)


@pytest.mark.parametrize(
    ("container", "key", "expected"),
    [
        (lambda x, y: x, None, -ONE),
        (lambda x, y: (x, y), 1, (ONE, -TWO)),
        (lambda x, y: [x, y], 0, [-ONE, TWO]),
        (Pair, 0, Pair(-ONE, TWO)),
        (lambda x, y: {"a": x, "b": y}, "b", {"a": ONE, "b": -TWO}),
    ],
)
def test_one_tensor_of_the_output_changes(container, key, expected):
    model = Owner(container)
    name = add_placed(model, "negate", Negate())
    attach_to_output(model.inner, model.placed[name], key)
    torch.testing.assert_close(model(ONE, TWO), expected)
    assert type(model(ONE, TWO)) is type(expected)
    assert detach(model, "placed.negate")
    torch.testing.assert_close(model(ONE, TWO), container(ONE, TWO))
    assert not hasattr(model, "placed")


def test_arguments_change_by_position_and_name_and_a_repeated_tensor_is_computed_once():
    model, negate = Owner(Pair), Negate()
    add_placed(model, "negate", negate)
    attach_to_input(model.inner, negate, (0, "y"))
    x, y = model(ONE, y=ONE)
    assert torch.equal(x, -ONE)
    assert x is y
    assert negate.calls == 1
    assert torch.equal(model(ONE, y=TWO).second, -TWO)


def test_names_are_unique_and_a_module_is_added_once():
    model, first = Owner(Pair), Negate()
    assert [add_placed(model, "norm", module) for module in (first, Negate(), first)] == ["norm", "norm_2", "norm"]


def test_a_copy_is_detached_on_its_own():
    model, negate = Owner(lambda x, y: x), Negate()
    add_placed(model, "negate", negate)
    attach_to_output(model.inner, negate, None)
    twin = copy.deepcopy(model)
    assert detach(twin, "placed.negate")
    assert torch.equal(twin(ONE), ONE)
    assert torch.equal(model(ONE), -ONE)


def test_other_modules_are_not_detached():
    model = Owner(Pair)
    assert not detach(model, "inner")
    assert model.inner is not None


def compiled_error(model, *inputs):
    """How far the compiled model is from the model."""
    with torch.no_grad():
        return float((torch.compile(model, backend="eager")(*inputs) - model(*inputs)).abs().max())


def test_compiled_models_of_one_class_run_their_own_hooks():
    """Compiled code is shared by the models of a class whose guards agree, and hooks are not guarded by default."""
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4)))
    negated_output, negated_input = copy.deepcopy(plain), copy.deepcopy(plain)
    attach_to_output(negated_output[1], Negate(), None)
    attach_to_input(negated_input[1], Negate(), (0,))
    torch._dynamo.reset()
    x = torch.randn(3, 4)
    assert [compiled_error(model, x) for model in (plain, negated_output, negated_input)] == [0, 0, 0]


def test_an_unpickled_hook_is_guarded_again(monkeypatch):
    model = nn.Linear(4, 4)
    attach_to_output(model, nn.Identity(), None)
    calls = []
    monkeypatch.setattr("normplace.edit.model.attachments.guard_hooks", lambda: calls.append(True))
    pickle.loads(pickle.dumps(model))
    assert calls


def test_dynamic_quantization_registers_hooks_without_keyword_arguments():
    layer, negate = nn.Linear(2, 2), Negate()
    attach_to_input(layer, negate, (0,))
    (hook,) = layer._forward_pre_hooks.values()
    quantized = nn.Linear(2, 2)
    quantized.load_state_dict(layer.state_dict())
    quantized.register_forward_pre_hook(hook)
    assert torch.equal(quantized(ONE), layer(ONE))
    assert negate.calls == 2

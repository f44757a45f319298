"""Devices and sizes of modules, and the modules of compiled ones."""

from __future__ import annotations

import torch
from torch import nn

from normplace._shared.modules import count_parameters, device_of, uncompiled


def test_the_device_is_that_of_a_parameter_or_the_cpu():
    assert device_of(nn.Linear(2, 3, device="meta")) == torch.device("meta")
    assert device_of(nn.ReLU()) == torch.device("cpu")


def test_the_module_of_a_compiled_one_is_the_original():
    module = nn.Linear(2, 3)
    assert uncompiled(torch.compile(module)) is module
    assert uncompiled(module) is module


def test_shared_parameters_count_once():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].weight = model[0].weight
    assert count_parameters(model) == 8

"""Inputs are described without their data, and random inputs fit the description."""

from __future__ import annotations

import json
from types import SimpleNamespace

import torch

from normplace.edit.record.input_spec import describe_inputs, random_inputs


def test_random_inputs_fit_the_description():
    args = (torch.randn(2, 3, dtype=torch.float64), [torch.tensor([4, 9, 6])])
    inputs = (args, {"mask": torch.tensor([True]), "n": 3})
    description = json.loads(json.dumps(describe_inputs(inputs)))
    (x, (ids,)), kwargs = random_inputs(description, torch.Generator().manual_seed(0))
    assert (x.shape, x.dtype) == ((2, 3), torch.float64)
    assert (ids.shape, ids.dtype) == ((3,), torch.int64)
    assert ids.min() >= 4
    assert ids.max() <= 9
    assert kwargs["mask"].dtype == torch.bool
    assert kwargs["n"] == 3
    assert not torch.equal(x, args[0])


def test_some_inputs_have_no_description():
    for value in (torch.eye(2).to_sparse(), torch.ones(2, dtype=torch.complex64), SimpleNamespace(), {1: 2}):
        assert describe_inputs(((value,), {})) is None

"""Tensors are found in every kind of argument and result."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from tests.edit.small_models import Block, Stack, features
from torch import Tensor

import normplace as npl
from normplace.analysis.recording.structures import map_tensors, tensors_of


class Named:
    __slots__ = "tensor"

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


@dataclass(slots=True)
class Output(Named):
    logits: Tensor
    cache: Tensor | None = None


class Slotted(Stack):
    def forward(self, x: Tensor) -> Output:
        return Output(super().forward(x))


def test_tensors_in_slots():
    output = Output(torch.ones(2))
    output.tensor = torch.zeros(3)
    assert {tuple(tensor.shape) for tensor in tensors_of([output])} == {(2,), (3,)}
    assert torch.equal(map_tensors(lambda tensor: tensor + 1, output).logits, 2 * torch.ones(2))


@torch.no_grad()
def test_a_model_that_returns_an_object_with_slots_is_edited():
    model, x = Slotted(Block(), Block()).eval(), features(3)
    folded = npl.fold(model, x)
    assert len(npl.changes(folded).where("folded")) == 3
    torch.testing.assert_close(folded(x).logits, model(x).logits)

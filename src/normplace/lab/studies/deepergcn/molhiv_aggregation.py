"""Softmax aggregation of ``relu(x_j + e_ij) + eps`` for several seeds at once, with a learned temperature each.

With messages m, weights a and their mean y, the gradients are ``dy/dm = a (1 + t (m - y))`` and
``dy/dt = Σ a m (m - y)``. Messages are not negative, so no maximum is subtracted before the exponential. On a GPU one
kernel computes the result and one the gradients, and nothing of the size of the bonds is stored.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

LARGEST = 80.0
"""Largest logit of the softmax, whose exponential is finite in float32; logits of a trained network are below 30."""
EPS = 1e-7
BLOCK = 4
"""Atoms of a program."""


class Bonds(NamedTuple):
    """The bonds of one batch for each seed, sorted by target."""

    first: Tensor
    """First bond of each atom, and the number of used bonds: seeds × (atoms + 1)."""
    source: Tensor
    """Source atom of each bond, seeds × bonds."""
    kind: Tensor
    """Row of each bond in the table of features, seeds × bonds."""


def softmax_messages(x: Tensor, table: Tensor, temperature: Tensor, bonds: Bonds) -> Tensor:
    """The mean of the messages that each atom receives, plus its features.

    Args:
        x: Features, seeds × atoms × channels.
        table: Features of each kind of bond, seeds × kinds × channels.
        temperature: One inverse temperature for each seed.
        bonds: The bonds. On a GPU every bond must be there in both directions, with the same kind.
    """
    return _aggregate(x, table, temperature, *bonds)[0]


@torch.library.custom_op("normplace_lab::softmax_messages", mutates_args=(), device_types="cpu")
def _aggregate(
    x: Tensor, table: Tensor, temperature: Tensor, first: Tensor, source: Tensor, kind: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The mean plus the features, the mean, and the sum of the weights."""
    flat = _Flat(x, table, first, source, kind)
    weight = (flat.message * flat.per_bond(temperature)).clamp(max=LARGEST).exp()
    total = flat.received(weight)
    total.masked_fill_(total == 0, 1.0)  # an atom without bonds
    mean = flat.received(weight * flat.message) / total
    return x + mean, mean, total


@torch.library.custom_op("normplace_lab::softmax_messages_backward", mutates_args=(), device_types="cpu")
def _aggregate_backward(
    grad: Tensor, x: Tensor, table: Tensor, temperature: Tensor, mean: Tensor, total: Tensor,
    first: Tensor, source: Tensor, kind: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of the features and the table, and parts of those of the temperatures, seeds × parts."""
    flat = _Flat(x, table, first, source, kind)
    t, message = flat.per_bond(temperature), flat.message
    share = (message * t).clamp(max=LARGEST).exp() * (grad / total).flatten(0, 1)[flat.target]
    above = message - mean.flatten(0, 1)[flat.target]
    of_message = share * (1 + t * above) * (message > EPS)
    of_x = grad.flatten(0, 1).index_add(0, flat.source, of_message)
    of_table = torch.zeros_like(table).flatten(0, 1).index_add_(0, flat.row, of_message)
    of_bond = (share * above * message).sum(1)
    of_temperature = torch.zeros_like(temperature).index_add_(0, flat.seed, of_bond)
    return of_x.view_as(x), of_table.view_as(table), of_temperature[:, None]


class _Flat:
    """The used bonds of all seeds in one list, with their messages.

    Args:
        x: Features.
        table: Features of the kinds of bonds.
        first: First bond of each atom.
        source: Source of each bond.
        kind: Kind of each bond.
    """

    def __init__(self, x: Tensor, table: Tensor, first: Tensor, source: Tensor, kind: Tensor) -> None:
        seeds, atoms, _ = x.shape
        used = torch.arange(source.shape[1], device=x.device) < first[:, -1:]
        self.shape = x.shape
        self.target = torch.repeat_interleave(first.diff().flatten())
        self.seed = torch.arange(seeds, device=x.device)[:, None].expand_as(source)[used]
        self.source = self.seed * atoms + source[used]
        self.row = self.seed * table.shape[1] + kind[used]
        self.message = (x.flatten(0, 1)[self.source] + table.flatten(0, 1)[self.row]).relu() + EPS

    def per_bond(self, values: Tensor) -> Tensor:
        """The value of each bond's seed."""
        return values[self.seed][:, None]

    def received(self, values: Tensor) -> Tensor:
        """The sum of the bonds' values at each atom."""
        sums = values.new_zeros(self.shape[0] * self.shape[1], self.shape[2])
        return sums.index_add_(0, self.target, values).view(self.shape)


@_aggregate.register_kernel("cuda")
def launch_forward(
    x: Tensor, table: Tensor, temperature: Tensor, first: Tensor, source: Tensor, kind: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The same by a Triton kernel."""
    from normplace.lab.studies.deepergcn import molhiv_kernels

    kernel: Any = molhiv_kernels.forward
    inputs = [tensor.contiguous() for tensor in (x, table, temperature, first, source, kind)]
    out, mean, total = (torch.empty_like(inputs[0]) for _ in range(3))
    kernel[_grid(x)](*inputs, out, mean, total, *_sizes(x, table, source))
    return out, mean, total


@_aggregate_backward.register_kernel("cuda")
def launch_backward(
    grad: Tensor, x: Tensor, table: Tensor, temperature: Tensor, mean: Tensor, total: Tensor,
    first: Tensor, source: Tensor, kind: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The same by a Triton kernel."""
    from normplace.lab.studies.deepergcn import molhiv_kernels

    kernel: Any = molhiv_kernels.backward
    tensors = (grad, x, table, temperature, mean, total, first, source, kind)
    inputs = [tensor.contiguous() for tensor in tensors]
    grid = _grid(x)
    of_x, of_table = torch.empty_like(inputs[1]), torch.zeros_like(inputs[2])
    of_temperature = temperature.new_empty(x.shape[0], grid[0])
    kernel[grid](*inputs, of_x, of_table, of_temperature, *_sizes(x, table, source))
    return of_x, of_table, of_temperature


def _grid(x: Tensor) -> tuple[int, int]:
    return -(-x.shape[1] // BLOCK), x.shape[0]


def _sizes(x: Tensor, table: Tensor, source: Tensor) -> tuple[int | float, ...]:
    """Atoms, bonds, kinds, constants and the constant arguments of a kernel."""
    channels = x.shape[2]
    width = 1 << (channels - 1).bit_length()
    return x.shape[1], source.shape[1], table.shape[1], EPS, LARGEST, channels, width, BLOCK


@_aggregate.register_fake
def _(
    x: Tensor, table: Tensor, temperature: Tensor, first: Tensor, source: Tensor, kind: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty(x.shape), x.new_empty(x.shape)


@_aggregate_backward.register_fake
def _(
    grad: Tensor, x: Tensor, table: Tensor, temperature: Tensor, mean: Tensor, total: Tensor,
    first: Tensor, source: Tensor, kind: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    parts = 1 if x.device.type == "cpu" else _grid(x)[0]
    return x.new_empty(x.shape), table.new_empty(table.shape), temperature.new_empty(len(temperature), parts)


def _save(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
    x, table, temperature, *bonds = inputs
    _, mean, total = output
    ctx.save_for_backward(x, table, temperature, mean, total, *bonds)


def _backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
    of_x, of_table, of_temperature = _aggregate_backward(grads[0], *ctx.saved_tensors)
    return of_x, of_table, of_temperature.sum(1), None, None, None


_aggregate.register_autograd(_backward, setup_context=_save)

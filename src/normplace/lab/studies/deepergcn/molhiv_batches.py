"""Batches of molecules of a fixed size, for several seeds at once: a recorded training step needs constant shapes.

A batch has room for a number of atoms and bonds. Atom 0 of each batch is a spare one, which belongs to no molecule and
has no bonds. The batches of an epoch are laid out on the device by a few operations.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from normplace.errors import UsageError
from normplace.lab.tasks.graphs.graph_batches import GraphSet
from normplace.lab.tasks.graphs.molecules import ATOM_SIZES, BOND_SIZES

ROUND = 64
"""Room is a multiple of this."""
BOND_KINDS = math.prod(BOND_SIZES)
"""Number of combinations of the categories of a bond."""


class Room(NamedTuple):
    """Room of a batch, with the spare atom."""

    atoms: int
    bonds: int


class FixedBatch(NamedTuple):
    """One batch for each seed; seeds × room, in one dimension more for the batches of an epoch."""

    atoms: Tensor
    """Row of each atom among all atoms; the last row for an unused one."""
    molecule: Tensor
    """Number of each atom's molecule in the batch; the batch size for an unused one."""
    first: Tensor
    """First bond of each atom, in a list of bonds sorted by target; then the number of used bonds."""
    source: Tensor
    """Number of each bond's source atom in the batch."""
    kind: Tensor
    """Kind of each bond, a number below :data:`BOND_KINDS`."""
    y: Tensor
    """Label of each molecule."""
    weight: Tensor
    """Weight of each molecule in the mean loss; 0 for an unused place."""

    def at(self, number: int, room: Room | None = None) -> FixedBatch:
        """One batch of an epoch, with less room if it needs less."""
        atoms, molecule, first, source, kind, y, weight = (tensor[number] for tensor in self)
        room = room or Room(atoms.shape[1], source.shape[1])
        atoms, molecule = (tensor[:, : room.atoms] for tensor in (atoms, molecule))
        source, kind = (tensor[:, : room.bonds] for tensor in (source, kind))
        return FixedBatch(atoms, molecule, first[:, : room.atoms + 1], source, kind, y, weight)


def multi_hot(data: GraphSet) -> Tensor:
    """The categories of atoms as rows of zeros and ones, with a last row of zeros.

    A sum of embeddings is then a matrix product, whose gradient needs no sorting.
    """
    first = torch.tensor([0, *ATOM_SIZES[:-1]], device=data.x.device).cumsum(0)
    rows = torch.zeros(len(data.x) + 1, sum(ATOM_SIZES), dtype=torch.uint8, device=data.x.device)
    rows[:-1].scatter_(1, data.x.long() + first, 1)
    return rows


def bond_kinds(data: GraphSet) -> Tensor:
    """One number for the three categories of each bond: its row in :func:`kind_table`."""
    kind = torch.zeros(len(data.edge_attr), dtype=torch.int32, device=data.edge_attr.device)
    for column, size in zip(data.edge_attr.unbind(1), BOND_SIZES, strict=True):
        kind = kind * size + column
    return kind


def kind_table(table: Tensor) -> Tensor:
    """The sum of embeddings of every kind of bond: seeds × kinds × channels, from seeds × categories × channels."""
    types, stereo, conjugated = table.split(BOND_SIZES, dim=1)
    return (types[:, :, None, None] + stereo[:, None, :, None] + conjugated[:, None, None]).flatten(1, 3)


def check_symmetric(data: GraphSet) -> None:
    """Check that every bond is there in both directions, with the same kind.

    Raises:
        UsageError: If one is not.
    """
    owner = torch.repeat_interleave(data.edges.to(data.x.device))
    source, target = data.edge_index.long()
    most, kind = int(data.nodes.max()), bond_kinds(data)
    here, back = (
        (((owner * most + one) * most + other) * BOND_KINDS + kind).sort().values
        for one, other in ((source, target), (target, source))
    )
    if not torch.equal(here, back):
        raise UsageError("a bond has no equal bond in the other direction, which training on a GPU requires.")


def rooms(data: GraphSet, batch_size: int) -> list[Room]:
    """Two sizes of a batch: one that nearly all batches fit into, and one that all should.

    They depend on the data and the batch size alone, so that the random numbers of a seed do not depend on the seeds
    that are trained with it.
    """
    return [
        Room(*(_room(counts, batch_size, factor, spare) for counts in (data.nodes, data.edges)))
        for factor, spare in ((1.25, 0), (2.0, 1))
    ]


def _room(counts: Tensor, batch_size: int, factor: float, spare: int) -> int:
    """``factor`` times the mean of a batch and some spare molecules of the largest size, if batches can be so large."""
    typical = round(factor * batch_size * float(counts.double().mean())) + spare * int(counts.max())
    largest = int(counts.topk(min(batch_size, len(counts))).values.sum())
    return -(-(1 + min(largest, typical)) // ROUND) * ROUND


def lay_out(data: GraphSet, orders: list[Tensor], batch_size: int, room: Room | None = None) -> FixedBatch:
    """The batches of one epoch: batches × seeds × room.

    Args:
        data: The molecules, on the device.
        orders: For each seed, the molecules in the order of the epoch, on the CPU; equally many.
        batch_size: Molecules per batch; the last batch may have fewer.
        room: Room of a batch; by default what the largest batch needs.

    Raises:
        UsageError: If a batch does not fit.
    """
    table = _BondTable(data)
    columns = [_one_seed(data, table, order, batch_size, room) for order in orders]
    return FixedBatch(*(torch.stack(tensors, dim=1) for tensors in zip(*columns, strict=True)))


def needed_rooms(data: GraphSet, orders: list[Tensor], batch_size: int) -> list[Room]:
    """The room that each batch of an epoch needs: the most of all seeds, computed on the CPU."""
    most = []
    for counts in (data.nodes, data.edges):
        padded = [F.pad(counts[order], (0, -len(order) % batch_size)).view(-1, batch_size).sum(1) for order in orders]
        most.append((1 + torch.stack(padded).amax(0)).tolist())
    return [Room(*pair) for pair in zip(*most, strict=True)]


class _BondTable:
    """What batches need to know of all bonds."""

    def __init__(self, data: GraphSet) -> None:
        device = data.x.device
        before = (data.nodes.cumsum(0) - data.nodes).to(device)
        owner = torch.repeat_interleave(data.edges.to(device), output_size=len(data.edge_attr))
        target = data.edge_index[1] + before[owner]
        self.kind = bond_kinds(data)
        self.degree = torch.zeros(len(data.x), dtype=torch.int32, device=device)
        self.degree.index_add_(0, target, torch.ones_like(self.kind))


def _one_seed(data: GraphSet, table: _BondTable, order: Tensor, batch_size: int, room: Room | None) -> FixedBatch:
    device = data.x.device
    largest = needed_rooms(data, [order], batch_size)
    needed = Room(*(max(sizes) for sizes in zip(*largest, strict=True)))
    room = room or needed
    if needed.atoms > room.atoms or needed.bonds > room.bonds:
        raise UsageError(f"a batch needs room for {needed.atoms} atoms, but has {room.atoms}: use smaller batches.")
    batches = len(largest)
    batch = torch.arange(len(order)) // batch_size
    place = (torch.arange(len(order)) % batch_size).int().to(device)
    atoms = _Rows(data.nodes, order, batch)
    bonds = _Rows(data.edges, order, batch)
    owner, row, slot = atoms.to(device)
    shape = (batches, room.atoms)
    whole = {"dtype": torch.int32, "device": device}
    number = torch.full(shape, len(data.x), **whole)
    molecule = torch.full(shape, batch_size, **whole)
    degree = torch.zeros(shape, **whole)
    where = (batch.to(device)[owner], 1 + slot)
    number[where], molecule[where], degree[where] = row.int(), place[owner], table.degree[row]
    first = F.pad(degree.cumsum(1, dtype=torch.int32), (1, 0))
    owner, row, slot = bonds.to(device)
    source, kind = torch.zeros(2, batches, room.bonds, **whole)
    where = (batch.to(device)[owner], slot)
    source[where] = data.edge_index[0, row] + (1 + atoms.begin.to(device)[owner]).int()
    kind[where] = table.kind[row]
    labels = torch.zeros(batches * batch_size, device=device)
    labels[: len(order)] = data.y[order.to(device), 0]
    sizes = torch.full((batches,), batch_size)
    sizes[-1] = len(order) - (batches - 1) * batch_size
    used = torch.arange(batch_size) < sizes[:, None]
    return FixedBatch(
        number, molecule, first, source, kind, labels.view(batches, -1), (used / sizes[:, None]).to(device)
    )


class _Rows:
    """Where the rows of the molecules of an epoch are in their batches.

    Args:
        counts: Number of rows of every molecule.
        order: The molecules of the epoch.
        batch: The batch of each.
    """

    def __init__(self, counts: Tensor, order: Tensor, batch: Tensor) -> None:
        self.sizes = counts[order]
        self.first = (counts.cumsum(0) - counts)[order]
        before = self.sizes.cumsum(0) - self.sizes
        start = torch.searchsorted(batch, torch.arange(int(batch[-1]) + 1))
        self.before, self.begin = before, before - before[start][batch]
        self.total = int(self.sizes.sum())

    def to(self, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
        """For every row: the position of its molecule in the epoch, its number in the data, and its place."""
        owner = torch.repeat_interleave(self.sizes.to(device), output_size=self.total)
        local = torch.arange(self.total, device=device) - self.before.to(device)[owner]
        return owner, self.first.to(device)[owner] + local, self.begin.to(device)[owner] + local

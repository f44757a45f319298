"""Random molecules for the aggregation of the molhiv networks."""

from __future__ import annotations

import torch

from normplace.lab.studies.deepergcn.molhiv_aggregation import Bonds


def random_bonds(seeds: int, atoms: int, kinds: int, generator: torch.Generator, room: int = 3) -> Bonds:
    """Random symmetric bonds, another graph for each seed, with unused places at the end.

    Args:
        seeds: Number of graphs.
        atoms: Number of atoms; the first has no bonds.
        kinds: Number of kinds of bonds.
        generator: Random generator.
        room: Unused places of the largest graph.
    """
    columns = []
    for _ in range(seeds):
        pairs = torch.combinations(torch.arange(1, atoms))
        pairs = pairs[torch.rand(len(pairs), generator=generator) < 2 / atoms].t()
        kind = torch.randint(kinds, (pairs.shape[1],), generator=generator).repeat(2)
        source, target = torch.cat([pairs, pairs.flip(0)], dim=1)
        order = target.argsort()
        first = torch.zeros(atoms + 1, dtype=torch.long)
        first[1:] = torch.bincount(target, minlength=atoms).cumsum(0)
        columns.append((first, source[order], kind[order]))
    length = room + max(len(source) for _, source, _ in columns)

    def padded(values: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.pad(values, (0, length - len(values)))

    firsts, sources, numbers = zip(*columns, strict=True)
    return Bonds(
        torch.stack(firsts).int(),
        torch.stack([padded(source) for source in sources]).int(),
        torch.stack([padded(kind) for kind in numbers]).int(),
    )

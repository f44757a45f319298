"""Mines on a grid: the Minesweeper graph of "A critical look at the evaluation of GNNs under heterophily", generated.

Platonov et al. (2023, arXiv 2302.11640) describe the graph: a 100 × 100 grid, each cell connected to its eight
neighbors; a fifth of the cells are mines; the features are a one-hot count of neighboring mines, which for half of the
cells is replaced by a flag "unknown"; 50% of the cells are for training, 25% for validation and 25% for testing. We
generate it from this description with other mines than the published file, so scores are close to, but not equal to,
those of :func:`normplace.lab.tasks.graphs.labelled.load_labelled` ``("minesweeper")``. Counts of five or more share a
feature, because the file has seven features.
"""

from __future__ import annotations

import torch
from torch import Tensor

from normplace.errors import UsageError
from normplace.lab.tasks.graphs.labelled import LabelledGraph

NAME = "grid-mines"
COUNTS = 6


def grid_mines(
    generator: torch.Generator, side: int = 100, mines: float = 0.2, unknown: float = 0.5, splits: int = 1
) -> LabelledGraph:
    """A random grid of mines.

    Args:
        generator: Draws mines, unknown cells and splits; on the CPU.
        side: Cells per side.
        mines: Share of the cells that are mines.
        unknown: Share of the cells whose count of neighboring mines is hidden.
        splits: Number of random splits.

    Raises:
        UsageError: If the grid is too small to be split, or a share is out of range.

    Examples:
        >>> graph = grid_mines(torch.Generator().manual_seed(0), side=10)
        >>> graph.x.shape, int(graph.y.sum()), graph.edge_index.shape[1] // 2
        (torch.Size([100, 7]), 20, 342)
    """
    cells = side * side
    if side < 4 or splits < 1:
        raise UsageError(f"side must be at least 4 and splits at least 1, got {side} and {splits}.")
    if not (0 < mines < 1 and 0 <= unknown <= 1) or not 1 <= round(mines * cells) < cells:
        raise UsageError(
            f"mines must be between 0 and 1 (exclusive) and unknown from 0 to 1, got {mines} and {unknown}."
        )
    edge_index = grid_edges(side)
    y = torch.zeros(cells, dtype=torch.long)
    y[torch.randperm(cells, generator=generator)[: round(mines * cells)]] = 1
    count = torch.zeros(cells, dtype=torch.long).index_add_(0, edge_index[1], y[edge_index[0]])
    x = torch.zeros(cells, 1 + COUNTS)
    x[torch.arange(cells), 1 + count.clamp(max=COUNTS - 1)] = 1
    hidden = torch.randperm(cells, generator=generator)[: round(unknown * cells)]
    x[hidden] = torch.eye(1 + COUNTS)[0]
    side_of = torch.full((splits, cells), 2)
    for row in side_of:
        order = torch.randperm(cells, generator=generator)
        row[order[: cells // 2]] = 0
        row[order[cells // 2 : cells // 2 + cells // 4]] = 1
    return LabelledGraph(NAME, x, y, edge_index, *(side_of == part for part in range(3)))


def grid_edges(side: int) -> Tensor:
    """Edges between the cells of a square grid and their up to eight neighbors, both ways, sorted by target."""
    row = torch.arange(side).repeat_interleave(side)
    column = torch.arange(side).repeat(side)
    steps = [(down, right) for down in (-1, 0, 1) for right in (-1, 0, 1) if (down, right) != (0, 0)]
    down, right = torch.tensor(steps).T
    rows, columns = row[:, None] + down, column[:, None] + right
    inside = (rows >= 0) & (rows < side) & (columns >= 0) & (columns < side)
    target = torch.arange(side * side)[:, None].expand_as(rows)
    return torch.stack([(rows * side + columns)[inside], target[inside]])

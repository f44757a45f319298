"""Draw the initial weights that DeepNorm and sub-LN are published with.

Both papers draw every matrix of a branch from Xavier's normal distribution (Glorot and Bengio 2010), and multiply those
of values, output and MLP by a factor; queries and keys have none. With N layers in one stack the factor is (8N)^(-1/4)
for DeepNorm (Wang et al. 2022, arXiv 2203.00555) and sqrt(ln 2N) for sub-LN (Wang et al. 2022, arXiv 2210.06423). The
papers do not mention biases; they are kept.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from normplace.analysis.recording.ids import BlockIndex
from normplace.edit.move.branch_matrices import BranchMatrices, BranchMatrix

CHOICES = ("published", "kept")
UNSCALED = ("q", "k")
"""What the matrices without the factor make."""


def draw_weights(model: nn.Module, matrices: BranchMatrices, gains: Mapping[BlockIndex, float], seed: int) -> list[str]:
    """Draw the weights of branches again.

    Returns:
        The names of the parameters that changed.

    Raises:
        UsageError: If a weight of a branch is not a matrix.
    """
    scaled = [(matrix, gain) for block, gain in gains.items() for matrix in matrices.of(block)]
    parameters = dict(model.named_parameters())
    generator = torch.Generator().manual_seed(seed)
    drawn: dict[tuple[str, int], None] = {}
    for matrix, gain in scaled:
        key = matrix.name, matrix.region.ranges[matrix.output_axis].start
        if key not in drawn:  # layers may share their matrices
            drawn[key] = None
            _draw(parameters[matrix.name], matrix, gain, generator)
    return list(dict.fromkeys(name for name, _ in drawn))


@torch.no_grad()
def _draw(parameter: Tensor, matrix: BranchMatrix, gain: float, generator: torch.Generator) -> None:
    if parameter.is_meta:
        return
    inputs = len(matrix.region.ranges[1 - matrix.output_axis])
    for letter, indices in matrix.parts.items():
        std = math.sqrt(2 / (inputs + len(indices))) * (1.0 if letter in UNSCALED else gain)
        shape = (len(indices), inputs) if matrix.output_axis == 0 else (inputs, len(indices))
        values = torch.randn(shape, generator=generator, dtype=torch.float64) * std
        columns = matrix.region.ranges[1 - matrix.output_axis]
        part = parameter.narrow(1 - matrix.output_axis, columns.start, inputs)
        part.index_copy_(matrix.output_axis, indices.to(parameter.device), values.to(parameter))

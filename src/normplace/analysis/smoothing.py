"""Over-smoothing: how similar the nodes of a graph network become, block by block.

Two measures do not depend on the scale of the features. The Dirichlet energy of the graph's normalized Laplacian,
divided by the squared norm (a Rayleigh quotient; Cai, Wang 2020, arXiv 2006.13318), is 0 if neighbours agree up to
their degree. The mean cosine between nodes is 1 if all have the same direction.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normplace.errors import UsageError


@dataclass(frozen=True)
class Smoothing:
    """Both measures of the stream before the first block and after each block.

    Args:
        energy: Dirichlet energies divided by squared norms.
        cosine: Mean cosines between nodes.
    """

    energy: tuple[float, ...]
    cosine: tuple[float, ...]


def dirichlet_energy(x: Tensor, edge_index: Tensor, *, relative: bool = True) -> float:
    """``½ Σ |x_i/√(1+d_i) - x_j/√(1+d_j)|²`` over the edges, which are listed in both directions.

    Args:
        x: One row per node.
        edge_index: Source and target of each edge, 2 × E; self-loops add nothing.
        relative: Divide by the squared norm of ``x``; 0 if that is 0.

    Raises:
        UsageError: If an edge has an unknown node.

    Examples:
        >>> pair = torch.tensor([[0, 1], [1, 0]])
        >>> round(dirichlet_energy(torch.tensor([[1.0], [-1.0]]), pair), 6)
        1.0
    """
    if edge_index.numel() and (int(edge_index.min()) < 0 or int(edge_index.max()) >= len(x)):
        raise UsageError(
            f"edges must join nodes 0 to {len(x) - 1}, got {int(edge_index.min())} to {int(edge_index.max())}."
        )
    source, target = edge_index[:, edge_index[0] != edge_index[1]]
    wide = x.detach().double()
    degree = torch.zeros(len(x), dtype=torch.float64, device=x.device).index_add_(
        0, target, torch.ones(len(target), dtype=torch.float64, device=x.device)
    )
    scaled = wide / (1 + degree).sqrt()[:, None]
    energy = float((scaled[source] - scaled[target]).square().sum()) / 2
    norm = float(wide.square().sum())
    return energy if not relative else energy / norm if norm else 0.0


def mean_cosine(x: Tensor) -> float:
    """The mean cosine between the rows of all pairs of different nodes, in time linear in the number of nodes.

    The squared length of the sum of unit rows is the sum of all cosines. A zero row has cosine 0 to every other row.

    Args:
        x: One row per node.

    Raises:
        UsageError: If there are fewer than two rows.

    Examples:
        >>> mean_cosine(torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 3.0]]))
        0.3333333333333333
    """
    n = len(x)
    if n < 2:
        raise UsageError(f"a mean over pairs needs two nodes or more, got {n}: pass a larger graph.")
    unit = F.normalize(x.detach().double(), dim=1)
    return float((unit.sum(0).square().sum() - unit.square().sum()) / (n * (n - 1)))


def smoothing(model: nn.Module, x: Tensor, edge_index: Tensor, *args: Any, **kwargs: Any) -> Smoothing:
    """Run a graph network once in evaluation mode and measure the stream around each of its blocks.

    Args:
        model: A network with a module list ``blocks``, such as :class:`normplace.models.GraphStack`.
        x: Node features.
        edge_index: Source and target of each edge, 2 × E.
        *args: Passed to the model after these two.
        **kwargs: Passed to the model.

    Raises:
        UsageError: If the model has no blocks.
    """
    blocks = getattr(model, "blocks", None)
    if not isinstance(blocks, nn.ModuleList) or not len(blocks):
        raise UsageError(f"{type(model).__name__} has no module list `blocks`: pass a GraphStack or a similar model.")
    measures: list[tuple[float, float]] = []

    def measure(_block: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
        streams = (output,) if measures else (inputs[0], output)
        measures.extend((dirichlet_energy(stream, edge_index), mean_cosine(stream)) for stream in streams)

    hooks = [block.register_forward_hook(measure) for block in blocks]
    training = model.training
    try:
        model.eval()
        with torch.no_grad():
            model(x, edge_index, *args, **kwargs)
    finally:
        model.train(training)
        for hook in hooks:
            hook.remove()
    energy, cosine = zip(*measures, strict=True)
    return Smoothing(energy, cosine)

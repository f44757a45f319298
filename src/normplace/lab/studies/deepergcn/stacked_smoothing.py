"""Over-smoothing of several stacked networks from one forward pass, read from the device once.

The numbers equal those of :func:`normplace.analysis.smoothing.smoothing` for each network, which reads several numbers
after each block of each network: thousands for a deep stack of ten networks.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from normplace.analysis.smoothing import Smoothing
from normplace.models import GraphStack
from normplace.ops import Neighbours


def stacked_smoothing(model: GraphStack, x: Tensor, edges: Neighbours, networks: int) -> list[Smoothing]:
    """The smoothness of each network's stream before the first block and after each block."""
    edge_index: Any = edges.edge_index
    source, target = edge_index[:, edge_index[0] != edge_index[1]]
    root = (1 + torch.bincount(target, minlength=edges.num_dst).double()).sqrt()[:, None]
    measures: list[Tensor] = []

    def measure(stream: Tensor) -> Tensor:
        """Networks × (energy, squared norm, mean cosine)."""
        rows = []
        for one in stream.detach().unflatten(1, (networks, -1)).unbind(1):  # one at a time, because edges are many
            wide = one.double()
            scaled, unit = wide / root, F.normalize(wide, dim=1)
            energy = (scaled[source] - scaled[target]).square().sum() / 2
            cosines = (unit.sum(0).square().sum() - unit.square().sum()) / (len(wide) * (len(wide) - 1))
            rows.append(torch.stack([energy, wide.square().sum(), cosines]))
        return torch.stack(rows)

    def hook(_block: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        measures.extend(map(measure, (output,) if measures else (inputs[0], output)))

    hooks = [block.register_forward_hook(hook) for block in model.blocks]
    training = model.training
    try:
        model.eval()
        with torch.no_grad():
            model(x, edges)
    finally:
        model.train(training)
        for handle in hooks:
            handle.remove()
    return [
        Smoothing(
            energy=tuple(energy / norm if norm else 0.0 for energy, norm, _ in blocks),
            cosine=tuple(cosine for _, _, cosine in blocks),
        )
        for blocks in torch.stack(measures, dim=1).tolist()
    ]

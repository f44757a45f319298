"""What the rules may look at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from normplace.analysis.blocks.assemble import Assembly
from normplace.analysis.norms.find import Norm
from normplace.analysis.results import ResidualBlock, Site


@dataclass(frozen=True)
class Evidence:
    """A model, its graph, and the norms placed in it.

    Attributes:
        model: The model.
        assembly: The graph with its norms, adds and reachability.
        sites: The norms as reported, in the order of the graph's.
        blocks: The blocks as reported.
        block_of: For each residual add its block.
        certified_inputs: What to ask the certificate about; None to leave it alone.
    """

    model: nn.Module
    assembly: Assembly
    sites: tuple[Site, ...]
    blocks: tuple[ResidualBlock, ...]
    block_of: tuple[int, ...]
    certified_inputs: tuple[Any, ...] | None = None

    def pairs(self) -> list[tuple[Norm, Site]]:
        """Each norm with its site."""
        return list(zip(self.assembly.norms, self.sites, strict=True))


def listed(names: tuple[str, ...] | list[str], most: int = 3) -> str:
    """A few names in words."""
    unique = list(dict.fromkeys(names))
    shown = ", ".join(unique[:most])
    return shown if len(unique) <= most else f"{shown} and {len(unique) - most} more"

"""What the test of several processes starts under torchrun: one case after the other, each into its own folder."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from tests.train.training_cases import corpus, network, recipe

from normplace.train.distributed import join, whole_state
from normplace.train.loop import fit

CASES = {
    "sharded": ("peri", {}),
    "sharded-parts": ("post", {"accumulate": 2}),
    "sharded-streams": ("siamese", {}),
    "copied": ("peri", {"parallel": "ddp"}),
    "copied-parts": ("peri", {"parallel": "ddp", "accumulate": 2}),
}


def main(out: Path) -> None:
    """Train every case; then go on from what one process left in the folder ``alone``."""
    torch.set_num_threads(1)
    with join("cpu") as world:
        for name, (placement, changes) in CASES.items():
            model = network(placement)
            fit(model, corpus(), recipe(**changes), out / name, world)
            weights = whole_state(model)
            if world.first:
                torch.save(weights, out / name / "weights.pt")
        fit(network(), corpus(), recipe(), out / "alone", world)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""What the test of several processes starts under torchrun: one case after the other, each into its own folder."""

from __future__ import annotations

import errno
import os
import shutil
import sys
from pathlib import Path

import torch
from tests.lab.train.training_cases import corpus, network, recipe

from normplace.errors import UsageError
from normplace.lab.train import checkpoint
from normplace.lab.train.distributed import exit_now, full_state_dict, join
from normplace.lab.train.loop import fit

CASES = {
    "sharded": ("peri", {}),
    "sharded-parts": ("post", {"accumulate": 2}),
    "sharded-streams": ("siamese", {}),
    "sharded-double": ("peri", {"steps": 40}),
    "copied": ("peri", {"parallel": "ddp"}),
    "copied-parts": ("peri", {"parallel": "ddp", "accumulate": 2}),
}
DTYPES = {"sharded-double": torch.float64}


def no_space(_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def main(out: Path) -> None:
    """Train every case; go on from what one process left in ``alone``, and from ``full`` until the disk is full."""
    torch.set_num_threads(1)
    with join("cpu") as group:
        for name, (placement, changes) in CASES.items():
            model = network(placement).to(DTYPES.get(name))
            fit(model, corpus(), recipe(**changes), out / name, group)
            weights = full_state_dict(model, group)
            if group.first:
                torch.save(weights, out / name / "weights.pt")
        fit(network(), corpus(), recipe(), out / "alone", group)
        if group.first:  # damage in a file that only the second process compares with its hash
            shutil.copytree(out / "sharded", out / "damaged")
            file = out / "damaged" / "checkpoints" / "step-00000008" / "process-1.safetensors"
            file.write_bytes(file.read_bytes()[:-1] + b"?")
        group.all_gather(None)
        try:
            fit(network(), corpus(), recipe(), out / "damaged", group)
        except UsageError as error:
            (out / f"damaged-{group.rank}.txt").write_text(str(error))
        if group.rank == 1:
            checkpoint._sync = no_space  # on the disk of one process
        try:
            fit(network(), corpus(), recipe(), out / "full", group)
        except UsageError as error:
            (out / f"full-{group.rank}.txt").write_text(str(error))
    exit_now()


if __name__ == "__main__":
    main(Path(sys.argv[1]))

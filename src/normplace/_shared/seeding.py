"""The global random generators of PyTorch, from which modules draw their initial weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def seeded(seed: int, gpus: bool = False) -> Iterator[None]:
    """Seed the global generators while the block runs; that of the CPU is restored, with ``gpus`` those of GPUs too."""
    with torch.random.fork_rng(list(range(torch.cuda.device_count())) if gpus else []):
        torch.manual_seed(seed)
        yield

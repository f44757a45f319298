"""Random state of a training: one stream for the data, another for the model, and the caller's left alone."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class RandomState:
    """The global random generators of Python, NumPy and PyTorch, those of GPUs in use among them."""

    python: Any
    numpy: Any
    torch_cpu: Tensor
    torch_cuda: list[Tensor]

    @classmethod
    def capture(cls) -> RandomState:
        """Copy the present state."""
        cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
        numpy = np.random.get_state()  # noqa: NPY002 (the user's data may read the global generator)
        return cls(random.getstate(), numpy, torch.get_rng_state(), cuda)

    def restore(self) -> None:
        """Set the generators to this state."""
        random.setstate(self.python)
        np.random.set_state(self.numpy)  # noqa: NPY002
        torch.set_rng_state(self.torch_cpu)
        if self.torch_cuda:
            torch.cuda.set_rng_state_all(self.torch_cuda)


def seed_all(seed: int) -> None:
    """Seed the global generators."""
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002
    torch.manual_seed(seed)


@contextmanager
def preserved_random_state() -> Iterator[None]:
    """Restore the global generators afterwards."""
    state = RandomState.capture()
    try:
        yield
    finally:
        state.restore()

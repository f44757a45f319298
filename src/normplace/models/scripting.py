"""Refuse ``torch.jit.script`` before it fails deep inside a kernel."""

from __future__ import annotations

from typing import NoReturn

from normplace.errors import UsageError


class Unscriptable:
    """A module that ``torch.jit.script`` cannot compile, also as a part of another."""

    def __prepare_scriptable__(self) -> NoReturn:
        name = type(self).__name__
        raise UsageError(
            f"torch.jit.script cannot compile normplace's {name}, which chooses kernels and precision at run time: use "
            f"torch.compile, or PyG's {name}."
        )

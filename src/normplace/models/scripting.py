"""Refuse ``torch.jit.script`` before it fails deep inside a kernel."""

from __future__ import annotations

from typing import NoReturn

from normplace.errors import UsageError


class Unscriptable:
    """A module that ``torch.jit.script`` cannot compile, also as a part of another."""

    def __prepare_scriptable__(self) -> NoReturn:
        raise UsageError(
            f"torch.jit.script cannot compile {type(self).__name__}, whose kernels are chosen at run time: use "
            "torch.compile, or convert the model back to PyG's modules."
        )

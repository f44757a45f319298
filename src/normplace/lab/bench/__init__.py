"""Speed and memory of the ops compared with named peers. Results are checked before they are timed."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import TYPE_CHECKING

from normplace.errors import expect_choice

if TYPE_CHECKING:
    from normplace.lab.bench.case import Op

OPS = ("aggregate", "norm_add_norm", "relation", "ntk")
"""The measured ops; each has a module of the same name."""


def load_ops(names: Iterable[str] = ()) -> list[Op]:
    """The named ops; all of them without a name.

    Raises:
        UsageError: If a name is unknown.
    """
    chosen = list(dict.fromkeys(names)) or OPS
    for name in chosen:
        expect_choice("op", name, OPS)
    return [importlib.import_module(f"normplace.lab.bench.{name}").OP for name in chosen]

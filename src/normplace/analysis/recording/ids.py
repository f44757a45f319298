"""Typed indices of a recorded pass, so that a type checker distinguishes values, operators and module calls."""

from __future__ import annotations

from typing import NewType

ValueId = NewType("ValueId", int)
"""Index into ``Tape.values``."""
NodeId = NewType("NodeId", int)
"""Index into ``Graph.nodes``."""
CallId = NewType("CallId", int)
"""Index into ``Tape.calls``."""
NormIndex = NewType("NormIndex", int)
"""Index into ``Analysis.norms``, ``Analysis.slots`` and ``Audit.sites``."""
AddIndex = NewType("AddIndex", int)
"""Index into ``Analysis.adds``."""
BlockIndex = NewType("BlockIndex", int)
"""Index into ``Analysis.blocks``."""

NO_CALL = CallId(-1)
"""The call of an operator that runs outside every module."""

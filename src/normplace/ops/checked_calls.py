"""Check the arguments of a call once for each signature.

The checks of an op depend on its numbers and names, and on type, dtype, shape, device and contiguity of its tensors.
Their result is remembered, so that a loop of small calls pays for one look-up. A tracer cannot see through the memory,
so it is used only where :func:`normplace.ops.tracing.is_observed` is false.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, TypeVar

from torch import Tensor

Result = TypeVar("Result")
# Signatures that an op remembers before it starts again: shapes may change in every call.
MAX_SIGNATURES = 1024


def signature(*tensors: Any) -> Hashable:
    """What the checks of some tensors depend on: None for a missing one, the type of anything that is not a tensor."""
    return tuple([
        None if x is None
        else (type(x), x.dtype, x.shape, x.device, x.is_contiguous()) if isinstance(x, Tensor)
        else type(x)
        for x in tensors
    ])  # fmt: skip


class CheckedCalls(dict[Hashable, Result]):
    """What the checks of valid calls returned, by signature."""

    def remember(self, key: Hashable, result: Result) -> None:
        """Remember the result for a call whose tensors are plain and were used unchanged."""
        if len(self) >= MAX_SIGNATURES:
            self.clear()
        self[key] = result

"""Make ``torch.compile`` distinguish models by their hooks."""

from __future__ import annotations

import functools


@functools.cache
def guard_hooks() -> None:
    """Let ``torch.compile`` check hooks before it runs code that it compiled for another model of the same class.

    By default it does not check them, and an edited model would silently run the code of the original.
    """
    from torch._dynamo import config  # the import takes a second

    config.skip_nnmodule_hook_guards = False

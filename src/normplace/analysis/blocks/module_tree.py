"""Names of modules as paths in the module tree."""

from __future__ import annotations


def shared_depth(one: str, other: str) -> int:
    """How many leading parts two module names share."""
    depth = 0
    for first, second in zip(one.split(".") if one else (), other.split("."), strict=False):
        if first != second:
            break
        depth += 1
    return depth


def is_inside(path: str, module: str) -> bool:
    """Whether a path is a module or one inside it."""
    return path == module or path.startswith(f"{module}.")

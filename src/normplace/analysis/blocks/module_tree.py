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


def in_siblings(one: str, other: str) -> bool:
    """Whether two modules are in different members of one list, as in two layers.

    >>> in_siblings("layers.0.norm", "layers.1"), in_siblings("layers.0.norm", "layers.0")
    (True, False)
    """
    depth = shared_depth(one, other)
    parts = [path.split(".")[depth : depth + 1] for path in (one, other)]
    return all(part and part[0].isdigit() for part in parts)


def is_inside(path: str, module: str) -> bool:
    """Whether a path is a module or one inside it."""
    return path == module or path.startswith(f"{module}.")

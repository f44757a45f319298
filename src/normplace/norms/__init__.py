"""Norm layers, and the registry that builds them by name.

Each norm is a module of one tensor, features last. Its class attribute ``context`` names further inputs: ``batch`` (the
graph of each row) or ``reference`` (the rows that a message is added to).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from normplace.errors import UsageError, expect_choice, unknown
from normplace.norms.feature import DyT, Identity, LayerNorm, RMSNorm
from normplace.norms.rows import BatchNorm, GraphNorm, MsgNorm, PairNorm

__all__ = [
    "NORMS",
    "BatchNorm",
    "DyT",
    "GraphNorm",
    "Identity",
    "LayerNorm",
    "MsgNorm",
    "PairNorm",
    "RMSNorm",
    "apply_norm",
    "build_norm",
    "norm_context",
]

NORMS: dict[str, Callable[..., nn.Module]] = {
    "layer": LayerNorm,
    "rms": RMSNorm,
    "batch": BatchNorm,
    "graph": GraphNorm,
    "pair": PairNorm,
    "msg": MsgNorm,
    "dyt": DyT,
    "identity": Identity,
}


def build_norm(name: str, dim: int, **options: Any) -> nn.Module:
    """Build the norm called ``name`` over ``dim`` features.

    Args:
        name: A key of :data:`NORMS`.
        dim: Number of features.
        **options: Keyword arguments of that norm's class.

    Raises:
        UsageError: If there is no such norm, or the norm has no such option.

    Examples:
        >>> build_norm("rms", 8, eps=1e-5)
        RMSNorm((8,), eps=1e-05, elementwise_affine=True)
    """
    expect_choice("norm", name, NORMS)
    norm_class = NORMS[name]
    if not isinstance(dim, int) or dim < 1:
        raise UsageError(f"the number of features of a norm must be a positive integer, got {dim!r}.")
    if norm_class is not Identity:
        accepted = inspect.signature(norm_class).parameters
        for option in options:
            if option not in accepted:
                raise unknown(f"option of norm {name!r}:", option, list(accepted)[1:])
    return norm_class(dim, **options)


def norm_context(norm: nn.Module) -> tuple[str, ...]:
    """Names of the norm's inputs besides the tensor."""
    return getattr(norm, "context", ())


def apply_norm(norm: nn.Module, x: Tensor, **context: Tensor | None) -> Tensor:
    """Call ``norm`` on ``x`` with those further inputs that it takes."""
    return norm(x, **{name: context[name] for name in norm_context(norm) if name in context})

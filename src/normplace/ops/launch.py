"""Launch a Triton kernel again without the search for which of its compiled forms is meant.

Triton inspects every argument of every launch, which for thirty of them takes longer than a small kernel runs. Whoever
knows that a launch is of the same form as one before keeps a :class:`Launch` for that form and spares the inspection.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

# Triton compiles for pointers and whole numbers that are multiples of it, or not.
ALIGNMENT = 16


def aligned(*tensors: Tensor | None) -> bool:
    """Whether every tensor begins where new memory would; a slice of one may not."""
    bits = 0
    for tensor in tensors:
        if tensor is not None:
            bits |= tensor.data_ptr()
    return bits % ALIGNMENT == 0


class Launch:
    """One form of a kernel: which arguments are missing, the dtypes of the others, and all constants.

    A whole number among the arguments must be the same in every launch, or be one that the kernel's decorator says not
    to specialize; tensors must be :func:`aligned`, or the launch be made with ``known=False``.

    Args:
        kernel: The function ``triton.jit`` made.
        constants: By name, in the order of the kernel's last parameters.
        **options: How it is compiled, such as ``num_warps``.
    """

    def __init__(self, kernel: Any, constants: Mapping[str, Any], **options: Any) -> None:
        self.kernel = kernel
        self.constants = dict(constants)
        self.options = options
        self._values = tuple(constants.values())
        self._compiled: Any = None

    def __call__(self, grid: tuple[int, int, int], *args: Any, known: bool = True) -> None:
        """Run it.

        Args:
            grid: Programs along each axis.
            *args: Of the kernel, less its constants.
            known: Whether the arguments are of this form; Triton inspects them otherwise.
        """
        if known and self._compiled is not None:
            self._compiled[grid](*args, *self._values)
            return
        compiled = self.kernel[grid](*args, **self.constants, **self.options)
        if known:
            self._compiled = compiled  # None in the interpreter, which compiles nothing

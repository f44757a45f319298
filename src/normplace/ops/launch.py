"""Launch a Triton kernel again without the search for which of its compiled forms is meant.

Triton inspects every argument of every launch, and asks the driver about every pointer, which for thirty of them takes
longer than a small kernel runs. Whoever knows that a launch is of the same form as one before keeps a :class:`Launch`
for that form and spares both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from triton import knobs, runtime

# Triton compiles for pointers and whole numbers that are multiples of it, or not.
ALIGNMENT = 16


class Launch:
    """One form of a kernel: which tensors are missing, the dtypes of the others, and all constants.

    A whole number among the arguments must be the same in every launch, or be one that the kernel's decorator says not
    to specialize. Tensors that do not begin where new memory would, as a slice may not, are inspected every time.

    Args:
        kernel: The function ``triton.jit`` made, whose parameters are tensors, then numbers, then constants.
        constants: By name, in the order of the kernel's last parameters.
        **options: How it is compiled, such as ``num_warps``.
    """

    def __init__(self, kernel: Any, constants: Mapping[str, Any], **options: Any) -> None:
        self.kernel = kernel
        self.constants = dict(constants)
        self.options = options
        self._values = tuple(constants.values())
        self._compiled: Any = None

    def __call__(
        self, grid: tuple[int, int, int], stream: int, tensors: Sequence[Tensor | None], *numbers: float | None
    ) -> None:
        """Run it.

        Args:
            grid: Programs along each axis.
            stream: The current stream of the current device, as a number.
            tensors: On that device; None where the form has none.
            *numbers: The arguments after them.
        """
        addresses = [0 if tensor is None else tensor.data_ptr() for tensor in tensors]
        bits = 0
        for address in addresses:
            bits |= address
        known = bits % ALIGNMENT == 0 and not _watched()
        compiled = self._compiled
        if known and compiled is not None:
            # What indexing it with the grid leads to, less the hooks.
            compiled.run(
                *grid, stream, compiled.function, compiled.packed_metadata, None, None, None,
                *addresses, *numbers, *self._values,
            )  # fmt: skip
            return
        compiled = self.kernel[grid](*tensors, *numbers, **self.constants, **self.options)
        if known and all(hasattr(compiled, name) for name in ("run", "function", "packed_metadata")):
            self._compiled = compiled  # the interpreter compiles nothing


def current_stream(device: torch.device) -> int:
    """The current stream of the device, which is the current one."""
    if device.index is None:
        return 0
    driver: Any = runtime.driver
    return driver.active.get_current_stream(device.index)


def _watched() -> bool:
    """Whether a profiler asks to be told of launches."""
    hook: Any = knobs.runtime.launch_enter_hook
    return hook is not None and bool(getattr(hook, "calls", True))

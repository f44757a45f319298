"""Launch Triton kernels with little overhead, and cache everything that is decided once for a shape.

Triton inspects every argument of every launch and asks the driver about every pointer. For thirty arguments this takes
longer than a small kernel runs. A :class:`Launch` skips both for launches that it knows to be alike.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from triton import knobs, runtime

# Triton compiles separate versions for pointers and integers that are multiples of this number.
ALIGNMENT = 16
# Launch plans that each function with ``@cached_plan`` remembers.
CACHED_PLANS = 1024
# Elements that a scratch tensor is a multiple of, so that each starts at a new cache line.
LINE = 32
Plan = TypeVar("Plan")
_caches: list[Any] = []


class Launch:
    """One compiled version of a kernel: fixed dtypes, missing tensors and constants.

    An integer among the arguments must be the same in every launch, or be excluded from specialization by the kernel's
    decorator. Tensors that do not start at an aligned address, such as some slices, are inspected in every launch.

    Args:
        kernel: A ``triton.jit`` function whose parameters are tensors, then numbers, then constants.
        constants: By name, in the order of the kernel's last parameters.
        **options: Compilation options such as ``num_warps``.
    """

    def __init__(self, kernel: Any, constants: Mapping[str, Any], **options: Any) -> None:
        self.kernel = kernel
        self.constants = dict(constants)
        self.options = options
        self._values = tuple(constants.values())
        self._compiled: Any = None
        self._run: Any = None
        self._handles: tuple[Any, ...] = ()

    def __call__(
        self, grid: tuple[int, int, int], stream: int, tensors: Sequence[Tensor | None], *numbers: float | None
    ) -> None:
        """Run the kernel.

        Args:
            grid: Programs along each axis.
            stream: Handle of the current stream of the current device.
            tensors: Tensors on that device; None for a missing one.
            *numbers: The arguments that follow the tensors.
        """
        addresses = [0 if tensor is None else tensor.data_ptr() for tensor in tensors]
        # The fastest way to test all addresses: a missing one is 0, which every number divides.
        known = math.gcd(ALIGNMENT, *addresses) == ALIGNMENT and not _profiled()
        if known and self._run is not None:
            self._run(*grid, stream, *self._handles, *addresses, *numbers, *self._values)
            return
        compiled = self.kernel[grid](*tensors, *numbers, **self.constants, **self.options)
        if known and all(hasattr(compiled, name) for name in ("run", "function", "packed_metadata")):
            # For the call that ``compiled[grid](...)`` makes, without its hooks. The interpreter does not compile.
            self._compiled, run = compiled, compiled.run  # kept because it unloads its binary when it is deleted
            self._handles = compiled.function, compiled.packed_metadata, None, None, None
            self._run = run


class KernelCall(NamedTuple):
    """A launch with its grid and numbers, which are the same every time."""

    launch: Launch
    grid: tuple[int, int, int]
    numbers: tuple[float | None, ...]

    def __call__(self, stream: int, *tensors: Tensor | None) -> None:
        """Run the kernel on these tensors."""
        self.launch(self.grid, stream, tensors, *self.numbers)

    def starting_at(self, first: int) -> KernelCall:
        """The same call with one more number before the others."""
        return self._replace(numbers=(first, *self.numbers))


class Scratch:
    """Several float32 tensors in one allocation.

    Args:
        *sizes: Elements of each; 0 for one that is not needed.
    """

    def __init__(self, *sizes: int) -> None:
        self._sizes = [-(-size // LINE) * LINE for size in sizes]
        self._total = sum(self._sizes)

    def allocate(self, device: torch.device) -> Sequence[Tensor | None]:
        """New flat tensors, with None for one that is not needed."""
        pieces = torch.empty(self._total, dtype=torch.float32, device=device).split(self._sizes)
        return [piece if size else None for piece, size in zip(pieces, self._sizes, strict=True)]


def cached_plan(build: Callable[..., Plan]) -> Callable[..., Plan]:
    """Cache the launch plans that a function builds; :func:`clear_plans` forgets them."""
    cached = functools.lru_cache(maxsize=CACHED_PLANS)(build)
    _caches.append(cached)
    return cached


def clear_plans() -> None:
    """Forget all launch plans, so that changed layouts take effect."""
    for cached in _caches:
        cached.cache_clear()


def current_stream(device: torch.device) -> int:
    """Handle of the current stream of the current device."""
    return 0 if device.index is None else _stream_getter()(device.index)


@functools.cache
def _stream_getter() -> Callable[[int], int]:
    """PyTorch's function for the current stream of a device, as Triton found it."""
    driver: Any = runtime.driver
    return driver.active.get_current_stream


def contiguous_rows(tensor: Tensor, width: int) -> tuple[Tensor, int]:
    """The tensor with contiguous rows, copied if necessary, and the stride between rows."""
    if tensor.is_contiguous():
        return tensor, width
    flat = tensor.reshape(-1, width)
    flat = flat if width == 1 or flat.stride(1) == 1 else flat.contiguous()
    return flat, flat.stride(0)


def empty_grad(tensor: Tensor | None, needed: bool, dtype: torch.dtype | None = None) -> Tensor | None:
    """An empty contiguous tensor for the gradient of a tensor; None if it is not needed."""
    if not needed or tensor is None:
        return None
    return torch.empty_like(tensor, dtype=dtype, memory_format=torch.contiguous_format)


def _profiled() -> bool:
    """Whether a profiler has installed a hook that must see every launch."""
    hook: Any = knobs.runtime.launch_enter_hook
    return hook is not None and bool(getattr(hook, "calls", True))

"""Whether boundaries are fused: the mode of the process, the device and dtype, and active tracing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from normplace.errors import expect_choice
from normplace.ops.backends import BackendChoice
from normplace.ops.norm_add_norm.op import choose_backend
from normplace.ops.tracing import in_transform
from normplace.stack.hooks import has_global_hooks

MODES = ("auto", "always", "never")
# Per process, not per thread: a checkpointed block runs again in a thread of the backward pass.
_mode = "auto"


@contextlib.contextmanager
def fusion_mode(mode: str) -> Iterator[None]:
    """Set where :func:`run_blocks` fuses boundaries, for the whole process, until the context ends.

    Models that :func:`normplace.fuse` returned run their own operators in mode ``never``.

    Checkpointed blocks run again in the backward pass, which must then be inside the context too.

    Args:
        mode: ``auto``: where the Triton kernels run; ``always``: with plain PyTorch elsewhere, which is slower than
            separate norms and intended for tests; or ``never``.

    Raises:
        UsageError: If there is no such mode.
    """
    global _mode
    expect_choice("fusion mode", mode, MODES)
    before, _mode = _mode, mode
    try:
        yield
    finally:
        _mode = before


def fuses(device: str, dtypes: tuple[torch.dtype, ...], width: int) -> bool:
    """Whether boundaries are fused for such tensors in the present mode."""
    return _mode == "always" or (_mode == "auto" and choose_backend(device, dtypes, width).backend == "triton")


def is_switched_off() -> bool:
    """Whether the mode is ``never``."""
    return _mode == "never"


def blocked_by() -> str | None:
    """Why nothing may be fused now: the single operations are observed."""
    if has_global_hooks():
        return "global module hooks are registered"
    if torch.jit.is_tracing():  # pyright: ignore[reportPrivateImportUsage]
        return "operations are being traced"
    if not torch.compiler.is_compiling() and in_transform():
        return "a torch.func transform is active"
    return None


def fusion_choice(device: str, dtype: torch.dtype, width: int = 1) -> BackendChoice:
    """Whether boundaries are ``fused`` or ``separate`` for such a stream, and why.

    Args:
        device: Type of the device.
        dtype: Dtype of the stream and of the branches' outputs.
        width: Width of the stream.
    """
    if (reason := blocked_by()) is not None:
        return BackendChoice("separate", f"not fused here: {reason}")
    choice = choose_backend(device, (dtype,), width)
    if fuses(device, (dtype,), width):
        how = choice.reason if choice.backend == "triton" else f"by plain PyTorch as asked, since {choice.reason}"
        return BackendChoice("fused", f"fused here: {how}")
    return BackendChoice(
        "separate", f"not fused here: {'fusing is switched off' if _mode == 'never' else choice.reason}"
    )

"""The torch device that a setting names."""

from __future__ import annotations

import torch

from normplace.errors import UsageError, quoted


def pick_device(name: str) -> torch.device:
    """Return the device called ``name``; ``auto`` is a GPU if there is one, else the CPU.

    Raises:
        UsageError: If the name is not a CPU or CUDA device, or the device is not available.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError) as error:
        raise UsageError(f"unknown device {quoted(name)}: choose auto, cpu or cuda.") from error
    if device.type not in ("cpu", "cuda"):
        raise UsageError(f"device {name!r} is not supported: choose auto, cpu or cuda.")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UsageError("no CUDA device is available: set device=auto or device=cpu.")
    devices = torch.cuda.device_count() if device.type == "cuda" else 1
    if (device.index or 0) >= devices:
        raise UsageError(f"device {name!r} does not exist, there are {devices}: choose a lower index.")
    return device

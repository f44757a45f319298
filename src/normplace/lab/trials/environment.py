"""Software versions and hardware of a trial, for its record."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from normplace._shared.resources import usable_cores
from normplace._version import __version__


@cache
def versions() -> dict[str, str]:
    """Versions of the software that the numbers depend on."""
    versions = {
        "normplace": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
    }
    for distribution in importlib.metadata.distributions(name="xgboost-cpu"):
        versions["xgboost"] = distribution.version
    return versions


@cache
def hardware() -> dict[str, Any]:
    """CPU, cores, memory and GPU of this machine."""
    hardware: dict[str, Any] = {
        "cpu": _cpu_name(),
        "cores": usable_cores(),
        "memory_gb": _memory_gb(),
    }
    if torch.cuda.is_available():
        hardware["gpu"] = torch.cuda.get_device_name(0)
    return hardware


def describe(machine: dict[str, Any]) -> str:
    """Describe a machine in one line."""
    cores = machine.get("cores", "?")
    parts = [f"{cores} core{'' if cores == 1 else 's'} of {machine.get('cpu', 'an unknown CPU')}"]
    if memory := machine.get("memory_gb"):
        parts.append(f"{memory:g} GB" if isinstance(memory, int | float) else f"{memory} GB")
    return ", ".join([str(machine["gpu"]), *parts] if "gpu" in machine else parts)


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _memory_gb() -> float:
    if not hasattr(os, "sysconf"):
        return 0.0
    return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)

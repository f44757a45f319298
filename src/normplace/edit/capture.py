"""Recorders that keep values of a pass, or measure them."""

from __future__ import annotations

from collections.abc import Set
from typing import Any

from torch import Tensor, nn

from normplace.analysis.recording.ids import ValueId
from normplace.analysis.recording.recorder import Recorder


class ValueRecorder(Recorder):
    """Also keeps copies of some values."""

    def __init__(self, model: nn.Module, wanted: Set[int]) -> None:
        self.wanted, self.busy = wanted, False
        self.kept: dict[int, Tensor] = {}
        super().__init__(model)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if self.busy:  # its own arithmetic is not part of the pass
            return func(*args, **(kwargs or {}))
        return super().__torch_dispatch__(func, types, args, kwargs)

    def on_new_value(self, value: ValueId, tensor: Tensor) -> None:
        """Keep the value if it is wanted."""
        if value in self.wanted and not tensor.is_meta:
            self.busy = True
            self.keep(value, tensor.detach())
            self.busy = False

    def keep(self, number: int, tensor: Tensor) -> None:
        """Keep a value, which may be written to afterwards."""
        self.kept[number] = tensor.clone()


class RmsRecorder(ValueRecorder):
    """Keeps the root mean square of some values only."""

    def __init__(self, model: nn.Module, wanted: Set[int]) -> None:
        super().__init__(model, wanted)
        self.sizes: dict[int, float] = {}

    def keep(self, number: int, tensor: Tensor) -> None:
        """Measure a value."""
        self.sizes[number] = tensor.double().square().mean().sqrt().item()

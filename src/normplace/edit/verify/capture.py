"""Repeat a recorded pass to keep chosen values, or to measure them."""

from __future__ import annotations

from collections.abc import Iterable, Set
from typing import Any

from torch import Tensor, nn

from normplace.analysis.analysis import Analysis
from normplace.analysis.api import analyze
from normplace.analysis.recording.ids import ValueId
from normplace.analysis.recording.passes import record_pass
from normplace.analysis.recording.recorder import Recorder
from normplace.analysis.recording.structures import Arguments, fresh_inputs
from normplace.errors import UsageError


class ValueRecorder(Recorder):
    """A recorder that also keeps copies of chosen values.

    Args:
        model: The model.
        chosen: The values to keep, by their id in an earlier pass.

    Attributes:
        values: The copies.
    """

    measures_ranges = False

    def __init__(self, model: nn.Module, chosen: Set[ValueId]) -> None:
        self.chosen = chosen
        self.values: dict[ValueId, Tensor] = {}
        self._is_keeping = False
        super().__init__(model)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if self._is_keeping:  # copying a value is not part of the pass
            return func(*args, **(kwargs or {}))
        return super().__torch_dispatch__(func, types, args, kwargs)

    def on_new_value(self, value: ValueId, tensor: Tensor) -> None:
        """Keep a value if it was chosen."""
        if value in self.chosen and not tensor.is_meta:
            self._is_keeping = True
            self.keep(value, tensor.detach())
            self._is_keeping = False

    def keep(self, value: ValueId, tensor: Tensor) -> None:
        """Copy a value, which the model may overwrite later."""
        self.values[value] = tensor.clone()


class RmsRecorder(ValueRecorder):
    """A recorder that measures the root mean square of chosen values.

    Attributes:
        rms: The root mean squares.
    """

    def __init__(self, model: nn.Module, chosen: Set[ValueId]) -> None:
        self.rms: dict[ValueId, float] = {}
        super().__init__(model, chosen)

    def keep(self, value: ValueId, tensor: Tensor) -> None:
        """Measure a value."""
        self.rms[value] = tensor.double().square().mean().sqrt().item()


def analyze_call(model: nn.Module, arguments: Arguments) -> Analysis:
    """The analysis of a pass with copies of these arguments."""
    inputs, kwargs = fresh_inputs(arguments)
    return analyze(model, *inputs, **kwargs)


def analyze_repeatable(model: nn.Module, arguments: Arguments) -> Analysis:
    """The analysis of the second pass, which finds what the first one cached, such as tables of rotary embeddings."""
    record_pass(model, *fresh_inputs(arguments))
    return analyze_call(model, arguments)


def record_again(analysis: Analysis, arguments: Arguments, recorder: Recorder) -> None:
    """Record the pass of an analysis again, in which every value has the same id.

    Raises:
        UsageError: If the model runs other operators than in the analysis.
    """
    tape = record_pass(analysis.model, *fresh_inputs(arguments), recorder)
    operators, repeated = ([(op.name, op.outputs) for op in ops] for ops in (analysis.tape.ops, tape.ops))
    if operators != repeated:
        raise UsageError(
            f"{type(analysis.model).__name__} runs different operators at each call: make its forward pass repeatable."
        )


def capture_values(analysis: Analysis, arguments: Arguments, chosen: Set[ValueId]) -> dict[ValueId, Tensor]:
    """Copies of chosen values of the analysed pass; none for a model on the meta device."""
    recorder = ValueRecorder(analysis.model, chosen)
    record_again(analysis, arguments, recorder)
    return recorder.values


def measure_rms(analysis: Analysis, arguments: Arguments, chosen: Iterable[ValueId]) -> dict[ValueId, float]:
    """The root mean square of chosen values of the analysed pass; none for a model on the meta device."""
    recorder = RmsRecorder(analysis.model, set(chosen))
    record_again(analysis, arguments, recorder)
    return recorder.rms

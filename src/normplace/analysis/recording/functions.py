"""Record the calls of torch functions of a pass, with the operators that each one ran."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from normplace.analysis.recording.ids import ValueId
from normplace.analysis.recording.recorder import Recorder

Key = int | str
"""The position or name of an argument."""


@dataclass(slots=True)
class FunctionCall:
    """One call of a torch function.

    Attributes:
        function: The function.
        first: The index of its first operator on the tape.
        end: One past the index of its last operator.
        arguments: The values among its arguments, by position or name.
        result: The value it returned; None unless it returned one tensor.
    """

    function: Any
    first: int
    end: int
    arguments: dict[Key, ValueId]
    result: ValueId | None


class FunctionRecorder(Recorder):
    """A recorder that also records calls of torch functions.

    Attributes:
        functions: The calls in the order of the pass.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.functions: list[FunctionCall] = []

    @contextmanager
    def hooks(self) -> Iterator[None]:
        """Record module calls and torch functions while the context is open."""
        with super().hooks(), _FunctionLog(self):
            yield

    # The recorder's own calls of tensor methods are not the model's.

    def declare(self, structure: Any, origin: str) -> None:
        """Give the tensors of a structure ids before the pass begins."""
        with torch._C.DisableTorchFunction():
            super().declare(structure, origin)

    def value_ids(self, structure: Any) -> tuple[ValueId, ...]:
        """The ids of all tensors in a structure."""
        with torch._C.DisableTorchFunction():
            return super().value_ids(structure)

    def direct_value_ids(self, structure: Any) -> dict[Any, ValueId]:
        """The ids of the tensors directly in a container."""
        with torch._C.DisableTorchFunction():
            return super().direct_value_ids(structure)

    def begin_call(self, function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> FunctionCall:
        """Record a call before it runs."""
        arguments = self.direct_value_ids(args) | self.direct_value_ids(kwargs)
        call = FunctionCall(function, len(self.tape.ops), len(self.tape.ops), arguments, None)
        self.functions.append(call)
        return call

    def end_call(self, call: FunctionCall, result: Any) -> None:
        """Record the result of a call."""
        call.end = len(self.tape.ops)
        call.result = self.direct_value_ids(result).get(None)


class _FunctionLog(TorchFunctionMode):
    def __init__(self, recorder: FunctionRecorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        call = self.recorder.begin_call(func, args, kwargs)
        result = func(*args, **kwargs)
        self.recorder.end_call(call, result)
        return result

"""Replace what chosen norms read and return, in any forward pass of a model.

A norm that is a module is reached by hooks. A norm that is written into code is reached by counting the calls of torch
functions: one recorded pass tells which calls read its input and which returns its output, and the same calls are
intercepted in later passes.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from normplace.analysis.dataflow.graph import Graph
from normplace.analysis.dataflow.operators import KEEPS
from normplace.analysis.norms.find import Norm
from normplace.analysis.recording.recorder import Recorder
from normplace.errors import UsageError

Key = int | str
Given = TypeVar("Given")
# Called with the site's name, whether the tensor is the norm's input, and the tensor; returns what takes its place.
Tap = Callable[[str, bool, Tensor], Tensor]


@dataclass(slots=True)
class FunctionCall:
    """One call of a torch function in a recorded pass.

    Attributes:
        function: The function.
        first: The first operator it ran, as an index into the tape.
        end: One past the last.
        arguments: The values among its arguments, by position or name.
        result: The value it returned; None where it returned something other than one tensor.
    """

    function: Any
    first: int
    end: int
    arguments: dict[Key, int]
    result: int | None


class FunctionRecorder(Recorder):
    """Also records the calls of torch functions, with the operators that each one ran."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.functions: list[FunctionCall] = []

    def hooks(self) -> ExitStack:
        """Follow module calls and torch functions until the stack is closed."""
        stack = super().hooks()
        stack.enter_context(_Logging(self))
        return stack

    def declare(self, structure: Any, origin: str) -> None:
        """Make the tensors of a structure known before the pass begins."""
        with torch._C.DisableTorchFunction():  # its own questions are not the model's
            super().declare(structure, origin)

    def numbers(self, structure: Any) -> tuple[int, ...]:
        """The values of the tensors of a structure."""
        with torch._C.DisableTorchFunction():
            return super().numbers(structure)

    def _held(self, structure: Any) -> dict[Any, int]:
        with torch._C.DisableTorchFunction():
            return super()._held(structure)

    def open_call(self, function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> FunctionCall:
        """Write down a call before it runs."""
        arguments = self._held(args) | self._held(kwargs)
        call = FunctionCall(function, len(self.tape.ops), len(self.tape.ops), arguments, None)
        self.functions.append(call)
        return call

    def close_call(self, call: FunctionCall, result: Any) -> None:
        """Write down what the call returned."""
        call.end = len(self.tape.ops)
        call.result = self._held(result).get(None)


class _Logging(TorchFunctionMode):
    def __init__(self, recorder: FunctionRecorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        call = self.recorder.open_call(func, args, kwargs)
        result = func(*args, **kwargs)
        self.recorder.close_call(call, result)
        return result


@dataclass
class CodeSite:
    """Where a norm that is written into code can be reached.

    Attributes:
        name: The site's name.
        reads: For each function call that reads the norm's input, the arguments that hold it.
        returns: The function call that returns its output.
    """

    name: str
    reads: dict[int, tuple[Key, ...]] = field(default_factory=dict)
    returns: int = -1


class Locator:
    """Finds the function calls around norms.

    Args:
        graph: The graph of the recorded pass.
        functions: Its function calls.
    """

    def __init__(self, graph: Graph, functions: list[FunctionCall]) -> None:
        self.graph, self.functions = graph, functions
        self._index = {id(op): at for at, op in enumerate(graph.tape.ops)}
        self._running: dict[int, int] = {}
        self._returning: dict[int, int] = {}
        for at, call in enumerate(functions):
            self._running.update(dict.fromkeys(range(call.first, call.end), at))
            if call.result is not None and call.end > call.first:
                self._returning.setdefault(call.result, at)

    def locate(self, norm: Norm, name: str) -> CodeSite | None:
        """The function calls around a norm; None where one function hides its input or its output."""
        ops = (self._index[id(op)] for at in norm.nodes if (op := self.graph.nodes[at].op) is not None)
        calls = {self._running[op] for op in ops if op in self._running}
        # The audit counts copies that follow a norm as part of it, and the function that reads it may make them.
        ends = (self._returning.get(value, -1) for value in self.graph.unchanged(norm.output, KEEPS))
        found = CodeSite(name, returns=next((at for at in ends if at >= min(calls, default=0)), -1))
        for value in self._casts(norm):
            for at in sorted(calls):
                keys = tuple(key for key, held in self.functions[at].arguments.items() if held == value)
                if keys:
                    found.reads[at] = keys
            if found.reads:
                break
        # What is changed in place without being assigned cannot be replaced by returning something else.
        hidden = found.returns < 0 or _is_in_place(self.functions[found.returns].function)
        return None if hidden or not found.reads else found

    def _casts(self, norm: Norm) -> Iterator[int]:
        """What a norm reads, and the same after casts and copies that the audit counts as part of it."""
        queue = [norm.input]
        while queue:
            value = queue.pop(0)
            yield value
            for node in self.graph.readers(value):
                if node.name in KEEPS:
                    queue += node.outputs


def _is_in_place(function: Any) -> bool:
    name = getattr(function, "__name__", "")
    return name.endswith("_") and not name.endswith("__")


class _Intercepting(TorchFunctionMode):
    def __init__(self, sites: Iterable[CodeSite], functions: list[FunctionCall], tap: Tap) -> None:
        super().__init__()
        self.functions, self.tap, self.count = functions, tap, -1
        self.reads: dict[int, list[CodeSite]] = {}
        self.returns: dict[int, list[CodeSite]] = {}
        self.replaced: dict[int, Tensor] = {}
        for site in sites:
            for at in site.reads:
                self.reads.setdefault(at, []).append(site)
            self.returns.setdefault(site.returns, []).append(site)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self.count += 1
        at = self.count
        for site in self.reads.get(at, ()):
            self._check(at, func)
            args, kwargs = self._replaced(site, args, kwargs)
        result = func(*args, **kwargs)
        for site in self.returns.get(at, ()):
            self._check(at, func)
            result = self.tap(site.name, False, result)
        return result

    def _replaced(self, site: CodeSite, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        positional, named = list(args), dict(kwargs)
        for key in site.reads[self.count]:
            held: Any = named if isinstance(key, str) else positional
            if id(site) not in self.replaced:
                self.replaced[id(site)] = self.tap(site.name, True, held[key])
            held[key] = self.replaced[id(site)]
        return tuple(positional), named

    def _check(self, at: int, function: Any) -> None:
        if at >= len(self.functions) or self.functions[at].function != function:
            raise UsageError(
                "the forward pass ran other functions than when it was recorded, so norms that are written into code "
                "cannot be reached: name modules with norms=[...]."
            )


class Taps:
    """Replaces what norms read and return while it is active.

    Args:
        model: The model.
        modules: Names of the norms that are modules.
        code: Norms that are written into code.
        functions: The function calls of the recorded pass, which the latter refer to.
        rows_key: Finds the argument of a module that holds what it normalizes.
    """

    def __init__(
        self,
        model: nn.Module,
        modules: Iterable[str],
        code: Iterable[CodeSite],
        functions: list[FunctionCall],
        rows_key: Callable[[nn.Module, tuple[Any, ...], Mapping[str, Any]], Key],
    ) -> None:
        self.model, self.code, self.functions, self.rows_key = model, tuple(code), functions, rows_key
        self.modules = {name: model.get_submodule(name) for name in modules}

    @contextmanager
    def active(self, tap: Tap) -> Iterator[None]:
        """Send every input and output of the norms through ``tap``."""

        def unseen(name: str, side: bool, x: Tensor) -> Tensor:
            with torch._C.DisableTorchFunction():  # calls of the tap are not the model's
                return tap(name, side, x)

        def before(name: str) -> Any:
            def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
                key = self.rows_key(module, args, kwargs)
                if isinstance(key, str):
                    return args, {**kwargs, key: unseen(name, True, kwargs[key])}
                return (*args[:key], unseen(name, True, args[key]), *args[key + 1 :]), kwargs

            return hook

        def after(name: str) -> Any:
            def hook(module: nn.Module, args: tuple[Any, ...], result: Any) -> Any:
                if isinstance(result, tuple):  # a norm may return the sum it was given besides
                    return (unseen(name, False, result[0]), *result[1:])
                return unseen(name, False, result)

            return hook

        with ExitStack() as stack:
            for name, module in self.modules.items():
                stack.callback(module.register_forward_pre_hook(before(name), with_kwargs=True).remove)
                stack.callback(module.register_forward_hook(after(name)).remove)
            if self.code:
                stack.enter_context(_Intercepting(self.code, self.functions, tap))
            yield


def fresh(given: Given) -> Given:
    """A copy of the inputs for one pass, which may write into them or, as into a cache, append to them."""
    try:
        return copy.deepcopy(given)
    except RuntimeError:  # a tensor that was computed from others
        return given


def double_precision(value: Any) -> Any:
    """The same structure with every floating tensor in double precision."""
    if isinstance(value, Tensor):
        return value.double() if value.is_floating_point() else value
    if isinstance(value, dict):
        return {key: double_precision(held) for key, held in value.items()}
    return type(value)(double_precision(held) for held in value) if type(value) in (tuple, list) else value


def first_tensor(value: Any) -> Tensor:
    """The first floating tensor of what a model returns.

    Raises:
        UsageError: If there is none.
    """
    if isinstance(value, Tensor) and value.is_floating_point():
        return value
    held = value.values() if isinstance(value, Mapping) else value if isinstance(value, tuple | list) else ()
    for part in held:
        if isinstance(part, Tensor | Mapping | tuple | list):
            return first_tensor(part)
    raise UsageError(f"the model returned {type(value).__name__}, in which there is no tensor to measure.")


def is_channels_first(norm: nn.Module | None, kind: str, x: Tensor) -> bool:
    """Whether the features of what a norm reads are its second dimension, as in batches of feature maps."""
    known = (nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm, nn.GroupNorm)
    return x.ndim > 2 and (isinstance(norm, known) or kind in ("batch", "group", "instance"))

"""Replace the inputs and outputs of chosen norms in any forward pass of a model.

A norm that is a module is reached by hooks. A norm that is written into code is reached by counting calls of torch
functions: one recorded pass shows which calls read its input and which call returns its output, and the same calls are
intercepted in later passes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from normplace.analysis.dataflow.graph import Graph
from normplace.analysis.dataflow.operators import KEEPS
from normplace.analysis.norms.classes import rows_argument
from normplace.analysis.norms.find import Norm
from normplace.analysis.recording.functions import FunctionCall, Key
from normplace.analysis.recording.ids import ValueId
from normplace.errors import UsageError

Tap = Callable[[str, bool, Tensor], Tensor]
"""Called with the name of a norm, whether the tensor is its input, and the tensor; returns the replacement."""


class PassChangedError(UsageError):
    """A pass called other torch functions than the recorded one."""


@dataclass
class CodeSite:
    """The function calls around a norm that is written into code.

    Attributes:
        name: The name of the norm.
        reads: For each function call that reads its input, the arguments that hold it.
        returns: The function call that returns its output.
    """

    name: str
    reads: dict[int, tuple[Key, ...]] = field(default_factory=dict)
    returns: int = -1


class CodeSiteFinder:
    """Finds the function calls around norms."""

    def __init__(self, graph: Graph, functions: list[FunctionCall]) -> None:
        self.graph, self.functions = graph, functions
        self._index = {id(op): index for index, op in enumerate(graph.tape.ops)}
        self._running: dict[int, int] = {}
        self._returning: dict[ValueId, int] = {}
        for index, call in enumerate(functions):
            self._running.update(dict.fromkeys(range(call.first, call.end), index))
            if call.result is not None and call.end > call.first:
                self._returning.setdefault(call.result, index)

    def find(self, norm: Norm, name: str) -> CodeSite | None:
        """The function calls around a norm; None if its input or its output is inside one function."""
        ops = (self._index[id(op)] for node in norm.nodes if (op := self.graph.nodes[node].op) is not None)
        calls = {self._running[op] for op in ops if op in self._running}
        # Copies after a norm count as part of it, and the function that reads the norm may make them.
        ends = (self._returning.get(value, -1) for value in self.graph.unchanged(norm.output, KEEPS))
        site = CodeSite(name, returns=next((call for call in ends if call >= min(calls, default=0)), -1))
        for value in self._casts(norm):
            for call in sorted(calls):
                keys = tuple(key for key, read in self.functions[call].arguments.items() if read == value)
                if keys:
                    site.reads[call] = keys
            if site.reads:
                break
        # Code may ignore what an in-place function returns, so another return value would have no effect.
        hidden = site.returns < 0 or _is_in_place(self.functions[site.returns].function)
        return None if hidden or not site.reads else site

    def _casts(self, norm: Norm) -> Iterator[ValueId]:
        """The input of a norm, also after the casts and copies that count as part of the norm."""
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


class _Interceptor(TorchFunctionMode):
    def __init__(self, sites: Iterable[CodeSite], functions: list[FunctionCall], tap: Tap) -> None:
        super().__init__()
        self.functions, self.tap, self.call = functions, tap, -1
        self.reads: dict[int, list[CodeSite]] = {}
        self.returns: dict[int, list[CodeSite]] = {}
        self.replacements: dict[int, Tensor] = {}
        for site in sites:
            for call in site.reads:
                self.reads.setdefault(call, []).append(site)
            self.returns.setdefault(site.returns, []).append(site)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self.call += 1
        call = self.call
        for site in self.reads.get(call, ()):
            self._check(call, func)
            args, kwargs = self._with_replacement(site, args, kwargs)
        result = func(*args, **kwargs)
        for site in self.returns.get(call, ()):
            self._check(call, func)
            result = self.tap(site.name, False, result)
        return result

    def _with_replacement(
        self, site: CodeSite, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, dict[str, Any]]:
        positional, named = list(args), dict(kwargs)
        for key in site.reads[self.call]:
            arguments: Any = named if isinstance(key, str) else positional
            if id(site) not in self.replacements:
                self.replacements[id(site)] = self.tap(site.name, True, arguments[key])
            arguments[key] = self.replacements[id(site)]
        return tuple(positional), named

    def _check(self, call: int, function: Any) -> None:
        if call >= len(self.functions) or self.functions[call].function != function:
            raise PassChangedError(
                "the forward pass calls other functions than the recorded pass, so norms that are written into code "
                "cannot be reached: name modules with norms=[...]."
            )


class Taps:
    """Replaces the inputs and outputs of norms while it is active.

    Args:
        model: The model.
        modules: Names of the norms that are modules.
        code: Norms that are written into code.
        functions: The function calls of the recorded pass, which ``code`` refers to.

    Attributes:
        same_calls: Whether all passes called as many torch functions as the recorded one.
    """

    def __init__(
        self, model: nn.Module, modules: Iterable[str], code: Iterable[CodeSite], functions: list[FunctionCall]
    ) -> None:
        self.model, self.code, self.functions = model, tuple(code), functions
        self.same_calls = True
        self.modules = {name: model.get_submodule(name) for name in modules}

    @contextmanager
    def active(self, tap: Tap) -> Iterator[None]:
        """Pass every input and output of the norms through ``tap``."""

        def tap_unseen(name: str, is_input: bool, x: Tensor) -> Tensor:
            with torch._C.DisableTorchFunction():  # calls of the tap are not the model's
                return tap(name, is_input, x)

        def before(name: str) -> Any:
            def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
                key = rows_argument(module, args, kwargs)
                if isinstance(key, str):
                    return args, {**kwargs, key: tap_unseen(name, True, kwargs[key])}
                return (*args[:key], tap_unseen(name, True, args[key]), *args[key + 1 :]), kwargs

            return hook

        def after(name: str) -> Any:
            def hook(module: nn.Module, args: tuple[Any, ...], result: Any) -> Any:
                if isinstance(result, tuple):  # a fused norm may also return the sum it normalized
                    return (tap_unseen(name, False, result[0]), *result[1:])
                return tap_unseen(name, False, result)

            return hook

        with ExitStack() as stack:
            for name, module in self.modules.items():
                stack.callback(module.register_forward_pre_hook(before(name), with_kwargs=True).remove)
                stack.callback(module.register_forward_hook(after(name)).remove)
            if self.code:
                interceptor = stack.enter_context(_Interceptor(self.code, self.functions, tap))
                yield
                self.same_calls &= interceptor.call + 1 == len(self.functions)
            else:
                yield

"""Record the operators of a network independently of the input's values.

The network runs once on fake tensors, which have shapes but no values. A forward pass that reads a value (``if x.sum()
> 0``, ``.item()``, a loop over chosen experts) cannot be recorded, so the recorded operators run for *every* input of
that shape. In-place operators are rewritten as out-of-place ones.

This is not the recorder of :mod:`normplace.analysis`, because a proof has other needs. The analysis records one pass on
real values, which shows the operators of one input; a proof needs those of all inputs. A proof also evaluates
operators that depend on parameters only, and runs the recorded graph on other inputs to check it, so the record must be
executable.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, fx, nn
from torch.func import functional_call, functionalize
from torch.fx import traceback
from torch.overrides import TorchFunctionMode

from normplace.ntk.model_state import differentiable

# Calls that expose a tensor's memory, which fake tensors do not have, or its values as text.
_MEMORY_ACCESS = {
    Tensor.numpy,
    Tensor.__array__,
    Tensor.tolist,
    Tensor.data_ptr,
    Tensor.storage,
    Tensor.untyped_storage,
    Tensor.__dlpack__,
    Tensor.__repr__,
    Tensor.__format__,
    Tensor.apply_,
    Tensor.map_,
    Tensor.map2_,
}
# Calls that read a value; fake tensors raise an error.
_VALUE_ACCESS = {Tensor.item, Tensor.__bool__, Tensor.__int__, Tensor.__float__, Tensor.__index__, Tensor.__complex__}


class NotRecordedError(Exception):
    """The operators cannot be recorded; the message is the reason, without a final period."""


@dataclass(frozen=True)
class Recording:
    """The operators of a network in order.

    Attributes:
        graph: The recorded graph; its inputs are ``names`` and then the network's input.
        names: The parameters and buffers among its inputs, by name.
    """

    graph: fx.GraphModule
    names: tuple[str, ...]

    def module_of(self, node: fx.Node) -> str:
        """Name and class of the module that a node belongs to."""
        name, kind = node.meta.get("nn_module_stack", {}).get("module", ("", ""))
        return f"{name} ({kind})" if name else kind or "the model"


def record(model: nn.Module, x: Tensor) -> Recording:
    """Record the operators between the input and the output.

    Args:
        model: The network. It is run, so pass a copy.
        x: A batch of the right shape; its values are used only to check the recording.

    Raises:
        NotRecordedError: the network cannot be recorded.
    """
    from torch.fx.experimental.proxy_tensor import make_fx

    state: dict[str, Tensor] = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    locations = {
        f"{prefix}.{own}" if prefix else own: tensor
        for prefix, module in model.named_modules()
        for own, tensor in (*module._parameters.items(), *module._buffers.items())
        if tensor is not None
    }
    names = {id(tensor): name for name, tensor in state.items()}
    monitor = _ValueAccessMonitor()

    def outputs(values: dict[str, Tensor], inputs: Tensor) -> Tensor:
        everywhere = {location: values[names[id(tensor)]] for location, tensor in locations.items()}
        # ``tie_weights`` would replace a module that is registered twice twice, and restore it once.
        with monitor:
            return functional_call(model, everywhere, (inputs,), tie_weights=False)

    graph, failure = None, ""
    try:
        with torch.enable_grad(), warnings.catch_warnings(), differentiable(model), _module_names(model):
            warnings.simplefilter("ignore")
            graph = make_fx(functionalize(outputs), tracing_mode="fake", _allow_non_fake_inputs=True)(state, x)
            if any(map(_changed_arguments, graph.graph.nodes)):
                # PyTorch's recurrent networks run in-place operators that the first pass does not see.
                interpreter = fx.Interpreter(graph)
                again = functionalize(lambda *inputs: interpreter.run(*inputs))
                graph = make_fx(again, tracing_mode="fake", _allow_non_fake_inputs=True)(state, x)
    except Exception as error:
        # User code may raise anything when it meets a fake tensor.
        failure = f"{type(error).__name__}: {next(iter(str(error).strip().splitlines()), '')[:120]}"
    if monitor.accessed:
        raise NotRecordedError("the forward pass reads the values of a tensor, which may decide what it runs")
    if graph is None:
        raise NotRecordedError(f"the operators cannot be recorded ({failure})")
    if monitor.failed:
        raise NotRecordedError(f"the forward pass catches an error of {monitor.failed}, which may decide what it runs")
    recording = Recording(graph, tuple(state))
    for node in graph.graph.nodes:
        _check(recording, node)
    _check_equal(recording, model, state, x)
    return recording


def _check(recording: Recording, node: fx.Node) -> None:
    """Reject a node whose meaning depends on values, or on memory shared with another node."""
    where = f"in {recording.module_of(node)}"
    if any(not isinstance(size, int) for shape in shapes(node) for size in shape):
        raise NotRecordedError(f"the values of tensors decide the shape of a tensor {where}")
    if node.op != "call_function" or node.target is operator.getitem:
        return
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or not _tensors(node.meta.get("val")):
        raise NotRecordedError(f"Python reads the value of a tensor {where}")
    changed = _changed_arguments(node)
    if changed:
        written = node.args[0]
        alone = isinstance(written, fx.Node) and written.op == "call_function" and len(written.users) == 1
        if changed != [0] or not alone or _is_view(cast(fx.Node, written)):
            raise NotRecordedError(f"{target} {where} changes a tensor that is used elsewhere")


def _changed_arguments(node: fx.Node) -> list[int]:
    """The positions of the arguments that an operator writes to."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return []
    return [index for index, argument in enumerate(node.target._schema.arguments) if argument.is_write]


def _is_view(node: fx.Node) -> bool:
    if not isinstance(node.target, torch._ops.OpOverload):
        return True
    return any(result.alias_info is not None for result in node.target._schema.returns)


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, list | tuple):
        return [tensor for item in value for tensor in _tensors(item)]
    return [value] if isinstance(value, Tensor) else []


def shapes(node: fx.Node) -> tuple[tuple[Any, ...], ...]:
    """The shapes of a node's results."""
    return tuple(tuple(tensor.shape) for tensor in _tensors(node.meta.get("val")))


def _check_equal(recording: Recording, model: nn.Module, state: Mapping[str, Tensor], x: Tensor) -> None:
    """Reject a recording that does not reproduce the network, which may behave differently on fake tensors."""
    with torch.no_grad():
        for point in (x, 1e3 * x + 1, -1e3 * x):
            try:
                expected = model(point)
            except Exception as error:
                raise NotRecordedError(f"the forward pass fails on other inputs ({type(error).__name__})") from error
            try:
                output = recording.graph(dict(state), point)
            except Exception as error:
                # User code that catches exceptions may call operators on fake tensors that real ones do not have.
                raise NotRecordedError("the recorded operators do not run on real tensors") from error
            if not isinstance(output, Tensor) or not isinstance(expected, Tensor):
                raise NotRecordedError("its output is not one tensor")
            if not torch.allclose(output, expected, rtol=1e-6, atol=1e-9, equal_nan=True):
                raise NotRecordedError("the recorded operators do not reproduce its output")


class _ValueAccessMonitor(TorchFunctionMode):
    """Detects that Python reads the values of a tensor, or that a call fails, even if the model catches the error."""

    def __init__(self) -> None:
        super().__init__()
        self.accessed = False
        self.failed = ""  # the name of a call that raised an error

    def __torch_function__(self, func, types, args=(), kwargs=None):
        """Reject access to the memory of a tensor."""
        if func in _MEMORY_ACCESS:
            self.accessed = True
            raise NotRecordedError("Python reads the values of a tensor")
        try:
            return func(*args, **(kwargs or {}))
        except Exception:
            self.accessed = self.accessed or func in _VALUE_ACCESS
            self.failed = getattr(func, "__name__", str(func))
            raise


@contextmanager
def _module_names(model: nn.Module) -> Iterator[None]:
    """Store the innermost module of every recorded node in its metadata."""
    stack: list[dict[str, tuple[str, str]]] = [{"module": ("", type(model).__name__)}]

    def enter(name: str) -> Any:
        def hook(module: nn.Module, _inputs: Any) -> None:
            stack.append({"module": (name, type(module).__name__)})
            traceback.current_meta["nn_module_stack"] = stack[-1]

        return hook

    def leave(_module: nn.Module, _inputs: Any, _output: Any) -> None:
        stack.pop()
        traceback.current_meta["nn_module_stack"] = stack[-1]

    handles = []
    for name, module in model.named_modules():
        handles.append(module.register_forward_pre_hook(enter(name), prepend=True))
        handles.append(module.register_forward_hook(leave))
    before = dict(traceback.current_meta)
    try:
        with traceback.preserve_node_meta():
            yield
    finally:
        traceback.current_meta.clear()
        traceback.current_meta.update(before)
        for handle in handles:
            handle.remove()

"""Record which functional calls use which parameters in a forward pass, and on which inputs.

Module classes do not determine the formula, so they are not inspected. A torch function mode intercepts the functional
calls (``linear``, ``conv2d``, ``layer_norm`` ...). If the weight or bias is a tracked parameter, the call gets a
detached copy of it instead. This removes every use with a known formula from the autograd graph. A parameter that is
still reachable in the graph has another use: see :func:`read_graph`.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Hashable, Mapping, Sequence
from numbers import Number
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from normplace.errors import UsageError
from normplace.ntk.empirical_kernel.graph_nodes import nodes_between, nodes_from
from normplace.ntk.model_state import BATCH_STATISTICS, DROPOUT
from normplace.ops.registration import is_own_backward
from normplace.ops.tracing import in_transform

NO_SETTINGS: Mapping[str, Any] = types.MappingProxyType({})


class LayerCall(NamedTuple):
    """The arguments of one functional call, bound to their names."""

    kind: str
    input: Any
    weight: Any = None
    bias: Any = None
    settings: Mapping[str, Any] = NO_SETTINGS


class ParameterUse(NamedTuple):
    """One use of tracked parameters; ``weight`` and ``bias`` are their names, or None if not tracked."""

    kind: str
    input: Tensor
    version: int
    edge: GradientEdge
    shape: torch.Size
    weight: str | None
    bias: str | None
    settings: Mapping[str, Any]
    traceable: bool
    copies: tuple[Tensor, ...]
    """The leaves that the call got instead of the tracked parameters."""
    input_node: Any
    """The autograd node of the input at the time of the call."""

    def inner_nodes(self) -> frozenset[Any]:
        """The nodes between that of the output and the copies."""
        return nodes_between({id(copy) for copy in self.copies}, self.edge.node, self.input_node)

    def unmodified_input(self) -> Tensor:
        """The input of the call.

        Raises:
            UsageError: If the model has overwritten it since. Training such a model fails too.
        """
        if self.input._version != self.version:
            raise UsageError(
                f"the model overwrites the input of parameter {self.weight or self.bias!r} in place after "
                "using it, so its gradient is lost: write that operation out of place."
            )
        return self.input


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> LayerCall:
    return LayerCall("linear", input, weight, bias)


def _conv(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride=1, padding=0, dilation=1, groups=1
) -> LayerCall:
    settings = {
        "stride": stride,
        "padding": padding,
        "dilation": dilation,
        "groups": groups,
        "kernel": weight.shape[2:],
    }
    return LayerCall("conv", input, weight, bias, settings)


def _embedding(
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> LayerCall:
    if max_norm is not None:
        raise UsageError("an embedding with max_norm changes its weights in every forward pass: set max_norm to None.")
    if scale_grad_by_freq:
        raise UsageError(
            "an embedding with scale_grad_by_freq scales gradients by counts over the batch, "
            "so there is no kernel between two samples: set scale_grad_by_freq to False."
        )
    if padding_idx is not None and padding_idx < 0:
        padding_idx += weight.shape[0]
    return LayerCall("embedding", input, weight, None, {"rows": weight.shape[0], "padding": padding_idx})


def _layer_norm(input: Tensor, normalized_shape, weight=None, bias=None, eps: float = 1e-5) -> LayerCall:
    return LayerCall("layer_norm", input, weight, bias, {"shape": tuple(normalized_shape), "eps": eps})


def _rms_norm(input: Tensor, normalized_shape, weight=None, eps: float | None = None) -> LayerCall:
    return LayerCall("rms_norm", input, weight, None, {"shape": tuple(normalized_shape), "eps": eps})


def _group_norm(input: Tensor, num_groups: int, weight=None, bias=None, eps: float = 1e-5) -> LayerCall:
    return LayerCall("group_norm", input, weight, bias, {"groups": num_groups, "eps": eps})


def _batch_norm(
    input: Tensor,
    running_mean,
    running_var,
    weight=None,
    bias=None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> LayerCall:
    if training:
        raise UsageError(f"batch normalization with batch statistics {BATCH_STATISTICS}")
    return LayerCall("batch_norm", input, weight, bias, {"mean": running_mean, "var": running_var, "eps": eps})


_CALL_READERS: dict[Any, Callable[..., LayerCall]] = {
    F.linear: _linear,
    F.conv1d: _conv,
    F.conv2d: _conv,
    F.embedding: _embedding,
    F.layer_norm: _layer_norm,
    F.rms_norm: _rms_norm,
    F.group_norm: _group_norm,
    F.batch_norm: _batch_norm,
}


def _dropout_rate(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> float:
    return p if training else 0.0


def _dropout_rate_off_by_default(input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False) -> float:
    return p if training else 0.0


def _attention_dropout_rate(query, key, value, attn_mask=None, dropout_p: float = 0.0, *args, **kwargs) -> float:
    return dropout_p


_DROPOUT_RATES: dict[Any, Callable[..., float]] = {
    F.dropout: _dropout_rate,
    F.dropout1d: _dropout_rate,
    F.dropout2d: _dropout_rate,
    F.dropout3d: _dropout_rate,
    F.alpha_dropout: _dropout_rate_off_by_default,
    F.feature_alpha_dropout: _dropout_rate_off_by_default,
    F.scaled_dot_product_attention: _attention_dropout_rate,
}

# After one of these, values decide which sample a row belongs to (mixture-of-experts routing, packed sequences), so
# later uses cannot be split into samples by position.
_REROUTING = {
    torch.nonzero,
    Tensor.nonzero,
    torch.argwhere,
    Tensor.argwhere,
    torch.masked_select,
    Tensor.masked_select,
    torch.unique,
    Tensor.unique,
    getattr(torch, "_pack_padded_sequence"),  # noqa: B009 - not exported to type checkers
}
_INDEXING = {Tensor.__getitem__, Tensor.__setitem__}
# These pass a value to Python, which may select layers by it.
_VALUE_ACCESS = {
    Tensor.__bool__,
    Tensor.__int__,
    Tensor.__float__,
    Tensor.__complex__,
    Tensor.__index__,
    Tensor.__contains__,
    Tensor.__array__,
    Tensor.item,
    Tensor.tolist,
    Tensor.numpy,
    Tensor.equal,
    Tensor.allclose,
    Tensor.is_nonzero,
    torch.equal,
    torch.allclose,
    torch.is_nonzero,
}
# A hook of a tensor or of its autograd node may change gradients. A backward hook of a module reads the node too.
_HOOKS = {Tensor.register_hook, cast(Any, Tensor.grad_fn).__get__}
_DETACHING = {Tensor.detach, Tensor.detach_, torch.detach, torch.detach_, cast(Any, Tensor.data).__get__}

_PLAIN_VALUES = frozenset({
    types.NoneType, bool, int, float, complex, str, torch.Size, torch.dtype, torch.device, torch.layout,
    torch.memory_format,
})  # fmt: skip


def _masks(index: object) -> bool:
    parts = index if isinstance(index, tuple) else (index,)
    return any(isinstance(part, Tensor) and part.dtype in {torch.bool, torch.uint8} for part in parts)


def _traced_body(function: Callable[..., Any]) -> Callable[..., Any]:
    """A copy of a Python-level torch function whose inner calls reach the mode, instead of the function itself."""
    assert isinstance(function, types.FunctionType)
    inside = {**function.__globals__, "has_torch_function": lambda *_: False}
    copy = types.FunctionType(function.__code__, inside, function.__name__, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


_TRACED_BODIES = {F.multi_head_attention_forward: _traced_body(F.multi_head_attention_forward)}
# The readers of these raise an error for some arguments.
_REFUSING = {F.embedding, F.batch_norm}
_INSPECTED = frozenset({
    *_CALL_READERS, *_DROPOUT_RATES, *_REROUTING, *_INDEXING, *_VALUE_ACCESS, *_HOOKS, *_TRACED_BODIES
})  # fmt: skip


def _outline(value: Any) -> Hashable:
    """An argument without values of tensors: shapes and dtypes, plain values, and the type of anything else."""
    kind = type(value)
    if kind in _PLAIN_VALUES:
        return value
    if kind is Tensor or isinstance(value, Tensor):
        return value.shape, value.dtype
    if isinstance(value, list | tuple):
        return _outline_all(value)
    if isinstance(value, dict):
        return tuple([(name, _outline(item)) for name, item in value.items()])
    if isinstance(value, Number):  # such as an integer of NumPy
        return type(value), value
    if isinstance(value, slice):
        return "slice", _outline(value.start), _outline(value.stop), _outline(value.step)
    return type(value)


def _outline_all(values: Sequence[Any]) -> Hashable:
    """The outlines of some arguments; the most frequent kinds without a call."""
    return tuple([
        value if type(value) in _PLAIN_VALUES else (value.shape, value.dtype) if type(value) is Tensor
        else _outline(value)
        for value in values
    ])  # fmt: skip


class ParameterTracker(TorchFunctionMode):
    """Records in ``uses`` every call with a known formula whose weight or bias is a tracked parameter.

    ``calls`` has every torch function that was called, with an outline of its arguments. ``data_dependent`` is True if
    tensor values may decide which layers run. ``has_hooks`` is True if hooks may change gradients: the gradient of a
    use does not have the changes by hooks of its output, nor do the formulas have those by hooks of the layer's node.
    ``detaches`` is True if a tensor that depends on parameters is used without its gradient.

    Args:
        names: Name of each tracked parameter by its ``id``.
    """

    def __init__(self, names: Mapping[int, str]) -> None:
        super().__init__()
        self.names = names
        self.uses: list[ParameterUse] = []
        self.calls: list[Hashable] = []
        self.data_dependent = False
        self.has_hooks = False
        self.detaches = False
        self._traceable = True

    def __torch_function__(self, func, types, args=(), kwargs=None):
        """Replace the tracked parameters of a known functional, and run everything else unchanged."""
        kwargs = kwargs or {}
        self.calls.append((func, _outline_all(args), _outline(kwargs) if kwargs else ()))
        if func in _DETACHING or not torch.is_grad_enabled():
            self.detaches |= any(isinstance(argument, Tensor) and argument.requires_grad for argument in args)
        if func not in _INSPECTED:
            return func(*args, **kwargs)
        if func in _TRACED_BODIES:
            with self:
                return _TRACED_BODIES[func](*args, **kwargs)
        if func in _DROPOUT_RATES and _DROPOUT_RATES[func](*args, **kwargs) > 0:
            raise UsageError(f"dropout ({func.__name__}) {DROPOUT}")
        if func in _REROUTING or (func in _INDEXING and _masks(args[1])):
            self._traceable = False
            self.data_dependent = True
        if func in _VALUE_ACCESS:
            self.data_dependent = True
        if func in _HOOKS:
            self.has_hooks = True
        if func not in _CALL_READERS or (func not in _REFUSING and not self._has_tracked(args, kwargs)):
            return func(*args, **kwargs)
        call = _CALL_READERS[func](*args, **kwargs)
        weight, bias = self.names.get(id(call.weight)), self.names.get(id(call.bias))
        plain = isinstance(call.input, Tensor) and call.input.layout == torch.strided and not call.input.is_nested
        # A parameter that is also the input of its layer would need the product rule; it stays in the graph.
        is_own_input = call.input is call.weight or call.input is call.bias or call.weight is call.bias
        # Inside a transform of the model's own, a copy would not be a leaf.
        hidden = not torch.is_grad_enabled() or in_transform()
        if (weight is None and bias is None) or not plain or is_own_input or hidden:
            return func(*args, **kwargs)
        # The copy requires grad so that the output has an autograd node even in the first layer. Its gradient is never
        # requested, so autograd does not compute it.
        copies = {}
        if weight is not None:
            copies[id(call.weight)] = call.weight.detach().requires_grad_()
        if bias is not None:
            copies[id(call.bias)] = call.bias.detach().requires_grad_()
        version = call.input._version
        args = [copies.get(id(argument), argument) for argument in args]
        if kwargs:
            kwargs = {name: copies.get(id(argument), argument) for name, argument in kwargs.items()}
        output = func(*args, **kwargs)
        # The edge refers to the node of the output, so a later in-place activation does not change it.
        edge = get_gradient_edge(output)
        self.uses.append(
            ParameterUse(
                kind=call.kind,
                input=call.input.detach(),
                version=version,
                edge=edge,
                shape=output.shape,
                weight=weight,
                bias=bias,
                settings=call.settings,
                traceable=self._traceable,
                copies=tuple(copies.values()),
                input_node=call.input.grad_fn,
            )
        )
        return output

    def _has_tracked(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Whether a tracked parameter is among the arguments."""
        for argument in args:
            if id(argument) in self.names:
                return True
        return bool(kwargs) and any(id(argument) in self.names for argument in kwargs.values())


def has_hooks(parameters: Mapping[str, Tensor]) -> bool:
    """Whether a hook of a parameter may change its gradient."""
    return any(parameter._backward_hooks for parameter in parameters.values())


class GraphContents(NamedTuple):
    """What the autograd graph of an output contains apart from the recorded uses."""

    unrecorded: set[str]
    """Names of the tracked parameters that the output uses in other ways than the recorded ones."""
    has_custom_backward: bool
    """Whether Python code of another library computes a gradient, which may depend on the batch."""


def read_graph(output: Tensor, names: Mapping[int, str], uses: list[ParameterUse]) -> GraphContents:
    """Read the autograd graph of an output.

    Args:
        output: The output.
        names: Name of each tracked parameter by its ``id``.
        uses: The recorded uses.
    """
    has_custom_backward = False
    # An output that is itself a parameter has no grad_fn but is a leaf.
    unrecorded = {names[id(output)]} if id(output) in names else set()
    owner = {node: use for use in uses for node in use.inner_nodes()}
    for node in nodes_from(output.grad_fn):
        if isinstance(node, BackwardCFunction) and not is_own_backward(node):
            has_custom_backward = True
        variable = getattr(node, "variable", None)
        if variable is not None and id(variable) in names:
            unrecorded.add(names[id(variable)])
        for child, _ in node.next_functions:
            use = owner.get(child)
            # A model that differentiates itself reaches a copy through its own backward pass, not through the output.
            if use is not None and node is not use.edge.node and owner.get(node) is not use:
                unrecorded |= {name for name in (use.weight, use.bias) if name is not None}
    return GraphContents(unrecorded, has_custom_backward)

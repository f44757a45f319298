"""Follow parameters through one forward pass: which functional used which parameter, on what input.

The class of a module proves nothing about its formula, so modules are never looked at. A torch function mode
sees the functional calls themselves (``linear``, ``conv2d``, ``layer_norm`` ...) and, where the weight or
bias *is* a followed parameter, swaps in a detached stand-in. Every use with a known formula is thereby cut
from the autograd graph, and whatever path to a parameter remains in the graph is a use this file does not
know: see :func:`remaining`.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from normplace.errors import UsageError
from normplace.ntk.model_state import BATCH_STATISTICS, DROPOUT


@dataclass(frozen=True)
class Call:
    """The arguments of one functional call, bound to their names."""

    kind: str
    input: Any
    weight: Any = None
    bias: Any = None
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Use:
    """One use of followed parameters: ``weight`` and ``bias`` are their names, or None where not followed."""

    kind: str
    input: Tensor
    version: int
    edge: GradientEdge
    shape: torch.Size
    weight: str | None
    bias: str | None
    settings: Mapping[str, Any]
    traceable: bool
    inside: frozenset[Any]

    def untouched_input(self) -> Tensor:
        """The input as the call saw it.

        Raises:
            UsageError: If the model has overwritten it since; ordinary training of such a model fails too.
        """
        if self.input._version != self.version:
            raise UsageError(
                f"the model overwrites the input of parameter {self.weight or self.bias!r} in place after "
                "using it, so its gradient is lost: write that operation out of place."
            )
        return self.input


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Call:
    return Call("linear", input, weight, bias)


def _conv(input: Tensor, weight: Tensor, bias: Tensor | None = None, stride=1, padding=0, dilation=1, groups=1) -> Call:
    settings = {
        "stride": stride,
        "padding": padding,
        "dilation": dilation,
        "groups": groups,
        "kernel": weight.shape[2:],
    }
    return Call("conv", input, weight, bias, settings)


def _embedding(
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Call:
    if max_norm is not None:
        raise UsageError("an embedding with max_norm rewrites its weights in every forward pass: set max_norm to None.")
    if scale_grad_by_freq:
        raise UsageError(
            "an embedding with scale_grad_by_freq scales gradients by counts over the batch, "
            "so no kernel between two samples exists: set scale_grad_by_freq to False."
        )
    if padding_idx is not None and padding_idx < 0:
        padding_idx += weight.shape[0]
    return Call("embedding", input, weight, None, {"rows": weight.shape[0], "padding": padding_idx})


def _layer_norm(input: Tensor, normalized_shape, weight=None, bias=None, eps: float = 1e-5) -> Call:
    return Call("layer_norm", input, weight, bias, {"shape": tuple(normalized_shape), "eps": eps})


def _rms_norm(input: Tensor, normalized_shape, weight=None, eps: float | None = None) -> Call:
    return Call("rms_norm", input, weight, None, {"shape": tuple(normalized_shape), "eps": eps})


def _group_norm(input: Tensor, num_groups: int, weight=None, bias=None, eps: float = 1e-5) -> Call:
    return Call("group_norm", input, weight, bias, {"groups": num_groups, "eps": eps})


def _batch_norm(
    input: Tensor,
    running_mean,
    running_var,
    weight=None,
    bias=None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Call:
    if training:
        raise UsageError(f"batch normalization with batch statistics {BATCH_STATISTICS}")
    return Call("batch_norm", input, weight, bias, {"mean": running_mean, "var": running_var, "eps": eps})


_READERS: dict[Any, Callable[..., Call]] = {
    F.linear: _linear,
    F.conv1d: _conv,
    F.conv2d: _conv,
    F.embedding: _embedding,
    F.layer_norm: _layer_norm,
    F.rms_norm: _rms_norm,
    F.group_norm: _group_norm,
    F.batch_norm: _batch_norm,
}


def _dropped(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> float:
    return p if training else 0.0


def _dropped_off(input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False) -> float:
    return p if training else 0.0


def _dropped_attention(query, key, value, attn_mask=None, dropout_p: float = 0.0, *args, **kwargs) -> float:
    return dropout_p


_DROPOUTS: dict[Any, Callable[..., float]] = {
    F.dropout: _dropped,
    F.dropout1d: _dropped,
    F.dropout2d: _dropped,
    F.dropout3d: _dropped,
    F.alpha_dropout: _dropped_off,
    F.feature_alpha_dropout: _dropped_off,
    F.scaled_dot_product_attention: _dropped_attention,
}

# After one of these the rows of a tensor are no longer a fixed function of the batch's layout
# (mixture-of-experts routing, packed sequences), so the uses that follow cannot be split into samples by
# position.
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
# One of these hands a value to Python, which may choose the layers to run by it.
_DECIDING = {
    Tensor.__bool__,
    Tensor.__int__,
    Tensor.__float__,
    Tensor.__index__,
    Tensor.item,
    Tensor.tolist,
}


def _masks(index: object) -> bool:
    parts = index if isinstance(index, tuple) else (index,)
    return any(isinstance(part, Tensor) and part.dtype in {torch.bool, torch.uint8} for part in parts)


def _open(function: Callable[..., Any]) -> Callable[..., Any]:
    """A copy of a python-level torch function that does not hand itself to the mode again."""
    assert isinstance(function, types.FunctionType)
    inside = {**function.__globals__, "has_torch_function": lambda *_: False}
    copy = types.FunctionType(function.__code__, inside, function.__name__, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


_OPENED = {F.multi_head_attention_forward: _open(F.multi_head_attention_forward)}


class Follow(TorchFunctionMode):
    """Record in ``uses`` every call whose formula is known and whose weight or bias is a followed parameter.

    ``data_dependent`` is set where the values of tensors may decide which layers run.

    Args:
        names: Name of each followed parameter by its ``id``.
    """

    def __init__(self, names: Mapping[int, str]) -> None:
        super().__init__()
        self.names = names
        self.uses: list[Use] = []
        self.data_dependent = False
        self._traceable = True

    def __torch_function__(self, func, types, args=(), kwargs=None):
        """Swap the followed parameters of a known functional, and pass everything else through."""
        kwargs = kwargs or {}
        if func in _OPENED:
            with self:
                return _OPENED[func](*args, **kwargs)
        if func in _DROPOUTS and _DROPOUTS[func](*args, **kwargs) > 0:
            raise UsageError(f"dropout ({func.__name__}) {DROPOUT}")
        if func in _REROUTING or (func in _INDEXING and _masks(args[1])):
            self._traceable = False
            self.data_dependent = True
        if func in _DECIDING:
            self.data_dependent = True
        if func not in _READERS:
            return func(*args, **kwargs)
        call = _READERS[func](*args, **kwargs)
        weight, bias = self.names.get(id(call.weight)), self.names.get(id(call.bias))
        plain = isinstance(call.input, Tensor) and call.input.layout == torch.strided and not call.input.is_nested
        # A parameter that is the input of its own layer would need the product rule; it stays in the graph.
        itself = call.input is call.weight or call.input is call.bias or call.weight is call.bias
        if (weight is None and bias is None) or not plain or itself or not torch.is_grad_enabled():
            return func(*args, **kwargs)
        # The stand-in requires grad so that the output has a node to differentiate at even in the first
        # layer; its own gradient is never asked for, so autograd never computes it.
        swap = {
            id(parameter): parameter.detach().requires_grad_()
            for parameter, name in ((call.weight, weight), (call.bias, bias))
            if name is not None
        }
        version = call.input._version
        output = func(*(swap.get(id(a), a) for a in args), **{k: swap.get(id(v), v) for k, v in kwargs.items()})
        # The edge names the node that made the output, so a later in-place activation does not move it.
        edge = get_gradient_edge(output)
        inside = _leading_to({id(leaf) for leaf in swap.values()}, edge.node, call.input.grad_fn)
        self.uses.append(
            Use(
                kind=call.kind,
                input=call.input.detach(),
                version=version,
                edge=edge,
                shape=output.shape,
                weight=weight,
                bias=bias,
                settings=call.settings,
                traceable=self._traceable,
                inside=inside,
            )
        )
        return output


def remaining(output: Tensor, names: Mapping[int, str], uses: list[Use]) -> set[str]:
    """Names of the followed parameters that ``output`` reaches in other ways than the recorded uses."""
    # An output that is itself a parameter has no grad_fn but is its own leaf.
    found = {names[id(output)]} if id(output) in names else set()
    owner = {node: use for use in uses for node in use.inside}
    for node in _nodes(output.grad_fn):
        variable = getattr(node, "variable", None)
        if variable is not None and id(variable) in names:
            found.add(names[id(variable)])
        for child, _ in node.next_functions:
            use = owner.get(child)
            # A model that differentiates itself reaches a stand-in past the use's output, from its own
            # backward pass.
            if use is not None and node is not use.edge.node and node not in use.inside:
                found |= {name for name in (use.weight, use.bias) if name is not None}
    return found


def _leading_to(leaves: set[int], top: Any, stop: Any) -> frozenset[Any]:
    """The nodes below ``top``, not past ``stop``, from which one of the leaf tensors is reached."""
    parents: dict[Any, list[Any]] = {}
    ends = []
    stack, seen = [top], {top}
    while stack:
        node = stack.pop()
        if id(getattr(node, "variable", None)) in leaves:
            ends.append(node)
        for child, _ in node.next_functions:
            if child is None or child is stop:
                continue
            parents.setdefault(child, []).append(node)
            if child not in seen:
                seen.add(child)
                stack.append(child)
    found: set[Any] = set()
    while ends:
        node = ends.pop()
        if node is not top and node not in found:
            found.add(node)
            ends.extend(parents.get(node, []))
    return frozenset(found)


def _nodes(start: Any) -> Iterator[Any]:
    seen: set[Any] = {start} - {None}
    stack = list(seen)
    while stack:
        node = stack.pop()
        yield node
        for child, _ in node.next_functions:
            if child is not None and child not in seen:
                seen.add(child)
                stack.append(child)

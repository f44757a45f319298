"""Find the graph among the arguments of a graph network's forward call.

The edges are the first of these that exists: the argument that the user named; the argument ``edge_index``; the
``edge_index`` of the only argument that has one, such as a PyG ``Data`` or ``Batch``; the only integer tensor of shape
2 × E. The batch is the argument that the user named, the tensor ``batch``, or the ``batch`` of the same ``Data``.
Anything missing or ambiguous is an error.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from normplace.errors import UsageError

EDGE_FEATURES = ("edge_attr", "edge_weight")


@dataclass(frozen=True)
class InputGraph:
    """The graph of one call.

    Args:
        edge_index: Source and target of each edge, 2 × E.
        num_nodes: The number of nodes; None if only the edges determine it.
        batch: The graph of each node, or None.
    """

    edge_index: Tensor
    num_nodes: int | None
    batch: Tensor | None


@dataclass(frozen=True)
class GraphFinder:
    """Finds the graph among the arguments of a call.

    Args:
        parameters: The names of the positional parameters.
        edges: The name of the argument that holds the edges, or ``name.attribute``; empty to search for it.
        batch: The same for the graph of each node.
    """

    parameters: tuple[str, ...]
    edges: str = ""
    batch: str = ""

    @classmethod
    def of(cls, model: nn.Module, edges: str = "", batch: str = "") -> GraphFinder:
        """The finder for calls of a model.

        Raises:
            UsageError: If an argument name is not a string.
        """
        for option, name in (("edges", edges), ("batch", batch)):
            if not isinstance(name, str):
                raise UsageError(f"{option} is the name of an argument, not a {type(name).__name__}: quote it.")
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        signature = inspect.signature(model.forward).parameters.items()
        return cls(tuple(name for name, parameter in signature if parameter.kind in kinds), edges, batch)

    def find(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> InputGraph:
        """Find the graph of a call.

        Raises:
            UsageError: If there is none, or several arguments could be it.
        """
        arguments = dict(kwargs)
        for position, value in enumerate(args):
            has_name = position < len(self.parameters)
            arguments[self.parameters[position] if has_name else f"argument {position + 1}"] = value
        owner, edges = self._edges(arguments)
        if not isinstance(edges, Tensor) or edges.layout != torch.strided:
            raise UsageError(
                f"the edges are a {type(edges).__name__}, not a dense 2 × E tensor of node indices: call the model "
                "with an edge_index, or pass the scalars of its nodes with values=."
            )
        batch = self._batch(arguments, owner)
        return InputGraph(edges, _num_nodes(arguments, owner, batch), batch)

    def _edges(self, arguments: Mapping[str, Any]) -> tuple[Any, Any]:
        """The argument whose attribute the edges are, or None, and the edges."""
        if self.edges:
            return _lookup(arguments, self.edges, "edges")
        if arguments.get("edge_index") is not None:
            return None, arguments["edge_index"]
        owners = {name: value for name, value in arguments.items() if _attribute(value, "edge_index") is not None}
        candidates = owners or {name: value for name, value in arguments.items() if _looks_like_edges(value)}
        if len(candidates) == 1:
            (value,) = candidates.values()
            return (value, value.edge_index) if owners else (None, value)
        if candidates:
            problem = f"several arguments could be the edges ({', '.join(candidates)})"
        else:
            problem = "no argument holds the edges"
        raise UsageError(
            f"{problem}: the model was called with {', '.join(arguments) or 'nothing'}, so name the one that does with "
            'edges="...", or pass the scalars of its nodes with values=.'
        )

    def _batch(self, arguments: Mapping[str, Any], owner: Any) -> Tensor | None:
        if self.batch:
            return _lookup(arguments, self.batch, "batch")[1]
        batch = arguments.get("batch")  # in PyG's examples often a whole Batch
        batch = batch if isinstance(batch, Tensor) else _attribute(owner, "batch")
        return batch if isinstance(batch, Tensor) else None


def _lookup(arguments: Mapping[str, Any], path: str, option: str) -> tuple[Any, Any]:
    """The argument whose attribute the path names, or None, and the value of ``argument`` or ``argument.attribute``."""
    name, _, attribute = path.partition(".")
    value = arguments.get(name)
    if attribute:
        owner, value = value, _attribute(value, attribute)
    else:
        owner = None
    if value is None:
        raise UsageError(
            f"{option}={path!r} does not match an argument of a call with {', '.join(arguments) or 'nothing'}: "
            "correct it."
        )
    return owner, value


def _attribute(value: Any, name: str) -> Any:
    """An attribute of an argument that is not a tensor, or None."""
    return None if value is None or isinstance(value, Tensor) else getattr(value, name, None)


def _looks_like_edges(value: Any) -> bool:
    return (
        isinstance(value, Tensor) and value.ndim == 2 and len(value) == 2 and value.dtype in (torch.int32, torch.int64)
    )


def _num_nodes(arguments: Mapping[str, Any], owner: Any, batch: Tensor | None) -> int | None:
    features = arguments.get("x") if owner is None else _attribute(owner, "x")
    if isinstance(features, Tensor):
        return len(features)
    if batch is not None:
        return len(batch)
    if owner is not None:
        return _attribute(owner, "num_nodes")
    for name, value in arguments.items():
        if name not in EDGE_FEATURES and isinstance(value, Tensor) and value.is_floating_point() and value.ndim > 1:
            return len(value)
    return None

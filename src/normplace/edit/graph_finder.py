"""Which graph a call of an existing network is about, found among the arguments of its forward.

The edges are, in this order: the argument that the user named; the argument called ``edge_index``; the ``edge_index``
of the one argument that has one, such as a PyG ``Data`` or ``Batch``; the one integer tensor of shape 2 × E. The batch
is the argument that the user named, the tensor called ``batch``, or that of the same ``Data``. Whatever is not found
by these rules, or is found twice, is an error and never a guess.
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
        num_nodes: How many nodes there are; None if nothing but the edges says so.
        batch: The graph of each node, or None.
    """

    edge_index: Tensor
    num_nodes: int | None
    batch: Tensor | None


@dataclass(frozen=True)
class GraphFinder:
    """How to find the graph among a call's arguments.

    Args:
        parameters: Names of the positional parameters.
        edges: Name of the argument that holds the edges, or ``name.attribute``; empty to go by the rules.
        batch: The same for the graph of each node.
    """

    parameters: tuple[str, ...]
    edges: str = ""
    batch: str = ""

    @classmethod
    def of(cls, model: nn.Module, edges: str = "", batch: str = "") -> GraphFinder:
        """How to find it in the calls of a model.

        Args:
            model: The model that will be called.
            edges: What the user named.
            batch: What the user named.

        Raises:
            UsageError: If those are not names.
        """
        for which, name in (("edges", edges), ("batch", batch)):
            if not isinstance(name, str):
                raise UsageError(f"{which} is the name of an argument, not a {type(name).__name__}: quote it.")
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        known = inspect.signature(model.forward).parameters.items()
        return cls(tuple(name for name, parameter in known if parameter.kind in kinds), edges, batch)

    def find(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> InputGraph:
        """The graph of a call with these arguments.

        Raises:
            UsageError: If it is not there or could be several.
        """
        named = dict(kwargs)
        for position, value in enumerate(args):
            known = position < len(self.parameters)
            named[self.parameters[position] if known else f"argument {position + 1}"] = value
        owner, edges = self._edges(named)
        if not isinstance(edges, Tensor) or edges.layout != torch.strided:
            raise UsageError(
                f"the edges are a {type(edges).__name__} of another layout than 2 × E node numbers: call the model "
                "with an edge_index, or give the scalars of its nodes with values=."
            )
        batch = self._batch(named, owner)
        return InputGraph(edges, _num_nodes(named, owner, batch), batch)

    def _edges(self, named: Mapping[str, Any]) -> tuple[Any, Any]:
        """What holds the edges, if it is an argument with attributes, and the edges."""
        if self.edges:
            return _named(named, self.edges, "edges")
        if named.get("edge_index") is not None:
            return None, named["edge_index"]
        holders = {name: value for name, value in named.items() if _attribute(value, "edge_index") is not None}
        found = holders or {name: value for name, value in named.items() if _looks_like_edges(value)}
        if len(found) == 1:
            (value,) = found.values()
            return (value, value.edge_index) if holders else (None, value)
        what = f"several arguments could be the edges ({', '.join(found)})" if found else "no argument holds the edges"
        raise UsageError(
            f"{what}: the model was called with {', '.join(named) or 'nothing'}, so name the one that does with "
            'edges="...", or give the scalars of its nodes with values=.'
        )

    def _batch(self, named: Mapping[str, Any], owner: Any) -> Tensor | None:
        if self.batch:
            return _named(named, self.batch, "batch")[1]
        given = named.get("batch")  # in PyG's examples often a whole Batch
        found = given if isinstance(given, Tensor) else _attribute(owner, "batch")
        return found if isinstance(found, Tensor) else None


def _named(named: Mapping[str, Any], path: str, which: str) -> tuple[Any, Any]:
    """What ``argument`` or ``argument.attribute`` names, after the argument where it is an attribute's."""
    name, _, attribute = path.partition(".")
    value = named.get(name)
    if attribute:
        owner, value = value, _attribute(value, attribute)
    else:
        owner = None
    if value is None:
        raise UsageError(f"{which}={path!r} names nothing in a call with {', '.join(named) or 'nothing'}: correct it.")
    return owner, value


def _attribute(value: Any, name: str) -> Any:
    """An attribute of an argument that is no tensor, or None."""
    return None if value is None or isinstance(value, Tensor) else getattr(value, name, None)


def _looks_like_edges(value: Any) -> bool:
    return (
        isinstance(value, Tensor) and value.ndim == 2 and len(value) == 2 and value.dtype in (torch.int32, torch.int64)
    )


def _num_nodes(named: Mapping[str, Any], owner: Any, batch: Tensor | None) -> int | None:
    rows = named.get("x") if owner is None else _attribute(owner, "x")
    if isinstance(rows, Tensor):
        return len(rows)
    if batch is not None:
        return len(batch)
    if owner is not None:
        return _attribute(owner, "num_nodes")
    for name, value in named.items():
        if name not in EDGE_FEATURES and isinstance(value, Tensor) and value.is_floating_point() and value.ndim > 1:
            return len(value)
    return None

"""A topology scale beside chosen norms of an existing graph network, which is not rewritten.

The scale lives in hooks of the norms, and in a ``forward`` of the copy's own around that of its class, which finds the
graph (:mod:`normplace.edit.graph_finder` says how) and holds its factor until the call ends. So the copy is of the
model's own class, takes its arguments, and has its parameters under their own names.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from normplace.analysis.scale_survival.measure import centres, find_norms, names_of, rows_key
from normplace.edit.graph_finder import GraphFinder
from normplace.errors import UsageError
from normplace.models.memory import FactorMemory
from normplace.models.topology import check_name
from normplace.norms import MsgNorm
from normplace.placement.scale import Gate, Scale

Model = TypeVar("Model", bound=nn.Module)
Chosen = str | nn.Module | Iterable[str | nn.Module] | Callable[[str, nn.Module], bool] | None


@dataclass(frozen=True)
class InsertedScale:
    """A scale beside one norm.

    Args:
        name: The norm's name in the model.
        kind: Its class.
        equation: What now stands there, with N for the norm.
        note: What the user should know of it; empty where there is nothing to say.
    """

    name: str
    kind: str
    equation: str
    note: str = ""


@dataclass(frozen=True)
class Insertions:
    """The scales that were put into a model, in the order of its modules; ``str`` of it is for people.

    Args:
        sites: One for each norm and scale.
    """

    sites: tuple[InsertedScale, ...]

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready form."""
        return asdict(self)

    def __str__(self) -> str:
        columns = [[getattr(site, field) for site in self.sites] for field in ("name", "kind", "equation", "note")]
        widths = [max(map(len, column), default=0) for column in columns]
        rows = zip(*columns, strict=True)
        lines = ["  ".join(f"{word:{width}}" for word, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        return "\n".join(lines) or "no scale was inserted"


def insert(
    model: Model,
    scale: Scale,
    after: Chosen = None,
    *,
    gate: str | None = None,
    edges: str = "",
    batch: str = "",
    values: Tensor | None = None,
) -> Model:
    """A copy of a graph network with a positive scalar per node multiplied in beside chosen norms.

    PostDeg (arXiv 2606.14022) in any PyG model is ``insert(model, Scale("degree", power=-1))``. ``insertions`` of the
    result says what stands where, and where the norm will divide the scalar out again; :func:`normplace.survival` says
    beforehand which norms are worth it.

    The copy is called as the model is, and loads its state dict; with a gate, the gates' parameters are the only new
    ones. It is the model's own ``forward`` that must be called: a norm reached by another method, or by activation
    checkpointing of a part, does not know its graph unless ``values`` are given.

    Args:
        model: Any module whose forward is given a graph; left as it is.
        scale: What to multiply in, and on which side of the norms. Its ``slot`` is for networks built here.
        after: The norms: a name such as ``"convs.0.norm"``, several of them, the modules themselves, or a function of
            name and module that says yes; by default the outermost of PyTorch's, this library's and PyG's norms.
        gate: None, or ``learned`` or ``mlp`` to train what the scalar becomes, at every norm separately.
        edges: Name of the forward's argument that holds the edges, or ``name.attribute``; needed only where the rules
            of :mod:`normplace.edit.graph_finder` do not find it.
        batch: The same for the argument that says which graph each node is in.
        values: The scalar of every node, for a model that always sees the same graph; then no edges are looked for, and
            the scale's source may be anything.

    Returns:
        The copy.

    Raises:
        UsageError: If there is no such norm or scalar, or arguments contradict each other; and from the copy's forward
            if the graph is not found, or a norm has not one row per node.

    Example:
        >>> class Net(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.norm, self.head = nn.LayerNorm(4), nn.Linear(4, 1)
        ...     def forward(self, x, edge_index):
        ...         return self.head(self.norm(x.index_add(0, edge_index[1], x[edge_index[0]])))
        >>> print(insertions(insert(Net(), Scale("degree", power=-1))))
        norm  LayerNorm  degree^-1 * N(x)
    """
    if scale.slot is not None:
        raise UsageError(
            f"the slot {scale.slot!r} names a place of a Placement: leave it out and name norms with after."
        )
    if values is None:
        check_name(scale.source)
    elif values.ndim != 1:
        raise UsageError(f"values must hold one number for each node, got {tuple(values.shape)}.")
    names = _norms(model, after)
    changed = copy.deepcopy(model)
    insertion = _Insertion(changed, scale, GraphFinder.of(model, edges, batch), values)
    for name in names:
        insertion.add(name, changed.get_submodule(name), None if gate is None else _gate(gate, name, changed))
    changed.forward = insertion
    return changed


def insertions(model: nn.Module) -> Insertions:
    """What :func:`insert` has put into a model."""
    sites, outer = (), model.__dict__.get("forward")
    while isinstance(outer, _Insertion):
        sites, outer = outer.sites + sites, outer.inner
    return Insertions(sites)


class _Insertion:
    """The forward of a model with one scale in it: the factor of the graph that is being computed, for hooks of norms.

    An instance's ``forward`` rather than hooks of the model: it also ends when the model fails, and compiles with it.
    """

    def __init__(self, model: nn.Module, scale: Scale, call: GraphFinder, values: Tensor | None) -> None:
        self.model, self.inner = model, model.__dict__.get("forward")
        self.__signature__ = inspect.signature(model.forward)
        self.scale, self.call, self.memory = scale, call, FactorMemory()
        # Like what the memory gives: in double precision, rounded where it is used.
        self.fixed = None if values is None else scale.factor(values.detach().double())
        self.factor = self.fixed
        self.sites: tuple[InsertedScale, ...] = ()
        self.handles: list[Any] = []

    def keep(self, handle: Any) -> None:
        """Keep a hook handle, so that a loaded model does not reuse its hook id."""
        self.handles.append(handle)

    def add(self, name: str, norm: nn.Module, gate: str | None) -> None:
        """Stand beside a norm."""
        before = self.scale.where == "before"
        symbol = self.scale.symbol if gate is None else f"g({self.scale.symbol})"
        equation = f"N({symbol} * x)" if before else f"{symbol} * N(x)"
        self.sites += (InsertedScale(name, type(norm).__name__, equation, _note(norm) if before else ""),)
        if before:
            hook = partial(self.on_input, name=name, gate=gate)
            self.keep(norm.register_forward_pre_hook(hook, with_kwargs=True))
        else:
            self.keep(norm.register_forward_hook(partial(self.on_result, name=name, gate=gate)))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the model returns; its norms know the graph meanwhile."""
        if self.fixed is None:
            graph = self.call.find(args, kwargs)
            self.factor = self.memory.factor(self.scale, graph.edge_index, graph.num_nodes, graph.batch, torch.float64)
        try:
            if self.inner is not None:
                return self.inner(*args, **kwargs)
            return type(self.model).forward(self.model, *args, **kwargs)
        finally:
            self.factor = self.fixed

    def on_input(
        self, norm: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], *, name: str, gate: str | None
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Before a norm: scale its rows."""
        key = rows_key(norm, args, kwargs)
        if isinstance(key, str):
            return args, {**kwargs, key: self.scaled(kwargs[key], norm, name, gate)}
        return (*args[:key], self.scaled(args[key], norm, name, gate), *args[key + 1 :]), kwargs

    def on_result(self, norm: nn.Module, args: tuple[Any, ...], result: Any, *, name: str, gate: str | None) -> Tensor:
        """After a norm: scale what it made of them."""
        return self.scaled(result, norm, name, gate)

    def scaled(self, rows: Any, norm: nn.Module, name: str, gate: str | None) -> Tensor:
        """The rows beside a norm times the factor."""
        factor = self.factor
        if factor is None:
            raise UsageError(
                f"{name!r} was called outside the model's forward, where its graph is not known: call the model "
                "itself, or insert the scale with values=."
            )
        if not isinstance(rows, Tensor) or rows.shape[:1] != factor.shape[:1]:
            found = f"{rows.shape[0] if rows.ndim else 1} rows" if isinstance(rows, Tensor) else type(rows).__name__
            raise UsageError(
                f"{name!r} has {found} where the graph has {len(factor)} nodes: leave out norms that do not stand at "
                "nodes, with after=."
            )
        if gate is not None:
            learned = norm.get_submodule(gate)
            factor = learned(factor.to(next(learned.parameters())))
        return rows * factor.to(rows).view(-1, *[1] * (rows.ndim - 1))


def _norms(model: nn.Module, after: Chosen) -> list[str]:
    """The names of the norms that were chosen."""
    if after is None:
        names = list(find_norms(model))
        if not names:
            raise UsageError('the model has no norm this function knows: name the modules with after="...".')
        return names
    if isinstance(after, str | nn.Module):
        after = [after]
    if callable(after):
        names = [name for name, module in model.named_modules() if after(name, module)]
    else:
        names = names_of(model, after)
    if not names:
        raise UsageError("after chooses no module of the model: name at least one.")
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"after names {name!r} twice: insert a scale with another power instead.")
        if outer := [other for other in names if other != name and f"{name}.".startswith(f"{other}." if other else "")]:
            raise UsageError(f"{name!r} lies inside {outer[0]!r}, so it would be scaled twice: choose one of them.")
    return names


def _gate(kind: str, name: str, model: nn.Module) -> str:
    """Give a norm a gate of its own, as a child whose name is returned."""
    norm = model.get_submodule(name)
    if isinstance(norm, nn.Sequential):
        raise UsageError(f"{name!r} is a Sequential, which would run a gate as its last step: name the norm inside it.")
    like = next((p for p in (*norm.parameters(), *model.parameters()) if p.is_floating_point()), torch.empty(0))
    number = sum(isinstance(child, Gate) for child in norm.children())
    chosen = "scale_gate" if not number else f"scale_gate_{number + 1}"
    norm.add_module(chosen, Gate(kind, device=like.device, dtype=like.dtype))
    return chosen


def _note(norm: nn.Module) -> str:
    """What becomes of a scale before a norm."""
    if isinstance(norm, MsgNorm) or type(norm).__name__ == "MessageNorm":
        return "the norm replaces the length of the row, so nothing of the scale is left"
    if centres(norm) is None:
        return ""
    eps = getattr(norm, "eps", None)
    stated = "the machine epsilon" if eps is None else f"its eps of {eps:g}"
    return f'the norm divides the scale out again, up to {stated}; where="after" keeps it'

"""Insert a scale before or after chosen norms of an existing network: of a graph, or any positive number per row.

Hooks on the norms multiply by the scale. A ``forward`` attribute on the copy wraps the forward of its class: it finds
the graph of the call (:mod:`normplace.edit.insert.graph_finder`) and provides its factor to the hooks until the call
ends. So the copy has the class, the arguments and the parameter names of the model.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from types import CodeType
from typing import Any

import torch
from torch import Tensor, nn

from normplace._shared.modules import Model
from normplace._shared.text_table import text_table
from normplace.analysis.api import analyze
from normplace.analysis.norms.classes import known_norm_modules, module_names, rows_argument, subtracts_mean
from normplace.analysis.recording.structures import fresh_inputs
from normplace.edit.insert.graph_finder import GraphFinder
from normplace.edit.model.copying import copy_model
from normplace.edit.model.hook_guards import guard_hooks
from normplace.edit.model.model_map import is_outside_tree
from normplace.edit.record.changes import Change, add_edit, changes, set_changes
from normplace.errors import UsageError
from normplace.models.memory import FactorMemory
from normplace.models.topology import check_name
from normplace.norms import MsgNorm
from normplace.placement.scale import Gate, Scale

Values = Tensor | Callable[..., Tensor]
"""The scalar of every row, or a function of a call's arguments that returns it."""
NormChoice = str | nn.Module | Iterable[str | nn.Module] | Callable[[str, nn.Module], bool]


@dataclass(frozen=True)
class InsertedScale:
    """A scale at one norm.

    Args:
        name: The norm's name in the model.
        kind: Its class.
        equation: The arithmetic of norm and scale, with N for the norm.
        note: What the norm does to the scale; empty if nothing.
    """

    name: str
    kind: str
    equation: str
    note: str = ""


@dataclass(frozen=True)
class Insertions:
    """The scales inserted into a model, in the order of its modules; ``str()`` gives a table.

    Args:
        sites: One per norm and scale.
    """

    sites: tuple[InsertedScale, ...]

    def to_dict(self) -> dict[str, Any]:
        """The record as JSON-ready values."""
        return asdict(self)

    def __str__(self) -> str:
        rows = [(site.name, site.kind, site.equation, site.note) for site in self.sites]
        return text_table(rows[0], rows[1:]) if rows else "no scale was inserted"

    __repr__ = __str__  # what a notebook shows


def insert(
    model: Model,
    scale: Scale,
    after: NormChoice | None = None,
    *,
    gate: str | None = None,
    edges: str = "",
    batch: str = "",
    values: Values | None = None,
    inputs: tuple[Any, ...] | None = None,
) -> Model:
    """Return a copy with a positive scalar per row, such as a node or a token, multiplied in at chosen norms.

    PostDeg (arXiv 2606.14022) in any PyG model is ``insert(model, Scale("degree", power=-1))``. ``insertions`` of the
    copy reports where the scales are, and where the norm divides the scalar out again. :func:`normplace.survival`
    reports beforehand at which norms a scale has an effect.

    The copy is called like the model and loads its state dict; the parameters of a gate are the only new ones. Call the
    copy itself: a norm that is reached through another method, or recomputed by activation checkpointing of a
    submodule, has no graph unless ``values`` is a tensor.

    Args:
        model: Any module; it is not changed. Without ``values``, its forward must receive a graph.
        scale: The scalar, and the side of the norm it is on. Its ``slot`` applies only to networks built by normplace.
        after: The norms: a name such as ``"convs.0.norm"``, several names, the modules themselves, or a predicate of
            name and module. By default all norm modules: those that the analysis of ``inputs`` finds or, without
            inputs, the outermost norms of PyTorch, PyG and normplace.
        gate: None, or ``learned`` or ``mlp`` for a trained function of the scalar at every norm.
        edges: The name of the forward argument that holds the edges, or ``name.attribute``; only needed if the rules
            of :mod:`normplace.edit.insert.graph_finder` do not find it.
        batch: The same for the argument that holds the graph of each node.
        values: The scalar of every row, with the leading dimensions of the norms' features: one number per node, per
            sample, or per sample and token. Or a function that returns it, called with the arguments of each call of
            the model. The edges are then not needed, and the scale's source may have any name.
        inputs: The positional arguments of an example call. With them, norms of any class are found, and the copy is
            verified by analysing a call of it.

    Returns:
        The copy.

    Raises:
        UsageError: If the norm or scalar does not exist, or arguments contradict each other. If the copy cannot find
            the graph of a call, or a norm does not have one row per node; without ``inputs``, its forward raises this.

    Examples:
        >>> class Net(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.norm, self.head = nn.LayerNorm(4), nn.Linear(4, 1)
        ...     def forward(self, x, edge_index):
        ...         return self.head(self.norm(x.index_add(0, edge_index[1], x[edge_index[0]])))
        >>> print(insertions(insert(Net(), Scale("degree", power=-1))))
        norm  LayerNorm  degree^-1 * N(x)
    """
    if not isinstance(scale, Scale):
        raise UsageError(f'insert takes a Scale, such as npl.Scale("degree", power=-1), not a {type(scale).__name__}.')
    if scale.slot is not None:
        raise UsageError(
            f"the slot {scale.slot!r} belongs to a Placement: leave it out, and choose the norms with after."
        )
    if values is None:
        check_name(scale.source)
    elif not isinstance(values, Tensor) and not callable(values):
        raise UsageError(f"values must be a tensor or a function that returns one, not a {type(values).__name__}.")
    names = _all_norms(model, inputs) if after is None else _chosen_norms(model, after)
    edited = copy_model(model)
    forward = ScaledForward(edited, scale, GraphFinder.of(model, edges, batch), values)
    for name in names:
        forward.attach(name, edited.get_submodule(name), None if gate is None else _add_gate(gate, name, edited))
    edited.forward = forward
    if inputs is not None:
        _verify(edited, names, inputs)
    added = tuple(Change("added", "scale", site.name, note=site.equation) for site in forward.sites)
    set_changes(edited, replace(changes(edited), sites=(*changes(edited).sites, *added)))
    request = {"scale": [scale.source, scale.power, scale.where], "after": names, "gate": gate}
    add_edit(edited, "insert", **request, edges=edges, batch=batch, has_values=values is not None)
    return edited


def repeat_insert(model: Model, settings: Mapping[str, Any]) -> Model:
    """Repeat a recorded insertion.

    Raises:
        UsageError: If it had values, which the record does not have.
    """
    source, power, where = settings["scale"]
    if settings["has_values"]:
        raise UsageError(
            f"the values of the scale {source!r} are not recorded: insert it again, then load the weights."
        )
    options = {name: settings[name] for name in ("after", "gate", "edges", "batch")}
    return insert(model, Scale(source, power, where), **options)


def insertions(model: nn.Module) -> Insertions:
    """The scales that :func:`insert` put into a model."""
    sites, forward = (), model.__dict__.get("forward")
    while isinstance(forward, ScaledForward):
        sites, forward = forward.sites + sites, forward.inner
    return Insertions(sites)


class ScaledForward:
    """The forward of a model with an inserted scale. During a call it holds the factor of the call's graph.

    It is an instance's ``forward`` rather than a pair of hooks, so that it ends with the call even if the model raises,
    and compiles with the model.

    Args:
        model: The edited copy.
        scale: The scale.
        graph_finder: Finds the graph of a call.
        values: The scalar of every row, or a function of the arguments; None to compute it from the graph.
    """

    def __init__(self, model: nn.Module, scale: Scale, graph_finder: GraphFinder, values: Values | None) -> None:
        self.model, self.inner = model, model.__dict__.get("forward")
        self.__signature__ = inspect.signature(model.forward)
        self.scale, self.graph_finder, self.memory = scale, graph_finder, FactorMemory()
        # Double precision, like the factors in memory; rounded where it is used.
        self.fixed_factor = scale.factor(values.detach().double()) if isinstance(values, Tensor) else None
        self.values = None if isinstance(values, Tensor) else values
        self.factor = self.fixed_factor
        self.sites: tuple[InsertedScale, ...] = ()
        # Unpickling a handle reserves its hook id, so later hooks get other ids.
        self.handles: list[Any] = []

    def attach(self, name: str, norm: nn.Module, gate: str | None) -> None:
        """Register the hook that scales the input or output of a norm."""
        guard_hooks()
        before = self.scale.where == "before"
        symbol = self.scale.symbol if gate is None else f"g({self.scale.symbol})"
        equation = f"N({symbol} * x)" if before else f"{symbol} * N(x)"
        self.sites += (InsertedScale(name, type(norm).__name__, equation, _note(norm) if before else ""),)
        if before:
            hook = partial(self.scale_input, name=name, gate=gate)
            self.handles.append(norm.register_forward_pre_hook(hook, with_kwargs=True))
        else:
            hook = partial(self.scale_output, name=name, gate=gate)
            self.handles.append(norm.register_forward_hook(hook))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the model with the factor of its graph."""
        if self.values is not None:
            self.factor = self.scale.factor(self.values(*args, **kwargs))
        elif self.fixed_factor is None:
            graph = self.graph_finder.find(args, kwargs)
            self.factor = self.memory.factor(self.scale, graph.edge_index, graph.num_nodes, graph.batch, torch.float64)
        try:
            if self.inner is not None:
                return self.inner(*args, **kwargs)
            return type(self.model).forward(self.model, *args, **kwargs)
        finally:
            self.factor = self.fixed_factor

    def __getstate__(self) -> dict[str, Any]:
        """The attributes without the handles of norms that are gone, which cannot be copied."""
        handles = [handle for handle in self.handles if handle.hooks_dict_ref() is not None]
        return {**vars(self), "handles": handles}

    @property
    def __code__(self) -> CodeType:
        """What ``torch.export`` reads of a model's ``forward``."""
        return inspect.unwrap(type(self.model).forward).__code__

    def scale_input(
        self, norm: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], *, name: str, gate: str | None
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Forward pre-hook of a norm."""
        key = rows_argument(norm, args, kwargs)
        if isinstance(key, str):
            return args, {**kwargs, key: self.scaled(kwargs[key], norm, name, gate)}
        return (*args[:key], self.scaled(args[key], norm, name, gate), *args[key + 1 :]), kwargs

    def scale_output(
        self, norm: nn.Module, args: tuple[Any, ...], output: Any, *, name: str, gate: str | None
    ) -> Tensor:
        """Forward hook of a norm."""
        return self.scaled(output, norm, name, gate)

    def scaled(self, features: Any, norm: nn.Module, name: str, gate: str | None) -> Tensor:
        """Multiply the features of every node by the factor."""
        factor = self.factor
        if factor is None:
            raise UsageError(
                f"{name!r} was called outside the model's forward, where its graph is not known: call the model "
                "itself, or insert the scale with a tensor as values."
            )
        rows = factor.shape[:-1]
        if not isinstance(features, Tensor) or features.ndim <= len(rows) or features.shape[: len(rows)] != rows:
            raise _wrong_rows(name, features, rows)
        if gate is not None:
            learned = norm.get_submodule(gate)
            factor = learned(factor.to(next(learned.parameters())))
        return features * factor.to(features).view(*rows, *[1] * (features.ndim - len(rows)))


def _wrong_rows(name: str, features: Any, rows: Sequence[int]) -> UsageError:
    """The error for a norm whose rows are not those of the scale."""
    advice = "leave out norms that are not applied to them, with after="
    if len(rows) > 1 or (isinstance(features, Tensor) and features.ndim > 2):
        size = f"has features of shape {tuple(features.shape)}" if isinstance(features, Tensor) else "has no features"
        return UsageError(f"{name!r} {size} where the scale has values of shape {tuple(rows)}: {advice}.")
    is_tensor = isinstance(features, Tensor)
    size = f"{features.shape[0] if features.ndim else 1} rows" if is_tensor else type(features).__name__
    return UsageError(
        f"{name!r} has {size} where the graph has {rows[0]} nodes: leave out norms that are not applied to nodes, with "
        "after=."
    )


def _all_norms(model: nn.Module, inputs: tuple[Any, ...] | None) -> list[str]:
    """The names of all norm modules."""
    if inputs is None:
        names = list(known_norm_modules(model))
    else:
        sites = analyze(model, *fresh_inputs(inputs)).sites
        names = list(dict.fromkeys(site.name for site in sites if site.own_module and not is_outside_tree(site.name)))
    if not names:
        raise UsageError('the model has no known norm module: name the modules with after="...".')
    return names


def _verify(edited: nn.Module, names: Iterable[str], inputs: tuple[Any, ...]) -> None:
    """Check that a call of the edited copy runs, and calls every module with a scale."""
    called = {call.path for call in analyze(edited, *fresh_inputs(inputs)).tape.calls}
    for name in names:
        if name not in called:
            raise UsageError(f"the model does not call {name!r} on these inputs, so its scale has no effect.")


def _chosen_norms(model: nn.Module, after: NormChoice) -> list[str]:
    """The names of the chosen norms."""
    if isinstance(after, str | nn.Module):
        after = [after]
    if callable(after):
        names = [name for name, module in model.named_modules() if after(name, module)]
    else:
        names = module_names(model, after)
    if not names:
        raise UsageError("after chooses no module of the model: name at least one.")
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"after names {name!r} twice: insert a scale with another power instead.")
        if outer := [other for other in names if other != name and f"{name}.".startswith(f"{other}." if other else "")]:
            raise UsageError(f"{name!r} is inside {outer[0]!r}, so it would be scaled twice: choose one of them.")
    return names


def _add_gate(kind: str, name: str, model: nn.Module) -> str:
    """Add a gate to a norm as a child, and return the child's name."""
    norm = model.get_submodule(name)
    if isinstance(norm, nn.Sequential):
        raise UsageError(f"{name!r} is a Sequential, which would run a gate as its last step: name the norm inside it.")
    like = next((p for p in (*norm.parameters(), *model.parameters()) if p.is_floating_point()), torch.empty(0))
    number = sum(isinstance(child, Gate) for child in norm.children())
    child = "scale_gate" if not number else f"scale_gate_{number + 1}"
    norm.add_module(child, Gate(kind, device=like.device, dtype=like.dtype))
    return child


def _note(norm: nn.Module) -> str:
    """What a norm does to a scale before it."""
    if isinstance(norm, MsgNorm) or type(norm).__name__ == "MessageNorm":
        return "the norm replaces the length of the row, so the scale has no effect"
    if subtracts_mean(norm) is None:
        return ""
    eps = getattr(norm, "eps", None)
    limit = "the machine epsilon" if eps is None else f"its eps of {eps:g}"
    return f'the norm divides the scale out again, up to {limit}; where="after" keeps it'

"""``normplace.audit``: where every norm of a model stands."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from normplace.analysis.blocks.assemble import Assembly
from normplace.analysis.blocks.naming import placement_name
from normplace.analysis.blocks.slots import Placer
from normplace.analysis.dataflow.graph import Graph
from normplace.analysis.findings import Evidence, find
from normplace.analysis.norms.find import Norm, find_norms
from normplace.analysis.recording.recorder import Recorder, record, said_by, tensors_of
from normplace.analysis.recording.tape import Tape
from normplace.analysis.residuals.adds import ResidualAdd, find_residuals, nested, spans
from normplace.analysis.residuals.attention_scores import score_nodes
from normplace.analysis.results import Audit, Site
from normplace.errors import UsageError

# What torch says when a value is asked of a tensor that has none.
WITHOUT_VALUES = ("meta tensor", "no data", "data-dependent", "data-independent", "DataDependent")


def audit(model: nn.Module, *inputs: Any, certify: bool = False, **kwargs: Any) -> Audit:
    """Find every norm and residual add of a model in one forward pass, and say where each norm stands.

    Nothing is judged by name or by the order of registration: the pass is recorded operator by operator, so functional
    and hand-written norms are found too. The model runs once, in evaluation mode and without gradients. One that was
    built under ``torch.device("meta")`` costs neither memory nor time, whatever its size, but then nothing is measured.

    Args:
        model: Any module.
        *inputs: What it is called with; moved to ``meta`` for a model that lives there.
        certify: Also ask :func:`normplace.ntk.certificate` whether the model can explode outside its data, which takes
            many passes; for a model of one input, rows of features.
        **kwargs: What it is called with, by name.

    Returns:
        A frozen :class:`~normplace.analysis.results.Audit`; ``str`` of it is for people.

    Raises:
        UsageError: If the model is none, or its forward pass fails.

    Example:
        >>> layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        >>> found = audit(layer, torch.randn(1, 3, 8))
        >>> found.placement, [(site.name, site.slot) for site in found.sites]
        ('post', [('norm1', 'stream'), ('norm2', 'stream')])
    """
    if not isinstance(model, nn.Module):
        raise UsageError(f"audit takes an nn.Module, got {type(model).__name__}: build the model first.")
    model = getattr(model, "_orig_mod", model)  # a compiled model runs kernels that cannot be seen
    certified = (*inputs, *kwargs.values()) if certify else None
    return analyse(model, run(model, inputs, kwargs), certified)[1]


def analyse(model: nn.Module, tape: Tape, certified: tuple[Any, ...] | None = None) -> tuple[Assembly, Audit]:
    """Analyse a recorded pass.

    Args:
        model: The model that was recorded.
        tape: Its pass.
        certified: What to certify the model on; None to leave the certificate out.

    Returns:
        The assembled graph, whose norms and residual adds are in the order of the audit's sites and blocks, and the
        audit.
    """
    graph = Graph(tape)
    norms = find_norms(graph)
    assembly = placed(graph, norms)
    places = assembly.places
    blocks, block_of = assembly.blocks()
    names = names_of(graph, norms, assembly.residuals)
    sites = tuple(
        Site(
            name, place.slot, norm.kind, None if place.residual is None else block_of[place.residual],
            tape.calls[norm.call].path if norm.call >= 0 else "", own, norm.eps,
            _dtype(graph.values[norm.input].dtype), _dtype(norm.precision), norm.variance,
        )
        for norm, place, (name, own) in zip(norms, places, names, strict=True)
    )  # fmt: skip
    evidence = Evidence(model, assembly, sites, tuple(blocks), tuple(block_of), certified)
    placement = placement_name(blocks, bool(norms), assembly.twins(block_of))
    return assembly, Audit(
        type(model).__name__, placement, sites, tuple(blocks), find(evidence), len(tape.ops),
        tuple(assembly.unknown.values()),
    )  # fmt: skip


def placed(graph: Graph, norms: Sequence[Norm]) -> Assembly:
    """The norms placed.

    A sum within a branch is left out where it has no norm of its own and its branch holds no block that has one.
    """
    refused = score_nodes(graph)
    while True:
        residuals, reach = find_residuals(graph, norms, refused)
        placer = Placer(graph, norms, residuals, reach)
        places = placer.places()
        owned = {residuals[place.residual] for place in places if place.residual is not None}
        inner = {residual for residual, _ in nested(residuals, reach)} - owned
        silent = {residual.node for residual in inner if not spans(owned, reach, residual)}
        if not silent:
            return Assembly(graph, norms, places, residuals, reach, placer.cores)
        refused |= silent


def run(model: nn.Module, inputs: tuple[Any, ...], kwargs: Mapping[str, Any], recorder: Recorder | None = None) -> Tape:
    """Record the pass; whatever goes wrong becomes one sentence."""
    try:
        inspect.signature(model.forward).bind(*inputs, **kwargs)
    except TypeError as error:
        raise UsageError(
            f"{type(model).__name__}.forward cannot be called so ({error}): give audit the inputs after the model."
        ) from None
    except ValueError:
        pass  # a forward without a signature is called as it is
    on_meta = any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers()))
    if on_meta:
        inputs, kwargs = _to_meta(inputs), _to_meta(dict(kwargs))
    try:
        return record(model, inputs, kwargs, recorder)
    except UsageError:
        raise
    except Exception as error:
        if on_meta and any(word in str(error) + type(error).__name__ for word in WITHOUT_VALUES):
            raise UsageError(
                f"the forward pass asks for the values of tensors that a meta model does not have ({said_by(error)}): "
                "build the model on the CPU, smaller if need be."
            ) from error
        given = ", ".join(f"{tuple(tensor.shape)} {_dtype(tensor.dtype)}" for tensor in tensors_of((inputs, kwargs)))
        raise UsageError(
            f"the forward pass failed on inputs {given or 'without tensors'} ({said_by(error)}): "
            "call the model itself first to see where."
        ) from error


def _to_meta(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.to("meta")
    if isinstance(value, dict):
        return {key: _to_meta(held) for key, held in value.items()}
    return type(value)(_to_meta(held) for held in value) if type(value) in (tuple, list) else value


def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def names_of(graph: Graph, norms: Sequence[Norm], residuals: Sequence[ResidualAdd]) -> list[tuple[str, bool]]:
    """The name of each norm, and whether it has a module of its own.

    A module is a norm's own when its call holds that norm and nothing that mixes or adds.
    """
    calls = graph.tape.calls
    busy: set[int] = set()
    held: Counter[int] = Counter()

    def upwards(call: int):
        while call >= 0:
            yield call
            call = calls[call].parent

    for node in graph.nodes:
        if graph.is_barrier(node) and node.call not in busy:
            busy.update(upwards(node.call))
    for residual in residuals:
        busy.update(upwards(residual.call))
    for norm in norms:
        held.update(upwards(norm.call))
    found, used = [], Counter()
    for norm in norms:
        own = norm.call >= 0 and norm.call not in busy and held[norm.call] == 1 and calls[norm.call].path != ""
        path = calls[norm.call].path if norm.call >= 0 else ""
        name = path if own else f"{path}:{norm.kind}"
        if not own:
            used[norm.call, name] += 1
            count = used[norm.call, name]
            name = name if count == 1 else f"{name}#{count}"
        found.append((name, own))
    return found

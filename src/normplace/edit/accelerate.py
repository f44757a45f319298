"""``normplace.accelerate``: PyG's graph convolutions and aggregations replaced by equal ones with faster kernels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from normplace._shared.modules import Model, device_of
from normplace.analysis.recording.passes import checked_module
from normplace.analysis.recording.structures import copy_module
from normplace.edit.fold.verify import EXACT, TOLERANCE, difference
from normplace.edit.fuse.numbers import Numbers, measure, measure_in_float64
from normplace.edit.model.attachments import has_other_hooks
from normplace.edit.model.copying import copy_model, require_independent
from normplace.edit.record.changes import Change, changes, set_changes
from normplace.edit.swap.undo import replace_norm
from normplace.edit.verify.capture import Arguments
from normplace.errors import UsageError, first_line
from normplace.models.aggregation import Aggregation
from normplace.models.pyg_conversion import aggregation_arguments, arguments_from_pyg, is_pyg, share_weights

ORIGINALS = "normplace_accelerated"
"""The attribute of a model that holds PyG's modules, with those in their places and the parts of those, by name.

It is not part of the state dict."""
CLASSES = ("GENConv", "SoftmaxAggregation", "PowerMeanAggregation")
FAILURES = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""What a call with unsuitable arguments raises."""
NODES, EDGES, CHANNELS = 24, 96, 8
"""Size of the made-up graph."""


def accelerate(model: Model, *inputs: Any, **kwargs: Any) -> Model:
    """Return a copy with PyG's ``GENConv``, softmax and power-mean aggregations replaced by those of this library.

    The copy has the same state dict and computes the same function; its convolutions do not store messages. Each new
    module is compared with PyG's in float64 on a made-up graph, outputs and gradients, and so is the whole model if
    inputs are given. :func:`normplace.changes` of the copy lists what was replaced, and what was not with the reason.
    :func:`normplace.edit.unaccelerate` restores PyG's modules, with the weights of that time.

    Args:
        model: Any module; it is not changed.
        *inputs: The positional arguments of a call, to compare the whole model too.
        **kwargs: The keyword arguments of a call.

    Returns:
        The copy, of the model's class.

    Raises:
        UsageError: If PyG is not installed, the model has nothing to replace, or the copy computes something else.

    Examples:
        >>> from torch_geometric.nn import GENConv
        >>> conv = GENConv(8, 16, aggr="softmax", learn_t=True)
        >>> type(accelerate(conv)).__module__
        'normplace.pyg.conv'
    """
    model = checked_module(model, "accelerate")
    copied, sites, refused, error = _replace_all(copy_model(model))
    if not sites:
        reason = refused[0] if refused else f"{type(model).__name__} has no {', '.join(CLASSES)} of PyG."
        raise UsageError(f"there is nothing to accelerate: {reason}")
    where = "on a made-up graph"
    if inputs or kwargs:
        error, where = max(error, _verify_model(model, copied, (inputs, kwargs))), "on the given inputs"
    note = f"outputs and gradients differ by at most {error:.1e} {where}"
    set_changes(copied, replace(changes(model), sites=tuple(sites), refused=tuple(refused), note=note))
    return copied  # pyright: ignore[reportReturnType]


def unaccelerate(model: Model) -> Model:
    """Return a copy with PyG's modules in the place of those of :func:`normplace.accelerate`, with their weights.

    Args:
        model: A model that :func:`normplace.accelerate` returned; it may have been trained since.

    Raises:
        UsageError: If the model was not accelerated, or a module was replaced or edited since.
    """
    if not getattr(model, ORIGINALS, None):
        raise UsageError("there is nothing to undo: the model was not accelerated, or was loaded from a file.")
    copied: nn.Module = copy_model(model)
    sites = []
    for path, (old, new, parts) in getattr(copied, ORIGINALS).items():
        if copied.get_submodule(path) is not new:
            raise UsageError(f"{path!r} was replaced since the model was accelerated, so that cannot be undone.")
        if _parts(new) != parts or _has_inner_hooks(new):
            raise UsageError(f"{path!r} was edited since the model was accelerated, so that cannot be undone.")
        share_weights(new, old)
        copied = _put(copied, path, new, old)
        sites.append(Change("replaced", type(old).__name__, path or "the model", note="restored"))
    if hasattr(copied, ORIGINALS):
        delattr(copied, ORIGINALS)
    set_changes(copied, replace(changes(model), sites=tuple(sites), refused=(), note=""))
    return copied  # pyright: ignore[reportReturnType]


def _parts(module: nn.Module) -> list[tuple[str, type[nn.Module]]]:
    """The names and classes of a module's parts."""
    return [(name, type(part)) for name, part in module.named_modules()]


def _has_inner_hooks(module: nn.Module) -> bool:
    """Whether a part of a module has hooks, those of edits too."""
    inner = [part for part in module.modules() if part is not module]
    return any(part._forward_hooks or part._forward_pre_hooks or has_other_hooks(part) for part in inner)


def _replace_all(model: nn.Module) -> tuple[nn.Module, list[Change], list[str], float]:
    """Replace what can be replaced; return the model, the record, and the largest relative difference."""
    sites, refused, originals, worst = [], [], {}, 0.0
    for path, module in list(_candidates(model)):
        if any(path.startswith(f"{done}.") or not done for done in originals):
            continue
        try:
            new = _build_replacement(module)
            worst = max(worst, _verify_module(module, new))
        except UsageError as error:
            refused.append(f"{path or type(module).__name__!r} is left alone, because {_as_clause(error)}")
            continue
        model = _put(model, path, module, new)
        originals[path] = (module, new, _parts(new))
        sites.append(Change("replaced", type(module).__name__, path or "the model", note="PyG -> normplace"))
    if originals:
        setattr(model, ORIGINALS, {**getattr(model, ORIGINALS, {}), **originals})
    return model, sites, refused, worst


def _candidates(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Every convolution and aggregation to replace, and every subclass of them outside this library."""
    for path, module in model.named_modules():
        kinds = {kind.__name__ for kind in type(module).__mro__ if kind.__module__.startswith("torch_geometric.nn")}
        if kinds & set(CLASSES):
            yield path, module


def _as_clause(error: UsageError) -> str:
    return str(error)[:1].lower() + str(error)[1:]


def _build_replacement(module: Any) -> nn.Module:
    """A module of this library with the parameters of PyG's.

    Raises:
        UsageError: If there is none, with the reason.
    """
    from normplace import pyg

    kind = type(module).__name__
    if not any(is_pyg(module, name) for name in CLASSES):
        raise UsageError(f"it is a {kind}, a subclass that may compute something else.")
    if has_other_hooks(module) or _has_inner_hooks(module):
        raise UsageError("it has hooks, which the new module would not have.")
    named = aggregation_arguments(module)
    if named is not None:
        build = pyg.SoftmaxAggregation if named[0] == "softmax" else pyg.PowerMeanAggregation
        new: nn.Module = build(**named[1])
    else:
        arguments = arguments_from_pyg(module)
        if isinstance(arguments["aggr"], nn.Module):
            raise UsageError(f"this library has no {type(arguments['aggr']).__name__}.")
        new = pyg.GENConv(**arguments)
        new.aggr = module.aggr
    share_weights(module, new)
    return new


def _put(model: nn.Module, path: str, old: nn.Module, new: nn.Module) -> nn.Module:
    """The model with another module in a place; the module itself in the place of the whole model."""
    if not path:
        return new
    replace_norm(model, path, old, new)
    return model


class _Probe(nn.Module):
    """A convolution or an aggregation with its inputs as parameters, so that they get gradients."""

    def __init__(
        self, module: nn.Module, x: Tensor, targets: Tensor | None = None, attributes: Tensor | None = None
    ) -> None:
        super().__init__()
        self.module, self.x = module, nn.Parameter(x)
        self.targets = None if targets is None else nn.Parameter(targets)
        self.attributes = None if attributes is None else nn.Parameter(attributes)

    def forward(self, graph: Tensor) -> Tensor:
        x = self.x if self.targets is None else (self.x, self.targets)
        return self.module(x, graph) if self.attributes is None else self.module(x, graph, self.attributes)


def _verify_module(old: Any, new: nn.Module) -> float:
    """Compare a new module with PyG's on a made-up graph, and return the largest relative difference.

    Raises:
        UsageError: If they differ by more than rounding.
    """
    generator = torch.Generator().manual_seed(0)
    device = device_of(old)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(device)

    # The last nodes have no edges.
    graph = torch.randint(NODES - 2, (2, EDGES), generator=generator).to(device)
    if is_pyg(old, "GENConv"):
        linears = [getattr(old, name, None) for name in ("lin_src", "lin_edge", "lin_dst")]
        src, edge, dst = (old.out_channels if linear is None else linear.weight.shape[1] for linear in linears)
        targets = None if isinstance(old.in_channels, int) else draw(NODES, dst)
        calls = [(draw(NODES, src), targets), (draw(NODES, src), targets, draw(EDGES, edge))]
    else:
        graph, calls = graph[1], [(draw(EDGES, CHANNELS if old.channels == 1 else old.channels),)]
    worst = 0.0
    for call in calls:
        try:
            runs = [measure_in_float64(_without_ties(_Probe(module, *call)), ((graph,), {})) for module in (old, new)]
        except FAILURES as error:
            raise UsageError(f"it fails on a made-up graph ({first_line(error)}).") from error
        worst = max(worst, _difference(*runs))
    if not worst <= EXACT:
        raise UsageError(f"its results differ by {worst:.1e} from PyG's in float64.")
    return worst


def _without_ties(model: nn.Module) -> nn.Module:
    """The model, or a copy in which learned powers of 1, the initial value, are a little larger.

    With a power of 1, the mean of messages at the lower bound of a power mean is that bound, and rounding decides
    whether it is clamped and the power gets a gradient.
    """
    if not any(bool((power == 1).any()) for power in _learned_powers(model)):
        return model
    model = copy_module(model)
    with torch.no_grad():
        for power in _learned_powers(model):
            power[power == 1] += 1 / 64
    return model


def _learned_powers(model: nn.Module) -> set[nn.Parameter]:
    """The learned powers of PyG's and of this library's power means."""
    means = [part for part in model.modules() if is_pyg(part, "PowerMeanAggregation") or isinstance(part, Aggregation)]
    return {part.p for part in means if isinstance(part.p, nn.Parameter)}


def _difference(original: Numbers, other: Numbers) -> float:
    """The largest difference of outputs and gradients, relative to the largest element of each.

    A gradient that is zero but for rounding is compared with the others, not with itself.
    """
    if original.gradients.keys() != other.gradients.keys():
        return float("inf")
    worst, gradients = difference(original.outputs, other.outputs), original.gradients
    sizes = {name: float(gradient.abs().max()) if gradient.numel() else 0.0 for name, gradient in gradients.items()}
    least = 1e-6 * max(sizes.values(), default=0.0)
    for name, gradient in gradients.items():
        error = float((gradient - other.gradients[name]).abs().max()) if gradient.numel() else 0.0
        worst = max(worst, error / max(sizes[name], least, 1e-300))
    return worst


def _verify_model(model: nn.Module, copied: nn.Module, arguments: Arguments) -> float:
    """Compare the whole model in float64, or in its own dtype where its code does not run in float64.

    Raises:
        UsageError: If the copy computes something else.
    """
    model, copied = _without_ties(model), _without_ties(copied)
    try:
        tolerance, before = EXACT, measure_in_float64(model, arguments)
        after = measure_in_float64(copied, arguments)
    except FAILURES:
        try:
            before = measure(model, arguments)
            with require_independent(model):
                after = measure(copied, arguments)
        except FAILURES as error:
            raise UsageError(f"the model cannot be called with these inputs ({first_line(error)}).") from error
        tolerance = max((TOLERANCE.get(tensor.dtype, 1e-4) for tensor in before.outputs), default=0.0)
    worst = _difference(before, after)
    if not worst <= tolerance:
        raise UsageError(
            f"the accelerated model computes something else (its outputs or gradients differ by {worst:.1e}), so it is "
            "refused: the model uses a replaced module in another way than calling it."
        )
    return worst

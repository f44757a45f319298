"""Plan how to compute each parameter's part of the kernel, from a few samples.

The samples run through the model one by one and as a batch. The comparison shows where the samples are in each recorded
input (first axis, second axis as in sequence-first attention, or folded into rows), whether samples influence one
another, and which parameters need the Jacobian.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from normplace.errors import UsageError
from normplace.ntk.empirical_kernel.deferred_checks import DeferredChecks
from normplace.ntk.empirical_kernel.output_agreement import outputs_agree
from normplace.ntk.empirical_kernel.parameter_uses import (
    GraphContents,
    ParameterTracker,
    ParameterUse,
    has_hooks,
    read_graph,
)
from normplace.ntk.empirical_kernel.probe import Probe, forward, probe_samples
from normplace.ntk.empirical_kernel.sample_rows import SampleLayout, rows_follow_samples

# A batch fits if it needs this many times less memory than there is, by the tensors that autograd saves for one sample.
MARGIN = 16


@dataclass(frozen=True)
class LayerSite:
    """One recorded use, which every batch must repeat: kind, parameters, and shapes for one sample."""

    kind: str
    weight: str | None
    bias: str | None
    layout: SampleLayout
    input_shape: torch.Size
    output_shape: torch.Size
    settings: Mapping[str, Any]

    def matches(self, use: ParameterUse, samples: int) -> bool:
        """Whether a use in a batch of ``samples`` corresponds to this site."""
        expected = list(self.input_shape)
        expected[self.layout.dim] = self.layout.length * samples
        return (use.kind, use.weight, use.bias, list(use.input.shape)) == (self.kind, self.weight, self.bias, expected)


def match_sites(sites: Sequence[LayerSite], uses: Sequence[ParameterUse], samples: int) -> bool:
    """Whether the uses in a batch of ``samples`` correspond to the sites of a plan."""
    return len(uses) == len(sites) and all(site.matches(use, samples) for site, use in zip(sites, uses, strict=True))


@dataclass(frozen=True)
class ReadyBatch:
    """A batch of samples that ran through the model when the plan was made."""

    x: Tensor
    y: Tensor
    uses: list[ParameterUse]
    calls: tuple[Hashable, ...]
    may_see_batch: bool
    """Whether gradients may depend on the batch although the outputs do not."""


@dataclass(frozen=True)
class KernelPlan:
    """How to compute the kernel of a model on inputs of one shape."""

    model: nn.Module
    names: Mapping[int, str]
    sites: tuple[LayerSite, ...]
    jacobian_parameters: Mapping[str, nn.Parameter]
    outputs: int
    dtype: torch.dtype
    saved_bytes: int
    numel: Mapping[str, int]
    """Sizes of the parameters, by name."""
    probe: Probe
    calls: tuple[Hashable, ...] | None = None
    """The torch calls that a batch of all samples of x1 makes, if the plan was not made for these samples."""
    is_data_dependent: bool = False
    """Whether values may decide which layers run."""
    has_hooks: bool = False
    """Whether hooks may change gradients. Then autograd differentiates each sample."""
    checks_entries: bool = False
    """Whether the batches must show that each entry of a gradient row belongs to its sample: the probe did not."""
    assignments: dict[Hashable, Any] = field(default_factory=dict)
    """Forms of the gradients that were chosen for the plan, by kind of output."""
    ready: list[ReadyBatch] = field(default_factory=list)
    """The batch of all samples, if it was computed, until it is used."""

    def check_calls(self, tracker: ParameterTracker) -> None:
        """Check that the plan applies to the samples of x1, if it was made for others.

        Args:
            tracker: Which has recorded a batch of all samples of x1.

        Raises:
            PlanRejected: If the model makes other calls.
        """
        if self.calls is not None and (tuple(tracker.calls) != self.calls or tracker.data_dependent):
            raise PlanRejected

    def check_uses(self, y: Tensor, tracker: ParameterTracker) -> GraphContents:
        """Check that a batch uses the parameters as planned, and read the autograd graph of its outputs.

        Args:
            y: Outputs of the batch.
            tracker: Which has recorded the batch.

        Raises:
            PlanRejected: If the plan was made for other samples, a parameter has another use than the recorded ones, or
                hooks may change gradients.
            UsageError: If the model runs other layers for these samples than for the probe.
        """
        uses = tracker.uses
        if not match_sites(self.sites, uses, len(y)) or y.shape[1] != self.outputs:
            if self.calls is not None:
                raise PlanRejected
            raise UsageError(
                "the model runs different layers or shapes for different batches, so its output is not "
                "a function of one sample: remove control flow that depends on the data."
            )
        graph = read_graph(y, self.names, uses)
        if graph.unrecorded or tracker.has_hooks:
            raise PlanRejected
        return graph


class PlanRejected(UsageError):
    """A batch of samples does not agree with the plan: plan again, or use the Jacobian of one sample at a time."""

    def __init__(self) -> None:
        super().__init__(
            "the model reorders its samples, or uses a parameter or computes gradients differently in some batches, "
            "which a stream of blocks does not support: use ntk.empirical."
        )


def make_plan(
    model: nn.Module,
    x1: Tensor,
    x2: Tensor | None,
    chosen: Mapping[str, nn.Parameter],
    deferred: DeferredChecks | None = None,
    *,
    by_jacobian: bool = False,
    batch_bytes: float = 0.0,
) -> KernelPlan:
    """Probe the model and assign each chosen parameter to a layer rule or to the Jacobian.

    Args:
        model: The network.
        x1: Samples along the rows.
        x2: Samples along the columns, if they are others.
        chosen: The parameters to differentiate, by name.
        deferred: Receives the checks of values; :meth:`Probe.compare` with a batch of samples completes them. By
            default the plan is checked at once.
        by_jacobian: Assign all parameters to the Jacobian.
        batch_bytes: Memory for a batch. If all samples of x1 certainly fit, checks are deferred and nothing depends on
            values, the batch is computed already, and one sample less runs through the model.

    Raises:
        UsageError: If the output is random, mixes samples, or does not depend on the chosen parameters.
    """
    if deferred is not None and x1.shape[0] > 1 and not has_hooks(chosen):
        plan = _plan_by_batch(model, x1, x2, chosen, deferred, batch_bytes)
        if plan is not None:
            return plan
    checks = DeferredChecks() if deferred is None else deferred
    x, rows, columns = probe_samples(x1, x2)
    names = {id(p): name for name, p in chosen.items()}
    together, alone, saved = ParameterTracker(names), ParameterTracker(names), _SavedBytes()
    with torch.enable_grad():
        with saved_tensors_hooks(saved.add, _itself):
            y = forward(model, x, tracker=together)
        last = forward(model, x[-1:], y.shape[1], alone)
    probe = Probe(model, x, y.detach(), rows, columns)
    checks.require(outputs_agree(last, y[-1:], y), probe.refuse)
    if deferred is None:
        probe.repeat(checks)
        checks.settle()
    if not y.requires_grad:
        checks.settle()
        raise UsageError("the model's output does not depend on any chosen parameter: choose other parameters.")
    needs_jacobian = read_graph(y, names, together.uses).unrecorded
    hooked = together.has_hooks or alone.has_hooks or has_hooks(chosen)
    is_data_dependent = alone.data_dependent or together.data_dependent
    sites: tuple[LayerSite, ...] = ()
    if len(alone.uses) == len(together.uses) and not by_jacobian and not hooked:
        layouts = _layouts(alone.uses, together.uses, x.shape[0])
        if deferred is None:  # otherwise the gradient rows of all samples are checked
            agreements = rows_follow_samples(y, together.uses, layouts)
            needs_jacobian |= _names(use for use, agrees in agreements if not bool(agrees))
        sites = _sites(alone.uses, layouts, needs_jacobian)
        if is_data_dependent:
            # Other samples may run layers that these samples do not run.
            needs_jacobian |= set(chosen) - {name for site in sites for name in (site.weight, site.bias)}
    else:  # for example a loop over the samples, where no use covers all of them
        needs_jacobian = set(chosen)
    if deferred is not None and not sites:
        probe.repeat(deferred)  # no batch of samples is computed with which the probe is compared
    return _assemble(
        probe, chosen, sites, needs_jacobian, saved.total(model) // x.shape[0], is_data_dependent=is_data_dependent,
        has_hooks=hooked, checks_entries=deferred is not None,
    )  # fmt: skip


def _plan_by_batch(
    model: nn.Module,
    x1: Tensor,
    x2: Tensor | None,
    chosen: Mapping[str, nn.Parameter],
    checks: DeferredChecks,
    batch_bytes: float,
) -> KernelPlan | None:
    """The plan from one sample and the batch of all, which is compared with the probe.

    None if the batch may not fit into memory, if values may decide which layers run, or if the model is unusual:
    :func:`make_plan` then describes what is wrong.
    """
    names = {id(p): name for name, p in chosen.items()}
    together, alone, saved = ParameterTracker(names), ParameterTracker(names), _SavedBytes()
    n = x1.shape[0]
    with torch.enable_grad():
        try:
            with saved_tensors_hooks(saved.add, _itself):
                last = forward(model, x1[-1:], tracker=alone)
        except UsageError:
            return None  # the probe fails too, or the output of one sample has another shape
        saved_bytes = saved.total(model)
        if _is_unusual(alone) or not alone.uses or MARGIN * n * max(saved_bytes, last.nbytes) > batch_bytes:
            return None
        x, rows, columns = probe_samples(x1, x2, without=n)
        probe = Probe(model, x, forward(model, x).detach(), rows, columns)
        y = forward(model, x1, tracker=together)
    if not y.requires_grad or _is_unusual(together) or len(alone.uses) != len(together.uses):
        return None
    graph = read_graph(y, names, together.uses)
    needs_jacobian = graph.unrecorded
    layouts = _layouts(alone.uses, together.uses, n)
    sites = _sites(alone.uses, layouts, needs_jacobian)
    uses = [use for use in (_without(use, needs_jacobian) for use in together.uses) if use.weight or use.bias]
    if not match_sites(sites, uses, n):
        return None
    checks.require(outputs_agree(last, y[-1:], y), probe.refuse)
    plan = _assemble(probe, chosen, sites, needs_jacobian, saved_bytes)
    if sites:
        may_see_batch = graph.has_custom_backward or together.detaches
        plan.ready.append(ReadyBatch(x1, y, uses, tuple(together.calls), may_see_batch))
    else:
        probe.repeat(checks)
    return plan


def _is_unusual(tracker: ParameterTracker) -> bool:
    """Whether values may decide which layers run, or hooks may change gradients."""
    return tracker.data_dependent or tracker.has_hooks


def _layouts(alone: list[ParameterUse], together: list[ParameterUse], n: int) -> list[SampleLayout | None]:
    return [_layout(one, many, n) for one, many in zip(alone, together, strict=True)]


def _sites(
    uses: list[ParameterUse], layouts: list[SampleLayout | None], needs_jacobian: set[str]
) -> tuple[LayerSite, ...]:
    """The sites of the parameters with a layer rule.

    Args:
        uses: The uses of one sample.
        layouts: Their layouts.
        needs_jacobian: Parameters without a layer rule, to which those of uses without a layout are added.
    """
    needs_jacobian |= _names(use for use, layout in zip(uses, layouts, strict=True) if layout is None)
    sites = []
    for use, layout in zip([_without(use, needs_jacobian) for use in uses], layouts, strict=True):
        if use.weight or use.bias:
            assert layout is not None
            sites.append(LayerSite(use.kind, use.weight, use.bias, layout, use.input.shape, use.shape, use.settings))
    return tuple(sites)


def _without(use: ParameterUse, names: set[str]) -> ParameterUse:
    """The use without the names of some parameters."""
    if use.weight not in names and use.bias not in names:
        return use
    weight, bias = (None if name in names else name for name in (use.weight, use.bias))
    return use._replace(weight=weight, bias=bias)


def _assemble(
    probe: Probe,
    chosen: Mapping[str, nn.Parameter],
    sites: tuple[LayerSite, ...],
    needs_jacobian: set[str],
    saved_bytes: int,
    *,
    is_data_dependent: bool = False,
    has_hooks: bool = False,
    checks_entries: bool = True,
) -> KernelPlan:
    """The plan of a model that was probed."""
    dtype = torch.promote_types(torch.float32, probe.y.dtype)
    for other in {parameter.dtype for parameter in chosen.values()}:
        dtype = torch.promote_types(dtype, other)
    covered = {id(p): name for name, p in chosen.items() if name not in needs_jacobian}
    jacobian_parameters = {name: p for name, p in chosen.items() if name in needs_jacobian}
    numel = {name: p.numel() for name, p in chosen.items()}
    return KernelPlan(
        probe.model, covered, sites, jacobian_parameters, probe.y.shape[1], dtype, saved_bytes, numel, probe,
        is_data_dependent=is_data_dependent, has_hooks=has_hooks, checks_entries=checks_entries,
    )  # fmt: skip


class _SavedBytes:
    """Memory of the tensors that autograd saves. It keeps no tensor, because the autograd graph refers to it."""

    def __init__(self) -> None:
        self._storages: dict[int, int] = {}

    def add(self, tensor: Tensor) -> Tensor:
        """Count a tensor, and return it."""
        if tensor.layout == torch.strided:
            storage = tensor.untyped_storage()
            self._storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    def total(self, model: nn.Module) -> int:
        """The bytes of all storages apart from those of the model's parameters and buffers."""
        saved = dict(self._storages)
        for module in model.modules():
            for tensor in (*module._parameters.values(), *module._buffers.values()):
                if tensor is not None and tensor.layout == torch.strided:
                    saved.pop(tensor.untyped_storage().data_ptr(), None)
        return sum(saved.values())


def _itself(tensor: Tensor) -> Tensor:
    return tensor


def reject() -> NoReturn:
    """Raise :class:`PlanRejected`.

    Raises:
        PlanRejected: Always.
    """
    raise PlanRejected


def _names(uses: Iterable[ParameterUse]) -> set[str]:
    return {name for use in uses for name in (use.weight, use.bias) if name is not None}


def _layout(alone: ParameterUse, together: ParameterUse, n: int) -> SampleLayout | None:
    """Position of the ``n`` samples in a use's input, or None if it is ambiguous."""
    one, many = alone.input.shape, together.input.shape
    if not together.traceable or len(one) != len(many):
        return None
    changed_axes = [d for d in range(len(one)) if one[d] != many[d]]
    if len(changed_axes) != 1 or many[changed_axes[0]] != n * one[changed_axes[0]]:
        return None
    dim, length = changed_axes[0], one[changed_axes[0]]
    match together.kind:
        case "linear":
            allowed = dim < len(one) - 1
        case "layer_norm" | "rms_norm":
            allowed = dim < len(one) - len(together.settings["shape"])
        case "conv":
            allowed = dim == 0 and len(one) == len(together.settings["kernel"]) + 2
        case "embedding":
            allowed = True
        case _:
            allowed = dim == 0
    if not allowed:
        return None
    if length == 1:
        return SampleLayout(dim, 1, minor=False)
    fits = []
    for minor in (False, True):
        layout = SampleLayout(dim, length, minor)
        sample = layout.split(together.input, n)[-1]
        single = layout.split(alone.input, 1)[0]
        is_number = sample.dtype.is_floating_point
        if bool(outputs_agree(sample.double(), single.double())) if is_number else torch.equal(sample, single):
            fits.append(layout)
    return fits[0] if len(fits) == 1 else None

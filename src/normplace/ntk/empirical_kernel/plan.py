"""Plan how to compute each parameter's part of the kernel, from a few samples.

The samples run through the model one by one and as a batch. The comparison shows where the samples are in each recorded
input (first axis, second axis as in sequence-first attention, or folded into rows), whether samples influence one
another, and which parameters need the Jacobian.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
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
        return (use.kind, use.weight, use.bias, list(use.input.shape)) == (
            self.kind,
            self.weight,
            self.bias,
            expected,
        )


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
        same = len(uses) == len(self.sites) and all(
            site.matches(use, len(y)) for site, use in zip(self.sites, uses, strict=True)
        )
        if not same or y.shape[1] != self.outputs:
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

    Raises:
        UsageError: If the output is random, mixes samples, or does not depend on the chosen parameters.
    """
    checks = DeferredChecks() if deferred is None else deferred
    x, rows, columns = probe_samples(x1, x2)
    n = x.shape[0]
    names = {id(p): name for name, p in chosen.items()}
    weights = {t.untyped_storage().data_ptr() for t in (*model.parameters(), *model.buffers())}
    saved: dict[int, int] = {}

    def count_saved_bytes(tensor: Tensor) -> Tensor:
        if tensor.layout == torch.strided and tensor.untyped_storage().data_ptr() not in weights:
            saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.enable_grad():
        together, alone = ParameterTracker(names), ParameterTracker(names)
        with saved_tensors_hooks(count_saved_bytes, lambda t: t):
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
    sites: list[LayerSite] = []
    if len(alone.uses) == len(together.uses) and not by_jacobian and not hooked:
        layouts = [_layout(u1, un, n) for u1, un in zip(alone.uses, together.uses, strict=True)]
        needs_jacobian |= _names(use for use, layout in zip(together.uses, layouts, strict=True) if layout is None)
        if deferred is None:  # otherwise the gradient rows of all samples are checked
            agreements = rows_follow_samples(y, together.uses, layouts)
            needs_jacobian |= _names(use for use, agrees in agreements if not bool(agrees))
        for use, layout in zip(alone.uses, layouts, strict=True):
            weight = None if use.weight in needs_jacobian else use.weight
            bias = None if use.bias in needs_jacobian else use.bias
            if weight is not None or bias is not None:
                assert layout is not None
                sites.append(LayerSite(use.kind, weight, bias, layout, use.input.shape, use.shape, use.settings))
        if alone.data_dependent or together.data_dependent:
            # Other samples may run layers that these samples do not run.
            needs_jacobian |= set(chosen) - {name for site in sites for name in (site.weight, site.bias)}
    else:  # for example a loop over the samples, where no use covers all of them
        needs_jacobian = set(chosen)
    if deferred is not None and not sites:
        probe.repeat(deferred)  # no batch of samples is computed with which the probe is compared
    covered = {id(p): name for name, p in chosen.items() if name not in needs_jacobian}
    dtype = torch.promote_types(torch.float32, y.dtype)
    for parameter in chosen.values():
        dtype = torch.promote_types(dtype, parameter.dtype)
    jacobian_parameters = {name: p for name, p in chosen.items() if name in needs_jacobian}
    return KernelPlan(
        model, covered, tuple(sites), jacobian_parameters, y.shape[1], dtype, sum(saved.values()) // n,
        {name: p.numel() for name, p in chosen.items()}, probe,
        is_data_dependent=alone.data_dependent or together.data_dependent, has_hooks=hooked,
        checks_entries=deferred is not None,
    )  # fmt: skip


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

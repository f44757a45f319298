"""Remember the plans of models, because probing a small network takes longer than its kernel.

A plan describes the layers that a model runs, whatever the values of its weights. It is used again for the same model
and samples of the same shapes. The batch of all samples then shows whether it still applies: the model must make the
same torch calls, on tensors of the same shapes and with the same other arguments, use the same parameters in them, and
return the outputs that a few samples have in another batch. As in every batch, the gradient rows of a sample must be
those of its own output. Otherwise :class:`PlanRejected` is raised, and the model is probed again.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from normplace.ntk.empirical_kernel.plan import KernelPlan, LayerSite
from normplace.ntk.empirical_kernel.probe import Probe, forward, probe_samples

# Plans that are remembered for each model: samples of other shapes, or other parameters.
MAX_PLANS = 16


@dataclass(frozen=True)
class RememberedPlan:
    """A plan without references to its model, which would keep the model in memory."""

    sites: tuple[LayerSite, ...]
    covered: frozenset[str]
    outputs: int
    dtype: torch.dtype
    saved_bytes: int
    calls: tuple[Hashable, ...]
    assignments: dict[Hashable, Any]

    @functools.cached_property
    def takes_integers(self) -> bool:
        """Whether a call takes integers. If they are computed from samples with NaN, they are no valid indices."""
        return _has_integers(self.calls)


_plans: weakref.WeakKeyDictionary[nn.Module, dict[Hashable, RememberedPlan]] = weakref.WeakKeyDictionary()


def find(model: nn.Module, x1: Tensor, x2: Tensor | None, chosen: Mapping[str, nn.Parameter]) -> RememberedPlan | None:
    """The plan that was remembered for a model, samples of these shapes and these parameters."""
    return _plans.get(model, {}).get(_key(x1, x2, chosen))


def recall(
    known: RememberedPlan, model: nn.Module, x1: Tensor, x2: Tensor | None, chosen: Mapping[str, nn.Parameter]
) -> KernelPlan:
    """The remembered plan of a model, with the outputs of a few samples."""
    covered = {id(p): name for name, p in chosen.items() if name in known.covered}
    jacobian_parameters = {name: p for name, p in chosen.items() if name not in known.covered}
    x, rows, columns = probe_samples(x1, x2, without=x1.shape[0])  # another batch than that of all samples
    with torch.enable_grad():  # without gradients some models take another path
        y = forward(model, x, known.outputs).detach()
    return KernelPlan(
        model, covered, known.sites, jacobian_parameters, known.outputs, known.dtype, known.saved_bytes,
        {name: p.numel() for name, p in chosen.items()}, Probe(model, x, y, rows, columns), known.calls,
        assignments=known.assignments,
    )  # fmt: skip


def remember(
    plan: KernelPlan, x1: Tensor, x2: Tensor | None, chosen: Mapping[str, nn.Parameter], calls: tuple[Hashable, ...]
) -> None:
    """Remember a plan that is correct.

    Args:
        plan: The plan.
        x1: The samples along the rows.
        x2: The samples along the columns, if they are others.
        chosen: The parameters to differentiate, by name.
        calls: The torch calls of the batch of all samples of x1.
    """
    plans = _plans.setdefault(plan.model, {})
    if len(plans) >= MAX_PLANS:
        plans.clear()
    covered = frozenset(plan.names.values())
    plans[_key(x1, x2, chosen)] = RememberedPlan(
        plan.sites, covered, plan.outputs, plan.dtype, plan.saved_bytes, calls, plan.assignments
    )


def forget(model: nn.Module) -> None:
    """Forget the plans of a model."""
    _plans.pop(model, None)


def _key(x1: Tensor, x2: Tensor | None, chosen: Mapping[str, nn.Parameter]) -> Hashable:
    parameters = tuple([(name, id(p), p.dtype, p.shape) for name, p in chosen.items()])
    return x1.shape, None if x2 is None else x2.shape, x1.dtype, x1.device, parameters


def _has_integers(outline: Hashable) -> bool:
    """Whether an integer dtype is in the outline of some calls."""
    if isinstance(outline, tuple):
        return any(map(_has_integers, outline))
    is_dtype = isinstance(outline, torch.dtype)
    return is_dtype and not (outline.is_floating_point or outline.is_complex or outline == torch.bool)

"""``normplace.fuse``: the same model with its norms and residual sums computed in fewer passes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import nn

from normplace._shared.modules import Model, count_parameters, device_of
from normplace._shared.resources import available_memory
from normplace.analysis.recording.passes import checked_module
from normplace.edit.fuse.apply import apply_plan, remove_fusions, unfuse
from normplace.edit.fuse.apply import compile_branches as compile_modules
from normplace.edit.fuse.gate_verify import verify_gates
from normplace.edit.fuse.numbers import Loss, Numbers, measure, measure_in_float64
from normplace.edit.fuse.plan import REACHES, FusePlan, left_out
from normplace.edit.fuse.timing import time_steps
from normplace.edit.fuse.verify import verify_model, verify_parts
from normplace.edit.model.copying import copy_model, require_independent, require_undistributed
from normplace.edit.record.changes import Changes, add_edit, changes, set_changes
from normplace.edit.verify.capture import Arguments, analyze_call
from normplace.errors import UsageError, expect_choice, first_line
from normplace.ops.norm_add_norm.op import choose_backend

ROUNDINGS = ("model", "once")


def fuse(
    model: Model,
    *inputs: Any,
    loss: Loss | None = None,
    reach: str = "layer",
    rounding: str = "model",
    compile_branches: bool | Mapping[str, Any] = False,
    only_if_faster: bool = True,
    inplace: bool = False,
    **kwargs: Any,
) -> Model:
    """Return the same model with norms and residual sums fused, verified by numbers; :func:`unfuse` undoes it.

    The result has the model's class, arguments, state dict and function. A residual sum is computed in one pass with
    the norm of the branch's output and with the norm that reads the sum, wherever the model's code allows it. Norms
    that are written out in several operators are computed by one kernel. :func:`normplace.changes` of the result lists
    every sum and norm, fused or not, with the reason.

    The fused parts run where the model's own operators need not: see :mod:`normplace.edit.fuse.runtime`. Before the
    model is returned, every fused part is compared with the norms that it replaces, and the outputs and the gradient of
    every parameter with float64: see :mod:`normplace.edit.fuse.verify`.

    Args:
        model: Any module.
        *inputs: The positional arguments of a call. Use a batch of the size to be trained with.
        loss: A function of the model's output that returns a number, for the verification and the timing; a random
            combination of the outputs by default.
        reach: ``layer`` for norms that run inside the module that adds; ``stack`` also joins the last sum of a layer
            with the first norm of the next, and with the final norm.
        rounding: ``model`` to round in half precision where the model's own norms do; ``once`` to round results only.
        compile_branches: Also compile the modules of the residual branches; True, or arguments of ``torch.compile``.
        only_if_faster: Time training steps, and return the model unchanged if fusing does not help on this machine.
        inplace: Change the model itself, for models too large to copy. If there is no memory for a copy in float64,
            only the fused parts are verified.
        **kwargs: The keyword arguments of a call.

    Returns:
        The fused copy, or the model itself if ``inplace``.

    Raises:
        UsageError: If an argument is invalid, or the fused model differs from the original.

    Example:
        >>> layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        >>> print(changes(fuse(layer, torch.randn(1, 3, 8), only_if_faster=False)))
          fused        1 x add, norm       the model  [norm1]  saves 120 bytes per forward pass
          fused        1 x add, norm       the model  [norm2]  saves 120 bytes per forward pass
    """
    model = checked_module(model, "fuse")
    expect_choice("reach", reach, REACHES)
    expect_choice("rounding", rounding, ROUNDINGS)
    if any(parameter.is_meta for parameter in model.parameters()):
        raise UsageError("fuse verifies numbers, and a model on the meta device has none: use plan_fusion.")
    require_undistributed(model)
    arguments = (inputs, kwargs)
    fused = unfuse(model) if inplace else copy_model(model)
    with require_independent(nn.Module() if inplace else model):
        plan = _plan(fused, arguments, reach, compiles_branches=compile_branches is not False)
    outcome = _Outcome(False, _cannot_be_faster(fused) or "") if only_if_faster else _Outcome(True)
    if not outcome.note:
        timed_on = device_of(fused).type if only_if_faster else None
        outcome = _fuse(fused, plan, arguments, loss, rounding, compile_branches, timed_on)
    fusions = plan.fusions
    if not outcome.is_fused:
        fusions = tuple(left_out(fusion, "see above") for fusion in fusions)
    record = replace(changes(fused), fusions=fusions, fusion_note=outcome.note, step_ms=outcome.step_ms)
    set_changes(fused, record)
    return fused


def remember_fusion(model: nn.Module, reach: str) -> None:
    """Add the fusion of a model to its recorded edits, so that :func:`normplace.edit.load` repeats it."""
    add_edit(model, "fuse", reach=reach)


class _Outcome(NamedTuple):
    """Whether a model was fused, and what was measured or why not."""

    is_fused: bool
    note: str = ""
    step_ms: tuple[float, float] | None = None
    """Before and after."""


@torch.enable_grad()  # the caller may have disabled it
def _fuse(
    model: nn.Module,
    plan: FusePlan,
    arguments: Arguments,
    loss: Loss | None,
    rounding: str,
    compiled: bool | Mapping[str, Any],
    timed_on: str | None,
) -> _Outcome:
    """Fuse a model in place and verify it; restore it if that does not help.

    Raises:
        UsageError: If the fused model differs; the model is restored first.
    """
    if plan.is_empty and not plan.compiled:
        return _Outcome(False, "nothing is fused: no residual sum or norm of this model qualifies")
    before = measure(model, arguments, loss)
    truth, no_truth = _truth(model, arguments, loss)
    notes = []
    if before.error is not None:
        notes.append(f"gradients are not verified, because the backward pass of the original fails ({before.error})")
    if truth is None:
        notes.append(f"only the parts are verified, because the model {no_truth}")
    times = None
    try:
        apply_plan(plan, model, rounding, timed_on)
        if plan.compiled:
            compile_modules(plan, model, compiled if isinstance(compiled, Mapping) else {})
        verify_parts(model)
        verify_gates(model)
        if truth is not None:
            after = measure(model, arguments, loss)
            try:
                verify_model(before, after, truth)
            except UsageError:
                verify_model(before, after, truth, measure_in_float64(model, arguments, loss, rounding=True))
        if timed_on is not None:
            times = time_steps(model, arguments, loss)
            if not times.is_faster:
                remove_fusions(model)
                return _Outcome(
                    False,
                    f"nothing is fused: it does not help on this machine ({times})",
                    (times.original, times.fused),
                )
            notes.append(str(times))
    except BaseException:
        remove_fusions(model)
        raise
    return _Outcome(True, "; ".join(notes), None if times is None else (times.original, times.fused))


def plan_fusion(model: nn.Module, *inputs: Any, reach: str = "layer", **kwargs: Any) -> Changes:
    """What :func:`fuse` would fuse and why not the rest, without changing the model, which may be on the meta device.

    Args:
        model: Any module.
        *inputs: The positional arguments of a call.
        reach: As for :func:`fuse`.
        **kwargs: The keyword arguments of a call.

    Returns:
        The record that :func:`normplace.changes` of the fused model would return.
    """
    expect_choice("reach", reach, REACHES)
    model = copy_model(model) if changes(model).fusions else model
    return replace(changes(model), fusions=_plan(model, (inputs, kwargs), reach).fusions)


def _plan(model: nn.Module, arguments: Arguments, reach: str, compiles_branches: bool = False) -> FusePlan:
    return FusePlan(analyze_call(model, arguments), reach, compiles_branches)


def _cannot_be_faster(model: nn.Module) -> str | None:
    """Why the fused kernels cannot run on the model's device; None if they can."""
    parameter = next(model.parameters(), torch.empty(0))
    choice = choose_backend(parameter.device.type, (parameter.dtype,), 1)
    if choice.backend == "triton":
        return None
    return f"nothing is fused: {choice.reason}; only_if_faster=False fuses with plain PyTorch, which is slower"


def _truth(model: nn.Module, arguments: Arguments, loss: Loss | None) -> tuple[Numbers | None, str]:
    """The numbers of the model in float64, or None and what is wrong with the model."""
    too_large = "in float64 does not fit into memory"
    if not _has_memory_for_float64(model):
        return None, too_large
    try:
        return measure_in_float64(model, arguments, loss), ""
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()
        return None, too_large
    except Exception as error:  # layers of quantised models have kernels for some dtypes only, and raise anything
        return None, f"does not run in float64 ({first_line(error)})"


def _has_memory_for_float64(model: nn.Module) -> bool:
    """Whether a copy in float64 and its gradients fit into memory, twice over."""
    needed = 4 * 8 * count_parameters(model)
    device = device_of(model)
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else available_memory()
    return free is None or needed <= free

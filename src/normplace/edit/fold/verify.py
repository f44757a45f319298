"""Verify a fold by numbers: the folded copy computes the same function, for any gains."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn

from normplace._shared.modules import count_parameters
from normplace._shared.resources import available_memory
from normplace.analysis.recording.passes import evaluating, training, uncompiled_calls
from normplace.analysis.recording.structures import copy_module, fresh_inputs, in_float64, tensors_of
from normplace.edit.fold.apply import FoldTarget, fold_norm, gain_and_shift, set_gain_and_shift
from normplace.edit.fuse.numbers import Float64Mode
from normplace.edit.verify.capture import Arguments
from normplace.errors import UsageError

Mode = Callable[[nn.Module], AbstractContextManager[None]]
EXACT = 1e-9
"""Largest relative difference in float64: rounding leaves 1e-13 in small networks, a wrong fold 1e-2."""
TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-4, torch.bfloat16: 0.1, torch.float16: 0.02}
"""Largest relative difference in the model's dtype, which rounds the folded weights."""


@torch.no_grad()
def outputs_of(model: nn.Module, arguments: Arguments, mode: Mode = evaluating) -> list[Tensor]:
    """The floating-point outputs of a call, in evaluation mode or in training mode."""
    inputs, kwargs = fresh_inputs(arguments)
    torch.clear_autocast_cache()  # it may hold the weights as they were before the fold
    with mode(model), uncompiled_calls():
        return [tensor.clone() for tensor in tensors_of(model(*inputs, **kwargs)) if tensor.is_floating_point()]


def difference(one: Sequence[Tensor], two: Sequence[Tensor]) -> float:
    """The largest difference between outputs, relative to the largest element of each."""
    if len(one) != len(two):
        return float("inf")
    worst = 0.0
    for first, second in zip(one, two, strict=True):
        if first.shape != second.shape:
            return float("inf")
        if first.numel():
            finite = torch.isfinite(first)
            if not torch.equal(finite, torch.isfinite(second)):
                return float("inf")
            first, second = first[finite].double(), second[finite].double()
            scale = first.abs().max().clamp(min=1e-30) if first.numel() else torch.ones(())
            worst = max(worst, float((first - second).abs().max() / scale) if first.numel() else 0.0)
    return worst


def verify_rule(
    model: nn.Module, targets: Sequence[FoldTarget], arguments: Arguments, extra: Callable[[nn.Module], object]
) -> None:
    """Fold a copy in float64 with random gains and shifts, and compare its outputs.

    Gains of one and shifts of zero would hide a reader that was missed. A copy that does not fit into memory is not
    made. One that does not run in float64 has the model's dtype.

    Raises:
        UsageError: If the folded copy computes something else.
    """
    double = _randomized(model, targets, with_shifts=True)
    if double is None:
        return
    try:
        with Float64Mode():
            before, after = _outputs_of_fold(double, targets, in_float64(arguments), extra)
        tolerance = EXACT
    except Exception:  # an operator has no kernel for float64, or the code has tensors that stay in float32
        own = _randomized(model, targets, with_shifts=True, widen=False)
        assert own is not None
        before, after = _outputs_of_fold(own, targets, arguments, extra)
        tolerance = _tolerance(before)
    error = difference(before, after)
    if not error <= tolerance:
        raise UsageError(
            f"the folded model computes something else (its outputs differ by {error:.1e} with random gains), so the "
            "fold is refused: the model uses a norm or a weight in a way that the recorded pass does not show."
        )


def _outputs_of_fold(
    model: nn.Module, targets: Sequence[FoldTarget], arguments: Arguments, extra: Callable[[nn.Module], object]
) -> tuple[list[Tensor], list[Tensor]]:
    """The outputs of a model before and after its norms are folded, in place."""
    before = outputs_of(model, arguments)
    for target in targets:
        fold_norm(model, target)
    extra(model)
    return before, outputs_of(model, arguments)


def changed_in_training(model: nn.Module, targets: Sequence[FoldTarget], arguments: Arguments) -> list[FoldTarget]:
    """The norms whose fold changes the outputs in training mode, where further code may read them.

    The gains are random and the shifts are zero, because a dropout before a reader drops a shift but not a bias. A
    model that cannot be run so, or whose outputs differ from run to run, is not compared.
    """
    double = _randomized(model, targets, with_shifts=False)
    if double is None:
        return []
    inputs = in_float64(arguments)

    def outputs() -> list[Tensor]:
        with Float64Mode():
            return outputs_of(double, inputs, training)

    def is_changed_by(chosen: Sequence[FoldTarget]) -> bool:
        names = {reader.parameter for target in chosen for reader in target.readers}
        for target in chosen:
            names |= {f"{target.path}.{name}" for name in (target.form.weight, target.form.bias) if name is not None}
        saved = {name: double.get_parameter(name).detach().clone() for name in names}
        for target in chosen:
            fold_norm(double, target)
        error = difference(before, outputs())
        with torch.no_grad():
            for name, value in saved.items():
                double.get_parameter(name).copy_(value)
        return not error <= EXACT

    try:
        before = outputs()
    except Exception:  # the model cannot be trained with these arguments: labels may be missing, or the batch too small
        return []
    if difference(before, outputs()) > 0 or not is_changed_by(targets):
        return []
    return [target for target in targets if is_changed_by([target])]


def _randomized(
    model: nn.Module, targets: Sequence[FoldTarget], with_shifts: bool, widen: bool = True
) -> nn.Module | None:
    """A copy of a model with random gains; None if it does not fit into memory.

    Args:
        model: The model.
        targets: The norms to give random gains.
        with_shifts: Whether shifts that are not zero become random too; otherwise all are zero.
        widen: Whether the copy is in float64.
    """
    free = available_memory()
    if free is not None and 16 * count_parameters(model) > free:
        return None
    copied = copy_module(model)
    if widen:
        copied.double()
    generator = torch.Generator().manual_seed(0)
    for target in targets:
        norm = copied.get_submodule(target.path)
        gain, shift = gain_and_shift(norm, target.form)
        noise = torch.rand(2, target.form.width, generator=generator, dtype=torch.float64)
        has_shift = with_shifts and shift is not None and bool(shift.any())
        new_shift = noise[1] - 0.5 if has_shift else torch.zeros_like(noise[1])
        set_gain_and_shift(norm, target.form, noise[0] + 0.5 if gain is not None else 1.0, new_shift)
    return copied


def verify_numbers(before: Sequence[Tensor], after: Sequence[Tensor]) -> float:
    """Compare the outputs of the folded model in its own dtype, and return the largest relative difference.

    Raises:
        UsageError: If they differ by more than rounding.
    """
    error = difference(before, after)
    if not error <= _tolerance(before):
        raise UsageError(
            f"the outputs of the folded model differ by {error:.1e}, more than rounding, so the fold is refused: fold "
            "it in float32."
        )
    return error


def _tolerance(outputs: Sequence[Tensor]) -> float:
    return max((TOLERANCE.get(tensor.dtype, 1e-4) for tensor in outputs), default=0.0)

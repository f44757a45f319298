"""Verify a fused model by numbers: every fused part against the norms that it replaces, and the whole model.

A fused part must give the results of the model's own norms on random rows with random gains: bit by bit in half
precision except where the order of a reduction matters, and up to rounding in float32, with its gradients. The whole
model must be no farther from float64 than the original is, in its outputs and in the gradient of every parameter.
"""

from __future__ import annotations

import copy
import statistics
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from normplace.edit.fuse_forms import MISMATCHES, NormForm, probe_rows
from normplace.edit.fuse_numbers import Numbers
from normplace.edit.fuse_runtime import SUMS, FusedForward, FusedSum, NormRef, take_normed
from normplace.errors import UsageError

FACTOR = 2.0
"""How much farther from float64 than the original a large tensor of the fused model may be.

Both errors are sums of rounding errors in different orders. A tensor is compared with the median error of all tensors
if its own is smaller. The ratio of the errors of n elements has a standard deviation of about 1 / sqrt(n), and a tensor
may deviate by four of them.
"""
NOISE = 0.5
"""Relative error above which a gradient of the original is rounding noise, which is not compared."""
SINGLE = 1e-5
"""Largest difference in float32, relative to the largest element of the row: a hundred units in the last place."""
SLOPE = 1e-3
"""Largest relative difference of a gradient in float32, which rows that eps decides amplify."""
ZERO = 1e-4
"""Gradients smaller than this part of the typical gradient are zero by design, such as those of key biases."""


def verify_parts(model: nn.Module) -> None:
    """Compare every fused part of a model with the norms that it replaces.

    Raises:
        UsageError: If one differs, with its name.
    """
    seen: set[object] = set()
    for path, module in model.named_modules():
        parts: list[FusedSum | FusedForward] = [*vars(module).get(SUMS, ())]
        forward = vars(module).get("forward")
        parts += [forward] if isinstance(forward, FusedForward) else []
        for part in parts:
            key = _key(part)
            if key not in seen:
                seen.add(key)
                _verify_part(path, part)


def _key(part: FusedSum | FusedForward) -> object:
    if isinstance(part, FusedForward):
        return part.form, part.kernel
    return tuple(None if ref is None else ref.form for ref in (part.out, part.after))


def _refs(part: FusedSum) -> list[NormRef]:
    return [ref for ref in (part.out, part.after) if ref is not None]


def _form(part: FusedSum | FusedForward) -> NormForm:
    """The form of a part's first norm."""
    return part.form if isinstance(part, FusedForward) else _refs(part)[0].form


def _verify_part(path: str, part: FusedSum | FusedForward) -> None:
    norms = [part.module] if isinstance(part, FusedForward) else [ref.module for ref in _refs(part)]
    form = _form(part)
    dtype, device = form.dtypes[0], next((p.device for norm in norms for p in norm.parameters()), torch.device("cpu"))
    for kind in dict.fromkeys((dtype, torch.float32)):
        probe = _PartProbe(part, kind if kind != dtype else None, device)
        for name, fused, separate in probe.results():
            if not _agree(fused, separate, form.rounding):
                raise UsageError(
                    f"the fused {name} of {path or 'the model'!r} differs from the model's own in {kind}, so nothing "
                    "is fused: report the model."
                )
        if kind == torch.float32:
            for name, error in probe.gradient_errors():
                if error > SLOPE:
                    raise UsageError(
                        f"the gradient of the {name} in the fused part of {path or 'the model'!r} is off by "
                        f"{error:.1e}, so nothing is fused: report the model."
                    )


def _agree(fused: Tensor, separate: Tensor, rounding: str) -> bool:
    if fused.dtype != separate.dtype:
        return False
    if fused.dtype.itemsize < 4 and rounding != "once":
        return float((fused != separate).double().mean()) <= MISMATCHES
    # Rounded once, a sum of two terms differs from the model's by its roundings of each.
    tolerance = SINGLE if fused.dtype.itemsize >= 4 else 4 * torch.finfo(fused.dtype).eps
    truth = separate.double()
    error = (fused.double() - truth).abs().amax(-1) / truth.abs().amax(-1).clamp(min=1e-30)
    return bool((error <= tolerance).all())


class _PartProbe:
    """A fused part on copies of its norms with random parameters, and on random rows.

    Args:
        part: The fused part.
        dtype: The dtype of rows and parameters; None for those of the model.
        device: Where to run it.
    """

    def __init__(self, part: FusedSum | FusedForward, dtype: torch.dtype | None, device: torch.device) -> None:
        generator = torch.Generator().manual_seed(2)
        self.holder = nn.Module()
        self.out = self.after = None
        if isinstance(part, FusedForward):
            self.after = self._copied("after", part.module, dtype, generator)
            self.sum = None
        else:
            refs: list[NormRef | None] = []
            for name, ref in (("out", part.out), ("after", part.after)):
                norm = None
                if ref is not None:
                    norm = self._copied(name, ref.module, dtype, generator)
                setattr(self, name, norm)
                refs.append(None if ref is None else NormRef(self.holder, name, ref.form))
            self.sum = FusedSum(refs[0], refs[1], True, None)
        form = _form(part)
        kind = dtype or form.dtypes[0]
        self.x, self.f = (probe_rows(form, generator).to(device, kind).requires_grad_() for _ in range(2))

    def _copied(self, name: str, norm: nn.Module, dtype: torch.dtype | None, generator: torch.Generator) -> nn.Module:
        copied = copy.deepcopy(norm)
        copied = copied if dtype is None else copied.to(dtype)
        with torch.no_grad():
            for parameter in copied.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
        self.holder.add_module(name, copied)
        return copied.requires_grad_(True)

    def _fused(self) -> list[tuple[str, Tensor]]:
        if self.sum is None:
            assert self.after is not None
            return [("norm", self.after(self.x))]
        stream = self.sum(self.x, self.f)
        results = [("sum", stream)]
        if self.after is not None:
            if take_normed(stream, self.after) is None:
                raise UsageError("the fused form does not run for the dtypes of this model, so nothing is fused.")
            results.append(("norm", self.after(stream)))
        return results

    def _separate(self, stream: Tensor | None) -> list[tuple[str, Tensor]]:
        """The same by the norms' own methods; the next norm reads ``stream`` if it is given."""
        if self.sum is None:
            assert self.after is not None
            return [("norm", _own(self.after, self.x))]
        total = self.x + (self.f if self.out is None else _own(self.out, self.f))
        results = [("sum", total)]
        if self.after is not None:
            results.append(("norm", _own(self.after, total if stream is None else stream)))
        return results

    def results(self) -> Iterable[tuple[str, Tensor, Tensor]]:
        """Each result of the fused part, and of the norms that it replaces."""
        with torch.no_grad():
            fused = self._fused()
            separate = self._separate(fused[0][1])
        for (name, one), (_, other) in zip(fused, separate, strict=True):
            yield name, one, other

    def gradient_errors(self) -> Iterable[tuple[str, float]]:
        """The relative difference of every gradient."""
        leaves = {"stream": self.x} | ({} if self.sum is None else {"branch": self.f})
        for side, norm in (("output norm", self.out), ("next norm", self.after)):
            if norm is not None:
                leaves |= {f"{side}'s {name}": parameter for name, parameter in norm.named_parameters()}
        gradients = []
        for results in (self._fused(), self._separate(None)):
            generator = torch.Generator().manual_seed(3)
            seeds = [torch.randn(value.shape, generator=generator).to(value) for _, value in results]
            values = [value for _, value in results]
            gradients.append(torch.autograd.grad(values, list(leaves.values()), seeds))
        for name, one, other in zip(leaves, *gradients, strict=True):
            yield name, float((one - other).norm() / other.norm().clamp(min=1e-30))


def _own(norm: nn.Module, x: Tensor) -> Tensor:
    """The result of the norm's own method."""
    return type(norm).forward(norm, x)


def verify_model(original: Numbers, fused: Numbers, truth: Numbers) -> float:
    """Check that a fused model is no farther from float64 than the original, times :data:`FACTOR`.

    Args:
        original: Of the model before the edit.
        fused: Of the model after the edit.
        truth: In float64.

    Returns:
        The largest error relative to what is allowed.

    Raises:
        UsageError: If an output or gradient is farther, with its name, or a gradient is missing.
    """
    dtypes = [[tensor.dtype for tensor in run.outputs] for run in (original, fused)]
    if dtypes[0] != dtypes[1]:
        raise UsageError("the fused model returns other dtypes than the original, so nothing is fused.")
    if original.error is None and fused.error is not None:
        raise UsageError(f"the backward pass of the fused model fails ({fused.error}), so nothing is fused.")
    lost = sorted(original.gradients.keys() - fused.gradients.keys())
    if lost:
        raise UsageError(f"in the fused model the parameter {lost[0]!r} receives no gradient, so nothing is fused.")
    runs = [original, fused, truth]
    outputs = [{str(index): tensor for index, tensor in enumerate(run.outputs)} for run in runs]
    names = original.gradients.keys() & truth.gradients.keys()
    gradients = [{name: run.gradients[name] for name in sorted(names)} for run in runs]
    return max(_compare("output", *outputs), _compare("gradient of", *gradients))


def _compare(
    kind: str, original: Mapping[str, Tensor], fused: Mapping[str, Tensor], truth: Mapping[str, Tensor]
) -> float:
    """The largest error of the fused tensors relative to what is allowed."""
    if not truth:
        return 0.0
    scales = {name: _scale(value) for name, value in truth.items()}
    typical, worst = max(scales.values()), 0.0
    own = {name: _error(original[name], value, scales[name], typical) for name, value in truth.items()}
    median = statistics.median(own.values())
    for name, value in truth.items():
        if own[name] > NOISE:
            continue
        error = _error(fused[name], value, scales[name], typical)
        allowed = max(own[name], median, torch.finfo(original[name].dtype).eps)
        allowed *= FACTOR * (1 + 4 / max(value.numel(), 1) ** 0.5)
        worst = max(worst, error / allowed)
        if not error <= allowed:
            raise UsageError(
                f"the {kind} {name} of the fused model is off by {error:.1e} from float64 and that of the original by "
                f"{own[name]:.1e}, so nothing is fused: report the model."
            )
    return worst


def _scale(value: Tensor) -> float:
    """The root mean square."""
    return float(value.double().square().mean().sqrt()) if value.numel() else 0.0


def _error(value: Tensor, exact: Tensor, scale: float, typical: float) -> float:
    """The root mean square of the error, relative to that of the exact value."""
    return _scale(value.to(exact.device).double() - exact) / max(scale, ZERO * typical, 1e-300)

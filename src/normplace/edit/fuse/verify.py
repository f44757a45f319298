"""Verify a fused model by numbers: every fused part against the norms that it replaces, and the whole model.

A fused part must give the results of the model's own norms on random rows with random gains: bit by bit in half
precision and under autocast except where the order of a reduction matters, and up to rounding in float32, with its
gradients. The whole model must be no farther from float64 than the original is, in its outputs and in the gradient of
every parameter.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from normplace._shared.modules import device_of
from normplace.edit.fuse.forms import HALVES, CallDtypes, NormForm, autocast_as, probe_rows
from normplace.edit.fuse.numbers import Numbers
from normplace.edit.fuse.probe import SLOPE, Results, agree, gradient_errors, random_copy
from normplace.edit.fuse.runtime import SUMS, FusedForward, FusedSum, NormRef, is_normed
from normplace.errors import UsageError

FACTOR = 2.0
"""How much farther from float64 than the original a large tensor of the fused model may be.

Both errors are sums of rounding errors in different orders. A tensor is compared with the median error of all tensors
if its own is smaller. The ratio of the errors of n elements has a standard deviation of about 1 / sqrt(n), and a tensor
may deviate by four of them.
"""
NOISE = 0.5
"""Relative error above which a gradient of the original is rounding noise, which is not compared."""
LEAST = 1e-10
"""Error that a model in float64 may have. It is the reference itself, so that its own error is 0."""
ZERO = 1e-4
"""Gradients smaller than this part of the typical gradient are zero by design, such as those of key biases."""


def verify_parts(model: nn.Module) -> None:
    """Compare every fused part of a model with the norms that it replaces.

    Raises:
        UsageError: If one differs, with its name.
    """
    device = device_of(model)
    seen: set[object] = set()
    for path, module in model.named_modules():
        parts: list[FusedSum | FusedForward] = [
            part for part in vars(module).get(SUMS, ()) if isinstance(part, FusedSum)
        ]
        forward = vars(module).get("forward")
        parts += [forward] if isinstance(forward, FusedForward) else []
        for part in parts:
            key = _key(part)
            if key not in seen:
                seen.add(key)
                _verify_part(path, part, device)


def _key(part: FusedSum | FusedForward) -> object:
    if isinstance(part, FusedForward):
        return part.form, part.kernel
    return tuple(None if ref is None else ref.form for ref in (part.out, part.after))


def _refs(part: FusedSum) -> list[NormRef]:
    return [ref for ref in (part.out, part.after) if ref is not None]


def _forms(part: FusedSum | FusedForward) -> list[NormForm]:
    """The forms of a part's norms."""
    return [part.form] if isinstance(part, FusedForward) else [ref.form for ref in _refs(part)]


class _ProbeDtypes(NamedTuple):
    """The dtypes of a verified call: of the stream, the branch and the parameters, and of autocast."""

    x: torch.dtype
    f: torch.dtype
    parameters: torch.dtype | None
    """None for those of the model."""
    autocast: torch.dtype | None = None

    @property
    def is_single(self) -> bool:
        """Whether all tensors are float32."""
        return self.parameters == torch.float32

    def __str__(self) -> str:
        return f"autocast to {self.autocast}" if self.autocast is not None else str(self.f)


def _calls(part: FusedSum | FusedForward) -> Iterator[_ProbeDtypes]:
    """The dtypes in which a part is verified: those of the model, float32, and those that autocast gives."""
    forms = _forms(part)
    yield _ProbeDtypes(forms[-1].analysed.x, forms[0].analysed.x, None, forms[0].analysed.autocast)
    single = _ProbeDtypes(torch.float32, torch.float32, torch.float32)
    if _is_fused(part, single):
        yield single
    for half in HALVES:
        for x in (torch.float32, half):
            call = _ProbeDtypes(x, half, None, half)
            if _is_fused(part, call):
                yield call


def _is_fused(part: FusedSum | FusedForward, call: _ProbeDtypes) -> bool:
    """Whether the casts of all norms of a part are known for a call under autocast."""

    def result(form: NormForm, x: torch.dtype) -> torch.dtype | None:
        matches = (casts for dtypes, casts in form.casts if (dtypes.x, dtypes.autocast) == (x, call.autocast))
        return next((casts.result for casts in matches), None)

    if isinstance(part, FusedForward):
        return result(part.form, call.x) is not None
    branch = call.f if part.out is None else result(part.out.form, call.f)
    if branch is None or part.after is None:
        return branch is not None
    return result(part.after.form, torch.promote_types(call.x, branch)) is not None


def _verify_part(path: str, part: FusedSum | FusedForward, device: torch.device) -> None:
    norms = [part.module] if isinstance(part, FusedForward) else [ref.module for ref in _refs(part)]
    device = next((p.device for norm in norms for p in norm.parameters()), device)
    is_rounded_once = any(casts.rounding == "once" for form in _forms(part) for _, casts in form.casts)
    roundings = 4 if is_rounded_once else None  # two of each term of a sum
    for dtypes in _calls(part):
        half = next((dtype for dtype in (dtypes.x, dtypes.f) if dtype in HALVES), None)
        probe = _PartProbe(part, dtypes, device)
        for name, fused, separate in probe.results():
            if not agree(fused, separate, half, roundings):
                raise UsageError(
                    f"the fused {name} of {path or 'the model'!r} differs from the model's own in {dtypes}, so nothing "
                    "is fused: report the model."
                )
        if dtypes.is_single:
            for name, error in probe.gradient_errors():
                if error > SLOPE:
                    raise UsageError(
                        f"the gradient of the {name} in the fused part of {path or 'the model'!r} is off by "
                        f"{error:.1e}, so nothing is fused: report the model."
                    )


class _PartProbe:
    """A fused part on copies of its norms with random parameters, and on random rows."""

    def __init__(self, part: FusedSum | FusedForward, dtypes: _ProbeDtypes, device: torch.device) -> None:
        generator = torch.Generator().manual_seed(2)
        self.holder, self.dtypes, self.device = nn.Module(), dtypes, device
        if isinstance(part, FusedForward):
            self.out, self.after, self.sum = None, random_copy(part.module, dtypes.parameters, generator), None
        else:
            out, after = self._copied("out", part.out, generator), self._copied("after", part.after, generator)
            self.out, self.after = (None if ref is None else ref.module for ref in (out, after))
            self.sum = FusedSum(out, after, True, None)
        form = _forms(part)[0]
        self.x, self.f = (
            probe_rows(form, generator).to(device, dtype).requires_grad_() for dtype in (dtypes.x, dtypes.f)
        )

    def _copied(self, name: str, ref: NormRef | None, generator: torch.Generator) -> NormRef | None:
        if ref is None:
            return None
        self.holder.add_module(name, random_copy(ref.module, self.dtypes.parameters, generator))
        return NormRef(self.holder, name, ref.form)

    def _fused(self) -> Results:
        if self.sum is None:
            assert self.after is not None
            return [("norm", self.after(self.x))]
        stream = self.sum(self.x, self.f)
        results = [("sum", stream)]
        if self.after is not None:
            if self.dtypes.autocast is None and not is_normed(stream):
                raise UsageError("the fused form does not run for the dtypes of this model, so nothing is fused.")
            results.append(("norm", self.after(stream)))
        return results

    def _separate(self, stream: Tensor | None) -> Results:
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
        dtypes = CallDtypes(self.dtypes.x, self.dtypes.x, self.dtypes.autocast)
        with torch.no_grad(), autocast_as(dtypes, self.device.type):
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
        with autocast_as(CallDtypes(self.dtypes.x, self.dtypes.x), self.device.type):
            fused, separate = self._fused(), self._separate(None)
        yield from gradient_errors(leaves, fused, separate)


def _own(norm: nn.Module, x: Tensor) -> Tensor:
    """The result of the norm's own method."""
    return type(norm).forward(norm, x)


def verify_model(original: Numbers, fused: Numbers, truth: Numbers, rounded: Numbers | None = None) -> float:
    """Check that a fused model is no farther from float64 than the original, times :data:`FACTOR`.

    Args:
        original: Of the model before the edit.
        fused: Of the model after the edit.
        truth: In float64.
        rounded: In float64 with rounding errors added to every result. Where they amount to more than usual, as in the
            gradient of one number whose terms cancel, the fused model may be as far from float64.

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
    runs = [original, fused, truth, rounded or truth]
    outputs = [{str(index): tensor for index, tensor in enumerate(run.outputs)} for run in runs]
    names = original.gradients.keys() & truth.gradients.keys()
    gradients = [{name: run.gradients[name] for name in sorted(names)} for run in runs]
    return max(_compare("output", *outputs), _compare("gradient of", *gradients))


def _compare(
    kind: str,
    original: Mapping[str, Tensor],
    fused: Mapping[str, Tensor],
    truth: Mapping[str, Tensor],
    rounded: Mapping[str, Tensor],
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
        dtype = original[name].dtype
        moved = _error(rounded[name], value, scales[name], typical)
        allowed = max(own[name], median, moved, LEAST if dtype == torch.float64 else torch.finfo(dtype).eps)
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

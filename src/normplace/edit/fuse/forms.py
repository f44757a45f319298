"""Identify what a norm module computes, by comparing it with candidates on random inputs and parameters.

The class of the module plays no role. The candidates differ in what a fused kernel must know: the kind of norm, its
eps, which parameter is the gain, and whether the gain is stored minus one. Where a norm rounds, and the dtype of its
result, are identified for each combination of dtypes in which it may be called, with and without autocast.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor, nn

from normplace.ops import feature_norm

ROWS = 64
SINGLE, DOUBLE = torch.float32, torch.float64
HALVES = (torch.bfloat16, torch.float16)
AUTOCAST_DEVICES = ("cpu", "cuda", "xpu")
MATCH = 1e-4
"""Largest relative difference of a candidate in float32: rounding gives 1e-6, a wrong formula more than 1e-2."""
MISMATCHES = 0.05
"""Share of elements in half precision that may differ by the order of a reduction; a wrong order of casts gives 0.2."""
LAST_DIGITS = 1e-5
"""Differences in float32, relative to the largest element of the row, that are not counted: 100 units in the last
place."""


class CallDtypes(NamedTuple):
    """What decides the casts of a norm: the dtypes of its input and parameters, and of autocast if it is active."""

    x: torch.dtype
    parameters: torch.dtype
    autocast: torch.dtype | None = None


class Casts(NamedTuple):
    """Where a norm rounds, and the dtype of its result."""

    rounding: str
    """One of :data:`normplace.ops.norm_add_norm.reference.ROUNDINGS`: ``once``, ``result`` or ``gain``."""
    result: torch.dtype

    def before_add(self, x: torch.dtype) -> str:
        """The rounding of an output norm whose input has dtype ``x``; a wider result is not rounded to ``x``."""
        return self.rounding if self.result == x else "rows" if self.rounding == "gain" else "once"


@dataclass(frozen=True)
class NormForm:
    """What a norm module computes.

    Attributes:
        module: Its class.
        norm: ``rms`` or ``layer``.
        eps: The number added to the variance.
        weight: The name of its gain; None if it has no gain.
        bias: The name of its bias; None if it has no bias.
        unit_offset: Whether the gain is stored minus one.
        width: The number of features.
        analysed: The dtypes of the analysed pass.
        device: The kind of device on which its casts under autocast were identified.
        casts: Its casts for each combination of dtypes that a kernel computes.
    """

    module: type[nn.Module]
    norm: str
    eps: float
    weight: str | None
    bias: str | None
    unit_offset: bool
    width: int
    analysed: CallDtypes
    device: str
    casts: tuple[tuple[CallDtypes, Casts], ...] = ()

    @cached_property
    def _casts(self) -> dict[CallDtypes, Casts]:
        return dict(self.casts)

    def casts_of(self, x: torch.dtype, weight: Tensor | None, device: str) -> Casts | None:
        """The casts of a call in the present context; None if they are unknown."""
        autocast = active_autocast(device)
        if autocast is not None and device != self.device:
            return None
        return self._casts.get(CallDtypes(x, x if weight is None else weight.dtype, autocast))

    def rounded_once(self) -> NormForm:
        """The same norm without intermediate rounding."""
        return replace(self, casts=tuple((dtypes, casts._replace(rounding="once")) for dtypes, casts in self.casts))

    def parameters(self, norm: nn.Module) -> tuple[Tensor | None, Tensor | None]:
        """The gain and the bias of a module of this form."""
        weight = None if self.weight is None else getattr(norm, self.weight)
        return weight, None if self.bias is None else getattr(norm, self.bias)

    def apply(self, x: Tensor, norm: nn.Module, casts: Casts, backend: str = "auto") -> Tensor:
        """The result of the norm, by one kernel."""
        return feature_norm(
            x, *self.parameters(norm), norm=self.norm, eps=self.eps, unit_offset=self.unit_offset,
            rounding=casts.rounding, dtype=casts.result, backend=backend,
        )  # fmt: skip


def active_autocast(device: str) -> torch.dtype | None:
    """The dtype of autocast on a kind of device; None if autocast is not active."""
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None


def identify(
    norm: nn.Module,
    kind: str,
    eps: float | None,
    width: int,
    dtype: torch.dtype,
    *,
    device: torch.device | None = None,
    with_casts: bool = True,
) -> NormForm | str:
    """The form of a norm module, or the reason why it has none that a kernel computes.

    Args:
        norm: The module, which may be on the meta device.
        kind: The kind of norm that the analysis found.
        eps: The eps that the analysis found.
        width: The number of features.
        dtype: The dtype of its input.
        device: Where it runs if it has no parameters; a CPU by default.
        with_casts: Also identify where it rounds in half precision; otherwise ``casts`` is empty.
    """
    if kind not in ("rms", "layer"):
        return f"no kernel computes norms of kind {kind!r}"
    names = [name for name, _ in norm.named_parameters()]
    if any(parameter.shape != (width,) for parameter in norm.parameters()) or len(names) > 2:
        return "its parameters are not one gain and one bias per feature"
    if any("." in name for name in names) or any(True for _ in norm.buffers()):
        return "it has submodules or buffers"
    weight = next((parameter for parameter in norm.parameters()), None)
    place = device if weight is None else weight.device
    place = torch.device("cpu") if place is None or place.type == "meta" else place
    analysed = CallDtypes(dtype, dtype if weight is None else weight.dtype, active_autocast(place.type))
    form = NormForm(type(norm), kind, eps or 0.0, None, None, False, width, analysed, place.type)
    try:
        return _identify(norm, names, form, place, with_casts)
    except Exception as error:  # a norm that expects sequences or images fails in its own ways
        return f"it cannot be called with rows of features ({type(error).__name__})"


def _identify(
    norm: nn.Module, names: list[str], form: NormForm, device: torch.device, with_casts: bool
) -> NormForm | str:
    exact = DOUBLE if form.analysed.x == DOUBLE else SINGLE
    probe = _Probe(norm, names, form, CallDtypes(exact, exact), device)
    candidate = next((form for form in _candidates(names, form) if probe.error(form) <= MATCH), None)
    if candidate is None:
        return "it computes something else than a gain and a bias on normalized features"
    if not with_casts:
        return candidate
    needed = {form.analysed} if exact == DOUBLE else {form.analysed, CallDtypes(HALVES[0], HALVES[0])}
    # An eps that depends on the dtype, as the default of nn.RMSNorm does, is right in one of the two only.
    known = [
        (CallDtypes(dtype, dtype), Casts("result", dtype))
        for dtype in (DOUBLE, SINGLE)
        if dtype == exact or _Probe(norm, names, form, CallDtypes(dtype, dtype), device).error(candidate) <= MATCH
    ]
    for dtypes in dict.fromkeys((form.analysed, *_calls(form, bool(names)))):
        if dtypes in dict(known):
            continue
        try:
            casts = _Probe(norm, names, form, dtypes, device).casts(candidate)
        except RuntimeError:  # PyTorch has no such operator: the model is never called with these dtypes
            if dtypes in needed:
                raise
            continue
        if isinstance(casts, Casts):
            known.append((dtypes, casts))
        elif dtypes in needed:
            return casts
    return replace(candidate, casts=tuple(known))


def _calls(form: NormForm, has_parameters: bool) -> Iterator[CallDtypes]:
    """The combinations of dtypes in which a norm may be called."""
    yield from (CallDtypes(half, half) for half in HALVES)
    if form.device in AUTOCAST_DEVICES:
        for half, x in itertools.product(HALVES, (SINGLE, *HALVES)):
            if x in (SINGLE, half):
                yield CallDtypes(x, form.analysed.parameters if has_parameters else x, half)


def _candidates(names: list[str], form: NormForm) -> Iterator[NormForm]:
    pairs: list[tuple[str | None, str | None]] = [(None, None)]
    if len(names) == 1:
        pairs = [(names[0], None)]
    elif names:
        pairs = list(itertools.permutations(names))  # type: ignore[arg-type]
    for (weight, bias), offset in itertools.product(pairs, (False, True) if names else (False,)):
        yield replace(form, weight=weight, bias=bias, unit_offset=offset)


class _Probe:
    """One call of a norm module with random parameters and rows of different sizes, so that eps matters."""

    def __init__(
        self, norm: nn.Module, names: list[str], form: NormForm, dtypes: CallDtypes, device: torch.device
    ) -> None:
        generator = torch.Generator().manual_seed(0)
        self.x = probe_rows(form, generator).to(device, dtypes.x)
        self.parameters = {
            name: torch.randn(form.width, generator=generator).to(device, dtypes.parameters) for name in names
        }
        with torch.no_grad(), autocast_as(dtypes, device.type), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # some operators warn of a slow path for mixed dtypes
            self.result = torch.func.functional_call(norm, self.parameters, (self.x,))

    def _candidate(self, form: NormForm, rounding: str) -> Tensor:
        weight, bias = (None if name is None else self.parameters[name] for name in (form.weight, form.bias))
        return feature_norm(
            self.x, weight, bias, norm=form.norm, eps=form.eps, unit_offset=form.unit_offset, rounding=rounding,
            dtype=self.result.dtype, backend="reference",
        )  # fmt: skip

    def error(self, form: NormForm) -> float:
        """The largest difference, relative to the largest element of its row."""
        truth = self.result.double()
        error = (self._candidate(form, "once").double() - truth).abs().amax(-1) / truth.abs().amax(-1).clamp(min=1e-30)
        return float(error.max())

    def casts(self, form: NormForm) -> Casts | str:
        """The casts of the norm, or why no kernel has the same."""
        if self.result.dtype not in (self.x.dtype, SINGLE):
            return "its result has another dtype than its input"
        shares = {order: mismatches(self._candidate(form, order), self.result) for order in ("result", "gain")}
        rounding = min(shares, key=lambda order: shares[order])
        if shares[rounding] > MISMATCHES:
            return "the order of its casts is unknown"
        return Casts(rounding, self.result.dtype)


def autocast_as(dtypes: CallDtypes, device: str) -> torch.autocast:
    """The context of a call with these dtypes."""
    if device not in AUTOCAST_DEVICES:
        device = "cpu"  # has no effect on other devices, some of which have no autocast
    return torch.autocast(device, dtypes.autocast, enabled=dtypes.autocast is not None, cache_enabled=False)


def mismatches(one: Tensor, other: Tensor) -> float:
    """The share of elements that differ: in float32 by more than the last digits."""
    if one.dtype != other.dtype:
        return 1.0
    if one.dtype in HALVES:
        return float((one != other).double().mean())
    truth = other.double()
    error = (one.double() - truth).abs() / truth.abs().amax(-1, keepdim=True).clamp(min=1e-30)
    return float((error > LAST_DIGITS).double().mean())


def probe_rows(form: NormForm, generator: torch.Generator) -> Tensor:
    """Random rows: most of order one, some so small that eps decides their norm, some shifted from zero."""
    rows = torch.randn(ROWS, form.width, generator=generator)
    small = max(form.eps, 1e-8) ** 0.5
    sizes = torch.ones(ROWS, 1)
    sizes[:12, 0] = small * torch.tensor([0.3, 1.0, 3.0]).repeat(4)
    rows[12:24] += 1.0
    return rows * sizes

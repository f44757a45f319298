"""Identify what a norm module computes, by comparing it with candidates on random inputs and parameters.

The class of the module plays no role. The candidates differ in what a fused kernel must know: the kind of norm, its
eps, which parameter is the gain, whether the gain is stored minus one, and where a norm in half precision rounds.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from normplace.ops import feature_norm

ROWS = 64
HALF = torch.bfloat16
"""The dtype in which the order of casts is identified."""
MATCH = 1e-4
"""Largest relative difference of a candidate in float32: rounding gives 1e-6, a wrong formula more than 1e-2."""
MISMATCHES = 0.05
"""Share of elements in half precision that may differ by the order of a reduction; a wrong order of casts gives 0.2."""


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
        rounding: Where it rounds in half precision, see :data:`normplace.ops.norm_add_norm.reference.ROUNDINGS`.
        dtypes: The dtypes of its input and of its gain in the analysed pass.
        width: The number of features.
    """

    module: type[nn.Module]
    norm: str
    eps: float
    weight: str | None
    bias: str | None
    unit_offset: bool
    rounding: str
    dtypes: tuple[torch.dtype, torch.dtype]
    width: int

    def parameters(self, norm: nn.Module) -> tuple[Tensor | None, Tensor | None]:
        """The gain and the bias of a module of this form."""
        weight = None if self.weight is None else getattr(norm, self.weight)
        return weight, None if self.bias is None else getattr(norm, self.bias)

    def apply(self, x: Tensor, norm: nn.Module, backend: str = "auto") -> Tensor:
        """The result of the norm, by one kernel."""
        return feature_norm(
            x, *self.parameters(norm), norm=self.norm, eps=self.eps, unit_offset=self.unit_offset,
            rounding=self.rounding, backend=backend,
        )  # fmt: skip


def identify(norm: nn.Module, kind: str, eps: float | None, width: int, dtype: torch.dtype) -> NormForm | str:
    """The form of a norm module, or the reason why it has none that a kernel computes.

    Args:
        norm: The module, which may be on the meta device.
        kind: The kind of norm that the analysis found.
        eps: The eps that the analysis found.
        width: The number of features.
        dtype: The dtype of its input.
    """
    if kind not in ("rms", "layer"):
        return f"no kernel computes norms of kind {kind!r}"
    names = [name for name, _ in norm.named_parameters()]
    if any(parameter.shape != (width,) for parameter in norm.parameters()) or len(names) > 2:
        return "its parameters are not one gain and one bias per feature"
    if any("." in name for name in names) or any(True for _ in norm.buffers()):
        return "it has submodules or buffers"
    weight = next((parameter for parameter in norm.parameters()), None)
    dtypes = dtype, dtype if weight is None else weight.dtype
    try:
        return _identify(norm, names, NormForm(type(norm), kind, eps or 0.0, None, None, False, "once", dtypes, width))
    except (RuntimeError, TypeError, AttributeError, ValueError) as error:
        return f"it cannot be called with rows of features ({type(error).__name__})"


def _identify(norm: nn.Module, names: list[str], form: NormForm) -> NormForm | str:
    device = next((p.device for p in norm.parameters() if not p.is_meta), torch.device("cpu"))
    for candidate in _candidates(names, form):
        single = _Probe(norm, names, form, (torch.float32, torch.float32), device)
        if single.error(candidate) > MATCH:
            continue
        dtypes = form.dtypes if form.dtypes[0] is not torch.float32 else (HALF, HALF)
        half = _Probe(norm, names, form, dtypes, device)
        if half.result.dtype != dtypes[0]:
            return "its result has another dtype than its input"
        shares = {order: half.mismatches(replace(candidate, rounding=order)) for order in ("result", "gain")}
        rounding = min(shares, key=lambda order: shares[order])
        if shares[rounding] > MISMATCHES and dtypes[0].itemsize < 4:
            return "the order of its casts is unknown"
        return replace(candidate, rounding=rounding)
    return "it computes something else than a gain and a bias on normalized features"


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
        self,
        norm: nn.Module,
        names: list[str],
        form: NormForm,
        dtypes: tuple[torch.dtype, torch.dtype],
        device: torch.device,
    ) -> None:
        generator = torch.Generator().manual_seed(0)
        self.x = probe_rows(form, generator).to(device, dtypes[0])
        self.parameters = {name: torch.randn(form.width, generator=generator).to(device, dtypes[1]) for name in names}
        with torch.no_grad():
            self.result = torch.func.functional_call(norm, self.parameters, (self.x,))

    def _candidate(self, form: NormForm) -> Tensor:
        weight, bias = (None if name is None else self.parameters[name] for name in (form.weight, form.bias))
        return feature_norm(
            self.x, weight, bias, norm=form.norm, eps=form.eps, unit_offset=form.unit_offset, rounding=form.rounding,
            backend="reference",
        )  # fmt: skip

    def error(self, form: NormForm) -> float:
        """The largest difference, relative to the largest element of its row."""
        truth = self.result.double()
        error = (self._candidate(form).double() - truth).abs().amax(-1) / truth.abs().amax(-1).clamp(min=1e-30)
        return float(error.max())

    def mismatches(self, form: NormForm) -> float:
        """The share of elements that differ."""
        return float((self._candidate(form) != self.result).double().mean())


def probe_rows(form: NormForm, generator: torch.Generator) -> Tensor:
    """Random rows: most of order one, some so small that eps decides their norm, some shifted from zero."""
    rows = torch.randn(ROWS, form.width, generator=generator)
    small = max(form.eps, 1e-8) ** 0.5
    sizes = torch.ones(ROWS, 1)
    sizes[:12, 0] = small * torch.tensor([0.3, 1.0, 3.0]).repeat(4)
    rows[12:24] += 1.0
    return rows * sizes

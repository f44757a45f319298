"""Compare fused gates and modulations with the model's own operators, on random rows, factors and gains."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from normplace._shared.modules import device_of
from normplace.edit.fuse.forms import HALVES, NormForm, probe_rows
from normplace.edit.fuse.gates import MODULATIONS, GatedSum, Modulation, ModulationForm, is_modulated
from normplace.edit.fuse.modulation import SAMPLES
from normplace.edit.fuse.probe import SLOPE, Results, agree, gradient_errors, random_copy
from normplace.edit.fuse.runtime import SUMS, NormRef, is_normed
from normplace.errors import UsageError

SAMPLE_COUNT, TOKENS, WIDTH = 8, 8, 48
"""Of the rows of a probe; the width is that of the norm if there is one."""
ROUNDINGS = 5
"""Operators of a gated sum or modulation, each of which rounds its result."""


def verify_gates(model: nn.Module) -> None:
    """Compare every gated sum and modulation of a fused model with the operators that it replaces.

    Raises:
        UsageError: If one differs, with its name.
    """
    device = device_of(model)
    seen: set[object] = set()
    for path, module in model.named_modules():
        sums = [part for part in vars(module).get(SUMS, ()) if isinstance(part, GatedSum)]
        for part in (*sums, *vars(module).get(MODULATIONS, ())):
            key = _key(part)
            if key not in seen:
                seen.add(key)
                _verify(path or "the model", part, device)


def _norm(part: GatedSum | Modulation) -> NormRef | None:
    return part.form.norm if isinstance(part, Modulation) else part.after


def _key(part: GatedSum | Modulation) -> object:
    norm = _norm(part)
    form = None if norm is None else norm.form
    if isinstance(part, Modulation):
        return form, part.form.styles
    return form, part.styles, part.is_gated, part.gate_first, part.rounding


def _verify(path: str, part: GatedSum | Modulation, device: torch.device) -> None:
    norm = _norm(part)
    dtypes = HALVES if norm is None else (norm.form.analysed.x,)
    for kind in dict.fromkeys((*dtypes, torch.float32)):
        probe = _GateProbe(part, kind, device)
        for name, fused, separate in probe.results():
            half = fused.dtype if fused.dtype in HALVES else None
            if not agree(fused, separate, half, ROUNDINGS if probe.is_rounded_once else None):
                raise UsageError(
                    f"the fused {name} of {path!r} differs from the model's own in {kind}, so nothing is fused: report "
                    "the model."
                )
        if kind == torch.float32:
            for name, error in probe.gradient_errors():
                if error > SLOPE:
                    raise UsageError(
                        f"the gradient of the {name} in the fused part of {path!r} is off by {error:.1e}, so nothing "
                        "is fused: report the model."
                    )


class _GateProbe:
    """A fused part on a copy of its norm with random parameters, and on random rows and factors."""

    def __init__(self, part: GatedSum | Modulation, dtype: torch.dtype, device: torch.device) -> None:
        generator = torch.Generator().manual_seed(2)
        self.part, ref = part, _norm(part)
        self.norm = self.ref = None
        if ref is not None:
            self.norm = random_copy(ref.module, torch.float32 if dtype == torch.float32 else None, generator)
            holder = nn.Module()
            holder.add_module("norm", self.norm)
            self.ref = NormRef(holder, "norm", ref.form)
        self.is_rounded_once = (isinstance(part, GatedSum) and part.rounding == "once") or (
            ref is not None and any(casts.rounding == "once" for _, casts in ref.form.casts)
        )
        styles = part.form.styles if isinstance(part, Modulation) else part.styles
        self.styles, width = styles, WIDTH if ref is None else ref.form.width
        self.leaves = {"stream": self._rows(ref and ref.form, generator)}
        if isinstance(part, GatedSum):
            self.leaves["branch"] = self._rows(ref and ref.form, generator)
            if part.is_gated:
                self.leaves["gate"] = torch.randn(SAMPLE_COUNT, 1, width, generator=generator)
        if styles is not None:
            shape = (SAMPLE_COUNT, width) if SAMPLES in styles else (SAMPLE_COUNT, 1, width)
            self.leaves |= {name: torch.randn(shape, generator=generator) for name in ("scale", "shift")}
        self.leaves = {name: leaf.to(device, dtype).requires_grad_() for name, leaf in self.leaves.items()}
        if self.norm is not None:
            self.norm.to(device)

    @staticmethod
    def _rows(form: NormForm | None, generator: torch.Generator) -> Tensor:
        if form is None:
            return torch.randn(SAMPLE_COUNT, TOKENS, WIDTH, generator=generator)
        return probe_rows(form, generator).reshape(SAMPLE_COUNT, TOKENS, form.width)

    def _fused(self) -> Results:
        x, factors = self.leaves["stream"], [self.leaves.get(name) for name in ("scale", "shift")]
        results: Results = []
        if isinstance(self.part, GatedSum):
            part, (gate, branch) = self.part, (self.leaves.get("gate"), self.leaves["branch"])
            copied = GatedSum(part.is_gated, True, True, self.ref, self.styles, part.rounding, None)
            x = copied(*(each for each in (x, gate, branch) if each is not None), scale=factors[0], shift=factors[1])
            results.append(("sum", x))
            if self.ref is not None and not (is_normed(x) or is_modulated(x)):
                raise UsageError("the fused form does not run for the dtypes of this model, so nothing is fused.")
        if self.norm is None:
            return results
        y = self.norm(x) if self.styles is None else Modulation(self._form(), None)(x, *factors)  # type: ignore[arg-type]
        assert y is not None
        return [*results, ("norm", y)]

    def _form(self) -> ModulationForm:
        assert self.ref is not None
        assert self.styles is not None
        return ModulationForm(self.ref, self.styles)

    def _separate(self, stream: Tensor | None) -> Results:
        """The same by the model's own operators; the norm reads ``stream`` if it is given."""
        x, results = self.leaves["stream"], []
        if isinstance(self.part, GatedSum):
            branch, gate = self.leaves["branch"], self.leaves.get("gate")
            x = x + (branch if gate is None else gate * branch)
            results.append(("sum", x))
        if self.norm is None:
            return results
        y = type(self.norm).forward(self.norm, x if stream is None else stream)
        if self.styles is not None:
            scale, shift = (self.leaves[name].reshape(SAMPLE_COUNT, 1, -1) for name in ("scale", "shift"))
            y = y * (1 + scale) + shift
        return [*results, ("norm", y)]

    def results(self) -> Iterator[tuple[str, Tensor, Tensor]]:
        """Each result of the fused part, and of the operators that it replaces."""
        with torch.no_grad():
            fused = self._fused()
            separate = self._separate(fused[0][1] if isinstance(self.part, GatedSum) else None)
        for (name, one), (_, other) in zip(fused, separate, strict=True):
            yield name, one, other

    def gradient_errors(self) -> Iterator[tuple[str, float]]:
        """The relative difference of every gradient."""
        leaves = dict(self.leaves)
        if self.norm is not None:
            leaves |= {f"norm's {name}": parameter for name, parameter in self.norm.named_parameters()}
        yield from gradient_errors(leaves, self._fused(), self._separate(None))

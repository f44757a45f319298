"""The networks that the contract battery is run on, as data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from normplace.models import MLP
from normplace.norms import NORMS
from normplace.placement.presets import PRESETS

WIDTHS = (3, 8, 8, 8, 2)
PLACES = [name for name in PRESETS if name != "plain"] + ["plain-before", "plain-after"]
# MsgNorm rescales a branch's output to the length of what it is added to, so it needs the output slot.
WITH_OUTPUT_SLOT = ("peri", "output", "plain-after")


@dataclass(frozen=True)
class Case:
    norm: str
    place: str
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def fits(self) -> bool:
        return self.norm != "msg" or self.place in WITH_OUTPUT_SLOT or self.place in ("none", "rezero")

    def build(self, **options: Any) -> MLP:
        norm: Any = self.norm
        if norm == "msg" and self.place in WITH_OUTPUT_SLOT:
            norm = {"input": "layer", "output": "msg", "final": "layer"}
        settings: dict[str, Any] = {"norm": norm, **self.options, **options}
        if self.place.startswith("plain-"):
            settings["norm_where"] = self.place.removeprefix("plain-")
        else:
            settings["placement"] = self.place
        return MLP(WIDTHS, **settings)

    def __str__(self) -> str:
        extra = "-".join(str(value) for value in self.options.values())
        return "-".join(part for part in (self.norm, self.place, extra) if part)


ALL = [Case(norm, place) for norm in NORMS for place in PLACES]
CASES = [case for case in ALL if case.fits]
MISFITS = [case for case in ALL if not case.fits]
FAMILY = [
    Case("layer", place, {"parametrization": "ntk", "activation": activation})
    for place in ("plain-before", "plain-after", "peri")
    for activation in ("relu", "leaky_relu", "gelu", "silu", "tanh", "erf")
]


def rows(count: int = 5, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, WIDTHS[0], generator=torch.Generator().manual_seed(seed)).to(dtype)


def _affine(norm, y):
    y = y if getattr(norm, "weight", None) is None else y * norm.weight
    return y if getattr(norm, "bias", None) is None else y + norm.bias


def _over(x, dim):
    centred = x - x.mean(dim, keepdim=True)
    return centred, (centred**2).mean(dim, keepdim=True)


def _layer(norm, x, reference):
    centred, variance = _over(x, -1)
    return _affine(norm, centred / (variance + norm.eps) ** 0.5)


def _graph(norm, x, reference):
    shifted = x - norm.mean_scale * x.mean(0, keepdim=True)
    return _affine(norm, shifted / ((shifted**2).mean(0, keepdim=True) + norm.eps) ** 0.5)


def _pair(norm, x, reference):
    centred, _ = _over(x, 0)
    return norm.scale * centred / ((centred**2).sum(1).mean() + norm.eps) ** 0.5


def _msg(norm, x, reference):
    lengths = [(rows**2).sum(-1, keepdim=True) ** 0.5 for rows in (reference, x)]
    return norm.scale * lengths[0] * x / lengths[1].clamp(min=norm.eps)


# Each norm once more as its published formula, to hold the modules against: rows of one graph, evaluation mode.
FORMULAS = {
    "LayerNorm": _layer,
    "RMSNorm": lambda norm, x, _: _affine(norm, x / ((x**2).mean(-1, keepdim=True) + norm.eps) ** 0.5),
    "BatchNorm": lambda norm, x, _: _affine(norm, (x - norm.running_mean) / (norm.running_var + norm.eps) ** 0.5),
    "GraphNorm": _graph,
    "PairNorm": _pair,
    "MsgNorm": _msg,
    "DyT": lambda norm, x, _: _affine(norm, torch.tanh(norm.alpha * x)),
    "Identity": lambda norm, x, _: x,
}

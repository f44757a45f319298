"""Is a model bounded? The certificate for PyTorch modules, the growth along lines for other estimators."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normplace.errors import UsageError
from normplace.lab.extrapolate.predictor import Array, Predictor
from normplace.lab.extrapolate.search import Lines
from normplace.ntk import certificate
from normplace.ntk.certification.growth import classify, combined
from normplace.ntk.certification.proof import prove

_DECADES = np.geomspace(1, 1e8, 17)
_SAMPLES = 64


@dataclass(frozen=True)
class Boundedness:
    """Whether a model is bounded over all inputs.

    Attributes:
        verdict: ``bounded`` (proven), ``unbounded`` (grows along a line) or ``unknown``.
        reason: The reason for the verdict.
    """

    verdict: str
    reason: str


def boundedness(predictor: Predictor, x: Array, lines: Lines) -> Boundedness:
    """The verdict on a model."""
    estimator: Any = predictor.model
    last = _last_step(estimator)
    try:
        if predictor.module is not None:
            result = certificate(predictor.module, _rows(predictor.module, x[:_SAMPLES]), ablate=False)
        elif hasattr(last, "certificate"):
            result = last.certificate(ablate=False)
            if last is not estimator and result.verdict != "bounded":  # what comes before it may be bounded
                return _growth(predictor, lines)
        else:
            return _growth(predictor, lines)
    except UsageError as error:
        return Boundedness("unknown", f"it cannot be certified: {error}")
    reason = f"{result.reason} {result.obstacle}" if result.verdict == "unknown" else result.reason
    return Boundedness(result.verdict, reason)


def _last_step(estimator: Any) -> Any:
    """The estimator at the end of a pipeline, which predicts from whatever the steps before it return."""
    steps = getattr(estimator, "steps", None)
    return _last_step(steps[-1][1]) if isinstance(steps, list) and steps else estimator


def _growth(predictor: Predictor, lines: Lines) -> Boundedness:
    """The verdict on an estimator that is not a module: a proof is not possible."""
    every = max(1, len(lines.start) // 32)
    some = Lines(lines.start[::every], lines.step[::every], ())
    values = torch.from_numpy(np.stack([predictor(some.at(t)) for t in _DECADES]))
    distance = torch.from_numpy(_DECADES)
    usable = torch.isfinite(values).all(-1).long().cumprod(0).sum(0).tolist()
    growths = [classify(distance, values[:, line], usable[line]) for line in range(values.shape[1])]
    if combined([growth.status for growth in growths]) == "grows":
        growing = sum(growth.status == "grows" for growth in growths)
        return Boundedness("unbounded", f"the prediction grows along {growing} of {len(growths)} lines.")
    return Boundedness("unknown", "no growth was found over 8 decades, which proves nothing.")


def layer_that_would_bound(module: nn.Module, x: Array) -> str | None:
    """The first linear layer behind which a LayerNorm would bound the module, at any weights; None if there is none.

    The proof is :func:`normplace.ntk.certification.proof.prove` of the module with the norm in place. The last linear
    layer is not considered: a norm behind it would fix the scale of the prediction.
    """
    sample = _rows(module, x[:1])
    linear = [name for name, part in module.named_modules() if isinstance(part, nn.Linear) and part.out_features > 1]
    for name in linear[:-1] if _ends_with(module, linear) else linear:
        handle = module.get_submodule(name).register_forward_hook(_normalize)
        try:
            if prove(module, sample).output:
                return name
        finally:
            handle.remove()
    return None


def _ends_with(module: nn.Module, linear: list[str]) -> bool:
    """Whether the last of the named layers is the last linear layer of the module."""
    every = [name for name, part in module.named_modules() if isinstance(part, nn.Linear)]
    return bool(linear) and every[-1] == linear[-1]


def _normalize(_module: nn.Module, _inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
    return F.layer_norm(output, output.shape[-1:])


def _rows(module: nn.Module, x: Array) -> Tensor:
    parameter = next(module.parameters(), torch.empty(0))
    return torch.from_numpy(x).to(parameter)

"""Signals of a pretraining run: what is kept of each measurement, and the numbers and series of a record.

A layer is two depths, attention and MLP. Lists have one number for each layer, those of the stream also one before the
first layer. In the series of a record, the lists of all moments follow each other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from torch import nn

from normplace.analysis.signal_probe.results import Signals
from normplace.lab.studies.periln.growth import log_ratio
from normplace.lab.studies.periln.training import summary

DIGITS = 4
STREAM = ("variance", "peak", "ratio")
BRANCH = ("branch_ratio", "gradient", "effective_lr", "gain")


def measure_signals(signals: Signals, model: nn.Module) -> dict[str, Any]:
    """The numbers and lists of one measurement."""
    numbers, lists = summary(signals.depths)
    first, second = signals.depths[1::2], signals.depths[2::2]
    stream = signals.depths[::2]
    dim = next(model.parameters()).shape[-1]
    gains = output_gains(model)
    rates = [depth.effective_lr for depth in signals.depths if depth.effective_lr is not None]
    return {
        "numbers": {
            **numbers,
            "gradient": math.nan if signals.gradient is None else signals.gradient,
            "probe_loss": math.nan if signals.loss is None else signals.loss,
            "effective_lr": _geometric_mean(rates),
            "gain": fmean(gains) if gains else math.nan,
        },
        "variance": [depth.variance for depth in stream],
        "peak": [depth.peak for depth in stream],
        "ratio": [depth.ratio for depth in stream],
        "gradient": lists["gradient"],
        "branch_ratio": [
            math.hypot(one.branch or 0.0, other.branch or 0.0) / math.sqrt(max(before.variance * dim, 1e-30))
            for one, other, before in zip(first, second, stream, strict=False)
        ],
        "effective_lr": [
            max(one.effective_lr or math.nan, other.effective_lr or math.nan)
            for one, other in zip(first, second, strict=True)
        ],
        "gain": [max(pair) for pair in zip(gains[::2], gains[1::2], strict=True)],
    }


def output_gains(model: nn.Module) -> list[float]:
    """RMS of the gain of each output norm, in order; empty without output norms."""
    gains = [gain.detach() for name, gain in model.named_parameters() if name.endswith("output_norm.weight")]
    return [float(gain.float().square().mean().sqrt()) for gain in gains]


def headline_numbers(measured: Mapping[int, Mapping[str, Any]]) -> dict[str, float]:
    """Numbers before training, after it, and the extremes over all moments."""
    moments = [measured[taken] for taken in sorted(measured)]
    start, end = moments[0]["numbers"], moments[-1]["numbers"]
    largest = max(moment["numbers"]["peak"] for moment in moments)
    return {
        **{f"{name}_start": value for name, value in start.items()},
        **{f"{name}_end": value for name, value in end.items()},
        "peak_most": largest,
        "headroom_least": min(moment["numbers"]["headroom"] for moment in moments),
        "variance_growth": log_ratio(moments[-1]["variance"][-1], moments[0]["variance"][-1], 2),
        "gain_drift": abs(end["gain"] - start["gain"]),
        "effective_lr_drift": log_ratio(end["effective_lr"], start["effective_lr"], 2),
    }


def series_of(measured: Mapping[int, Mapping[str, Any]]) -> dict[str, Sequence[float]]:
    """The lists of all moments one after another, and the number of steps of each moment."""
    taken = sorted(measured)
    series: dict[str, Sequence[float]] = {
        "moment": [float(steps) for steps in taken],
        "massive": [measured[steps]["numbers"]["massive"] for steps in taken],
        "headroom": [_rounded(measured[steps]["numbers"]["headroom"]) for steps in taken],
    }
    for name in (*STREAM, *BRANCH):
        values = [_rounded(value) for steps in taken for value in measured[steps][name]]
        if any(map(math.isfinite, values)):
            series[name] = values
    return series


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def _geometric_mean(values: Sequence[float]) -> float:
    return math.exp(fmean(map(math.log, values))) if values and min(values) > 0 else math.nan

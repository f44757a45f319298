"""Numbers about a training: spikes, divergence, signals of the stream, and memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby
from statistics import fmean, median
from typing import Any

import torch
from torch import Tensor, nn

from normplace.analysis.recording.passes import uncompiled_calls
from normplace.analysis.recording.structures import fresh_inputs
from normplace.analysis.signal_probe.probe import Probe
from normplace.analysis.signal_probe.results import Depth
from normplace.edit.verify.capture import Arguments
from normplace.lab.compare.task import Loss

WINDOW = 64
"""Steps before a step that decide whether its loss is a spike."""
SPIKE = 6.0
"""Spread of those losses above their median that makes a loss a spike; the spread is 1.4826 times the median absolute
deviation, which is the standard deviation of normal numbers."""
LEAST_SPIKE = 0.01
"""Smallest spike, as a fraction of the median loss."""
CURVE_POINTS = 200


def count_spikes(losses: Sequence[float]) -> int:
    """Number of losses that are far above those of the 64 steps before.

    Examples:
        >>> count_spikes([1.0, 1.1] * 40 + [9.0] + [1.0, 1.1] * 5)
        1
    """
    count = 0
    for index in range(WINDOW, len(losses)):
        window = losses[index - WINDOW : index]
        middle = median(window)
        spread = 1.4826 * median(abs(loss - middle) for loss in window)
        count += losses[index] > middle + max(SPIKE * spread, LEAST_SPIKE * abs(middle))
    return count


def final_loss(losses: Sequence[float]) -> float:
    """Mean of the last tenth of the losses; NaN if there is none."""
    return fmean(losses[-max(1, len(losses) // 10) :]) if losses else math.nan


def thinned(losses: Sequence[float], points: int = CURVE_POINTS) -> tuple[list[float], list[float]]:
    """A curve of at most ``points`` means of neighbouring losses, and the step at the end of each.

    Examples:
        >>> thinned([4.0, 2.0, 1.0, 1.0], points=2)
        ([3.0, 1.0], [2.0, 4.0])
    """
    ends = sorted({round((k + 1) * len(losses) / points) for k in range(points)} - {0})
    starts = [0, *ends[:-1]]
    means = [fmean(losses[start:end]) for start, end in zip(starts, ends, strict=True)]
    return means, [float(end) for end in ends]


def stream_signals(model: nn.Module, inputs: Arguments, loss: Loss, batch: Any) -> dict[str, float]:
    """Signals of a model's residual stream, by :func:`normplace.signals`.

    Args:
        model: The model; it is not changed.
        inputs: The arguments with which the loss calls the model on this batch.
        loss: The loss.
        batch: The batch.

    Raises:
        UsageError: If the model has no residual stream, or cannot be measured.
    """
    args, kwargs = fresh_inputs(inputs)
    with uncompiled_calls():  # compiled operators cannot be recorded
        measured = Probe().measure_call(model, args, kwargs, lambda output: loss(KnownOutput(model, output), batch))
    streams = [list(depths) for _, depths in groupby(measured.depths, key=lambda depth: depth.stream)]
    main = max(streams, key=len)
    numbers = {
        "stream_peak": max(depth.peak for depth in measured.depths),
        "stream_growth": main[-1].variance / main[0].variance if main[0].variance > 0 else math.nan,
        "fp16_headroom": min(depth.fp16_headroom for depth in measured.depths),
        "bf16_headroom": min(depth.bf16_headroom for depth in measured.depths),
        "gradient_evenness": _evenness(main),
    }
    return {name: value for name, value in numbers.items() if not math.isnan(value)}


def _evenness(depths: Sequence[Depth]) -> float:
    """Smallest divided by largest gradient norm among branches of the same kind; the least even kind counts."""
    norms: dict[str, list[float]] = {}
    for depth in depths:
        if depth.gradient is not None:
            norms.setdefault(depth.kind, []).append(depth.gradient)
    ratios = [min(values) / max(values) for values in norms.values() if len(values) > 1 and max(values) > 0]
    return min(ratios, default=math.nan)


class KnownOutput(nn.Module):
    """Replaces a model whose output is known, so that a loss of the model becomes a loss of the output."""

    def __init__(self, model: nn.Module, output: Any) -> None:
        super().__init__()
        self.__dict__["known"] = (model, output)  # not registered: the model is not part of this module

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["known"][0], name)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the output."""
        return self.__dict__["known"][1]


def memory_megabytes(model: nn.Module, optimizer: torch.optim.Optimizer, loss: Loss, batch: Any) -> float:
    """Memory of training.

    On a GPU it is the peak that the process allocated since the training began. On a CPU it is the sum of weights,
    gradients, optimizer state, and the activations that the forward pass keeps for the backward pass.
    """
    weights = list(model.parameters())
    if weights[0].is_cuda:
        return torch.cuda.max_memory_allocated(weights[0].device) / 2**20
    states = [value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor)]
    trained = [weight for weight in weights if weight.requires_grad]  # again, for their gradients
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        output = loss(model, batch)  # the graph keeps its tensors, so their addresses differ
    for weight in weights:
        kept.pop(weight.untyped_storage().data_ptr(), None)
    del output
    return (
        sum(tensor.nbytes for tensor in (*weights, *trained, *model.buffers(), *states)) + sum(kept.values())
    ) / 2**20

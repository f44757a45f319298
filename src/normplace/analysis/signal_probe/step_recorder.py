"""Measure the streams, branches and attention scores of a pass, without waiting for the device."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

from normplace.analysis.dataflow.operators import ATTENTION, SOFTMAXES
from normplace.analysis.recording.ids import ValueId
from normplace.analysis.recording.recorder import Recorder
from normplace.analysis.signal_probe.steps import Step

MASSIVE, TIMES_MEDIAN = 100.0, 1000.0
"""A massive activation is above 100 and above 1000 times the median magnitude (Sun et al. 2024, arXiv 2402.17762)."""
MEDIAN_SAMPLES = 1 << 16
"""A median sorts, so it is taken of at most this many evenly spaced numbers."""
SCORES_AT_ONCE = 1 << 24

StreamStatistics = dict[str, Tensor]


class StepRecorder(Recorder):
    """A recorder that also measures known steps.

    Attributes:
        streams: Statistics of the streams before and after each add.
        branch_norms: The norm of each branch, by its value, or by the sum if the add is fused with it.
        angles: The angular distance across each add, by the stream after it.
        scores: The largest attention score, by the output of the softmax or attention operator.
    """

    measures_ranges = False  # it would wait for the device at every add

    def __init__(self, model: nn.Module, steps: Sequence[Step]) -> None:
        self.streams: dict[ValueId, StreamStatistics] = {}
        self.branch_norms: dict[ValueId, Tensor] = {}
        self.angles: dict[ValueId, Tensor] = {}
        self.scores: dict[ValueId, Tensor | None] = {}
        self._stream_values = {value for step in steps for value in (step.before, step.after)}
        self._branch_values = {step.branch for step in steps}
        self._score_values = {value for step in steps for value in step.scores}
        self._ending: dict[ValueId, list[Step]] = {}
        self._fused: dict[ValueId, list[Step]] = {}
        self._axis: dict[ValueId | None, int] = {}
        # Values that are compared with later ones are copied, since the model may write to them.
        self._uses: Counter[ValueId] = Counter()
        self._copies: dict[ValueId, Tensor] = {}
        for step in steps:
            self._axis |= dict.fromkeys((step.before, step.after, step.skip, step.branch, step.total), step.axis)
            self._ending.setdefault(step.after, []).append(step)
            self._uses[step.before] += 1
            if step.branch is None:
                self._fused.setdefault(step.total, []).append(step)
                self._uses[step.skip] += 1
        super().__init__(model)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = super().__torch_dispatch__(func, types, args, kwargs)
        name, outputs = self.tape.ops[-1].name, self.tape.ops[-1].outputs
        if name in ATTENTION | SOFTMAXES and outputs[0] in self._score_values and outputs[0] not in self.scores:
            names = [argument.name for argument in func._schema.arguments]
            self.scores[outputs[0]] = largest_score(dict(zip(names, args, strict=False)) | (kwargs or {}))
        return result

    def on_new_value(self, value: ValueId, tensor: Tensor) -> None:
        """Measure a value that belongs to a step."""
        # In a pass other than the one the steps were found in, this may be any tensor; its numbers are not used.
        axis = self._axis.get(value)
        if axis is not None and tensor.is_floating_point() and -tensor.ndim <= axis < tensor.ndim:
            with _disable_current_modes():  # otherwise these operators would be recorded
                self._measure_step(value, tensor.detach(), axis)

    def _measure_step(self, value: ValueId, x: Tensor, axis: int) -> None:
        if value in self._branch_values:
            self.branch_norms[value] = rms_norm_of_rows(x, axis)
        for step in self._fused.get(value, ()):
            if (skip := self._take_copy(step.skip)) is not None and skip.shape == x.shape:
                self.branch_norms[value] = rms_norm_of_rows(x - skip, axis)
        if value in self._stream_values:
            self.streams[value] = stream_statistics(x, axis)
        for step in self._ending.get(value, ()):
            if (before := self._take_copy(step.before)) is not None and before.shape == x.shape:
                self.angles[value] = angular_distance(before, x, axis)
        if self._uses[value]:
            self._copies[value] = x.clone()

    def _take_copy(self, value: ValueId) -> Tensor | None:
        """The copy of a value, which is dropped after its last use."""
        self._uses[value] -= 1
        return self._copies.get(value) if self._uses[value] else self._copies.pop(value, None)


def at_least_float32(x: Tensor) -> Tensor:
    """The tensor in float32 or its own wider dtype."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def stream_statistics(x: Tensor, axis: int) -> StreamStatistics:
    """The mean variance over features, the largest magnitude, its ratio to the median, and how many are massive."""
    x = at_least_float32(x)
    size = x.abs()
    peak, flat = size.amax(), size.flatten()
    median = flat[:: math.ceil(flat.numel() / MEDIAN_SAMPLES)].median()
    massive = (size > torch.clamp(TIMES_MEDIAN * median, min=MASSIVE)).sum()
    return {
        "variance": x.var(axis, correction=0).mean(),
        "peak": peak,
        "ratio": peak / median,
        "massive": massive.to(peak.dtype),
    }


def rms_norm_of_rows(x: Tensor, axis: int) -> Tensor:
    """The root mean square, over rows, of the norm of a row."""
    x = at_least_float32(x)
    return (x.square().sum() * x.shape[axis] / x.numel()).sqrt()


def angular_distance(before: Tensor, after: Tensor, axis: int) -> Tensor:
    """The mean angle between the rows of two streams, divided by pi."""
    cosine = nn.functional.cosine_similarity(at_least_float32(before), at_least_float32(after), dim=axis)
    return cosine.clamp(-1, 1).arccos().mean() / math.pi


def largest_score(arguments: Mapping[str, Any]) -> Tensor | None:
    """The largest score of an attention operator or a softmax; None for packed sequences, whose scores are hidden."""
    if "query" not in arguments:
        return at_least_float32(arguments["self"]).amax()
    q, k = at_least_float32(arguments["query"]), at_least_float32(arguments["key"])
    if q.ndim != 4 or "cum_seq_q" in arguments:
        return None
    k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
    scale = arguments.get("scale")
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    mask = arguments.get("attn_mask", arguments.get("attn_bias"))
    chunk = max(1, SCORES_AT_ONCE // (math.prod(q.shape[:2]) * k.shape[2]))
    keys = torch.arange(k.shape[2], device=q.device)
    largest = []
    for start in range(0, q.shape[2], chunk):
        rows = slice(start, start + chunk)
        scores = scale * (q[:, :, rows] @ k.mT)
        if mask is not None:
            part = mask[..., rows, :] if mask.shape[-2] > 1 else mask
            scores = scores.masked_fill(~part, -math.inf) if part.dtype == torch.bool else scores + part
        if arguments.get("is_causal"):
            queries = torch.arange(start, start + scores.shape[2], device=q.device)
            scores = scores.masked_fill(keys > queries[:, None], -math.inf)
        largest.append(scores.amax())
    return torch.stack(largest).amax()

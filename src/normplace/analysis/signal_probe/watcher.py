"""Numbers read off chosen values while a model runs, none of which waits for the device or changes the pass."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

from normplace.analysis.recording.recorder import Recorder
from normplace.analysis.signal_probe.steps import Step

MASSIVE, TIMES_MEDIAN = 100.0, 1000.0
"""A massive activation is above 100 and above 1000 times the median magnitude (Sun et al. 2024, arXiv 2402.17762)."""
SAMPLE = 1 << 16
"""A median sorts, so it is taken of at most this many evenly spaced numbers."""
SCORES_AT_ONCE = 1 << 24

Readings = dict[str, Tensor]


class Watcher(Recorder):
    """A recorder that also measures the streams, branches and attention scores of known steps.

    Args:
        model: What will run.
        steps: What :func:`~normplace.analysis.signal_probe.steps.find_steps` made of an earlier tape of the same pass.
    """

    def __init__(self, model: nn.Module, steps: Sequence[Step]) -> None:
        self.streams: dict[int, Readings] = {}
        self.branches: dict[int, Tensor] = {}
        self.turns: dict[int, Tensor] = {}
        self.scores: dict[int, Tensor | None] = {}
        self._streams = {value for step in steps for value in (step.before, step.after)}
        self._branches = {step.branch for step in steps}
        self._scores = {value for step in steps for value in step.scores}
        self._arriving: dict[int, list[Step]] = {}
        self._adding: dict[int, list[Step]] = {}
        self._axis: dict[int | None, int] = {}
        # How often a value is still compared with a later one; it is copied, since later code may write into it.
        self._uses: Counter[int] = Counter()
        self._kept: dict[int, Tensor] = {}
        for step in steps:
            self._axis |= dict.fromkeys((step.before, step.after, step.skip, step.branch, step.total), step.axis)
            self._arriving.setdefault(step.after, []).append(step)
            self._uses[step.before] += 1
            if step.branch is None:
                self._adding.setdefault(step.total, []).append(step)
                self._uses[step.skip] += 1
        super().__init__(model)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = super().__torch_dispatch__(func, types, args, kwargs)
        made = self.tape.ops[-1].outputs
        if made and made[0] in self._scores and made[0] not in self.scores:
            names = [argument.name for argument in func._schema.arguments]
            self.scores[made[0]] = largest_score(dict(zip(names, args, strict=False)) | (kwargs or {}))
        return result

    def _measure(self, tensor: Any, number: int) -> None:
        """Nothing: what an audit asks of every add would wait for the device."""

    def _new_value(self, tensor: Tensor, origin: str) -> int:
        number = super()._new_value(tensor, origin)
        # A pass that differs from the one the steps were found in may hold anything here; its numbers are not used.
        if (axis := self._axis.get(number)) is not None and tensor.is_floating_point() and axis < tensor.ndim:
            with _disable_current_modes():  # hooks of modules run where what they compute would be recorded
                self._look(number, tensor.detach(), axis)
        return number

    def _look(self, number: int, x: Tensor, axis: int) -> None:
        if number in self._branches:
            self.branches[number] = branch_norm(x, axis)
        for step in self._adding.get(number, ()):
            if (skip := self._released(step.skip)) is not None and skip.shape == x.shape:
                self.branches[number] = branch_norm(x - skip, axis)
        if number in self._streams:
            self.streams[number] = stream_readings(x, axis)
        for step in self._arriving.get(number, ()):
            if (before := self._released(step.before)) is not None and before.shape == x.shape:
                self.turns[number] = angular_distance(before, x, axis)
        if self._uses[number]:
            self._kept[number] = x.clone()

    def _released(self, number: int) -> Tensor | None:
        """A value that was kept for this moment, let go after its last use."""
        self._uses[number] -= 1
        return self._kept.get(number) if self._uses[number] else self._kept.pop(number, None)


def wide(x: Tensor) -> Tensor:
    """The numbers in float32 at least."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def stream_readings(x: Tensor, axis: int) -> Readings:
    """The mean variance over features, the largest magnitude, its ratio to the median, and how many are massive."""
    x = wide(x)
    size = x.abs()
    peak, flat = size.amax(), size.flatten()
    median = flat[:: math.ceil(flat.numel() / SAMPLE)].median()
    massive = (size > torch.clamp(TIMES_MEDIAN * median, min=MASSIVE)).sum()
    return {
        "variance": x.var(axis, correction=0).mean(),
        "peak": peak,
        "ratio": peak / median,
        "massive": massive.to(peak.dtype),
    }


def branch_norm(x: Tensor, axis: int) -> Tensor:
    """The root mean square, over rows, of the norm of a row."""
    x = wide(x)
    return (x.square().sum() * x.shape[axis] / x.numel()).sqrt()


def angular_distance(before: Tensor, after: Tensor, axis: int) -> Tensor:
    """The mean angle between the rows of two streams, in half turns."""
    cosine = nn.functional.cosine_similarity(wide(before), wide(after), dim=axis)
    return cosine.clamp(-1, 1).arccos().mean() / math.pi


def largest_score(given: Mapping[str, Any]) -> Tensor | None:
    """The largest score of an attention operator or a softmax, from its arguments by name; None where it hides them."""
    if "query" not in given:
        return wide(given["self"]).amax()
    q, k = wide(given["query"]), wide(given["key"])
    if q.ndim != 4 or "cum_seq_q" in given:  # packed rows of several lengths
        return None
    k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
    scale = given.get("scale")
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    mask = given.get("attn_mask", given.get("attn_bias"))
    at_once = max(1, SCORES_AT_ONCE // (math.prod(q.shape[:2]) * k.shape[2]))
    keys = torch.arange(k.shape[2], device=q.device)
    largest = []
    for start in range(0, q.shape[2], at_once):
        rows = slice(start, start + at_once)
        scores = scale * (q[:, :, rows] @ k.mT)
        if mask is not None:
            part = mask[..., rows, :] if mask.shape[-2] > 1 else mask
            scores = scores.masked_fill(~part, -math.inf) if part.dtype == torch.bool else scores + part
        if given.get("is_causal"):
            queries = torch.arange(start, start + scores.shape[2], device=q.device)
            scores = scores.masked_fill(keys > queries[:, None], -math.inf)
        largest.append(scores.amax())
    return torch.stack(largest).amax()

"""Signals of a model on one batch, and their comparison with those of another model."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import torch

from normplace.analysis.results import finite
from normplace.analysis.scale_survival.measure import Survival

COLUMNS = {
    "variance": "variance",
    "peak": "peak",
    "ratio": "ratio",
    "massive": "massive",
    "branch": "branch",
    "gradient": "gradient",
    "effective_lr": "eff. lr",
    "score": "score",
    "angular_distance": "angle",
}
"""Measured fields of a depth, and their headings."""


@dataclass(frozen=True)
class Depth:
    """One stream after one residual add, or before the first.

    Attributes:
        name: The module whose output is added, or the module that adds; ``input`` before the first add of a stream.
        kind: The kind of the branch: ``attention``, ``mlp`` and so on; empty before the first add.
        stream: The index of the stream.
        variance: Over the features of a row, averaged over rows.
        peak: The largest magnitude.
        ratio: The peak divided by the median magnitude.
        massive: The number of massive activations (Sun et al. 2024, arXiv 2402.17762): above 100, and above 1000 times
            the median magnitude.
        branch: The root mean square, over rows, of the norm of the added row.
        gradient: The norm of the loss gradient in the parameters of the branch and its norms; None without a loss.
        effective_lr: The effective learning rate of the matrix that the branch's output norm reads: the size of its
            next update relative to its norm, ``‖ΔW‖ / ‖W‖``; the largest if the norm reads several. The update is
            the optimizer's, or a gradient step of learning rate 1 without an optimizer. None without a loss, and if no
            output norm directly follows a matrix.
        score: The largest attention score before its softmax; None if there is none, or an operator hides it.
        angular_distance: The mean angle, divided by pi, between the rows of the stream before and after the add.
        equation: The equation of the block; empty before the first add.
    """

    name: str
    kind: str
    stream: int
    variance: float
    peak: float
    ratio: float
    massive: int
    branch: float | None = None
    gradient: float | None = None
    effective_lr: float | None = None
    score: float | None = None
    angular_distance: float | None = None
    equation: str = ""

    @property
    def fp16_headroom(self) -> float:
        """How often the peak can double before float16 overflows; negative if it already would."""
        return _doublings(torch.float16, self.peak)

    @property
    def bf16_headroom(self) -> float:
        """How often the peak can double before bfloat16 overflows."""
        return _doublings(torch.bfloat16, self.peak)


@dataclass(frozen=True)
class Signals:
    """Measurements of one model on one batch.

    Attributes:
        model: The model's class.
        depths: In the order of the pass; each stream begins with the input of its first branch.
        loss: Of the batch; None without a loss function.
        gradient: The norm of the gradient in all parameters; None without a loss.
        placement: The published placement of the model; None if it has no name.
        survival: How much of a per-row scale survives each norm; only :func:`compare` measures it.
    """

    model: str
    depths: tuple[Depth, ...]
    loss: float | None = None
    gradient: float | None = None
    placement: str | None = None
    survival: Survival | None = None

    def compare(self, after: Signals) -> Comparison:
        """Compare these signals with those of a changed model on the same batch."""
        return Comparison(self, after)

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready dict; numbers that are not finite become strings."""
        entries = dataclasses.asdict(self)
        for entry, depth in zip(entries["depths"], self.depths, strict=True):
            entry |= {"fp16_headroom": depth.fp16_headroom, "bf16_headroom": depth.bf16_headroom}
        return finite(entries)

    def scalars(self) -> dict[str, float]:
        """Flat names and numbers for TensorBoard, W&B or MLflow: ``normplace/variance/depth_03`` is ``depths[3]``.

        Fields that are None are left out.
        """
        width = max(2, len(str(len(self.depths) - 1)))
        scalars = {"normplace/loss": self.loss, "normplace/gradient": self.gradient}
        for column in (*COLUMNS, "fp16_headroom", "bf16_headroom"):
            for index, depth in enumerate(self.depths):
                scalars[f"normplace/{column}/depth_{index:0{width}}"] = getattr(depth, column)
        return {name: float(value) for name, value in scalars.items() if value is not None}

    def __str__(self) -> str:
        width = max(len(depth.name) for depth in self.depths)
        heads = (*COLUMNS.values(), "fp16")
        lines = [f"{self.model}, {len(self.depths)} depths", f"{'':{width}}" + "".join(f"{head:>10}" for head in heads)]
        for depth in self.depths:
            values = (*(getattr(depth, column) for column in COLUMNS), depth.fp16_headroom)
            lines.append(f"{depth.name:{width}}" + "".join(f"{_shown(value):>10}" for value in values))
        highest = max(self.depths, key=lambda depth: depth.peak if math.isfinite(depth.peak) else math.inf)
        massive = sum(depth.massive > 0 for depth in self.depths)
        lines.append(
            f"The largest number, {highest.peak:.3g} at {highest.name}, leaves {highest.fp16_headroom:.1f} doublings "
            f"in fp16 and {highest.bf16_headroom:.1f} in bf16; {massive} depths have massive activations."
        )
        return "\n".join(lines)

    __repr__ = __str__  # what a notebook shows


@dataclass(frozen=True)
class Comparison:
    """The signals of a model before and after a change.

    Attributes:
        before: Signals of the first model.
        after: Signals of the second model.
    """

    before: Signals
    after: Signals

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready dict."""
        return {"before": self.before.to_dict(), "after": self.after.to_dict()}

    def __str__(self) -> str:
        lines = []
        for name, side in (("before", self.before), ("after", self.after)):
            depths = side.depths
            width = max(6, *(len(depth.name) for depth in depths))
            lines += [f"{name}: {side.placement or 'no published placement'}"]
            lines += [f"{'branch':{width}}  {'peak':>9} {'variance':>9} {'gradient':>9}  equation"]
            for depth in depths:
                numbers = " ".join(f"{_shown(value):>9}" for value in (depth.peak, depth.variance, depth.gradient))
                lines.append(f"{depth.name:{width}}  {numbers}  {depth.equation}".rstrip())
            lines += [*([] if side.survival is None else [str(side.survival)]), ""]
        return "\n".join(lines).rstrip()

    __repr__ = __str__  # what a notebook shows


def _doublings(dtype: torch.dtype, peak: float) -> float:
    if math.isnan(peak):
        return math.nan
    if peak == 0:
        return math.inf
    return math.log2(torch.finfo(dtype).max) - (math.log2(peak) if math.isfinite(peak) else math.inf)


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"

"""``normplace.signals``: what a network's streams, branches and gradients look like at every depth.

The residual adds are found as :func:`normplace.audit` finds them, by dataflow, so any module can be measured. One pass
without gradients is watched, and where a loss is given a plain second one is differentiated.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from normplace.analysis.analysis import Analysis
from normplace.analysis.dataflow.matrices import parameter_positions
from normplace.analysis.recording.passes import evaluating, record_pass, uncompiled
from normplace.analysis.results import finite
from normplace.analysis.signal_probe.effective_lr import Optimizer, relative_update, unwrapped
from normplace.analysis.signal_probe.step_recorder import StepRecorder
from normplace.analysis.signal_probe.steps import Step, find_steps
from normplace.errors import UsageError

Loss = Callable[[Any], Tensor]
COLUMNS = ("variance", "peak", "ratio", "massive", "branch", "gradient", "effective_lr", "score", "turn")


@dataclass(frozen=True)
class Depth:
    """One stream behind one residual add, or before the first.

    Attributes:
        name: The module whose output was added, or the one that added it; ``input`` before the first add of a stream.
        kind: What the branch is: ``attention``, ``mlp`` and so on; empty before the first.
        stream: Which of the network's streams, counted from 0.
        variance: Over the features of a row, its mean over rows.
        peak: The largest magnitude.
        ratio: The peak over the median magnitude.
        massive: How many numbers are massive activations (Sun et al. 2024, arXiv 2402.17762): above 100, and above
            1000 times the median magnitude.
        branch: The root mean square, over rows, of the norm of what was added.
        gradient: The norm of the loss's gradient in the parameters of the branch and its norms; None without a loss.
        effective_lr: The effective learning rate of the matrix that the branch's output norm reads: the size of its
            next update relative to its norm, ``‖ΔW‖ / ‖W‖``; the largest where the norm reads several. The update is
            that of the optimizer, or of a gradient step of learning rate 1 where none is given. None without a loss,
            and where no output norm directly follows a matrix.
        score: The largest attention score before its softmax; None where there is none, or an operator hides it.
        turn: The angular distance from the stream before the add: the mean angle between rows, in half turns.
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
    turn: float | None = None

    @property
    def fp16_headroom(self) -> float:
        """How often the peak could double before float16 overflows; negative where it would have."""
        return _doublings(torch.float16, self.peak)

    @property
    def bf16_headroom(self) -> float:
        """The same of bfloat16."""
        return _doublings(torch.bfloat16, self.peak)


@dataclass(frozen=True)
class Signals:
    """What was measured on one batch.

    Attributes:
        model: The model's class.
        depths: In the order of the pass; each stream begins with what its first branch read.
        loss: Of the batch; None where no loss was given.
        gradient: The norm of the gradient in all parameters; None without a loss.
    """

    model: str
    depths: tuple[Depth, ...]
    loss: float | None = None
    gradient: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready form; numbers that are not finite are words."""
        found = dataclasses.asdict(self)
        for entry, depth in zip(found["depths"], self.depths, strict=True):
            entry |= {"fp16_headroom": depth.fp16_headroom, "bf16_headroom": depth.bf16_headroom}
        return finite(found)

    def scalars(self) -> dict[str, float]:
        """Flat names and numbers for TensorBoard, W&B or MLflow: ``normplace/variance/depth_03`` is ``depths[3]``.

        A column that a depth does not have is left out.
        """
        width = max(2, len(str(len(self.depths) - 1)))
        flat = {"normplace/loss": self.loss, "normplace/gradient": self.gradient}
        for column in (*COLUMNS, "fp16_headroom", "bf16_headroom"):
            for index, depth in enumerate(self.depths):
                flat[f"normplace/{column}/depth_{index:0{width}}"] = getattr(depth, column)
        return {name: float(value) for name, value in flat.items() if value is not None}

    def __str__(self) -> str:
        width = max(len(depth.name) for depth in self.depths)
        heads = (*(column.replace("effective_lr", "eff. lr") for column in COLUMNS), "fp16")
        lines = [f"{self.model}, {len(self.depths)} depths", f"{'':{width}}" + "".join(f"{head:>10}" for head in heads)]
        for depth in self.depths:
            values = (*(getattr(depth, column) for column in COLUMNS), depth.fp16_headroom)
            lines.append(f"{depth.name:{width}}" + "".join(f"{_shown(value):>10}" for value in values))
        highest = max(self.depths, key=lambda depth: depth.peak if math.isfinite(depth.peak) else math.inf)
        massive = sum(depth.massive > 0 for depth in self.depths)
        lines.append(
            f"The largest number, {highest.peak:.3g} at {highest.name}, leaves {highest.fp16_headroom:.1f} doublings "
            f"in fp16 and {highest.bf16_headroom:.1f} in bf16; massive activations stand at {massive} depths."
        )
        return "\n".join(lines)


def signals(model: nn.Module, batch: Any, loss: Loss | None = None, optimizer: Optimizer | None = None) -> Signals:
    """Measure a model at every depth on one batch.

    It runs in evaluation mode; its parameters, their ``grad``, its mode and the random state stay as they are.

    Args:
        model: Any module with residual adds.
        batch: What the model is called with: a tuple of arguments, a mapping of named ones, or a single one.
        loss: From the model's output to a scalar, for gradients.
        optimizer: The model's optimizer, whose next update ``effective_lr`` measures; it is not changed.

    Raises:
        UsageError: If the model cannot be run, has no residual add or no values, or the loss is no scalar.

    Example:
        >>> model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        >>> found = signals(model, torch.randn(2, 5, 8), loss=lambda out: out.square().mean())
        >>> [depth.name for depth in found.depths], round(found.depths[-1].variance, 3)
        (['input', 'self_attn', 'linear2'], 1.0)
    """
    return Probe().measure(model, batch, loss, optimizer)


@dataclass
class Probe:
    """Measures one model again and again, and looks for its residual adds only when its pass has changed."""

    _steps: list[Step] = field(default_factory=list, init=False)
    _pass: list[str] | None = field(default=None, init=False)

    def measure(
        self, model: nn.Module, batch: Any, loss: Loss | None = None, optimizer: Optimizer | None = None
    ) -> Signals:
        """What :func:`signals` returns, for the same arguments.

        Raises:
            UsageError: As :func:`signals` does.
        """
        if not isinstance(model, nn.Module):
            raise UsageError(f"signals takes an nn.Module, got {type(model).__name__}: build the model first.")
        model = uncompiled(model)
        if any(parameter.is_meta for parameter in model.parameters()):
            raise UsageError("a model on the meta device has no values to measure: build it on the CPU or a GPU.")
        optimizer = None if optimizer is None else unwrapped(optimizer)
        args, kwargs = arguments(batch)
        recorder = self._watched(model, args, kwargs)
        parameters = list(model.parameters())
        value, gradients = (None, None) if loss is None else differentiate(model, args, kwargs, loss, parameters)
        rates = [None] * len(self._steps)
        if gradients is not None:
            rates = self._effective_lrs(recorder, parameters, gradients, optimizer)
        return self._signals(type(model).__name__, recorder, value, gradients, rates)

    def _effective_lrs(
        self,
        recorder: StepRecorder,
        parameters: list[nn.Parameter],
        gradients: list[Tensor | None],
        optimizer: Optimizer | None,
    ) -> list[Tensor | None]:
        """The largest relative update among the normalized matrices of each step."""
        position = parameter_positions(recorder.tape)
        rates: list[Tensor | None] = []
        for step in self._steps:
            own = [(parameters[position[value]], gradients[position[value]]) for value in step.normalized]
            updates = [relative_update(matrix, slope, optimizer) for matrix, slope in own if slope is not None]
            rates.append(torch.stack(updates).amax() if updates else None)
        return rates

    def _watched(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> StepRecorder:
        for _ in range(3):  # code that keeps something at its first call takes another path at its second
            recorder = StepRecorder(model, self._steps)
            tape = record_pass(model, args, kwargs, recorder)
            names = [op.name for op in tape.ops]
            if names == self._pass:
                return recorder
            self._pass, self._steps = names, find_steps(Analysis(model, tape))
            if not self._steps:
                raise UsageError(
                    f"{type(model).__name__} has no residual add, so no stream to measure: give a model that has one."
                )
        raise UsageError(
            f"{type(model).__name__} runs other operators each time it is called: make its forward pass repeatable."
        )

    def _signals(
        self,
        name: str,
        recorder: StepRecorder,
        loss: Tensor | None,
        gradients: list[Tensor | None] | None,
        rates: Sequence[Tensor | None],
    ) -> Signals:
        """Everything measured, brought from the device at once."""
        wanted: list[tuple[dict[str, Any], dict[str, Tensor | None]]] = []
        begun: set[int] = set()
        total = norm_of(gradients or ())
        position = parameter_positions(recorder.tape)
        for step, rate in zip(self._steps, rates, strict=True):
            if step.stream not in begun:
                begun.add(step.stream)
                words = {"name": "input", "kind": "", "stream": step.stream}
                wanted.append((words, {**recorder.streams[step.before]}))
            scores = [score for value in step.scores if (score := recorder.scores.get(value)) is not None]
            own = None if gradients is None else [gradients[position[value]] for value in step.parameters]
            readings = {
                **recorder.streams[step.after],
                "branch": recorder.branch_norms.get(step.total if step.branch is None else step.branch),
                "gradient": None if own is None else norm_of(own),
                "effective_lr": rate,
                "score": torch.stack(scores).amax() if scores else None,
                "turn": recorder.angles.get(step.after),
            }
            wanted.append(({"name": step.name, "kind": step.kind, "stream": step.stream}, readings))
        flat = [*(tensor for _, readings in wanted for tensor in readings.values()), loss, total]
        numbers = iter(fetched(flat))
        depths = []
        for words, readings in wanted:
            measured: dict[str, Any] = {**words, **{key: next(numbers) for key in readings}}
            measured["massive"] = int(measured["massive"])
            depths.append(Depth(**measured))
        return Signals(name, tuple(depths), next(numbers), next(numbers))


def arguments(batch: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What a model is called with for a batch: by position and by name."""
    if isinstance(batch, Mapping):
        return (), dict(batch)
    return (tuple(batch) if isinstance(batch, tuple | list) else (batch,)), {}


def differentiate(
    model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], loss: Loss, parameters: list[nn.Parameter]
) -> tuple[Tensor, list[Tensor | None]]:
    """The loss of a batch and its gradients in evaluation mode; None where a parameter takes no part.

    Raises:
        UsageError: If the loss is not one number, or depends on no parameter.
    """
    learned = [parameter for parameter in parameters if parameter.requires_grad]
    with evaluating(model), torch.enable_grad():
        value = loss(model(*args, **kwargs))
        if not isinstance(value, Tensor) or value.numel() != 1:
            raise UsageError("the loss must be a tensor of one number: reduce it, by a mean for example.")
        if not learned or not value.requires_grad:
            raise UsageError("the loss depends on no parameter that learns: compute it from what the model returns.")
        found = iter(torch.autograd.grad(value, learned, allow_unused=True))
    return value.detach(), [next(found) if parameter.requires_grad else None for parameter in parameters]


def norm_of(gradients: Any) -> Tensor | None:
    """The norm of several gradients together; None where there is none."""
    norms = [
        torch.linalg.vector_norm(one.detach(), dtype=_at_least_float32(one)) for one in gradients if one is not None
    ]
    return torch.linalg.vector_norm(torch.stack(norms)) if norms else None


def fetched(tensors: list[Tensor | None]) -> list[float | None]:
    """The numbers of one-element tensors, in one transfer for each device and dtype."""
    found: list[float | None] = [None] * len(tensors)
    groups: dict[tuple[torch.device, torch.dtype], list[tuple[int, Tensor]]] = {}
    for at, tensor in enumerate(tensors):
        if tensor is not None:
            groups.setdefault((tensor.device, tensor.dtype), []).append((at, tensor.reshape(())))
    for members in groups.values():
        values = torch.stack([tensor for _, tensor in members]).tolist()
        for (at, _), value in zip(members, values, strict=True):
            found[at] = value
    return found


def _at_least_float32(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def _doublings(dtype: torch.dtype, peak: float) -> float:
    if math.isnan(peak):
        return math.nan
    if peak == 0:
        return math.inf
    return math.log2(torch.finfo(dtype).max) - (math.log2(peak) if math.isfinite(peak) else math.inf)


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"

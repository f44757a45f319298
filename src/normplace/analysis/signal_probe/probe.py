"""``normplace.signals``: statistics of a network's streams, branches and gradients at every depth.

The residual adds are found by dataflow, as :func:`normplace.audit` finds them, so any module can be measured. One pass
without gradients is measured; with a loss, a second one is differentiated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from normplace.analysis.analysis import Analysis
from normplace.analysis.dataflow.matrices import parameter_positions
from normplace.analysis.recording.ids import ValueId
from normplace.analysis.recording.passes import checked_module, evaluating, record_pass, uncompiled_calls
from normplace.analysis.recording.structures import detached_attributes
from normplace.analysis.scale_survival.measure import survival
from normplace.analysis.signal_probe.effective_lr import Optimizer, relative_update, unwrapped
from normplace.analysis.signal_probe.results import Comparison, Depth, Signals
from normplace.analysis.signal_probe.step_recorder import StepRecorder
from normplace.analysis.signal_probe.steps import Step, find_steps
from normplace.errors import UsageError, first_line

Loss = Callable[[Any], Tensor]


def signals(model: nn.Module, batch: Any, loss: Loss | None = None, optimizer: Optimizer | None = None) -> Signals:
    """Measure a model at every depth on one batch.

    The model runs in evaluation mode. Its parameters, their ``grad``, its mode and the random state do not change.

    Args:
        model: Any module with residual adds.
        batch: The model's inputs: a tuple of positional arguments, a mapping of named ones, or a single one.
        loss: From the model's output to a scalar, for gradients.
        optimizer: The model's optimizer, for ``effective_lr``; it is not changed.

    Raises:
        UsageError: If the model cannot be run, has no residual add or no values, or the loss is not a scalar.

    Examples:
        >>> model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        >>> measured = signals(model, torch.randn(2, 5, 8), loss=lambda out: out.square().mean())
        >>> [depth.name for depth in measured.depths], round(measured.depths[-1].variance, 3)
        (['input', 'self_attn', 'linear2'], 1.0)
    """
    return Probe().measure(model, batch, loss, optimizer)


def compare(before: nn.Module, after: nn.Module, *inputs: Any, loss: Loss | None = None, **kwargs: Any) -> Comparison:
    """Measure the signals and the survival of two models, such as one and its moved copy, on the same batch.

    Neither model is changed. Each runs five times, and with a loss one of these passes is differentiated; survival is
    estimated from random projections in four backward passes.

    Args:
        before: A model with residual adds.
        after: Another model that takes the same arguments.
        *inputs: The batch.
        loss: From a model's output to a scalar, for gradients.
        **kwargs: Keyword arguments of the models.

    Raises:
        UsageError: If a model cannot be run or has no residual add, or the loss is not a scalar.

    Examples:
        >>> post, pre = (nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=x) for x in (False, True))
        >>> comparison = compare(post, pre, torch.randn(2, 5, 16), loss=lambda y: y.square().mean())
        >>> comparison.before.placement, comparison.after.placement
        ('post', 'pre')
    """
    measured = []
    for model in (before, after):
        probe = Probe()
        model_signals = probe.measure_call(model, inputs, kwargs, loss)
        if probe.has_norms:
            model_signals = replace(model_signals, survival=survival(model, *inputs, exact=False, **kwargs))
        measured.append(model_signals)
    return measured[0].compare(measured[1])


@dataclass
class Probe:
    """Measures one model repeatedly, and analyzes it again only when its pass has changed."""

    _steps: list[Step] = field(default_factory=list, init=False)
    _operators: list[tuple[str, tuple[ValueId, ...]]] | None = field(default=None, init=False)
    _placement: str | None = field(default=None, init=False)
    has_norms: bool = field(default=False, init=False)
    """Whether the model has norms."""

    def measure(
        self, model: nn.Module, batch: Any, loss: Loss | None = None, optimizer: Optimizer | None = None
    ) -> Signals:
        """The result of :func:`signals` for the same arguments.

        Raises:
            UsageError: As :func:`signals` does.
        """
        if isinstance(batch, Mapping):
            return self.measure_call(model, (), dict(batch), loss, optimizer)
        inputs = tuple(batch) if isinstance(batch, tuple | list) else (batch,)
        return self.measure_call(model, inputs, {}, loss, optimizer)

    def measure_call(
        self,
        model: nn.Module,
        inputs: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        loss: Loss | None = None,
        optimizer: Optimizer | None = None,
    ) -> Signals:
        """The result of :func:`signals` for a model called with these arguments.

        Raises:
            UsageError: As :func:`signals` does.
        """
        model = checked_module(model, "signals")
        if loss is not None and not callable(loss):
            raise UsageError(
                f"loss is a {type(loss).__name__} and not a function of the output: pass several inputs of the model "
                "as one tuple."
            )
        if any(parameter.is_meta for parameter in model.parameters()):
            raise UsageError("a model on the meta device has no values to measure: build it on the CPU or a GPU.")
        optimizer = None if optimizer is None else unwrapped(optimizer)
        recorder = self._record(model, inputs, kwargs)
        parameters = list(model.parameters())
        value, gradients = (None, None) if loss is None else differentiate(model, inputs, kwargs, loss, parameters)
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
            pairs = [(parameters[position[value]], gradients[position[value]]) for value in step.normalized]
            updates = [relative_update(matrix, slope, optimizer) for matrix, slope in pairs if slope is not None]
            rates.append(torch.stack(updates).amax() if updates else None)
        return rates

    def _record(self, model: nn.Module, inputs: tuple[Any, ...], kwargs: Mapping[str, Any]) -> StepRecorder:
        """A recorder that has measured the steps of the model."""
        for _ in range(3):  # code may cache something at its first call and skip it at the second
            recorder = StepRecorder(model, self._steps)
            tape = record_pass(model, inputs, kwargs, recorder)
            operators = [(op.name, op.outputs) for op in tape.ops]
            if operators == self._operators:
                return recorder
            analysis = Analysis(model, tape)
            self._operators, self._steps = operators, find_steps(analysis)
            self._placement, self.has_norms = analysis.placement, bool(analysis.norms)
            if not self._steps:
                raise UsageError(
                    f"{type(model).__name__} has no residual add, so there is no stream to measure: pass a model that "
                    "has residual adds."
                )
        raise UsageError(
            f"{type(model).__name__} runs different operators at each call: make its forward pass repeatable."
        )

    def _signals(
        self,
        name: str,
        recorder: StepRecorder,
        loss: Tensor | None,
        gradients: list[Tensor | None] | None,
        rates: Sequence[Tensor | None],
    ) -> Signals:
        """All measurements, copied from the device at once."""
        rows: list[tuple[dict[str, Any], dict[str, Tensor | None]]] = []
        begun: set[int] = set()
        total = norm_of(gradients or ())
        position = parameter_positions(recorder.tape)
        for step, rate in zip(self._steps, rates, strict=True):
            if step.stream not in begun:
                begun.add(step.stream)
                rows.append(({"name": "input", "kind": "", "stream": step.stream}, {**recorder.streams[step.before]}))
            scores = [score for value in step.scores if (score := recorder.scores.get(value)) is not None]
            own = None if gradients is None else [gradients[position[value]] for value in step.parameters]
            tensors = {
                **recorder.streams[step.after],
                "branch": recorder.branch_norms.get(step.total if step.branch is None else step.branch),
                "gradient": None if own is None else norm_of(own),
                "effective_lr": rate,
                "score": torch.stack(scores).amax() if scores else None,
                "angular_distance": recorder.angles.get(step.after),
            }
            labels = {"name": step.name, "kind": step.kind, "stream": step.stream, "equation": step.equation}
            rows.append((labels, tensors))
        numbers = iter(to_numbers([*(tensor for _, tensors in rows for tensor in tensors.values()), loss, total]))
        depths = []
        for labels, tensors in rows:
            measured: dict[str, Any] = {**labels, **{key: next(numbers) for key in tensors}}
            measured["massive"] = int(measured["massive"])
            depths.append(Depth(**measured))
        return Signals(name, tuple(depths), next(numbers), next(numbers), self._placement)


def differentiate(
    model: nn.Module, inputs: tuple[Any, ...], kwargs: Mapping[str, Any], loss: Loss, parameters: list[nn.Parameter]
) -> tuple[Tensor, list[Tensor | None]]:
    """The loss of a batch and its gradients in evaluation mode; None for a parameter that is not used.

    Raises:
        UsageError: If the loss is not one number, depends on no parameter, or cannot be differentiated.
    """
    trainable = [parameter for parameter in parameters if parameter.requires_grad]
    with evaluating(model), uncompiled_calls(), detached_attributes(model), torch.enable_grad():
        value = loss(model(*inputs, **kwargs))
        if not isinstance(value, Tensor) or value.numel() != 1:
            raise UsageError("the loss must be a tensor of one number: reduce it, for example by a mean.")
        if not trainable or not value.requires_grad:
            raise UsageError("the loss depends on no trainable parameter: compute it from the model's output.")
        try:
            gradients = iter(_gradients(value, trainable))
        except RuntimeError as error:
            raise UsageError(
                f"the backward pass failed ({first_line(error)}): call backward on the loss to see the traceback."
            ) from error
    return value.detach(), [next(gradients) if parameter.requires_grad else None for parameter in parameters]


def _gradients(value: Tensor, parameters: list[nn.Parameter]) -> list[Tensor | None]:
    """The gradients of a value, without a change of ``grad``.

    A user-defined backward pass, as of reversible layers, may itself add to ``grad``; that part is moved to the result.
    """
    before = [parameter.grad for parameter in parameters]
    try:
        for parameter in parameters:
            parameter.grad = None
        returned = torch.autograd.grad(value, parameters, allow_unused=True)
        added = [parameter.grad for parameter in parameters]
        return [
            two if one is None else one if two is None else one + two for one, two in zip(returned, added, strict=True)
        ]
    finally:
        for parameter, gradient in zip(parameters, before, strict=True):
            parameter.grad = gradient


def norm_of(gradients: Any) -> Tensor | None:
    """The norm of several gradients together; None if there is none."""
    norms = [
        torch.linalg.vector_norm(gradient.detach(), dtype=torch.promote_types(gradient.dtype, torch.float32))
        for gradient in gradients
        if gradient is not None
    ]
    return torch.linalg.vector_norm(torch.stack(norms)) if norms else None


def to_numbers(tensors: list[Tensor | None]) -> list[float | None]:
    """The numbers of one-element tensors, in one transfer for each device and dtype."""
    numbers: list[float | None] = [None] * len(tensors)
    groups: dict[tuple[torch.device, torch.dtype], list[tuple[int, Tensor]]] = {}
    for index, tensor in enumerate(tensors):
        if tensor is not None:
            groups.setdefault((tensor.device, tensor.dtype), []).append((index, tensor.reshape(())))
    for members in groups.values():
        values = torch.stack([tensor for _, tensor in members]).tolist()
        for (index, _), value in zip(members, values, strict=True):
            numbers[index] = value
    return numbers

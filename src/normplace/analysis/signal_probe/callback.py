"""Signals of a model while it trains."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import nn

from normplace.analysis.signal_probe.effective_lr import Optimizer
from normplace.analysis.signal_probe.probe import Loss, Probe
from normplace.analysis.signal_probe.results import Signals
from normplace.analysis.signal_probe.trainer_hooks import TrainerHooks
from normplace.errors import UsageError


@dataclass(eq=False)
class SignalsCallback(TrainerHooks):
    """Measures a model on one fixed batch every few steps of training.

    Pass it to Hugging Face's ``Trainer(callbacks=[…])`` or to Lightning's, or call it once in every step of a training
    loop. The trainers measure before the first step and after every ``every`` steps, on the model and optimizer they
    train, and send :meth:`Signals.scalars` to their loggers (TensorBoard, W&B, MLflow and so on).

    The model is analyzed once. A measurement then costs one recorded forward pass and, with a loss, one that is
    differentiated: about two steps in ``every``.

    Args:
        batch: The model's inputs, as in :func:`normplace.signals`.
        loss: From the model's output to a scalar, for gradients.
        every: Steps between two measurements.

    Raises:
        UsageError: If ``every`` is not a positive whole number.

    Examples:
        >>> import torch
        >>> model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        >>> watch = SignalsCallback(torch.randn(2, 5, 8), every=10)
        >>> for step in range(21):
        ...     measured = watch(model, step)
        >>> [step for step, _ in watch.history]
        [0, 10, 20]
    """

    batch: Any
    loss: Loss | None = None
    every: int = 200
    history: list[tuple[int, Signals]] = field(default_factory=list, init=False)
    _probe: Probe = field(default_factory=Probe, init=False, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.every, int) or isinstance(self.every, bool) or self.every < 1:
            raise UsageError(f"every must be a whole number of at least 1 step, got {self.every!r}.")

    def __call__(self, model: nn.Module, step: int, optimizer: Optimizer | None = None) -> Signals | None:
        """Measure if ``step`` is a multiple of ``every``, and append the result to ``history``.

        Args:
            model: The model.
            step: The number of steps taken.
            optimizer: Its optimizer, for ``effective_lr``.
        """
        if step % self.every:
            return None
        measured = self._probe.measure(model, self.batch, self.loss, optimizer)
        self.history.append((step, measured))
        return measured

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready dict of the history."""
        return {"history": [{"step": step, **measured.to_dict()} for step, measured in self.history]}

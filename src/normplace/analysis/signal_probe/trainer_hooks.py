"""Hooks of Hugging Face's Trainer and Lightning's that measure while a model trains."""

from __future__ import annotations

import abc
from typing import Any

from torch import nn

from normplace._shared.framework_callback import FrameworkCallback
from normplace.analysis.signal_probe.effective_lr import Optimizer


class TrainerHooks(FrameworkCallback, abc.ABC):
    """Measures at the start of training and after every optimizer step, and sends flat scalars to the run's loggers."""

    @abc.abstractmethod
    def __call__(self, model: nn.Module, step: int, optimizer: Optimizer | None = None) -> Any:
        """Measure, or return None if this step is not measured."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **arguments: Any) -> None:
        """Hugging Face: training begins or resumes."""
        from transformers.integrations.integration_utils import get_reporting_integration_callbacks

        # A callback cannot reach the trainer's reporters, so it creates its own. They join the run that the trainer's
        # reporters have opened before.
        self._reporters = [kind() for kind in get_reporting_integration_callbacks(args.report_to)]
        for reporter in self._reporters:
            reporter.on_train_begin(args, state, control, **arguments)
        self.on_step_end(args, state, control, **arguments)

    def on_step_end(self, args: Any, state: Any, control: Any, **arguments: Any) -> None:
        """Hugging Face: an optimizer step has ended."""
        measured = self(arguments["model"], state.global_step, arguments.get("optimizer"))
        if measured is None:
            return
        scalars = measured.scalars()
        state.log_history.append({**scalars, "step": state.global_step})
        for reporter in self._reporters:
            reporter.on_log(args, state, control, logs=dict(scalars), model=arguments["model"])

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Lightning: training begins or resumes."""
        self.on_train_batch_end(trainer, pl_module)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any, **__: Any) -> None:
        """Lightning: a batch has ended, and a step with it unless gradients are accumulated."""
        step = trainer.global_step
        if getattr(self, "_measured", None) == (id(trainer), step):
            return
        self._measured = id(trainer), step
        optimizer = trainer.optimizers[0] if len(trainer.optimizers) == 1 else None
        measured = self(pl_module, step, optimizer)
        if measured is not None:
            for logger in trainer.loggers:
                logger.log_metrics(measured.scalars(), step=step)

"""``normplace.FusedCallback``: fuse the model that a trainer trains."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from normplace._shared.framework_callback import FrameworkCallback
from normplace._shared.modules import device_of
from normplace.analysis.recording.structures import map_tensors
from normplace.edit.fuse.api import fuse
from normplace.edit.record.changes import Changes, changes
from normplace.errors import UsageError


class FusedCallback(FrameworkCallback):
    """Fuses the model of Hugging Face's ``Trainer(callbacks=[…])`` or of Lightning's before training begins.

    The model is fused in place, see :func:`normplace.fuse`. State dict, checkpoints and the random numbers of the run
    are unchanged.

    Args:
        batch: The inputs of a call: a tuple of positional arguments, a mapping of named ones, or a single one. It is
            moved to the model's device. Use the size of the training batches.
        **options: Options of :func:`normplace.fuse`, such as ``reach="stack"``.

    Attributes:
        record: The record of the fused model, which :func:`normplace.changes` also returns; None before training.

    Raises:
        UsageError: If ``inplace`` is among the options.

    Examples:
        >>> callback = FusedCallback(torch.randn(2, 3, 8), only_if_faster=False)
        >>> layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        >>> print(callback(layer).record)
          fused        1 x add, norm       the model  [norm1]  saves 240 bytes per forward pass
          fused        1 x add, norm       the model  [norm2]  saves 240 bytes per forward pass
    """

    def __init__(self, batch: Any, **options: Any) -> None:
        if "inplace" in options:
            raise UsageError("FusedCallback fuses the trainer's model in place: leave the option inplace out.")
        self.batch, self.options = batch, options
        self.record: Changes | None = None

    def __call__(self, model: nn.Module) -> FusedCallback:
        """Fuse a model in place unless it has been fused, and return the callback."""
        if not changes(model).fusions:
            device = device_of(model)
            inputs, kwargs = map_tensors(lambda tensor: tensor.to(device), _arguments(self.batch))
            gpus = [device] if device.type == "cuda" else []
            with torch.random.fork_rng(gpus):
                fuse(model, *inputs, inplace=True, **self.options, **kwargs)
        self.record = changes(model)
        return self

    def on_init_end(self, args: Any, state: Any, control: Any, **arguments: Any) -> None:
        """Hugging Face: the trainer exists; its model is on its device unless it is to be sharded."""
        if getattr(args, "n_gpu", 1) > 1:
            raise UsageError("nn.DataParallel cannot run fused models: start one process per GPU with torchrun.")
        model = arguments.get("model")
        if model is not None and (args.device.type == next(model.parameters()).device.type):
            self(model)

    def on_train_begin(self, args: Any, state: Any, control: Any, **arguments: Any) -> None:
        """Hugging Face: training begins or resumes."""
        self(arguments["model"])

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Lightning: the model is on its device, and training begins."""
        with _without_trainer(pl_module, trainer):
            self(pl_module)


@contextmanager
def _without_trainer(pl_module: Any, trainer: Any) -> Iterator[None]:
    """Detach a module of Lightning from its trainer, which a copy for the verification would contain."""
    pl_module.trainer = None
    try:
        yield
    finally:
        pl_module.trainer = trainer


def _arguments(batch: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(batch, Mapping):
        return (), dict(batch)
    return tuple(batch) if isinstance(batch, tuple | list) else (batch,), {}

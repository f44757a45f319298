"""The task of a Hugging Face ``Trainer``: its model, data, loss and optimizer."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sized
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Subset

from normplace.errors import UsageError
from normplace.lab.compare.task import SPLITS, Start, Task
from normplace.lab.compare.tasks.fresh_model import fresh_model
from normplace.lab.compare.tasks.optimizers import peak_rates, scaled_to

EPOCHS = 1_000_003
"""Distance between the epochs of two seeds, which a seedable sampler adds to its seed."""


def is_trainer(value: object) -> bool:
    """Whether a value is a Trainer of transformers; transformers is not imported."""
    return any(
        kind.__name__ == "Trainer" and kind.__module__.startswith("transformers.") for kind in type(value).__mro__
    )


class TrainerTask(Task):
    """Train the model of a ``Trainer``, with its data, collator, loss and optimizer.

    The schedule is that of the comparison. With ``fp16=True`` the loss is scaled as in the Trainer. The measure is
    the Trainer's loss on its evaluation data: half of it chooses the learning rate, the other half is reported. If
    ``eval_dataset`` is a dictionary with the keys ``choose`` and ``report``, these are the splits. The Trainer's model
    and optimizer do not change.

    Args:
        trainer: The Trainer.
        start: ``fresh`` for new weights per seed, from ``model_init`` or else :func:`fresh_model`; ``weights`` for a
            copy of the Trainer's model.

    Raises:
        UsageError: If it has no training or evaluation data.
    """

    def __init__(self, trainer: Any, start: str = "fresh") -> None:
        self.trainer, self.initial = trainer, start
        self.name = f"Trainer of {type(trainer.model).__name__}"
        if trainer.train_dataset is None:
            raise UsageError("the Trainer has no train_dataset: pass one to it.")
        self.evaluation = {split: trainer.get_eval_dataloader(part) for split, part in _splits(trainer).items()}
        self.training = trainer.get_train_dataloader()
        model, note = self._model(0)
        created = self._created(model)
        self._require_same_optimizer(created)
        self.learning_rate = max(peak_rates(created))
        self.notes = (note, "The measure is the Trainer's loss on its evaluation data.")
        if trainer.eval_dataset is trainer.train_dataset:
            self.notes += ("eval_dataset is train_dataset, so that the held-out loss is that of training data.",)
        if (parts := trainer.args.gradient_accumulation_steps) > 1:
            self.notes += (
                f"A step has one batch of {trainer.args.train_batch_size} samples: gradient_accumulation_steps={parts} "
                "is not used.",
            )

    def start(self, seed: int) -> Start:
        """Build the model of a seed."""
        model, _ = self._model(seed)
        clip = self.trainer.args.max_grad_norm or None
        return Start(
            model,
            lambda epoch: self._epoch(seed, epoch),
            self.loss,
            self.validate,
            optimizer=self._optimizer,
            clip=clip,
            scaler=self._scaler(),
        )

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """The Trainer's loss."""
        args = self.trainer.args
        is_rounded = args.bf16 or args.fp16
        with torch.autocast(args.device.type, torch.bfloat16 if args.bf16 else torch.float16, enabled=is_rounded):
            return self.trainer.compute_loss(model, dict(batch))

    def validate(self, model: nn.Module, split: str) -> float:
        """The mean loss of the evaluation data of a split."""
        total, count = 0.0, 0
        for batch in self.evaluation[split]:
            size = next((len(value) for value in batch.values() if isinstance(value, Tensor) and value.ndim), 1)
            total += size * float(self.loss(model, batch))
            count += size
        return total / count

    def describe(self) -> dict[str, Any]:
        """The model and the batch size."""
        return {**super().describe(), "measure": "loss", "batch": self.trainer.args.train_batch_size}

    def _model(self, seed: int) -> tuple[nn.Module, str]:
        trainer = self.trainer
        devices = [trainer.args.device] if trainer.args.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(seed)
            if self.initial == "weights":
                model, note = copy.deepcopy(trainer.model), "Every seed starts from the weights of the Trainer's model."
            elif trainer.model_init is not None:
                model, note = trainer.call_model_init(), "Each seed builds the model with model_init."
            else:
                fresh = fresh_model(trainer.model)
                model, note = fresh.model, fresh.note
        return model.to(trainer.args.device), note

    def _scaler(self) -> torch.amp.GradScaler | None:
        """A new scaler of the loss as the Trainer has one in float16."""
        args, handler = self.trainer.args, getattr(self.trainer.accelerator, "scaler_handler", None)
        if not args.fp16:
            return None
        return torch.amp.GradScaler(args.device.type, **(handler.to_kwargs() if handler is not None else {}))

    def _epoch(self, seed: int, epoch: int) -> Iterable[Any]:
        """The batches of an epoch, in the order of the seed."""
        if callable(set_epoch := getattr(self.training, "set_epoch", None)):
            set_epoch(seed * EPOCHS + epoch)
        return self.training

    def _optimizer(self, model: nn.Module, learning_rate: float) -> torch.optim.Optimizer:
        """A new optimizer; the largest of its learning rates becomes ``learning_rate``."""
        return scaled_to(self._created(model), learning_rate)

    def _require_same_optimizer(self, created: torch.optim.Optimizer) -> None:
        """Check that an optimizer object of the Trainer is the one that it would create.

        Raises:
            UsageError: If it was passed to the Trainer, which cannot build it again for another model.
        """
        given = getattr(self.trainer.optimizer, "optimizer", self.trainer.optimizer)  # accelerate wraps it
        if given is not None and _settings(given) != _settings(created):
            raise UsageError(
                f"the Trainer was given an optimizer of class {type(given).__name__}, which belongs to one model: pass "
                "optimizer_cls_and_kwargs, or set optim in its arguments."
            )

    def _created(self, model: nn.Module) -> torch.optim.Optimizer:
        """A new optimizer as the Trainer would create it for the model."""
        trainer = copy.copy(self.trainer)
        trainer.model, trainer.optimizer = model, None
        decayed = self._decayed(model)
        trainer.get_decay_parameter_names = lambda model: decayed
        return trainer.create_optimizer()

    def _decayed(self, model: nn.Module) -> list[str]:
        """The parameters with weight decay: the Trainer's, where gains of new norms have it if those of its model do.

        The Trainer finds norms by class and name, which an edit changes.
        """
        names, before = self.trainer.get_decay_parameter_names, _gains(self.trainer.model)
        new = [name for name, kind in _gains(model).items() if before.get(name) is not kind]
        others = [name for name in names(model) if name not in new]
        of_norms = {name for name, kind in before.items() if "norm" in kind.__name__.lower()}
        return others + new if of_norms & set(names(self.trainer.model)) else others


def _settings(optimizer: torch.optim.Optimizer) -> tuple[type, dict[str, Any]]:
    """Class and settings of an optimizer, but for its learning rate."""
    return type(optimizer), {name: value for name, value in optimizer.defaults.items() if name != "lr"}


def _gains(model: nn.Module) -> dict[str, type[nn.Module]]:
    """The class of the module of each vector that is not a bias, such as the gain of a norm."""
    return {
        f"{path}.{name}".removeprefix("."): type(module)
        for path, module in model.named_modules()
        for name, parameter in module.named_parameters(recurse=False)
        if parameter.ndim < 2 and name != "bias"
    }


def _splits(trainer: Any) -> dict[str, Any]:
    """The evaluation data of each split.

    Raises:
        UsageError: If there is none, or too little.
    """
    data = trainer.eval_dataset
    if isinstance(data, dict):
        if set(data) != set(SPLITS):
            raise UsageError(
                f"the Trainer's eval_dataset has the keys {', '.join(map(str, data))}: name them choose and report."
            )
        return dict(data)
    if data is None:
        raise UsageError(
            "the Trainer has no eval_dataset: pass one, of which half chooses the learning rate and half is reported."
        )
    if not isinstance(data, Sized) or len(data) < 2:
        raise UsageError(
            "the Trainer's eval_dataset cannot be split in two, because it has no length or a single sample: pass a "
            "dictionary with choose and report."
        )
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(0)).tolist()
    return {split: _subset(data, sorted(order[index::2])) for index, split in enumerate(SPLITS)}


def _subset(data: Any, indices: list[int]) -> Any:
    """Some samples; a dataset of Hugging Face keeps its class, so that the Trainer removes unused columns."""
    return data.select(indices) if callable(getattr(data, "select", None)) else Subset(data, indices)

"""The task of a Lightning module and its data module."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator, Mapping, Sized
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Subset

from normplace.analysis.recording.structures import tensors_of
from normplace.errors import UsageError, cause
from normplace.lab.compare.rng import preserved_random_state, seed_all
from normplace.lab.compare.task import SPLITS, Better, Start, Task
from normplace.lab.compare.tasks.fresh_model import fresh_model
from normplace.lab.compare.tasks.optimizers import peak_rates, scaled_to

LIGHTNING = ("lightning.", "pytorch_lightning.")
SPLIT_SEED = 0
METRICS = ("val_loss", "test_loss", "loss")
"""Logged values that are the measure if a step returns none."""


def is_lightning(value: object) -> bool:
    """Whether a value is a Lightning module; Lightning is not imported."""
    return any(kind.__name__ == "LightningModule" for kind in type(value).__mro__)


class LightningTask(Task):
    """Train a Lightning module with its own steps and optimizer.

    ``validation_step`` on ``val_dataloader`` chooses the learning rate, ``test_step`` on ``test_dataloader`` is
    reported. Without a test step, both halves of the validation data are used. The measure is what the step returns or,
    if it returns nothing, the value it logs: a loss if smaller is better, else the other value. If larger is better, a
    loss that the step logs and returns is not the measure. Learning rate
    schedulers of the module are replaced by the schedule of the comparison. The module itself does not change.

    If ``training_step`` calls a submodule, such as ``self.net(x)``, instead of ``self(x)``, edits apply to that one.

    Args:
        module: The module.
        data: Its data module.
        start: ``fresh`` for new weights per seed, by :func:`fresh_model`; ``weights`` for a copy of the module.
        better: Whether a ``smaller`` or ``larger`` measure is better.

    Raises:
        UsageError: If the module optimizes manually, or has no validation.
    """

    def __init__(self, module: Any, data: Any, start: str = "fresh", better: Better = "smaller") -> None:
        self.module, self.initial, self.better = module, start, better
        self.name = type(module).__name__
        if not module.automatic_optimization:
            raise UsageError(
                f"{self.name} optimizes manually: set automatic_optimization, or pass a function make(seed)."
            )
        data.prepare_data()
        _set_up(data, "fit")
        self.training = _single_loader(data.train_dataloader(), f"train_dataloader of {type(data).__name__}")
        self.evaluation, note = _evaluation(module, data)
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        host, model_note = self._host(0)
        self.path = called_module(host, next(iter(self.training)), self.name)
        self.learning_rate = max(peak_rates(configured_optimizer(host)))
        where = f" Edits apply to {self.path}, which training_step calls." if self.path else ""
        self.notes = (model_note, note + where)
        if any(loader.dataset is self.training.dataset for _, loader in self.evaluation.values()):
            self.notes += ("Validation uses the training data, so that the held-out measure is that of training data.",)

    def start(self, seed: int) -> Start:
        """Copy the module for a seed."""
        host, _ = self._host(seed)
        run = LightningRun(host, self.path, self.evaluation, self.better)
        return Start(host.get_submodule(self.path), self.training, run.loss, run.validate, optimizer=run.optimizer)

    def describe(self) -> dict[str, Any]:
        """The module and the edited submodule."""
        return {**super().describe(), "measure": "value of the validation step", "edited": self.path or self.name}

    def _host(self, seed: int) -> tuple[Any, str]:
        with torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []):
            torch.manual_seed(seed)
            if self.initial == "weights":
                host, note = copy.deepcopy(self.module), "Every seed starts from the weights of the module."
            else:
                fresh = fresh_model(self.module)
                host, note = fresh.model, fresh.note
        return host.to(self.device), note


Evaluation = Mapping[str, tuple[str, DataLoader[Any]]]
"""The name of the step and the data of each split."""


class LightningRun:
    """The steps of a module whose edited part is replaced by what is trained.

    Args:
        host: A copy of the module, which no other training shares.
        path: Name of the submodule that is edited; empty for the module itself.
        evaluation: Steps and data of the splits.
        better: Whether a ``smaller`` or ``larger`` measure is better.
    """

    def __init__(self, host: Any, path: str, evaluation: Evaluation, better: Better = "smaller") -> None:
        self.host, self.path, self.evaluation = host, path, evaluation
        self.better: Better = better
        self.device = next(host.parameters()).device

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """The loss of ``training_step``.

        Raises:
            UsageError: If the step returns no loss.
        """
        with self._attached(model) as host, _captured_logs(host):
            result = _call_step(host, "training_step", batch, self.device)
        loss = result.get("loss") if isinstance(result, Mapping) else result
        if loss is None:
            raise UsageError(f"training_step of {type(self.host).__name__} returned no loss: return a scalar.")
        return loss

    def validate(self, model: nn.Module, split: str) -> float:
        """The mean value of the validation or test step, weighted by the sizes of the batches."""
        step, loader = self.evaluation[split]
        total, count = 0.0, 0
        with self._attached(model) as host:
            for batch in loader:
                with _captured_logs(host) as logged:
                    result = _call_step(host, step, batch, self.device)
                size = _size(batch)
                total += size * _measure(result, logged, step, type(host).__name__, self.better)
                count += size
        return total / count

    def optimizer(self, model: nn.Module, learning_rate: float) -> torch.optim.Optimizer:
        """The optimizer of ``configure_optimizers``; the largest of its learning rates becomes ``learning_rate``."""
        with self._attached(model) as host:
            return scaled_to(configured_optimizer(host), learning_rate)

    @contextmanager
    def _attached(self, model: nn.Module) -> Iterator[Any]:
        """The module with a model in place: the edited one, or another that returns a known output."""
        if self.path:
            if self.host.get_submodule(self.path) is not model:
                parent, _, name = self.path.rpartition(".")
                setattr(self.host.get_submodule(parent), name, model)
            yield self.host.train(model.training)
        elif is_lightning(model):
            self.host = model
            yield model
        else:
            before = vars(self.host).get("forward")
            self.host.forward = partial(model)  # a function: a module would be registered
            try:
                yield self.host
            finally:
                del self.host.forward
                if before is not None:
                    self.host.forward = before


class _FirstCall(Exception):
    """Ends a step at the first call of a module."""


def called_module(host: Any, batch: Any, name: str) -> str:
    """The name of the submodule that ``training_step`` calls first; empty for the module itself.

    Raises:
        UsageError: If it calls none.
    """
    calls: list[str] = []

    def recorder(path: str) -> Any:
        def record(module: nn.Module, args: tuple[Any, ...]) -> None:
            calls.append(path)
            raise _FirstCall

        return record

    handles = [module.register_forward_pre_hook(recorder(path)) for path, module in host.named_modules()]
    try:
        with torch.no_grad(), _captured_logs(host):
            _call_step(host, "training_step", batch, next(host.parameters()).device)
    except _FirstCall:
        return calls[0]
    except Exception as error:
        raise UsageError(f"training_step of {name} failed ({cause(error)}): run it without normplace.") from error
    finally:
        for handle in handles:
            handle.remove()
    raise UsageError(f"training_step of {name} calls no module: compute the loss from self(...).")


def configured_optimizer(module: Any) -> torch.optim.Optimizer:
    """The optimizer of ``configure_optimizers``; schedulers are ignored.

    Raises:
        UsageError: If there is none, or several.
    """
    configured = _configured(module)
    if isinstance(configured, tuple | list) and configured and isinstance(configured[0], tuple | list):
        configured = configured[0]  # optimizers and schedulers
    several = configured if isinstance(configured, tuple | list) else [configured]
    optimizers = [entry["optimizer"] if isinstance(entry, Mapping) else entry for entry in several]
    if len(optimizers) != 1 or not isinstance(optimizers[0], torch.optim.Optimizer):
        raise UsageError(
            f"configure_optimizers of {type(module).__name__} must return one optimizer, got {len(optimizers)} of "
            f"{', '.join(type(optimizer).__name__ for optimizer in optimizers)}."
        )
    return optimizers[0]


class _Lengths:
    """Replaces a trainer, of which schedulers ask how long the training is."""

    estimated_stepping_batches = max_steps = num_training_batches = 1_000_000
    max_epochs = 1_000


def _has_trainer(module: Any) -> bool:
    try:
        return module.trainer is not None
    except RuntimeError:  # a module without a trainer raises
        return False


def _configured(module: Any) -> Any:
    """What ``configure_optimizers`` returns; without a trainer, a scheduler that is ignored gets any length.

    Raises:
        UsageError: If it fails.
    """
    lengths = None if _has_trainer(module) else _Lengths()
    try:
        if lengths is not None:
            module.trainer = lengths
        return module.configure_optimizers()
    except Exception as error:
        raise UsageError(
            f"configure_optimizers of {type(module).__name__} failed ({cause(error)}): the comparison has no trainer."
        ) from error
    finally:
        if lengths is not None:
            module.trainer = None


def _evaluation(module: Any, data: Any) -> tuple[Evaluation, str]:
    """Steps and data of the splits, and a sentence about them.

    Raises:
        UsageError: If there is no validation.
    """
    if not _overrides(module, "validation_step") or not _overrides(data, "val_dataloader"):
        raise UsageError(
            f"{type(module).__name__} needs validation_step, and {type(data).__name__} val_dataloader: they choose the "
            "learning rate."
        )
    _set_up(data, "validate")
    loader = _single_loader(data.val_dataloader(), f"val_dataloader of {type(data).__name__}")
    if _overrides(module, "test_step") and _overrides(data, "test_dataloader"):
        _set_up(data, "test")
        tests = _single_loader(data.test_dataloader(), f"test_dataloader of {type(data).__name__}")
        note = (
            "validation_step on the validation data chooses the learning rate; test_step on the test data is reported."
        )
        return {"choose": ("validation_step", loader), "report": ("test_step", tests)}, note
    if not isinstance(loader.dataset, Sized) or len(loader.dataset) < 2:
        raise UsageError(
            f"the validation data of {type(data).__name__} cannot be split in two: add test_step and test_dataloader."
        )
    order = torch.randperm(len(loader.dataset), generator=torch.Generator().manual_seed(0)).tolist()
    halves = {
        split: DataLoader(
            Subset(loader.dataset, sorted(order[index::2])), batch_size=loader.batch_size, collate_fn=loader.collate_fn
        )
        for index, split in enumerate(SPLITS)
    }
    note = "validation_step on half of the validation data chooses the learning rate; the other half is reported."
    return {split: ("validation_step", half) for split, half in halves.items()}, note


def _set_up(data: Any, stage: str) -> None:
    """Set up a stage of a data module; one that splits its data at random makes the same split in every stage."""
    with preserved_random_state():
        seed_all(SPLIT_SEED)
        data.setup(stage)


def _overrides(value: Any, name: str) -> bool:
    """Whether an object or its class defines a method that Lightning's own classes leave open."""
    return name in vars(value) or any(
        name in vars(kind) for kind in type(value).__mro__ if not kind.__module__.startswith(LIGHTNING)
    )


def _single_loader(loader: Any, name: str) -> DataLoader[Any]:
    if not isinstance(loader, DataLoader):
        raise UsageError(f"{name} must return one DataLoader, got {type(loader).__name__}.")
    return loader


def _call_step(host: Any, step: str, batch: Any, device: torch.device) -> Any:
    """Call a step with a batch on a device, and the index 0 if the step takes one."""
    function = getattr(host, step)
    moved = host.transfer_batch_to_device(batch, device, 0)
    return function(moved, 0) if len(inspect.signature(function).parameters) > 1 else function(moved)


@contextmanager
def _captured_logs(host: Any) -> Iterator[dict[str, Any]]:
    """Collect what the module logs, for which Lightning needs a Trainer."""
    logged: dict[str, Any] = {}

    def log(name: str, value: Any, *args: Any, **kwargs: Any) -> None:
        logged[name] = value

    def log_dict(values: Mapping[str, Any], *args: Any, **kwargs: Any) -> None:
        logged.update(values)

    host.log, host.log_dict = log, log_dict
    try:
        yield logged
    finally:
        del host.log, host.log_dict


def _measure(result: Any, logged: Mapping[str, Any], step: str, name: str, better: Better) -> float:
    """The value that a step returned or, if it returned nothing, logged; a logged loss only if smaller is better.

    Raises:
        UsageError: If there is none, or it is not clear which.
    """
    if isinstance(result, Mapping):
        logged, result = result, None
    losses = [key for key in logged if key.lower().endswith("loss")]
    if result is not None:
        value = _number(result)
        # Many steps return the loss that they log, of which larger is not better.
        if better == "smaller" or all(_number(logged[key]) != value for key in losses):
            return value
    if better == "smaller":
        keys = [key for key in METRICS if key in logged][:1] or list(logged)
    else:
        keys = [key for key in logged if key not in losses]
    if len(keys) > 1:
        raise UsageError(f"{step} of {name} logs {', '.join(keys)}: return the value that is compared.")
    if not keys and losses:
        raise UsageError(f"{step} of {name} logs only {losses[0]}, of which larger is not better: leave better out.")
    if not keys:
        raise UsageError(f"{step} of {name} returns and logs nothing: return the value that is compared.")
    return _number(logged[keys[0]])


def _number(value: Any) -> float:
    return float(value.detach() if isinstance(value, Tensor) else value)


def _size(batch: Any) -> int:
    """The number of samples in a batch."""
    first = next(iter(tensors_of(batch)), None)
    return len(first) if first is not None and first.ndim else 1

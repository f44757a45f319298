"""Checks of a task and its edits before anything long starts, and the cost of a training step.

Each mistake is reported in one sentence. The checks build the model a few times and take a few steps.
"""

from __future__ import annotations

import gc
import math
import re
import time
from collections.abc import Callable, Iterator, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils import clip_grad_norm_

from normplace.analysis.recording.passes import uncompiled_calls
from normplace.analysis.recording.structures import tensors_of
from normplace.edit.record.changes import changes
from normplace.errors import UsageError, cause
from normplace.lab.compare.batches import BatchStream
from normplace.lab.compare.edits import Edit
from normplace.lab.compare.identity import GRADIENT, LOSS, MEASURES, NO_IDENTITY, Identity, hashed, three_digits
from normplace.lab.compare.measures import memory_megabytes, stream_signals
from normplace.lab.compare.plan import Cost
from normplace.lab.compare.rng import preserved_random_state, seed_all
from normplace.lab.compare.task import SPLITS, Start, Task
from normplace.lab.compare.trial import Training, prepare, take_step, validated

WARM_STEPS = 3
TIMED_STEPS = 30
TIMED_SECONDS = 1.0
"""Steps are timed until there are enough of them, or this time is over."""
SMALL_RATE = 1e-5
"""Learning rate of the timed steps."""
SAME = 1e-3
"""Largest relative difference of numbers that are computed twice."""
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


@dataclass(frozen=True)
class Checked:
    """What the checks measured.

    Args:
        costs: The cost of each edit.
        notes: Sentences for the result.
        on_gpu: Whether the models are on a GPU.
    """

    costs: dict[str, Cost]
    notes: tuple[str, ...]
    on_gpu: bool


def check_task(task: Task, edits: Sequence[Edit], start: str) -> Checked:
    """Check a task with every edit, and measure what a training costs.

    Raises:
        UsageError: If the task or an edit cannot be used, with the reason.
    """
    with _as_in_trials():
        first = _check_seeds(task, start)
        before = [_check_loss(task, first), *_check_validation(task, first)]
        on_gpu = any(parameter.is_cuda for parameter in first.model.parameters())
        notes = list(task.notes)
        if before[1] == before[2]:
            notes.append(
                "The measure is the same number on both held-out splits: if they are the same data, the reported data "
                "chooses the learning rates too."
            )
        costs = {edit.name: _check_edit(task, edit, notes) for edit in edits}
        _check_independence(task, before)
    if on_gpu:
        del first
        gc.collect()
        torch.cuda.empty_cache()  # the workers need it
    return Checked(costs, tuple(dict.fromkeys(notes)), on_gpu)


def _check_independence(task: Task, before: Sequence[float]) -> None:
    """Check that the steps of the other checks do not change what a later training starts from."""
    again = _start(task, 0)
    names = (LOSS, *MEASURES)
    after = [_check_loss(task, again), *_check_validation(task, again)]
    for name, one, two in zip(names, before, after, strict=True):
        if not math.isclose(one, two, rel_tol=SAME, abs_tol=SAME**2):
            raise UsageError(
                f"the {name} of {task.name} with the same seed changes from {one:.4g} to {two:.4g} after a few steps "
                "of training: build everything that training changes in the task, do not write to batches, and draw "
                "random numbers from the seed."
            )


def task_identity(task: Task) -> Identity:
    """What identifies the user's code of a task; empty for a task of normplace, whose settings are recorded.

    A function keeps its name when the user changes it. The parts are the model's description, the optimizer's settings,
    and the numbers of the untrained model: loss and gradient of the first batch, and measures.

    Raises:
        UsageError: If the task cannot be used.
    """
    if task.reference is not None and not task.code:
        return NO_IDENTITY
    with _as_in_trials():
        first = _start(task, 0)
        _check_loss(task, first)
        measures = dict(zip(MEASURES, _check_validation(task, first), strict=True))
        seed_all(0)
        batch, model = BatchStream(first.batches, 0).peek(), first.model.train()
        length = len(first.batches) if isinstance(first.batches, Sized) else None
        optimizer = first.optimizer(model, 1.0)
        groups = [{key: str(group[key]) for key in group if key != "params"} for group in optimizer.param_groups]
        settings = [type(optimizer).__name__, groups, first.clip]
        described = {"number of batches": str(length), "optimizer": hashed(settings)}
        return _untrained(first, batch) | described | {name: three_digits(value) for name, value in measures.items()}


def edit_identity(task: Task, edit: Edit) -> Identity:
    """What identifies an edit of the user's code: the edited model and its numbers on the first batch."""
    with _as_in_trials():
        training = _prepared(task, edit)
        return _untrained(training.start, training.batch)


def _untrained(start: Start, batch: Any) -> dict[str, str]:
    """A hash of a model's description, and its loss and gradient."""
    loss = start.loss(start.model, batch)
    loss.backward()
    size = clip_grad_norm_(start.model.parameters(), math.inf)
    text = _ADDRESS.sub("", repr(start.model))
    return {"model": hashed(text), LOSS: three_digits(loss.detach()), GRADIENT: three_digits(size)}


@contextmanager
def _as_in_trials() -> Iterator[None]:
    """One thread, as in trials; threads and random state are restored."""
    threads = torch.get_num_threads()
    with preserved_random_state():
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)


def check_batches(task: Task, steps: int) -> None:
    """Check that data that cannot be repeated has a batch for every step.

    Raises:
        UsageError: If it runs out.
    """
    with preserved_random_state():
        seed_all(0)
        stream = BatchStream(task.start(0).batches, 0)
        if stream.can_run_out:
            for _ in range(steps):
                next(stream)


def _start(task: Task, seed: int) -> Start:
    """Start a task; its random generators are seeded."""
    seed_all(seed)
    start = task.start(seed)
    if not isinstance(start.model, nn.Module):
        raise UsageError(f"the model of {task.name} is a {type(start.model).__name__}: return an nn.Module.")
    if any(map(is_lazy, start.model.parameters())):
        raise UsageError(f"the model of {task.name} has lazy layers without weights: call it once in the task.")
    if not any(parameter.requires_grad for parameter in start.model.parameters()):
        raise UsageError(f"the model of {task.name} has no trainable parameter: nothing can be compared.")
    return start


def _check_seeds(task: Task, start: str) -> Start:
    """Check that each start has its own model, that a seed repeats it, and that another seed changes it."""
    first, again, other = _start(task, 0), _start(task, 0), _start(task, 1)
    for later in (again, other):
        if {id(p) for p in first.model.parameters()} & {id(p) for p in later.model.parameters()}:
            raise UsageError(f"{task.name} returns the same parameters at every call: build a new model in it.")
    weights = [list(start.model.parameters()) for start in (first, again, other)]
    if _are_equal(weights[0], weights[1]) is False:
        raise UsageError(f"{task.name} returns other weights for the same seed: draw all random numbers from the seed.")
    batches = [BatchStream(one.batches, seed).peek() for one, seed in ((first, 0), (again, 0), (other, 1))]
    if _are_equal(batches[0], batches[1]) is False:
        raise UsageError(f"{task.name} returns other batches for the same seed: draw all random numbers from the seed.")
    same_weights = _are_equal(weights[0], weights[2])
    if start == "fresh" and same_weights:
        raise UsageError(
            f"{task.name} ignores its seed, because seeds 0 and 1 have the same weights: build the model from the "
            "seed, or use start='weights' to begin with given weights."
        )
    if same_weights and _are_equal(batches[0], batches[2]):
        raise UsageError(f"{task.name} ignores its seed, because seeds 0 and 1 have the same weights and batches.")
    return _start(task, 0)


def _are_equal(first: Any, second: Any) -> bool | None:
    """Whether two structures have equal tensors; None if they have no tensors to compare."""
    pairs = list(zip(tensors_of(first), tensors_of(second), strict=False))
    return all(one.shape == two.shape and torch.equal(one, two) for one, two in pairs) if pairs else None


def _check_loss(task: Task, start: Start) -> float:
    """Check that the loss of the first batch is a finite scalar with a gradient, and return it."""
    batch = BatchStream(start.batches, 0).peek()
    start.model.train()
    with _named_failure(f"the loss of {task.name}"):
        loss = start.loss(start.model, batch)
    if not isinstance(loss, Tensor):
        raise UsageError(f"the loss of {task.name} is a {type(loss).__name__}: return a tensor of one number.")
    if loss.numel() != 1:
        raise UsageError(f"the loss of {task.name} has shape {tuple(loss.shape)}: reduce it to one number.")
    if not loss.requires_grad:
        raise UsageError(
            f"the loss of {task.name} has no gradient: compute it from the model's output, without detach or no_grad."
        )
    if not math.isfinite(value := float(loss.detach())):
        raise UsageError(f"the loss of {task.name} is {value} before training: check the data and the model.")
    gradients = torch.autograd.grad(loss, [p for p in start.model.parameters() if p.requires_grad], allow_unused=True)
    if all(gradient is None for gradient in gradients):
        raise UsageError(f"the loss of {task.name} depends on no parameter of the model: compute it from its output.")
    return value


def _check_validation(task: Task, start: Start) -> list[float]:
    """Check that the measure is a finite number on both splits, and return both."""
    values = []
    for split in SPLITS:
        with _named_failure(f"validate of {task.name} on split {split!r}"):
            value = validated(start, split)
        if not math.isfinite(value):
            raise UsageError(f"validate of {task.name} returns {value} on split {split!r}: return a finite number.")
        values.append(value)
    return values


def _prepared(task: Task, edit: Edit) -> Training:
    """Build the model of seed 0 and edit it."""
    with _named_failure(f"the edit {edit.name!r} of {task.name}"):
        try:
            return prepare(task, edit, 0)
        except UsageError as error:
            raise UsageError(f"the edit {edit.name!r} does not apply to {task.name}: {_sentence(error)}") from error


def _check_edit(task: Task, edit: Edit, notes: list[str]) -> Cost:
    """Apply an edit, train a few steps, and return the cost."""
    clock = time.perf_counter()
    training = _prepared(task, edit)
    prepared = time.perf_counter() - clock
    notes += [f"{edit.name}: {warning}" for warning in changes(training.start.model).warnings]
    with _named_failure(f"training {task.name} with the edit {edit.name!r}"):
        larger, optimizer = (
            training.start.optimizer(training.start.model, rate) for rate in (2 * SMALL_RATE, SMALL_RATE)
        )
        if [group["lr"] for group in larger.param_groups] == [group["lr"] for group in optimizer.param_groups]:
            raise UsageError(f"the optimizer of {task.name} ignores its learning rate: use the one that it is given.")
        step = _step_seconds(training, optimizer)
        _require_given_model(task, training.start)
        if training.start.compiling is not None:
            validated(training.start, "choose")  # compiles the layers for evaluation
        validation = _timed(lambda: validated(training.start, "choose"))
    measured = _measure_seconds(training, optimizer, edit, notes)
    return Cost(step, prepared, validation, measured)


def _require_given_model(task: Task, start: Start) -> None:
    """Check that loss and validation use the edited model, and not the one that the task built."""
    if all(parameter.grad is None for parameter in start.model.parameters()):
        raise UsageError(f"the loss of {task.name} ignores its first argument: call the model that it is given.")
    called: list[nn.Module] = []
    handles = [
        module.register_forward_pre_hook(lambda module, _: called.append(module)) for module in start.model.modules()
    ]
    try:
        with uncompiled_calls():
            validated(start, "report")
    finally:
        for handle in handles:
            handle.remove()
    if not called:
        raise UsageError(f"validate of {task.name} ignores its first argument: call the model that it is given.")


def _step_seconds(training: Training, optimizer: torch.optim.Optimizer) -> float:
    """Median time of a training step."""
    for _ in range(WARM_STEPS):
        loss = take_step(training.start, optimizer, next(training.stream))
    times: list[float] = []
    while len(times) < TIMED_STEPS and sum(times) < TIMED_SECONDS:
        clock = time.perf_counter()
        loss = take_step(training.start, optimizer, next(training.stream))
        float(loss)  # waits for a GPU
        times.append(time.perf_counter() - clock)
    return median(times)


def _measure_seconds(training: Training, optimizer: torch.optim.Optimizer, edit: Edit, notes: list[str]) -> float:
    """Time of the signals and the memory; a note if the signals cannot be measured."""
    start = training.start
    clock = time.perf_counter()
    try:
        stream_signals(start.model, training.inputs, start.loss, training.batch)
    except UsageError as error:
        notes.append(f"Signals of {edit.name!r} are not measured: {_sentence(error)}")
    memory_megabytes(start.model, optimizer, start.loss, training.batch)
    return time.perf_counter() - clock


def _timed(function: Callable[[], Any]) -> float:
    clock = time.perf_counter()
    function()
    return time.perf_counter() - clock


def _sentence(error: UsageError) -> str:
    return f"{str(error).rstrip('.')}."


@contextmanager
def _named_failure(what: str) -> Iterator[None]:
    """Name what failed in an error of the user's code."""
    try:
        yield
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(
            f"{what} failed ({cause(error)}): run one training step without normplace to see where."
        ) from error

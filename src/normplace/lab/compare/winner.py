"""The winning model as a folder that :func:`normplace.edit.load` reads."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn

from normplace.analysis.recording.passes import evaluating
from normplace.analysis.recording.structures import fresh_inputs, tensors_of
from normplace.edit.saving.files import WEIGHTS, load, require_no_other_model, save, write_folder, write_model
from normplace.edit.verify.capture import Arguments
from normplace.errors import UsageError
from normplace.lab.compare.edits import AS_IS, parse_edit
from normplace.lab.compare.result import Comparison
from normplace.lab.compare.rng import preserved_random_state, seed_all
from normplace.lab.compare.task import Task
from normplace.lab.compare.trial import prepare, take_steps

RESULT = "comparison.json"


def train_winner(comparison: Comparison, task: Task, folder: str | Path) -> None:
    """Repeat one reported training of the winner, and write its model with :func:`save_winner`.

    The first seed that did not diverge is trained, which takes as long as one reported training.

    Raises:
        UsageError: If every seed of the winner diverged, loading cannot repeat the edit, or the folder cannot be
            written.
    """
    require_no_other_model(Path(folder), WEIGHTS)
    trials = comparison.trials()[comparison.winner]
    record = next((record for record in trials.final if trials.scores[record.seed] is not None), None)
    if record is None:
        raise UsageError(f"every training of {comparison.winner!r} diverged: there is no model to write.")
    config = record.config
    edit = parse_edit(config["recipe"] or AS_IS, config["start"])
    with preserved_random_state():
        seed_all(record.seed)
        original = task.start(record.seed).model
        training = prepare(task, edit, record.seed)
        model = training.start.model
        with preserved_random_state():  # an edit that cannot be loaded is refused before the training
            _check_loads(comparison, model, original, training.inputs)
        optimizer = training.start.optimizer(model, config["learning_rate"])
        take_steps(training, optimizer, config["steps"], config["evaluations"])
    save_winner(comparison, model, folder, original=original, inputs=training.inputs)


def save_winner(
    comparison: Comparison, model: nn.Module, folder: str | Path, *, original: nn.Module, inputs: Arguments
) -> None:
    """Write the winning model and the result of the comparison, after checking that the model can be loaded again.

    ``normplace.edit.load(folder, original, *args, **kwargs)`` returns the model.

    Raises:
        UsageError: If loading cannot repeat the edit, as for a user's function, or the folder cannot be written.
    """
    require_no_other_model(Path(folder), WEIGHTS)
    _check_loads(comparison, model, original, inputs)
    with write_folder(Path(folder)) as written:
        write_model(model, written, WEIGHTS)
        written.write_text(RESULT, json.dumps(comparison.to_dict(), indent=1) + "\n")


def _check_loads(comparison: Comparison, model: nn.Module, original: nn.Module, inputs: Arguments) -> None:
    """Raise UsageError if a saved model cannot be loaded."""
    with tempfile.TemporaryDirectory() as draft:
        save(model, draft)
        if not _loads(Path(draft), model, original, inputs):
            raise UsageError(
                f"the winner {comparison.winner!r} cannot be written: npl.edit.load cannot repeat this edit; apply it "
                "to your model instead."
            )


def _loads(folder: Path, model: nn.Module, original: nn.Module, inputs: Arguments) -> bool:
    """Whether the loaded model computes the same numbers."""
    args, kwargs = inputs
    try:
        loaded = load(folder, original, *args, **kwargs)
    except UsageError:  # the weights of the edit do not fit the original
        return False
    expected, outputs = _outputs(model, inputs), _outputs(loaded, inputs)
    return len(expected) == len(outputs) and all(map(torch.equal, expected, outputs))


def _outputs(model: nn.Module, inputs: Arguments) -> list[Tensor]:
    args, kwargs = fresh_inputs(inputs)
    with evaluating(model), torch.no_grad():
        torch.manual_seed(0)
        return list(tensors_of(model(*args, **kwargs)))

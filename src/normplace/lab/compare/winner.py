"""The winning model as a folder that :func:`normplace.edit.load` reads."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn

from normplace.analysis.recording.passes import evaluating
from normplace.analysis.recording.structures import fresh_inputs, tensors_of
from normplace.edit.capture import Arguments
from normplace.edit.files import WEIGHTS, load, save, write_folder, write_model
from normplace.errors import UsageError
from normplace.lab.compare.result import Comparison

RESULT = "comparison.json"


def save_winner(
    comparison: Comparison, model: nn.Module, folder: str | Path, *, original: nn.Module, inputs: Arguments
) -> None:
    """Write the winning model and the result of the comparison, after checking that the model can be loaded again.

    ``normplace.edit.load(folder, original, *args, **kwargs)`` returns the model.

    Args:
        comparison: The result.
        model: The edited model of the winner, trained or not.
        folder: The folder to write to; created if it does not exist.
        original: The model before the edit, with any weights.
        inputs: Positional and keyword arguments of one call.

    Raises:
        UsageError: If loading cannot repeat the edit, as for a user's function, or the folder cannot be written.
    """
    with tempfile.TemporaryDirectory() as draft:
        save(model, draft)
        if not _loads(Path(draft), model, original, inputs):
            raise UsageError(
                f"the winner {comparison.winner!r} cannot be written: npl.edit.load cannot repeat this edit; apply it "
                "to your model instead."
            )
    with write_folder(Path(folder)) as written:
        write_model(model, written, WEIGHTS)
        written.write_text(RESULT, json.dumps(comparison.to_dict(), indent=1) + "\n")


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

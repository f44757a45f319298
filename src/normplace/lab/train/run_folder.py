"""The folder of a training run: its result, its model with the tokenizer, and those of shorter runs that it extends."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from normplace._shared.output import cannot_write, write_atomic
from normplace.errors import UsageError, quoted
from normplace.lab.train.log import FILE as LOG
from normplace.lab.train.tokenizer import BYTES, FILE, ByteTokenizer, Tokenizer, load_tokenizer, save_tokenizer
from normplace.models.transformer import Transformer, TransformerConfig, load, save
from normplace.models.weights import Damage, read_json

RESULT, MODEL = "result.json", "model"
NETWORK = "config.json"
REMEDY = "free space and run the same command to resume"


@dataclass(frozen=True)
class Run:
    """A finished run, or any saved Transformer with a tokenizer.

    Args:
        folder: Folder of the run; None if only a model was named.
        model: The network, in evaluation mode.
        tokenizer: Its tokenizer.
        tokenizer_name: The name by which :func:`normplace.lab.train.tokenizer.load_tokenizer` loads it.
        result: The content of ``result.json``; empty if only a model was named.
    """

    folder: Path | None
    model: Transformer
    tokenizer: Tokenizer
    tokenizer_name: str
    result: dict[str, Any]

    @property
    def context(self) -> int | None:
        """Context length in tokens that the network was trained with; None if it is not known and has no limit."""
        return self.result.get("config", {}).get("context") or self.model.config.positions.length


def open_run(path: str | Path) -> Run:
    """Load the model of a run.

    Args:
        path: Folder of a finished run, or of a saved Transformer.

    Raises:
        UsageError: If there is no such run, it has not finished, or a file is damaged.
    """
    folder = Path(path)
    try:
        is_run, is_model = (folder / MODEL / NETWORK).is_file(), (folder / NETWORK).is_file()
        has_begun = (folder / LOG).is_file()
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read {quoted(str(path))} ({error}): name the folder of a run.") from error
    if is_run:
        return _open(folder, folder / MODEL, read_result(folder) or {})
    if is_model:
        return _open(None, folder, {})
    if has_begun:
        result = read_result(folder) or {}
        if result.get("status") == "diverged":
            raise UsageError(
                f"the run in {folder} has no model, since it diverged ({result.get('reason')}): train another one, for "
                "example with a lower learning rate."
            )
        raise UsageError(f"the run in {folder} has no model, since it has not finished: run its command again.")
    raise UsageError(f"there is no run in {quoted(str(path))}: name the --out folder of 'normplace train'.")


def _open(folder: Path | None, model: Path, result: dict[str, Any]) -> Run:
    """Load a model and the tokenizer in its folder; without one, that of the result."""
    name = str(model) if (model / FILE).is_file() else result.get("text", {}).get("tokenizer", BYTES)
    tokenizer = load_tokenizer(name)
    return Run(folder, load(model).eval(), tokenizer, BYTES if isinstance(tokenizer, ByteTokenizer) else name, result)


def read_result(folder: Path) -> dict[str, Any] | None:
    """The content of the folder's ``result.json``; None if there is none.

    Raises:
        UsageError: If it is damaged.
    """
    path = folder / RESULT
    if not path.exists():
        return None
    try:
        result = read_json(path)
        _check_fields(result)
        return result
    except Damage as damage:
        raise UsageError(f"{path} is damaged ({damage}): remove it, and train with the same command.") from damage


def _check_fields(result: dict[str, Any]) -> None:
    """Check the fields that are read again.

    Raises:
        Damage: If one has an impossible type.
    """
    for name in ("config", "text"):
        if not isinstance(result.get(name, {}), dict):
            raise Damage(f"its field {name!r} is {quoted(result[name])}")
    context = result.get("config", {}).get("context", 1)
    if type(context) is not int or context < 1:
        raise Damage(f"its context is {quoted(context)}")


def has_finished(result: dict[str, Any] | None, steps: int) -> bool:
    """Whether a result is that of a finished run with this number of steps."""
    return result is not None and result.get("status") == "finished" and result.get("step") == steps


def keep_earlier(folder: Path) -> None:
    """Rename result and model of a finished run to ``result-STEPS.json`` and ``model-STEPS``, so that they stay.

    Raises:
        UsageError: If they cannot be renamed.
    """
    earlier = read_result(folder)
    if earlier is None or not has_finished(earlier, earlier.get("step", 0)):
        return
    for name in (MODEL, RESULT):  # the result last: while it is there, a rerun renames again
        path = folder / name
        kept = path.with_stem(f"{path.stem}-{earlier['step']}")
        number = 1
        while kept.exists():
            number += 1
            kept = path.with_stem(f"{path.stem}-{earlier['step']}-{number}")
        try:
            if path.exists():
                path.rename(kept)
        except OSError as error:
            raise cannot_write(kept, error, REMEDY) from error


def write_result(folder: Path, result: dict[str, Any]) -> None:
    """Write ``result.json``.

    Raises:
        UsageError: If it cannot be written.
    """
    write_atomic(folder / RESULT, json.dumps(result) + "\n", REMEDY)


def write_model(folder: Path, config: TransformerConfig, weights: dict[str, Tensor], tokenizer: Tokenizer) -> None:
    """Write the network and its tokenizer.

    Raises:
        UsageError: If they cannot be written.
    """
    model = Transformer(config, device="meta")
    model.load_state_dict(weights, assign=True)
    save_tokenizer(tokenizer, folder / MODEL)
    save(model, folder / MODEL)

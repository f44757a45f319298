"""What predicts targets from rows: a PyTorch module or an estimator with ``predict``."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from normplace._shared.references import load_reference
from normplace.errors import UsageError, cause, quoted, user_line

SAVED = (".pkl", ".pickle", ".joblib", ".pt", ".pth")
"""Endings of files that run code when they are loaded."""
FORMS = "file.py:function or package.module:function"
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Predictor:
    """A trained model as a function of rows.

    Attributes:
        name: Its name in sentences.
        model: The module or estimator.
        targets: Number of its outputs.
        features: Names of the columns of the rows; empty if they have none.
    """

    name: str
    model: Any
    targets: int
    features: tuple[str, ...] = ()

    @property
    def module(self) -> nn.Module | None:
        """The model if it is a module."""
        return self.model if isinstance(self.model, nn.Module) else None

    def __call__(self, x: Array) -> Array:
        """Predictions (rows, targets).

        Raises:
            UsageError: If the model fails, or returns something else than one row of targets per row.
        """
        columns = None if self.module is not None else self._fitted_columns()
        try:
            output = _run_estimator(self.model, x, columns) if self.module is None else _run_module(self.module, x)
            result = np.asarray(output, dtype=np.float64)
        except Exception as error:  # the user's model may raise anything
            raise UsageError(
                f"the model failed on {len(x)} rows × {x.shape[1]} features ({cause(error)}): check --drop and "
                "--target."
            ) from error
        if result.shape not in {(len(x), self.targets), (len(x),)} or (result.ndim == 1 and self.targets > 1):
            targets = "1 target" if self.targets == 1 else f"{self.targets} targets"
            raise UsageError(f"the model returns shape {result.shape} for {len(x)} rows and {targets}: check --target.")
        return result.reshape(len(x), self.targets)

    def _fitted_columns(self) -> tuple[list[str], list[int]] | None:
        """Names and positions of the columns that an estimator was fitted to; None if they had no names.

        Raises:
            UsageError: If the rows have other columns.
        """
        fitted = getattr(self.model, "feature_names_in_", None)
        if fitted is None:
            return None
        names = [str(name) for name in fitted]
        if not self.features:
            return names, list(range(len(names)))
        if sorted(names) != sorted(self.features):
            other = next(iter(sorted(set(names) ^ set(self.features))))
            where = "the table" if other in self.features else "the model"
            raise UsageError(
                f"the model was fitted to other columns than those of the table; only {where} has {quoted(other)}: "
                "check --drop and --target."
            )
        return names, [self.features.index(name) for name in names]


def _run_module(module: nn.Module, x: Array) -> Array:
    parameter = next(iter([*module.parameters(), *module.buffers()]), torch.empty(0))
    inputs = torch.from_numpy(x).to(parameter)
    with torch.no_grad():
        output = module(inputs)
    return output.double().cpu().numpy()


def _run_estimator(estimator: Any, x: Array, columns: tuple[list[str], list[int]] | None) -> Array:
    if columns is None:
        return estimator.predict(x)
    names, positions = columns
    pandas: Any = import_module("pandas")  # the estimator was fitted to a data frame, and warns of anything else
    return estimator.predict(pandas.DataFrame(x[:, positions], columns=names))


def load_model(reference: str) -> Any:
    """Load a module or estimator.

    Args:
        reference: ``file.py:function`` or ``package.module:function``, where the function takes no arguments and
            returns the model, or a tuple that starts with it.

    Raises:
        UsageError: If there is no such model.
    """
    if Path(reference).suffix in SAVED:
        raise UsageError(
            f"{quoted(reference)} would run code when it is loaded: write a function that loads it, and pass "
            "file.py:function."
        )
    if ":" not in reference:
        raise UsageError(f"{quoted(reference)} is not a model: pass {FORMS}.")
    loaded = load_reference(reference)
    model = _call(loaded, reference) if not predicts(loaded) else loaded
    if isinstance(model, tuple | list) and model:
        model = model[0]
    if not predicts(model):
        raise UsageError(
            f"{reference} is {type(model).__name__}, neither a torch.nn.Module nor an estimator with predict: "
            f"pass {FORMS}."
        )
    return model.eval() if isinstance(model, nn.Module) else model


def predicts(model: Any) -> bool:
    """Whether it is a module, or an estimator with ``predict``."""
    return isinstance(model, nn.Module) or (callable(getattr(model, "predict", None)) and not isinstance(model, type))


def _call(factory: Any, reference: str) -> Any:
    if not callable(factory):
        raise UsageError(f"{reference} is not a function: write the factory's name after the colon.")
    try:
        with redirect_stdout(sys.stderr):  # what the user's code prints is not a part of the result
            return factory()
    except (Exception, SystemExit) as error:
        raise UsageError(
            f"{reference} failed ({cause(error)}{user_line(error)}): call it directly to see the traceback."
        ) from error

"""``npl.extrapolate``: a model, its data, and the same data with one LayerNorm."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from torch import nn

from normplace.analysis.recording.passes import evaluating
from normplace.errors import UsageError, expect_number, expect_whole
from normplace.lab.extrapolate.boundedness import boundedness, layer_that_would_bound
from normplace.lab.extrapolate.predictor import Array, Predictor, predicts
from normplace.lab.extrapolate.result import Extrapolation, ModelReport
from normplace.lab.extrapolate.search import lines_beyond, search
from normplace.lab.extrapolate.table import FEWEST_ROWS, Table

FOLDS = 5
MOST_ROWS = 5000
"""Rows up to which every fold of the cross-validation is held out in turn; of a larger table, one fold is."""
LARGEST = 1e290
"""Largest magnitude of a number in a table, far enough from overflow to go a thousand ranges beyond."""


def extrapolate(
    model: Any,
    x: ArrayLike,
    y: ArrayLike,
    *,
    features: Sequence[str] = (),
    targets: Sequence[str] = (),
    margin: float = 0.1,
    seed: int = 0,
) -> Extrapolation:
    """Does a regression model stay in range outside its data, and what does one LayerNorm change?

    The model is followed along lines that leave the data. A ``BoundedRegressor`` is trained on the same rows to compare
    with, if scikit-learn is installed.

    Args:
        model: A PyTorch module, which is run in evaluation mode, a fitted estimator with ``predict``, or None to train
            an MLP on the rows.
        x: Features (rows, features), in the units that the model takes.
        y: Targets (rows,) or (rows, targets).
        features: Names of the features.
        targets: Names of the targets.
        margin: The part of a target's range by which a prediction may leave it.
        seed: Seed of the split, of trained networks and of the lines.

    Returns:
        The answer; ``print`` shows it, and ``save_html`` writes a page with a picture.

    Raises:
        UsageError: If the data or the model cannot be used, or None is passed without scikit-learn.
    """
    if model is not None and not predicts(model):
        raise UsageError(
            f"extrapolate takes a torch.nn.Module, a fitted estimator with predict, or None, not a "
            f"{type(model).__name__}: wrap a function in a module."
        )
    rows, columns = _as_numbers("x", x), _as_numbers("y", y)
    if rows.ndim != 2 or len(rows) != len(columns) or len(rows) < FEWEST_ROWS:
        raise UsageError(
            f"x has shape {rows.shape} and y {columns.shape}: (rows, features) and as many targets are needed, with at "
            f"least {FEWEST_ROWS} rows."
        )
    columns = columns.reshape(len(columns), -1)
    table = Table(
        _names("features", features, rows.shape[1], "feature"),
        _names("targets", targets, columns.shape[1], "target"),
        rows,
        columns,
        has_names=bool(features),
    )
    return extrapolate_table(model, table, margin=margin, seed=seed)


def extrapolate_table(model: Any, table: Table, *, margin: float = 0.1, seed: int = 0) -> Extrapolation:
    """The same for a table; see :func:`extrapolate`.

    Args:
        model: The model, or None.
        table: The data.
        margin: The part of a target's range by which a prediction may leave it.
        seed: Random seed.

    Raises:
        UsageError: If the data or the model cannot be used, or None is passed without scikit-learn.
    """
    expect_number("margin", margin, 0)
    expect_whole(0, seed=seed)
    if seed >= 2**32:  # a limit of NumPy's RandomState, which scikit-learn takes
        raise UsageError(f"seed must be below 2**32, got {seed}.")
    with evaluating(model) if isinstance(model, nn.Module) else nullcontext():
        return _extrapolated(model, table, margin, seed)


def _extrapolated(model: Any, table: Table, margin: float, seed: int) -> Extrapolation:
    """The answer for a model in evaluation mode."""
    for name, column in zip((*table.features, *table.targets), np.hstack([table.x, table.y]).T, strict=True):
        if np.abs(column).max() > LARGEST:
            raise UsageError(f"column {name!r} has values above {LARGEST:g}, which overflow: give it in a larger unit.")
    low, high = table.y.min(0), table.y.max(0)
    if (constant := np.flatnonzero(high == low)).size:
        raise UsageError(f"target {table.targets[constant[0]]!r} is constant: choose another column.")
    if not (table.x.min(0) < table.x.max(0)).any():
        raise UsageError("every feature is constant: there is nothing to extrapolate along.")
    random = np.random.RandomState(seed)
    lines = lines_beyond(table.x, table.features, random)
    allowed = np.stack([low - margin * (high - low), high + margin * (high - low)], axis=1)
    notes: list[str] = []
    is_own = model is not None

    def report(name: str, predictor_model: Any, r2: float | None = None) -> ModelReport:
        predictor = Predictor(name, predictor_model, len(table.targets), table.features if table.has_names else ())
        fitted = predictor(table.x)
        if not np.isfinite(fitted).all():
            raise UsageError("the model's predictions on the rows of the table are not finite: check its weights.")
        bound = getattr(predictor_model, "bound_", None)
        return ModelReport(
            name=name,
            r2=_r2(table.y, fitted) if r2 is None else r2,
            boundedness=boundedness(predictor, table.x, lines),
            search=search(predictor, lines, allowed),
            trained_here=r2 is not None,
            bound=None if bound is None or not np.isfinite(bound).all() else tuple(map(tuple, bound.tolist())),
        )

    has_sklearn = importlib.util.find_spec("sklearn") is not None
    if is_own:
        first = report("Your model", model)
    else:
        model, r2 = _train_network(table, seed, norm=None)
        first = report("The MLP", model, r2)
    second = None
    if has_sklearn:
        second = report("A network with one LayerNorm", *_train_network(table, seed, norm="layer"))
        if is_own:
            notes.append(
                f"Your model has an R² of {first.r2:.2f} on all rows, comparable only if it was not trained on them."
            )
    else:
        notes.append("For a network with one LayerNorm on your data, run pip install 'normplace[sklearn]'.")
    if table.rows_left_out:
        notes.append(f"{table.rows_left_out} rows with missing values were left out.")
    layer = None
    if isinstance(model, nn.Module) and first.boundedness.verdict == "unbounded":
        layer = layer_that_would_bound(model, table.x)
    return Extrapolation(table, margin, first, second, layer, tuple(notes))


def _train_network(table: Table, seed: int, norm: str | None) -> tuple[Any, float]:
    """A network that is trained on all rows, and its cross-validated R²."""
    from normplace.models import BoundedRegressor

    network = BoundedRegressor(norm=norm, random_state=seed)
    folds = np.array_split(np.random.RandomState(seed).permutation(len(table.x)), FOLDS)
    held_out = folds if len(table.x) <= MOST_ROWS else folds[:1]
    predictions = []
    for rows in held_out:
        rest = np.setdiff1d(np.arange(len(table.x)), rows)
        predictions.append(network.fit(table.x[rest], table.y[rest]).predict(table.x[rows]))
    r2 = _r2(table.y[np.concatenate(held_out)], np.vstack(predictions))
    return network.fit(table.x, table.y), r2


def _r2(y: Array, prediction: Array) -> float:
    """R² averaged over targets, in units in which their squares neither overflow nor underflow."""
    span = np.ptp(y, axis=0)
    unit = np.where(span > 0, span, 1.0)  # the held-out rows of a large table may be constant
    y, prediction = y / unit, prediction / unit
    total = np.maximum(((y - y.mean(0)) ** 2).sum(0), np.finfo(np.float64).tiny)
    return float((1 - ((y - prediction) ** 2).sum(0) / total).mean())


def _as_numbers(name: str, values: ArrayLike) -> Array:
    try:
        numbers = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{name} is not an array of numbers: convert its columns to numbers first.") from error
    if not np.isfinite(numbers).all():
        raise UsageError(f"{name} has values that are missing or not finite: fill or remove them.")
    return numbers


def _names(argument: str, names: Sequence[str], count: int, word: str) -> tuple[str, ...]:
    if names and len(names) != count:
        raise UsageError(f"{argument} must name each of the {count} columns, got {len(names)}.")
    if names:
        return tuple(names)
    return (word,) if count == 1 else tuple(f"{word} {number}" for number in range(1, count + 1))

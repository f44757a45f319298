"""Learn a table of real data and predict inside and outside of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from normplace._shared.device import pick_device
from normplace.errors import UsageError
from normplace.lab.studies.extrapolation.network import build_network
from normplace.lab.tasks.regression import ShiftedRegression, r_squared
from normplace.lab.train.fit import fit


@dataclass(frozen=True)
class Predictions:
    """What a trained model says of both test sets, on the CPU, in the target's own unit, in float64."""

    inside: Tensor
    outside: Tensor

    def scores(self, split: ShiftedRegression) -> dict[str, float]:
        """R² of both, and the tail of the predictions outside.

        Args:
            split: The data the predictions are of, in its own units.
        """
        size = self.outside.abs()
        return {
            "id_r2": r_squared(self.inside, split.inside.y),
            "ood_r2": r_squared(self.outside, split.outside.y),
            "ood_largest": float(size.max()),
            "ood_p999": float(size.quantile(0.999)),
            "ood_excess": float(self.outside.max() - split.train.y.max()),
        }


def network_predictions(
    split: ShiftedRegression,
    norm_at: str,
    generator: torch.Generator,
    *,
    width: int,
    epochs: int,
    learning_rate: float,
    batch_size: int = 0,
    device: str = "auto",
) -> Predictions:
    """Train the paper's network on standardised rows and predict.

    Args:
        split: The data.
        norm_at: Where the LayerNorm stands.
        generator: Source of the initial weights and of the order of batches, on the CPU: both are the same everywhere.
        width: Of both hidden layers.
        epochs: How often every row is seen.
        learning_rate: Adam's.
        batch_size: Rows in a step; 0 means all.
        device: Where to train, or ``auto``.
    """
    where = pick_device(device)
    scaled, unit = split.standardized()
    model = build_network(split.train.x.shape[1], width, norm_at, generator).to(where)
    fit(
        model,
        scaled.train.x.to(where),
        scaled.train.y.to(where),
        epochs=epochs,
        learning_rate=learning_rate,
        batch_size=batch_size or None,
        generator=generator,
    )
    with torch.no_grad():
        inside, outside = (
            unit.undo(model(part.x.to(where)).cpu().double()) for part in (scaled.inside, scaled.outside)
        )
    return Predictions(inside, outside)


def xgboost_obstacle() -> str | None:
    """Why :func:`xgboost_predictions` would fail, or None."""
    try:
        import xgboost  # noqa: F401  # pyright: ignore[reportMissingImports]
    except ImportError:
        return "XGBoost is not installed: pip install 'normplace[trees]', or xgboost-cpu."
    return None


def xgboost_predictions(split: ShiftedRegression, seed: int, rounds: int) -> Predictions:
    """Boosted trees with the package's defaults.

    Args:
        split: The data.
        seed: Of the trees; the defaults use no randomness.
        rounds: How many trees.

    Raises:
        UsageError: If xgboost is missing.
    """
    if (reason := xgboost_obstacle()) is not None:
        raise UsageError(reason)
    import xgboost  # pyright: ignore[reportMissingImports]

    # Its own interface: the one in scikit-learn's manner has the same defaults and would need scikit-learn.
    rows = xgboost.DMatrix(split.train.x.numpy(), label=split.train.y[:, 0].numpy())
    trees = xgboost.train({"seed": seed, "nthread": 1}, rows, num_boost_round=rounds)
    inside, outside = (
        torch.from_numpy(trees.predict(xgboost.DMatrix(part.x.numpy()))).double()[:, None]
        for part in (split.inside, split.outside)
    )
    return Predictions(inside, outside)


def histogram(values: Tensor, edges: Sequence[float]) -> list[float]:
    """Share of the values in each bin, the outermost bins holding what lies beyond them."""
    bounds = torch.tensor(edges, dtype=values.dtype)
    index = torch.bucketize(values.flatten().contiguous(), bounds[1:-1], right=True)
    return (torch.bincount(index, minlength=len(edges) - 1) / values.numel()).tolist()


def binned_mean(values: Tensor, positions: Tensor, edges: Sequence[float], fewest: int = 10) -> list[float]:
    """Mean value in each bin of positions; not a number where fewer than ``fewest`` values lie."""
    means = []
    for low, high in pairwise(edges):
        chosen = values[(positions >= low) & (positions < high)]
        means.append(float(chosen.mean()) if len(chosen) >= fewest else math.nan)
    return means


def centres(edges: Sequence[float]) -> list[float]:
    """The middle of each bin."""
    return [(low + high) / 2 for low, high in pairwise(edges)]

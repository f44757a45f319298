"""Train on tabular data and predict inside and outside the training distribution."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from normplace._shared.device import pick_device
from normplace.errors import UsageError
from normplace.lab.studies.extrapolation.networks import build_network
from normplace.lab.tasks.regression import ShiftedRegression, r_squared
from normplace.lab.train.fit import fit


@dataclass(frozen=True)
class Predictions:
    """Predictions for both test sets, on the CPU, in the units of the target, in float64."""

    inside: Tensor
    outside: Tensor

    def scores(self, split: ShiftedRegression) -> dict[str, float]:
        """R² on both test sets, and the tail of the predictions outside the training distribution."""
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
    """Train the paper's network on standardized rows and predict.

    Args:
        split: The data.
        norm_at: Which hidden layers have a LayerNorm.
        generator: Source of the initial weights and the batch order; on the CPU, so that both are the same on any
            device.
        width: Width of both hidden layers.
        epochs: Number of epochs.
        learning_rate: Adam's learning rate.
        batch_size: Rows per step; 0 means all.
        device: Device to train on, or ``auto``.
    """
    target = pick_device(device)
    scaled, unit = split.standardized()
    model = build_network(split.train.x.shape[1], width, norm_at, generator).to(target)
    fit(
        model,
        scaled.train.x.to(target),
        scaled.train.y.to(target),
        epochs=epochs,
        learning_rate=learning_rate,
        batch_size=batch_size or None,
        generator=generator,
    )
    with torch.no_grad():
        inside, outside = (
            unit.undo(model(part.x.to(target)).cpu().double()) for part in (scaled.inside, scaled.outside)
        )
    return Predictions(inside, outside)


def xgboost_unavailable() -> str | None:
    """Why :func:`xgboost_predictions` would fail, or None."""
    try:
        import xgboost  # noqa: F401  # pyright: ignore[reportMissingImports]
    except ImportError:
        return "XGBoost is not installed: pip install 'normplace[trees]', or xgboost-cpu."
    return None


def xgboost_predictions(split: ShiftedRegression, seed: int, rounds: int) -> Predictions:
    """Predict with ``rounds`` boosted trees at the package's defaults, which do not use the seed.

    Raises:
        UsageError: If xgboost is not installed.
    """
    if (reason := xgboost_unavailable()) is not None:
        raise UsageError(reason)
    import xgboost  # pyright: ignore[reportMissingImports]

    # The scikit-learn interface has the same defaults, but needs scikit-learn.
    rows = xgboost.DMatrix(split.train.x.numpy(), label=split.train.y[:, 0].numpy())
    trees = xgboost.train({"seed": seed, "nthread": 1}, rows, num_boost_round=rounds)
    inside, outside = (
        torch.from_numpy(trees.predict(xgboost.DMatrix(part.x.numpy()))).double()[:, None]
        for part in (split.inside, split.outside)
    )
    return Predictions(inside, outside)


def histogram(values: Tensor, edges: Sequence[float]) -> list[float]:
    """Share of the values in each bin; the outermost bins include all values beyond them."""
    bounds = torch.tensor(edges, dtype=values.dtype)
    index = torch.bucketize(values.flatten().contiguous(), bounds[1:-1], right=True)
    return (torch.bincount(index, minlength=len(edges) - 1) / values.numel()).tolist()


def binned_mean(values: Tensor, positions: Tensor, edges: Sequence[float], fewest: int = 10) -> list[float]:
    """Mean value in each bin of positions; NaN for bins with fewer than ``fewest`` values."""
    means = []
    for low, high in pairwise(edges):
        in_bin = values[(positions >= low) & (positions < high)]
        means.append(float(in_bin.mean()) if len(in_bin) >= fewest else math.nan)
    return means


def bin_centers(edges: Sequence[float]) -> list[float]:
    """The center of each bin."""
    return [(low + high) / 2 for low, high in pairwise(edges)]

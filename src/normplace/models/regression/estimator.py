"""A scikit-learn regressor whose predictions are bounded over all inputs, by one LayerNorm."""

from __future__ import annotations

import numbers
from collections.abc import Iterable
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight as check_sample_weight
from sklearn.utils.validation import check_is_fitted, validate_data

from normplace.errors import UsageError, expect_choice, expect_number, expect_whole, unknown
from normplace.models.mlp import MLP, norm_layers
from normplace.models.regression.interval import CONTRACTING, output_interval
from normplace.models.regression.network import StandardizedMLP
from normplace.models.regression.rows import Scaler, WeightedRows
from normplace.models.regression.training import TrainingPlan, train
from normplace.norms import build_norm
from normplace.ntk import Certificate, certificate

FARTHEST = 1e100
"""Standardized inputs beyond it are predicted as if they were there, since their squares overflow in the norm."""
LARGEST_WEIGHT = 1e200


class BoundedRegressor(RegressorMixin, BaseEstimator):
    """An MLP for tabular regression whose predictions stay within ``bound_`` for every input.

    An MLP extrapolates linearly: far from its data its predictions grow without limit. One LayerNorm before an
    activation prevents that (Ziomek, Whittle, Osborne, arXiv 2505.14512). Features and targets are standardized,
    equal rows are merged with their weights added, and training stops when the error on held-out rows no longer falls.
    Arguments that :class:`sklearn.neural_network.MLPRegressor` has too have the same names.

    Args:
        hidden_layer_sizes: Widths of the hidden layers.
        activation: ``relu``, ``gelu``, ``silu`` or ``tanh``.
        norm: ``layer``, ``rms``, or None for the same network without a norm, to compare with: it is unbounded unless
            the activation is ``tanh``.
        norm_at: Which hidden layers have the norm before their activation: ``first``, ``last``, ``every``, or their
            numbers from 1. The last gives the tightest ``bound_``.
        learning_rate_init: Learning rate of Adam.
        weight_decay: Decoupled weight decay.
        batch_size: Rows per step; ``auto`` is 256 or all rows.
        max_iter: Most epochs.
        early_stopping: Whether to hold rows out that decide when to stop; otherwise the training error decides.
        validation_fraction: Fraction of the distinct rows that are held out, if there are at least 20.
        n_iter_no_change: Epochs without improvement after which training stops.
        tol: Smallest relative improvement of the error that counts.
        random_state: Seed of the initial weights, the held-out rows and the batches.

    Attributes:
        bound_: Lowest and highest value of each target that any input can be mapped to, (targets, 2); infinite
            without a norm. It follows from the trained weights and is wider than the range that occurs.
        network_: The network as a ``torch.nn.Module`` in float64, in the units of the data.
        n_iter_: Number of epochs.
        loss_curve_: Mean squared error of each epoch on the fitted rows, for standardized targets.
        validation_curve_: The same on the held-out rows; empty if there are none.
        n_features_in_: Number of features.
        feature_names_in_: Names of the features, if ``fit`` was called with a data frame.
        n_outputs_: Number of targets.

    Examples:
        >>> import numpy as np
        >>> x = np.linspace(-3, 3, 100)[:, None]
        >>> model = BoundedRegressor(hidden_layer_sizes=(32,), max_iter=20, random_state=0).fit(x, np.sin(x[:, 0]))
        >>> low, high = model.bound_[0]
        >>> bool(low < model.predict([[1e6]])[0] < high), model.certificate().verdict
        (True, 'bounded')
    """

    def __init__(
        self,
        hidden_layer_sizes: tuple[int, ...] = (128, 128),
        *,
        activation: str = "relu",
        norm: str | None = "layer",
        norm_at: str | tuple[int, ...] = "last",
        learning_rate_init: float = 1e-3,
        weight_decay: float = 0.0,
        batch_size: int | str = "auto",
        max_iter: int = 500,
        early_stopping: bool = True,
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 25,
        tol: float = 1e-4,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.hidden_layer_sizes = hidden_layer_sizes
        self.activation = activation
        self.norm = norm
        self.norm_at = norm_at
        self.learning_rate_init = learning_rate_init
        self.weight_decay = weight_decay
        self.batch_size = batch_size
        self.max_iter = max_iter
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.tol = tol
        self.random_state = random_state

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Train the network.

        Args:
            X: Features (rows, features).
            y: Targets (rows,) or (rows, targets).
            sample_weight: Weights of the rows (rows,); None weights all equally.

        Returns:
            The estimator.

        Raises:
            UsageError: If a parameter of the estimator or a weight is not valid.
        """
        sizes = self._check_parameters()
        x, targets = self._validated(X, y, multi_output=True, y_numeric=True)
        targets = np.asarray(targets, dtype=np.float64)
        if sample_weight is not None and not np.asarray(sample_weight).any():
            raise UsageError("every sample weight is zero: give at least one row a positive weight.")
        weight = check_sample_weight(sample_weight, x, dtype=np.float64, ensure_non_negative=True)
        if weight.max() > LARGEST_WEIGHT:
            raise UsageError(f"sample weights above {LARGEST_WEIGHT:g} overflow: divide them by their largest.")
        random = check_random_state(self.random_state)
        rows = WeightedRows.merged(x, targets.reshape(len(x), -1), weight)
        inputs, outputs = Scaler.of(rows.x, rows.weight), Scaler.of(rows.y, rows.weight)
        scaled = WeightedRows(inputs.standardize(rows.x), outputs.standardize(rows.y), rows.weight)
        fitted, held_out = scaled, None
        if self.early_stopping:
            fitted, held_out = scaled.split(self.validation_fraction, random)
        mlp = self._build((x.shape[1], *sizes, rows.y.shape[1]), random)
        curve = train(mlp, fitted, held_out, self._training_plan(len(fitted)), random)
        # A constant target is predicted exactly, whatever its magnitude.
        constant = rows.y.min(0) == rows.y.max(0)
        outputs = Scaler(np.where(constant, rows.y[0], outputs.mean), np.where(constant, 0.0, outputs.scale))
        self.network_ = StandardizedMLP(mlp, inputs, outputs).eval()
        self.n_outputs_ = rows.y.shape[1]
        self.n_iter_ = len(curve.fitted)
        self.loss_curve_, self.validation_curve_ = curve.fitted, curve.held_out
        self._one_column = targets.ndim == 1
        interval = output_interval(mlp, self.activation, self._normed_layers(len(sizes)))
        self.bound_ = self.network_.unscale(interval.T).T.contiguous().numpy()
        return self

    def predict(self, X: ArrayLike) -> NDArray[np.float64]:
        """Predict the targets, (rows,) or (rows, targets) as in ``fit``.

        Args:
            X: Features (rows, features).
        """
        check_is_fitted(self)
        x = self._validated(X, reset=False)
        network = self.network_
        scaler = Scaler(network.input_mean.numpy(), network.input_scale.numpy())
        z = torch.from_numpy(np.clip(scaler.standardize(x), -FARTHEST, FARTHEST))
        with torch.no_grad():
            prediction = network.unscale(network.mlp(z)).numpy()
        return prediction[:, 0] if self._one_column else prediction

    def certificate(self, **options: Any) -> Certificate:
        """The proof that the trained network is bounded, or a ray along which it grows.

        Args:
            **options: Keyword arguments of :func:`normplace.ntk.certificate`.
        """
        check_is_fitted(self)
        network = self.network_
        around = torch.tensor([[0.0], [1.0], [-1.0]], dtype=torch.float64)
        return certificate(network, network.input_mean + around * network.input_scale, **options)

    def _validated(self, *arrays: Any, **options: Any) -> Any:
        """Arrays that scikit-learn has checked, the features in float64."""
        return validate_data(self, *arrays, dtype=np.float64, **options)

    def _check_parameters(self) -> tuple[int, ...]:
        """Check the parameters; return the widths of the hidden layers.

        Raises:
            UsageError: If one is not valid.
        """
        if isinstance(self.hidden_layer_sizes, numbers.Integral):
            sizes = (int(self.hidden_layer_sizes),)
        elif isinstance(self.hidden_layer_sizes, Iterable) and not isinstance(self.hidden_layer_sizes, str):
            sizes = tuple(self.hidden_layer_sizes)
        else:
            sizes = ()
        if not sizes:
            raise UsageError(f"hidden_layer_sizes must be a tuple of widths, got {self.hidden_layer_sizes!r}.")
        for width in sizes:
            expect_whole(2, **{"each width of hidden_layer_sizes": width})
        sizes = tuple(map(int, sizes))
        expect_choice("activation", self.activation, CONTRACTING)
        if self.norm not in ("layer", "rms", None):
            raise unknown("norm", self.norm, ("layer", "rms"))
        if self.norm is not None and not self._normed_layers(len(sizes)):
            raise UsageError("norm_at names no hidden layer: name one, or pass norm=None for a network without a norm.")
        expect_number("learning_rate_init", self.learning_rate_init, 0, above=True)
        expect_number("weight_decay", self.weight_decay, 0)
        expect_whole(1, max_iter=self.max_iter, n_iter_no_change=self.n_iter_no_change)
        if self.batch_size != "auto":
            expect_whole(1, batch_size=self.batch_size)
        expect_number("tol", self.tol, 0)
        expect_number("validation_fraction", self.validation_fraction, 0, above=True)
        if self.validation_fraction >= 1:
            raise UsageError(f"validation_fraction must be below 1, got {self.validation_fraction}.")
        return sizes

    def _normed_layers(self, hidden: int) -> frozenset[int]:
        return frozenset() if self.norm is None else norm_layers(self.norm_at, hidden)

    def _build(self, widths: tuple[int, ...], random: np.random.RandomState) -> MLP:
        """The network in standardized units; the weights do not depend on the norm."""
        kind = self.norm or "layer"
        return MLP(
            widths,
            norm=lambda width: build_norm(kind, width, elementwise_affine=False),
            norm_at=self._normed_layers(len(widths) - 2),
            activation=self.activation,
            generator=torch.Generator().manual_seed(int(random.randint(2**31 - 1))),
            dtype=torch.float64,
        )

    def _training_plan(self, rows: int) -> TrainingPlan:
        return TrainingPlan(
            learning_rate=self.learning_rate_init,
            weight_decay=self.weight_decay,
            batch_size=min(256, rows) if self.batch_size == "auto" else int(self.batch_size),
            max_iter=self.max_iter,
            patience=self.n_iter_no_change,
            tol=self.tol,
        )

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

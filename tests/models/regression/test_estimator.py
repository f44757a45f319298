"""``BoundedRegressor``: scikit-learn's contract, the bound, and the network behind it."""

from __future__ import annotations

import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch

from normplace.errors import UsageError

pytest.importorskip("sklearn")
from sklearn.base import clone
from sklearn.datasets import load_diabetes, load_linnerud
from sklearn.metrics import r2_score
from sklearn.model_selection import GridSearchCV
from sklearn.utils.estimator_checks import check_estimator

from normplace.models import BoundedRegressor


@pytest.fixture(scope="module")
def diabetes():
    return load_diabetes(return_X_y=True)


@pytest.fixture(scope="module")
def fitted(diabetes):
    return BoundedRegressor((32, 32), learning_rate_init=0.01, max_iter=30, random_state=0).fit(*diabetes)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
def test_it_passes_every_check_of_scikit_learn():
    estimator = BoundedRegressor((16,), learning_rate_init=0.01, max_iter=60)
    checks = check_estimator(estimator, on_skip=None)
    assert {check["status"] for check in checks} <= {"passed", "skipped"}
    # What is skipped needs pandas or the array API.
    assert {check["check_name"] for check in checks if check["status"] == "skipped"} <= {
        "check_sample_weights_pandas_series",
        "check_regressor_data_not_an_array",
        "check_array_api_input",
    }
    assert sum(check["status"] == "passed" for check in checks) > 50


def test_predictions_stay_within_the_bound_at_every_distance(fitted, diabetes):
    x, y = diabetes
    ((low, high),) = fitted.bound_
    assert low < y.min() and y.max() < high
    directions = np.random.RandomState(0).randn(64, x.shape[1])
    for distance in [0.1, 1, 1e2, 1e6, 1e50, 1e200, 1e300]:
        prediction = fitted.predict(distance * directions)
        assert ((low < prediction) & (prediction < high)).all()


def test_the_certificate_proves_it_and_refutes_the_plain_network(fitted, diabetes):
    assert fitted.certificate().verdict == "bounded"
    plain = BoundedRegressor((32, 32), norm=None, max_iter=3, random_state=0).fit(*diabetes)
    assert plain.certificate().verdict == "unbounded"
    assert np.isinf(plain.bound_).all()


def test_both_networks_start_from_the_same_weights(diabetes):
    networks = [
        BoundedRegressor((8,), norm=norm, max_iter=1, random_state=3).fit(*diabetes) for norm in ("layer", None)
    ]
    one, two = (network.loss_curve_ for network in networks)
    assert one != two
    seeds = [clone(network).set_params(learning_rate_init=1e-30).fit(*diabetes).network_ for network in networks]
    for name, value in seeds[0].state_dict().items():
        torch.testing.assert_close(value, seeds[1].state_dict()[name], rtol=0, atol=1e-25)


def test_predict_is_the_network_on_raw_features(fitted, diabetes):
    x = diabetes[0]
    expected = fitted.network_(torch.from_numpy(x))[:, 0].detach().numpy()
    np.testing.assert_array_equal(fitted.predict(x), expected)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(fitted)).predict(x), expected)


def test_score_is_r2(fitted, diabetes):
    x, y = diabetes
    assert fitted.score(x, y) == pytest.approx(r2_score(y, fitted.predict(x)), rel=1e-12)
    assert fitted.score(x, y) > 0.4


def test_several_targets():
    x, y = load_linnerud(return_X_y=True)
    model = BoundedRegressor((16,), max_iter=100, random_state=0).fit(x, y)
    assert model.predict(x).shape == y.shape and model.bound_.shape == (3, 2)
    assert (model.bound_[:, 0] < y.min(0)).all() and (y.max(0) < model.bound_[:, 1]).all()
    far = model.predict(1e9 * np.random.RandomState(0).randn(50, 3))
    assert ((model.bound_[:, 0] < far) & (far < model.bound_[:, 1])).all()


@pytest.mark.parametrize("value", [0.0, 1e-6, -0.1, 7e300])
def test_a_constant_target_is_predicted_exactly(value):
    x = np.random.RandomState(0).randn(30, 2)
    model = BoundedRegressor((8,), max_iter=2, random_state=0).fit(x, np.c_[x[:, 0], np.full(30, value)])
    assert np.array_equal(model.predict(100 * x)[:, 1], np.full(30, value))
    assert model.bound_[1].tolist() == [value, value] and np.ptp(model.bound_[0]) > 0
    assert model.certificate(ablate=False, directions=1).verdict == "bounded"


def test_a_weight_of_two_is_the_row_twice_also_in_batches(diabetes):
    x, y = diabetes
    counts = np.random.RandomState(0).randint(0, 4, len(x))
    model = BoundedRegressor((8,), max_iter=5, batch_size=50, random_state=0)
    weighted = clone(model).fit(x, y, sample_weight=counts).predict(x)
    repeated = clone(model).fit(x.repeat(counts, axis=0), y.repeat(counts)).predict(x)
    np.testing.assert_array_equal(weighted, repeated)


def test_early_stopping_keeps_the_best_epoch():
    random = np.random.RandomState(0)
    x, y = random.randn(60, 5), random.randn(60)
    model = BoundedRegressor((64,), learning_rate_init=0.03, n_iter_no_change=10, tol=0, random_state=0).fit(x, y)
    assert model.n_iter_ == int(np.argmin(model.validation_curve_)) + 1 + 10
    assert len(model.loss_curve_) == len(model.validation_curve_) == model.n_iter_ < model.max_iter


def test_without_early_stopping_no_row_is_held_out(diabetes):
    model = BoundedRegressor((8,), max_iter=4, early_stopping=False, random_state=0).fit(*diabetes)
    assert model.validation_curve_ == [] and model.n_iter_ == 4


def test_it_works_in_a_grid_search(diabetes):
    x, y = diabetes
    search = GridSearchCV(BoundedRegressor(max_iter=2, random_state=0), {"hidden_layer_sizes": [(4,), (8, 8)]}, cv=2)
    assert search.fit(x[:60], y[:60]).best_params_["hidden_layer_sizes"] in [(4,), (8, 8)]


def test_the_global_random_state_is_not_touched(diabetes):
    before = torch.get_rng_state()
    BoundedRegressor((4,), max_iter=1).fit(*diabetes)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"hidden_layer_sizes": ()}, r"hidden_layer_sizes must be a tuple of widths, got \(\)\."),
        ({"hidden_layer_sizes": (0,)}, "each width of hidden_layer_sizes must be a whole number of at least 2"),
        ({"hidden_layer_sizes": (8, 8.0)}, "each width of hidden_layer_sizes must be a whole number"),
        ({"norm_at": 1}, r"norm_at must be a word or several layers, such as \(1,\), got 1."),
        ({"activation": "erf"}, "unknown activation 'erf': choose from gelu, relu, silu, tanh."),
        ({"norm": "batch"}, "unknown norm 'batch'"),
        ({"norm_at": ()}, "norm_at names no hidden layer"),
        ({"norm_at": (3,)}, "the network has hidden layers 1 to 2, but norm_at names layer 3."),
        ({"batch_size": 0}, "batch_size must be a whole number of at least 1"),
        ({"validation_fraction": 1.0}, "validation_fraction must be below 1"),
        ({"learning_rate_init": 0}, "learning_rate_init must be positive and finite"),
        ({"max_iter": 0}, "max_iter must be a whole number of at least 1"),
    ],
)
def test_wrong_parameters_are_one_sentence(parameters, message, diabetes):
    with pytest.raises(UsageError, match=message):
        BoundedRegressor(**parameters).fit(*diabetes)


@pytest.mark.parametrize(
    ("weight", "message"), [(0.0, "every sample weight is zero"), (1e308, "sample weights above 1e\\+200 overflow")]
)
def test_weights_that_cannot_be_used(weight, message, diabetes):
    x, y = diabetes
    with pytest.raises(UsageError, match=message):
        BoundedRegressor().fit(x, y, sample_weight=np.full(len(x), weight))


def test_widths_of_an_array(diabetes):
    x, y = diabetes
    one, other = (BoundedRegressor(widths, max_iter=1, random_state=0) for widths in ((4, 8), np.array([4, 8])))
    np.testing.assert_array_equal(one.fit(x, y).predict(x), other.fit(x, y).predict(x))


def test_without_scikit_learn_the_name_explains_itself():
    code = """
import sys
sys.modules["sklearn"] = None
from normplace.models import *
import normplace as npl
try:
    npl.models.BoundedRegressor
except npl.UsageError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "BoundedRegressor needs scikit-learn: pip install 'normplace[sklearn]'.\n"

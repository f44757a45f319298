"""``npl.extrapolate``: verdicts, sentences and the page, for modules and estimators."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import normplace as npl
from normplace.errors import UsageError
from normplace.lab.extrapolate.boundedness import layer_that_would_bound
from normplace.lab.extrapolate.search import DISTANCES


@pytest.fixture
def no_sklearn(monkeypatch):
    find = __import__("importlib.util").util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "sklearn" else find(name))


@pytest.fixture
def data():
    random = np.random.RandomState(0)
    x = random.rand(60, 2) * [1, 100]
    return x, 3 * x[:, 0] + x[:, 1] / 100


def linear(weight, bias=0.0):
    module = nn.Linear(2, 1)
    with torch.no_grad():
        module.weight.copy_(torch.tensor([weight]))
        module.bias.fill_(bias)
    return module


def test_a_linear_module_is_followed_exactly(data, no_sklearn):
    x, y = data
    result = npl.extrapolate(linear([3.0, 0.01]), x, y, features=["small", "large"], targets=["sum"])
    model = result.model
    assert model.boundedness.verdict == "unbounded" and result.normed is None
    assert model.r2 == pytest.approx(1, abs=1e-9)
    # Over one range of "small" the prediction moves by 3 ranges of it; nothing else moves it farther from a row.
    span = np.ptp(x, axis=0)
    reach = model.search.high[-1, 0] - y.max()
    assert reach == pytest.approx(DISTANCES[-1] * (3 * span[0] + 0.01 * span[1]), rel=0.05)
    low, high = y.min(), y.max()
    assert (
        f"of sum leaves the range of the targets ({low:.4g} to {high:.4g}) by more than 10%, 0." in result.sentences[0]
    )
    exact = npl.extrapolate(linear([3.0, 0.01]), x, y, targets=["sum"], margin=0)
    assert f"({low:.4g} to {high:.4g}), at the edge" in exact.sentences[0]


def test_a_narrow_range_far_from_zero_is_printed_with_the_digits_that_differ(data, no_sklearn):
    x = data[0].copy()
    x[:, 0] = 1.7e9 + np.arange(60)
    predictor = nn.Sequential(linear([1.0, 0.0]).double())
    with torch.no_grad():
        predictor[0].bias.fill_(1e12 - 1.7e9)
    result = npl.extrapolate(predictor, x, 1e12 + np.arange(60.0), features=["time", "other"])
    assert "(1000000000000 to 1000000000059)" in result.sentences[0]
    assert "reaches 999999994100 within 100 ranges" in result.sentences[0]
    labels = [row[0] for row in result.departure_table()[1:]]
    assert {"time below 1700000000", "time above 1700000059"} <= set(labels)


def test_a_sentence_states_the_prediction_farthest_outside_the_range(data, no_sklearn):
    """It is not the one of largest magnitude, which may be inside the range."""
    x, y = data
    module = nn.Sequential(linear([1.0, 0.0]), nn.Hardtanh(-2.0, 9.0), nn.Linear(1, 1))
    with torch.no_grad():
        module[2].weight.fill_(1.0)
        module[2].bias.fill_(1000.0)
    # Predictions range from 998 to 1009, the targets from 1000 to 1010.
    result = npl.extrapolate(module, x, (y - y.min()) / np.ptp(y) * 10 + 1000, margin=0.05)
    assert "and reaches 998 within" in result.sentences[0]


def test_a_module_is_run_in_evaluation_mode(data, no_sklearn):
    """In training mode the statistics of a batch hide that predictions grow, and dropout makes them random."""
    x, y = data
    module = nn.Sequential(nn.Linear(2, 16), nn.BatchNorm1d(16), nn.Dropout(0.5), linear_head(16))
    mean = module[1].running_mean.clone()
    result = npl.extrapolate(module, x, y)
    assert module.training and torch.equal(module[1].running_mean, mean)
    expected = npl.extrapolate(module.eval(), x, y)
    assert result.model.boundedness.verdict == expected.model.boundedness.verdict == "unbounded"
    assert result.to_dict() == expected.to_dict()
    assert result.model.search.first is not None


def linear_head(width):
    module = nn.Linear(width, 1)
    with torch.no_grad():
        module.weight.fill_(1.0)
    return module


@pytest.mark.parametrize("unit", [1e-200, 1e200])
def test_r2_does_not_depend_on_the_unit_of_the_target(data, unit, no_sklearn):
    x, y = data

    class Scaled(nn.Linear):
        def forward(self, rows):
            return unit * super().forward(rows)

    module = Scaled(2, 1).double()
    with torch.no_grad():
        expected = 1 - ((module(torch.from_numpy(x))[:, 0].numpy() / unit - y) ** 2).mean() / y.var()
    assert npl.extrapolate(module, x, unit * y).model.r2 == pytest.approx(expected, rel=1e-6)


def test_values_that_would_overflow_are_refused(data):
    x, y = data
    with pytest.raises(UsageError, match=r"column 'feature 2' has values above 1e\+290, which overflow"):
        npl.extrapolate(linear([1.0, 1.0]), x * [1, 1e300], y)
    with pytest.raises(UsageError, match="column 'target' has values above"):
        npl.extrapolate(linear([1.0, 1.0]), x, 1e300 * y)


class Frame:
    """The part of a pandas data frame that estimators read."""

    def __init__(self, values, columns):
        self.values, self.columns = values, list(columns)


class Named:
    """An estimator that was fitted to named columns."""

    feature_names_in_ = np.array(["large", "small"], dtype=object)

    def predict(self, frame):
        assert frame.columns == ["large", "small"]
        return 3 * frame.values[:, 1] + frame.values[:, 0] / 100


def test_columns_are_matched_by_name(data, no_sklearn, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=Frame))
    x, y = data
    assert npl.extrapolate(Named(), x, y, features=["small", "large"]).model.r2 == pytest.approx(1)
    assert npl.extrapolate(Named(), x[:, ::-1], y).model.r2 == pytest.approx(1)  # without names, by position
    with pytest.raises(UsageError, match="only the table has 'huge'"):
        npl.extrapolate(Named(), x, y, features=["small", "huge"])


def test_a_bounded_module_stays(data, no_sklearn):
    x, y = data
    module = nn.Sequential(linear([3.0, 0.01]), nn.Sigmoid())
    result = npl.extrapolate(module, x, y)
    assert result.model.boundedness.verdict == "bounded"
    assert result.model.search.first is None
    assert result.sentences[0].startswith("Your model is bounded by proof: no prediction leaves")


def test_the_layer_behind_which_a_norm_bounds_the_network(data):
    x, _ = data
    deep = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
    assert layer_that_would_bound(deep, x) == "0"
    assert not deep[0]._forward_hooks
    assert layer_that_would_bound(nn.Linear(2, 1), x) is None

    class Skipped(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = nn.Linear(2, 8), nn.Linear(8, 8), nn.Linear(8, 1)

        def forward(self, x):
            h = torch.relu(self.a(x))
            return self.c(h + torch.relu(self.b(h)))

    assert layer_that_would_bound(Skipped(), x) == "a"

    class SkipsFromTheInput(Skipped):
        def forward(self, x):
            return super().forward(x) + x[:, :1]

    assert layer_that_would_bound(SkipsFromTheInput(), x) is None


def test_an_estimator_without_a_certificate_is_judged_by_growth(data, no_sklearn):
    x, y = data

    class Estimator:
        def __init__(self, function):
            self.function = function

        def predict(self, x):
            return self.function(x[:, 0])

    for function, verdict in [(lambda a: 3 * a, "unbounded"), (np.tanh, "unknown"), (np.log1p, "unknown")]:
        with np.errstate(invalid="ignore"):
            result = npl.extrapolate(Estimator(lambda a, f=function: f(np.abs(a))), x, y)
        assert result.model.boundedness.verdict == verdict


def test_several_targets_json_and_page(data, tmp_path, no_sklearn):
    x, y = data
    module = nn.Linear(2, 2)
    result = npl.extrapolate(module, x, np.stack([y, -y], axis=1), targets=["up", "down"])
    plain = json.loads(result.to_json())
    assert set(plain["targets"]) == {"up", "down"} and len(plain["models"]) == 1
    assert len(plain["models"][0]["lowest"]) == len(DISTANCES)
    result.save_html(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "Predictions of up outside the data" in page and "Predictions of down outside the data" in page
    assert str(result).startswith(result.sentences[0])


def test_networks_are_trained_and_compared(data, monkeypatch):
    pytest.importorskip("sklearn")
    monkeypatch.setattr("normplace.lab.extrapolate.run.FOLDS", 2)
    monkeypatch.setitem(npl.models.BoundedRegressor.__init__.__kwdefaults__, "max_iter", 150)
    x, y = data
    result = npl.extrapolate(None, x, y)
    assert result.normed is not None
    assert result.model.boundedness.verdict == "unbounded"
    assert result.normed.boundedness.verdict == "bounded"
    assert result.normed.bound is not None and result.model.bound is None
    ((low, high),) = result.normed.bound
    assert low < result.normed.search.low.min() and result.normed.search.high.max() < high
    # Three units per range of a feature: a linear extrapolation reaches thousands, a bounded network a few.
    reached = [model.extreme(0, 1000, y.min(), y.max()) for model in (result.model, result.normed)]
    assert reached[0] ** 2 > 100**2 > reached[1] ** 2
    assert min(result.model.r2, result.normed.r2) > 0.5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": [[1, 2]] * 5, "y": [1] * 5}, "with at least 10 rows"),
        ({"x": [["a", 2]] * 20}, "x is not an array of numbers"),
        ({"y": [np.nan] * 60}, "y has values that are missing or not finite"),
        ({"y": np.ones(60)}, "target 'target' is constant"),
        ({"x": np.ones((60, 2))}, "every feature is constant"),
        ({"features": ["a"]}, "features must name each of the 2 columns, got 1"),
        ({"margin": -1}, "margin must be zero or more"),
        ({"model": nn.Linear(3, 1)}, "the model failed on 60 rows × 2 features"),
        ({"model": len}, "extrapolate takes a torch.nn.Module, a fitted estimator with predict, or None"),
        ({"model": nn.Linear(2, 3)}, r"returns shape \(60, 3\) for 60 rows and 1 target:"),
        ({"model": linear([np.nan, 1.0])}, "predictions on the rows of the table are not finite"),
        ({"seed": 2**32}, r"seed must be below 2\*\*32, got"),
    ],
)
def test_mistakes_are_one_sentence(data, change, message, no_sklearn):
    arguments = {"model": linear([1.0, 1.0]), "x": data[0], "y": data[1], **change}
    with pytest.raises(UsageError, match=message):
        npl.extrapolate(arguments.pop("model"), **arguments)


def test_no_model_without_scikit_learn(data, monkeypatch, no_sklearn):
    monkeypatch.delitem(npl.models.__dict__, "BoundedRegressor", raising=False)
    monkeypatch.setitem(sys.modules, "normplace.models.regression.estimator", None)
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises((UsageError, ImportError), match="normplace"):
        npl.extrapolate(None, *data)


def test_ticks_are_powers_of_ten_where_the_axis_is_logarithmic():
    from normplace.lab.extrapolate.page import _ticks

    assert _ticks([{"low": -20_000.0, "high": 9_000.0}], 13.6) == {
        "axis": {"values": [-10_000.0, -1_000.0, -100.0, 0.0, 100.0, 1_000.0]}
    }
    assert len(_ticks([{"low": -1e9, "high": 1e9}], 1.0)["axis"]["values"]) <= 7
    assert _ticks([{"low": -20.0, "high": 9.0}], 13.6) == {}
    assert _ticks([], 1.0) == {}


def test_the_table_shows_the_nearest_departures_in_the_width_of_a_terminal(data, no_sklearn):
    x = np.hstack([data[0]] * 6)
    module = nn.Linear(12, 1)
    nn.init.constant_(module.weight, 1.0)
    result = npl.extrapolate(module, x, data[1])
    lines = result.text(80).splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[-1] == "and 15 more, which the page and --json list"
    assert len(result.departure_table()) == 26


def test_a_given_model_is_not_compared_by_a_score_on_its_training_rows(data, monkeypatch):
    pytest.importorskip("sklearn")
    monkeypatch.setattr("normplace.lab.extrapolate.run.FOLDS", 2)
    monkeypatch.setitem(npl.models.BoundedRegressor.__init__.__kwdefaults__, "max_iter", 5)
    result = npl.extrapolate(linear([3.0, 0.01]), *data)
    assert "against" not in result.sentences[1] and "a cross-validated R² of" in result.sentences[1]
    assert result.notes == ("Your model has an R² of 1.00 on all rows, comparable only if it was not trained on them.",)


@pytest.mark.parametrize(("norm", "verdict"), [("layer", "bounded"), (None, "unbounded")])
def test_a_pipeline_has_the_bound_of_its_last_step(norm, verdict, data, no_sklearn):
    pytest.importorskip("sklearn")
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    model = make_pipeline(StandardScaler(), npl.models.BoundedRegressor(norm=norm, max_iter=5, random_state=0))
    assert npl.extrapolate(model.fit(*data), *data).model.boundedness.verdict == verdict

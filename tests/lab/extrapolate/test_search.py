"""The lines, and the distances at which known functions leave a range."""

from __future__ import annotations

import numpy as np
import pytest

from normplace.lab.extrapolate.search import DISTANCES, TOGETHER, Lines, lines_beyond, search

RANDOM = np.random.RandomState


def test_lines_start_at_the_edge_and_count_ranges():
    x = RANDOM(0).rand(40, 3) * [1, 10, 0] + [0, 5, 7]
    lines = lines_beyond(x, ("a", "b", "constant"), RANDOM(1))
    low, high = x.min(0), x.max(0)
    assert not any(label.startswith("constant") for label in lines.labels)
    for label, start, step in zip(lines.labels, lines.start, lines.step, strict=True):
        inside = (start >= low - 1e-12) & (start <= high + 1e-12)
        assert inside.all() and start[2] == 7 and step[2] == 0
        moved = np.abs(step[:2] / (high - low)[:2])
        if label != TOGETHER:
            feature, side = "ab".index(label[0]), high if "above" in label else low
            assert start[feature] == side[feature] and moved[feature] == pytest.approx(1) and moved.sum() == moved.max()
        else:
            assert moved.max() == pytest.approx(1)
            beyond = start + 0.01 * step
            assert ((beyond < low - 1e-9) | (beyond > high + 1e-9)).any()


def test_the_distance_of_a_departure_is_exact():
    # Along the only line, f = 3 t; it leaves [0, 1] at t = 1/3. Twelve bisections of a step of a tenth of a decade,
    # 0.26 t, leave an error below 0.26 / 3 / 2^12 = 2.2e-5.
    lines = Lines(np.zeros((1, 1)), np.ones((1, 1)), ("a above 0",))
    found = search(lambda x: 3 * x, lines, np.array([[0.0, 1.0]]))
    assert found.first is not None
    assert found.first.distance == pytest.approx(1 / 3, abs=3e-5)
    assert found.first.prediction == pytest.approx(1, abs=1e-4)
    np.testing.assert_allclose(found.high[:, 0], 3 * DISTANCES)


def test_departures_are_sorted_and_name_their_target():
    start, step = np.zeros((3, 2)), np.array([[1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    lines = Lines(start, step, ("a above", "b above", "b below"))

    def predict(x):
        return np.stack([0.1 * x[:, 0], np.maximum(x[:, 1], 0)], axis=1)

    found = search(predict, lines, np.array([[-1.0, 1.0], [-1.0, 0.5]]))
    assert [(one.along, one.target) for one in found.departures] == [("b above", 1), ("a above", 0)]
    assert found.departures[1].distance == pytest.approx(10, rel=1e-4)
    assert found.stays == ("b below",)


def test_a_departure_at_the_edge_and_values_that_are_not_numbers():
    lines = Lines(np.array([[0.0], [1.0]]), np.ones((2, 1)), ("a", "b"))
    found = search(lambda x: np.where(x > 500, np.nan, 0 * x + (x[:, :1] == 1)), lines, np.array([[-0.5, 0.5]]))
    by_line = {one.along: one.distance for one in found.departures}
    assert by_line["b"] == 0
    assert by_line["a"] == pytest.approx(1, abs=0.3) or by_line["a"] == pytest.approx(500, rel=1e-3)

from __future__ import annotations

import math

from normplace._shared.sparkline import BARS, sparkline


def test_bars_are_proportional_to_the_values():
    assert sparkline(range(8)) == BARS
    assert sparkline([5.0] * 3) == "███"
    assert sparkline([0.0, 0.0]) == "▁▁"
    assert sparkline([]) == ""


def test_more_values_than_the_width_show_the_largest_of_each_group():
    values = [0.0] * 100
    values[42] = 7.0
    assert sparkline(values, 10) == "▁▁▁▁█▁▁▁▁▁"


def test_a_value_that_is_not_finite_is_marked_and_does_not_hide_the_others():
    assert sparkline([1.0, math.inf, 2.0, math.nan]) == "▅!█!"
    assert sparkline([1.0, 1.0, math.nan, 2.0], 2) == "█!"

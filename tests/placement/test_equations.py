"""Expression trees of block equations."""

from __future__ import annotations

import pytest

from normplace import BlockSpec, LearnedScale, Power
from normplace.placement.equations import Apply, Product, Sum, Symbol, X, block_term, branch_term, skip_term, times

PERI = BlockSpec(input=True, output=True)


@pytest.mark.parametrize(
    ("term", "text"),
    [
        (Product("s", Sum((X, Apply("F", X)))), "s (x + F(x))"),
        (Apply("N", Sum((X, Apply("F", X)))), "N(x + F(x))"),
        (times(1.0, X), "x"),
        (times(0.5, X), "0.5 x"),
        (times(Power("depth", 1 / 2), X), "L^(1/2) x"),
        (times(LearnedScale(), X), "g x"),
        (branch_term(PERI, branch="F2", input_norm="N2"), "N(F2(N2(x)))"),
        (branch_term(PERI, stream=Sum((X, Symbol("y")))), "N(F(N(x + y)))"),
        (skip_term(BlockSpec(skip_scale=2.0), projected=True), "2 P(x)"),
        (block_term(PERI, projected=True), "P(x) + N(F(N(x)))"),
        (block_term(BlockSpec(stream=True), sides={"stream": "before"}), "N(s (x + F(x)))"),
        (block_term(BlockSpec(stream=True), sides={"stream": "after"}), "s N(x + F(x))"),
        (block_term(PERI, sides={"output": "before"}), "x + N(s F(N(x)))"),
    ],
)
def test_trees_print_as_equations(term, text):
    assert str(term) == text

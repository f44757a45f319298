"""Compare ``BoundedRegressor`` with the same MLP without a norm, on tables that come with scikit-learn.

    python scripts/compare_regressors.py            # prints the table
    python scripts/compare_regressors.py --write    # and writes it into docs/tutorials/tabular.md

Both networks of a seed have the same initial weights and the same random split: three quarters of the rows to fit, one
quarter to score. Differences of R² are paired by seed. Splits of one table overlap, so the variance of their mean has
the correction of Nadeau and Bengio (2003), and the interval is Student's.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import stats
from sklearn import datasets
from sklearn.model_selection import train_test_split

from normplace._shared.text_table import markdown_table
from normplace.lab.extrapolate.search import DISTANCES, lines_beyond, search
from normplace.models import BoundedRegressor

PAGE = Path(__file__).parents[1] / "docs" / "tutorials" / "tabular.md"
BEGIN, END = "<!-- table -->\n", "<!-- end of table -->\n"
SEEDS = 20
TEST = 0.25
HEADINGS = [
    *("data", "rows", "R² of the MLP", "R² with one LayerNorm", "difference, 95% interval"),
    *("MLP, 1000 ranges beyond", "LayerNorm, 1000 ranges beyond", "proven bound"),
]


@dataclass(frozen=True)
class Task:
    """A table with one target."""

    name: str
    x: np.ndarray
    y: np.ndarray


@dataclass(frozen=True)
class Fit:
    """Scores of one trained network; predictions in ranges of the target from its middle.

    Attributes:
        r2: R² on the rows that were not fitted.
        farthest: The largest deviation found along lines up to 1000 ranges beyond the data.
        bound: The largest deviation that is possible.
    """

    r2: float
    farthest: float
    bound: float


def tasks() -> Iterator[Task]:
    """The tables: progression of diabetes, proline of wines, and the worst radius of cell nuclei."""
    diabetes = datasets.load_diabetes()
    yield Task("diabetes, progression", diabetes.data, diabetes.target)
    wine = datasets.load_wine()
    yield Task("wine, proline from the other 12", wine.data[:, :12], wine.data[:, 12])
    cancer = datasets.load_breast_cancer()
    worst = list(cancer.feature_names).index("worst radius")
    yield Task("breast cancer, worst radius from 10 means", cancer.data[:, :10], cancer.data[:, worst])


def fit(task: Task, norm: str | None, seed: int) -> Fit:
    """Train one network and follow it beyond its data."""
    x, x_test, y, y_test = train_test_split(task.x, task.y, test_size=TEST, random_state=seed)
    model = BoundedRegressor(norm=norm, random_state=seed).fit(x, y)
    names = tuple(map(str, range(x.shape[1])))
    low, high = y.min(), y.max()
    lines = lines_beyond(x, names, np.random.RandomState(seed))
    found = search(lambda rows: model.predict(rows)[:, None], lines, np.array([[low, high]]))

    def deviation(values: np.ndarray) -> float:
        return float(np.abs(values - (low + high) / 2).max() / (high - low))

    extremes = np.concatenate([found.low[DISTANCES <= 1000], found.high[DISTANCES <= 1000]])
    return Fit(model.score(x_test, y_test), deviation(extremes), deviation(model.bound_))


def interval(differences: np.ndarray) -> tuple[float, float, float]:
    """Mean of paired differences over overlapping splits, and its 95% interval."""
    mean, count = float(differences.mean()), len(differences)
    deviation = float(differences.std(ddof=1)) * math.sqrt(1 / count + TEST / (1 - TEST))
    reach = float(stats.t.ppf(0.975, count - 1)) * deviation
    return mean, mean - reach, mean + reach


def row(task: Task, seeds: int) -> list[str]:
    """One row of the table."""
    plain = [fit(task, None, seed) for seed in range(seeds)]
    normed = [fit(task, "layer", seed) for seed in range(seeds)]
    mean, low, high = interval(np.array([b.r2 - a.r2 for a, b in zip(plain, normed, strict=True)]))
    return [
        task.name,
        str(len(task.x)),
        *(f"{np.mean([one.r2 for one in fits]):.3f}" for fits in (plain, normed)),
        f"{mean:+.3f} [{low:+.3f}, {high:+.3f}]",
        f"{max(one.farthest for one in plain):,.0f}",
        f"{max(one.farthest for one in normed):.2f}",
        f"{max(one.bound for one in normed):.1f}",
    ]


def table(seeds: int) -> str:
    """The table in Markdown."""
    return markdown_table(HEADINGS, [row(task, seeds) for task in tasks()], right_from=1)


def main() -> None:
    """Print the table, and write it into the page on request."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    made = table(arguments.seeds)
    print(made)
    if arguments.write:
        before, _, rest = PAGE.read_text().partition(BEGIN)
        after = rest.partition(END)[2]
        PAGE.write_text(f"{before}{BEGIN}\n{made}\n\n{END}{after}")


if __name__ == "__main__":
    main()

"""``normplace extrapolate``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from normplace.cli.options import File, Words

Model = Annotated[str | None, Parameter(name="MODEL")]
Targets = Annotated[tuple[str, ...], Parameter(name="--target", consume_multiple=True, metavar="COLUMN...")]
Columns = Annotated[Words, Parameter(metavar="COLUMN...")]


def is_table(words: Sequence[str]) -> bool:
    """Whether the first of the words names a file that is not a model."""
    return bool(words) and not words[0].startswith("-") and ":" not in words[0] and Path(words[0]).suffix != ".py"


def extrapolate(
    model: Model = None,
    /,
    *,
    data: File,
    targets: Targets = (),
    drop: Columns = (),
    drop_missing: bool = False,
    margin: float = 0.1,
    seed: int = 0,
    html: File = Path("extrapolation.html"),
    json: bool = False,
) -> int:
    """Find where a regression model leaves the range of its targets outside its data, and what one LayerNorm changes.

    The model is followed along lines that leave the data, and a certificate proves that it is bounded or refutes it. A
    network with one LayerNorm is trained on the same rows to compare with. Prints two sentences and writes a page with
    a picture.

    Args:
        model: The model: file.py:function or package.module:function without arguments that returns a PyTorch module
            or a fitted estimator, which takes the features in the order of the file, or by name if it was fitted to
            named columns. Without it, an MLP is trained on the data.
        data: CSV file with a header and numbers.
        targets: Columns to predict; the last one by default.
        drop: Columns to leave out.
        drop_missing: Leave out rows with missing values.
        margin: The part of a target's range by which predictions may leave it.
        seed: Random seed of the split, of trained networks and of the lines.
        html: The page.
        json: Print JSON.
    """
    from normplace._shared.output import check_writable
    from normplace._shared.terminal import table_width
    from normplace.lab.extrapolate.predictor import load_model
    from normplace.lab.extrapolate.run import extrapolate_table
    from normplace.lab.extrapolate.table import read_table

    check_writable(html)
    table = read_table(data, targets, drop, drop_missing)
    result = extrapolate_table(None if model is None else load_model(model), table, margin=margin, seed=seed)
    print(
        result.to_json() if json else result.text(table_width(sys.stdout))
    )  # first, in case that the page cannot be written
    result.save_html(html)
    if not json:
        print(f"\nThe picture is in {html.resolve()}")
    return 0

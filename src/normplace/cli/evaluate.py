"""``normplace evaluate``."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from json import dumps
from typing import TYPE_CHECKING

from normplace._shared.text_table import text_table
from normplace.cli.options import Run, Words

if TYPE_CHECKING:
    from normplace.lab.train.probes import TaskScore


def evaluate(
    run: Run,
    /,
    *,
    tasks: Words = ("held-out", "cloze", "copy"),
    text: Words = (),
    samples: int | None = None,
    seed: int = 0,
    device: str = "auto",
    json: bool = False,
) -> int:
    """Evaluate the model of a training run on held-out text, or on tasks of lm-evaluation-harness.

    held-out measures bits per byte; cloze, the recognition of a word among four; copy, how much better a repeated text
    is predicted. These need no network. All other names are tasks of lm-evaluation-harness, if lm-eval is installed.

    Args:
        run: The --out folder of a finished 'normplace train', or the folder of a saved Transformer.
        tasks: held-out, cloze, copy, or tasks of lm-evaluation-harness such as lambada_openai.
        text: Text that the model was not trained on; by default the held-out part of its training text.
        samples: Largest number of samples per task; by default 200, and all of the harness's.
        seed: Random seed for the choice of samples.
        device: auto, cpu or cuda.
        json: Print JSON.
    """
    from normplace.lab.train.evaluate import iterate_scores
    from normplace.lab.train.run_folder import open_run

    scores: list[TaskScore] = []
    try:
        scores.extend(
            iterate_scores(open_run(run), tasks, text=text or None, samples=samples, seed=seed, device=device)
        )
    finally:  # what was computed before an error is printed too
        if scores:
            _print_scores(scores, json)
    return 0


def _print_scores(scores: Sequence[TaskScore], json: bool) -> None:
    if json:
        print(dumps([dataclasses.asdict(score) for score in scores]))
        return
    rows = [
        (
            score.task,
            score.metric,
            f"{score.value:.4f}" + ("" if score.stderr is None else f" ± {score.stderr:.4f}"),
            "-" if score.baseline is None else f"{score.baseline:.4f}",
            "-" if score.samples is None else str(score.samples),
        )
        for score in scores
    ]
    print(text_table(("task", "metric", "value", "baseline", "samples"), rows))

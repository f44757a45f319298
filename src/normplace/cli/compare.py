"""``normplace compare``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from json import dumps
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from normplace.cli.options import CORES, Assignments, File, Folder, Words
from normplace.errors import UsageError

if TYPE_CHECKING:
    from normplace.lab.compare.result import Comparison
    from normplace.lab.compare.task import Task

PAGE = "report.html"

Better = Literal["smaller", "larger"]
EditWord = Annotated[str, Parameter(name="EDITS")]
Rates = Annotated[tuple[float, ...], Parameter(consume_multiple=True)]


def compare(
    *words: EditWord,
    text: Words = (),
    graph: Annotated[str | None, Parameter(metavar="NAME")] = None,
    hf: File | None = None,
    edits: Words = (),
    budget: str | None = None,
    seeds: int = 5,
    rates: Rates = (),
    start: Literal["fresh", "weights"] = "fresh",
    better: Better | None = None,
    baseline: str | None = None,
    out: Folder | None = None,
    winner: Folder | None = None,
    log: Words = (),
    engine: Annotated[str, Parameter(choices=("local", "ray", "dask"))] = "local",
    address: str | None = None,
    jobs: Annotated[int | None, Parameter(show_default=lambda value: "one per core")] = None,
    settings: Assignments = (),
    device: Annotated[str | None, Parameter(choices=("auto", "cpu", "cuda"))] = None,
    precision: Annotated[str | None, Parameter(choices=("auto", "float32", "bfloat16"))] = None,
    compile: bool = False,
    dry_run: bool = False,
    json: bool = False,
) -> int:
    """Train placements, or other edits of a model, on your data, and rank them with confidence intervals.

    Learning rates are searched within each edit, and the best is trained with several seeds. The plan and its cost are
    printed first. Rerun the command to resume after an interruption; with more seeds or edits it adds them. Without
    arguments it trains a small Transformer on the sources of Python's standard library.

    Args:
        words: Edits: as-is, placements such as peri, qk, layerscale, norm:rms, degree^-1, peri+qk, or file.py:function;
            see also --edits. A first word file.py:make is your task, a function make(seed) that returns (model,
            batches, loss), a Trainer of transformers, or a Lightning module and its data module. With --graph it is
            your network, a function from numbers of inputs and outputs to a PyG model. A folder of an earlier
            comparison, as the only word, prints its result and writes its page; nothing is trained.
        text: Train a language model on files, folders, hf:NAME, python or packages.
        graph: Train a graph network on influence, dismantling, independent-set, graph-kinds, grid-mines, a graph such
            as tolokers, or an .npz file with node labels.
        hf: With --text, a config.json of a causal language model, instead of a small Transformer.
        edits: More edits. The word scales means degree, core number and PageRank, with four powers, in every slot
            of a graph network where a scalar reaches the output.
        budget: Wall time such as 30m, or steps of each reported training such as 2000; by default 5m with --text, 3m
            with --graph, and 30m for your task.
        seeds: Seeds of the reported trainings.
        rates: Learning rates to try first; a single one is not searched.
        start: Train new weights, or continue from those of your model.
        better: Whether a smaller or larger measure is better, for your task.
        baseline: The edit that the others are compared with.
        out: Output folder; by default one below runs/compare for these arguments.
        winner: Train the winner's first seed once more, and write the model to this folder for npl.edit.load.
        log: Log finished trainings: tensorboard, wandb, mlflow.
        engine: Where trainings run.
        address: Address of the Ray or Dask cluster.
        jobs: Trainings at once.
        settings: Settings of a built-in task, such as dim=128 context=256 or features=degree.
        device: With --text, where trainings run; by default a GPU if there is one.
        precision: With --text, float32, or bfloat16 under autocast with float32 weights, the default on a GPU.
        compile: With --text, compile the layers of the network; long trainings on a GPU become faster.
        dry_run: Print the plan and its cost; train nothing.
        json: Print JSON.
    """
    began = monotonic()
    if len(words) == 1 and Path(words[0]).is_dir() and not text and graph is None:
        from normplace.lab.compare.run import load_comparison

        folder = Path(words[0])
        show(load_comparison(folder, baseline), folder, json)
        return 0
    source = find_source(words, text, graph, hf)
    options = {"device": device, "precision": precision, "compile": compile or None}
    settings = (*settings, *(f"{name}={value}" for name, value in options.items() if value is not None))
    if source.kind != "text" and (named := [name for name, value in options.items() if value is not None]):
        raise UsageError(f"--{named[0]} belongs to --text: choose it in the code of your task or network.")
    task = build_task(source, settings, better, start)
    from normplace.lab.compare.checks import task_identity
    from normplace.lab.compare.identity import NO_IDENTITY
    from normplace.lab.compare.plan import Plan
    from normplace.lab.compare.run import compare as run_comparison
    from normplace.lab.compare.run import default_folder
    from normplace.lab.compare.search import checked_rates, default_rates
    from normplace.lab.compare.trial_log import TrialLog
    from normplace.lab.compare.winner import train_winner

    time = budget or source.budget
    grid = checked_rates(rates) if rates else default_rates(task.learning_rate)
    identity = NO_IDENTITY if out or task.reference else task_identity(task)
    folder = out or default_folder(task, start, grid, time, identity)
    with TrialLog(() if dry_run else log, folder, {"task": task.name, "start": start, "budget": time}) as on_trial:
        result = run_comparison(
            task,
            (*source.edits, *edits) or source.default_edits,
            rates=grid,
            seeds=seeds,
            budget=time,
            start=start,
            baseline=baseline,
            engine=engine,
            address=address,
            jobs=jobs,
            out=folder,
            dry_run=dry_run,
            on_trial=on_trial,
            began=began,
        )
    if isinstance(result, Plan):
        print(dumps(asdict(result), indent=1) if json else result.describe(jobs or CORES))
        return 0
    if winner is not None:
        train_winner(result, task, winner)
    show(result, folder, json)
    if winner is not None and not json:
        print(f"The winner is in {winner.resolve()}")
    return 0


def show(result: Comparison, folder: Path, json: bool) -> None:
    """Write the page of a result to its folder, and print the result."""
    from normplace._shared.terminal import table_width
    from normplace.lab.compare.table import comparison_text

    page = folder / PAGE
    result.page(page)
    if json:
        print(dumps({**result.to_dict(), "folder": str(folder), "page": str(page)}, indent=1, ensure_ascii=False))
    else:
        print(comparison_text(result, table_width(sys.stdout)))
        print(f"The page is at {page.resolve()}")


@dataclass(frozen=True)
class Source:
    """What is trained, and the defaults for it.

    Args:
        kind: ``text``, ``graph`` or ``own``.
        name: The name of the graph task, or the reference of the user's task.
        edits: The edits among the words.
        budget: The budget if the user sets none.
        default_edits: The edits if the user names none.
        sources: The text.
        model: The user's network for a graph task, or the configuration of a language model.
    """

    kind: str
    name: str
    edits: tuple[str, ...]
    budget: str
    default_edits: tuple[str, ...]
    sources: tuple[str, ...] = ()
    model: str = ""


def find_source(words: Sequence[str], text: Sequence[str], graph: str | None, hf: Path | None) -> Source:
    """Find the task in the arguments.

    Raises:
        UsageError: If the arguments name two tasks, or --hf has no text.
    """
    from normplace.lab.compare.edits import is_reference

    if text and graph is not None:
        raise UsageError("--text and --graph are two tasks: choose one.")
    if hf is not None and not text:
        raise UsageError("--hf is the language model of a text: add --text FILE.")
    names = [word for word in words if is_reference(word)]
    first, rest = (names[0], tuple(word for word in words if word != names[0])) if names else ("", tuple(words))
    if graph is not None:
        return Source("graph", graph, rest, "3m", ("as-is", "degree^-1"), model=first)
    if first and not text:
        return Source("own", first, rest, "30m", ("as-is", "peri"))
    model = "" if hf is None else str(hf)
    return Source("text", "", tuple(words), "5m", ("pre", "post", "peri"), tuple(text) or ("python",), model)


def build_task(source: Source, settings: Sequence[str], better: Better | None, start: str) -> Task:
    """Build the task of a source.

    Raises:
        UsageError: If a setting is wrong, or the task cannot be built.
    """
    from normplace.lab.compare.as_task import as_task
    from normplace.lab.compare.tasks.graphs import graph_task, graph_task_config
    from normplace.lab.compare.tasks.text import TextConfig, TextTask
    from normplace.lab.trials.config import parse_overrides

    if source.kind == "own":
        if settings:
            raise UsageError("--set belongs to --text and --graph: set the options of your task in its function.")
        return as_task(source.name, better, start)
    if better is not None:
        raise UsageError("--better belongs to a task of your own: the built-in tasks know which measure is better.")
    if source.kind == "graph":
        overrides = parse_overrides([graph_task_config(source.name)[1]], settings)
        return graph_task(source.name, source.model, **overrides)
    return TextTask(**{"text": source.sources, "hf": source.model, **parse_overrides([TextConfig], settings)})

"""``normplace ogb``."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from normplace.cli.options import Folder, PlacementName

if TYPE_CHECKING:
    from normplace.lab.ogb.checkpoint import Epoch
    from normplace.lab.ogb.recipe import Published, Recipe
    from normplace.lab.ogb.results import SeedResult
    from normplace.lab.ogb.run import OgbRun

SECONDS_BETWEEN_LINES = 5.0
UNITS = {"acc": "accuracy", "rocauc": "ROC-AUC", "ap": "average precision"}


def complete_tasks(context: object) -> tuple[str, ...]:
    """Names of the tasks, for the shell."""
    from normplace.lab.tasks.graphs.ogb.catalog import TASKS

    return tuple(TASKS)


TaskName = Annotated[str, Parameter(name="TASK", completer=complete_tasks)]
Batches = Literal["full", "clusters", "neighbours", "graphs"]
Order = Literal["res+", "res", "plain"]
Aggregation = Literal["softmax", "softmax_sg", "mean", "max", "add"]
Fanouts = Annotated[tuple[int, ...], Parameter(consume_multiple=True, metavar="N...")]


def ogb(
    task: TaskName,
    /,
    *,
    data: Folder,
    seeds: int = 1,
    epochs: int | None = None,
    batches: Batches | None = None,
    batch: int | None = None,
    parts: int | None = None,
    fanouts: Fanouts = (),
    order: Order | None = None,
    placement: PlacementName | None = None,
    depth: int | None = None,
    width: int | None = None,
    aggregation: Aggregation | None = None,
    dropout: float | None = None,
    learning_rate: float | None = None,
    evaluate_every: int | None = None,
    memory: Literal["store", "checkpoint"] | None = None,
    device: str = "auto",
    out: Folder = Path("runs"),
    dry_run: bool = False,
    json: bool = False,
) -> int:
    """Train DeeperGCN on a task of the Open Graph Benchmark, with the published settings unless others are given.

    Reads the files that the package ogb downloads, without that package and without a network. Prints the test score of
    each seed at its best validation score, and compares their mean with the published one. Epochs and results are
    written to a folder as they come; rerun the command to resume, or with more seeds to add some. The exit code is 1 if
    a seed diverged.

    Args:
        task: ogbn-arxiv, ogbn-products, ogbn-proteins, ogbn-mag (its papers and their citations), ogbg-molhiv,
            ogbg-molpcba or ogbg-ppa.
        data: The folder that was passed to ogb as root, or the folder of the task in it.
        seeds: Number of seeds: 0, 1 and so on.
        epochs: Number of epochs.
        batches: Batches of a task on nodes: full (the whole graph), clusters (random clusters, drawn in every epoch) or
            neighbours (sampled around training nodes).
        batch: Graphs per step, or training nodes per step with neighbours.
        parts: Number of clusters in training.
        fanouts: Sampled edges of a node at each hop, with neighbours.
        order: Block order.
        placement: Norm placement, in place of that of the order res+.
        depth: Number of convolutions.
        width: Width of the stream.
        aggregation: Aggregation of the messages.
        dropout: Dropout probability.
        learning_rate: Adam's learning rate.
        evaluate_every: Epochs between evaluations.
        memory: store keeps all activations, checkpoint recomputes most of them.
        device: auto, cpu or cuda.
        out: Folder of the folders of results.
        dry_run: Read the data and print the plan; train nothing.
        json: Print JSON.
    """
    from normplace._shared.device import pick_device
    from normplace._shared.modules import count_parameters
    from normplace.errors import expect_whole
    from normplace.lab.ogb.recipe import RECIPES
    from normplace.lab.ogb.results import summary
    from normplace.lab.ogb.run import OgbRun
    from normplace.lab.tasks.graphs.ogb.catalog import named_task

    chosen = named_task(task)
    expect_whole(1, **{"--seeds": seeds})
    options = {
        "epochs": epochs,
        "batches": batches,
        "batch_size": batch,
        "parts": parts,
        "fanouts": fanouts or None,
        "order": order,
        "placement": placement,
        "depth": depth,
        "dim": width,
        "aggregation": aggregation,
        "dropout": dropout,
        "learning_rate": learning_rate,
        "evaluate_every": evaluate_every,
        "memory": memory,
    }
    recipe = replace(RECIPES[task], **{name: value for name, value in options.items() if value is not None})
    start = time.perf_counter()
    run = OgbRun.load(chosen, recipe, data, pick_device(device), out)
    plan = _plan(run, seeds, time.perf_counter() - start)
    if not json:
        print("\n".join(f"{name:<10} {text}" for name, text in plan.items()))
    results = [] if dry_run else run.execute(seeds, _Progress(recipe.epochs, quiet=json))
    numbers = summary(chosen, results)
    if json:
        about = {"settings": run.settings(), "parameters": count_parameters(run.build()), "folder": str(run.folder)}
        print(dumps({**about, "seeds": [asdict(result) for result in results], **numbers}, indent=1))
    elif results:
        _print_results(results, numbers, UNITS[chosen.metric])
    return int(any(result.status != "ok" for result in results))


def _plan(run: OgbRun, seeds: int, seconds: float) -> dict[str, str]:
    """The lines of the plan: data, network, training, published numbers and results."""
    from normplace._shared.modules import count_parameters
    from normplace.lab.ogb.recipe import PUBLISHED
    from normplace.lab.report.text import count, duration

    recipe, task, published = run.recipe, run.task, PUBLISHED[run.task.name]
    sizes = run.sizes()
    sides = " / ".join(f"{sizes.pop(side):,} {side}" for side in ("train", "valid", "test"))
    counts = ", ".join(f"{size:,} {name}" for name, size in sizes.items())
    parameters = f"{count_parameters(run.build()):,} parameters"
    if published.parameters is not None:
        parameters += f" (published: {published.parameters:,})"
    steps = {
        "full": "the whole graph in one step",
        "clusters": f"{recipe.parts} random clusters",
        "neighbours": f"{recipe.batch_size} nodes a step, fanouts {' '.join(map(str, recipe.fanouts))}",
        "graphs": f"{recipe.batch_size} graphs a step",
    }[recipe.batches]
    return {
        "task": f"{task.name}: {counts}; {sides}; read in {duration(seconds)}",
        "network": f"{recipe.depth} convolutions of width {recipe.dim}, {recipe.placement or recipe.order}, "
        f"{recipe.norm} norm, {_aggregation(recipe)}; {parameters}",
        "training": f"{count(seeds, 'seed')}, {count(recipe.epochs, 'epoch')}, {steps}, Adam with learning rate "
        f"{recipe.learning_rate:g}, dropout {recipe.dropout:g}, on {run.device}",
        "changed": _changed(run),
        "published": _published(published, UNITS[task.metric]),
        "results": str(run.folder),
    }


def _aggregation(recipe: Recipe) -> str:
    if "softmax" not in recipe.aggregation:
        return recipe.aggregation
    return recipe.aggregation + (" with learned temperature" if recipe.learn_t else f" with t = {recipe.t:g}")


def _changed(run: OgbRun) -> str:
    """The settings that differ from the defaults of the task."""
    from normplace.lab.ogb.recipe import PUBLISHED
    from normplace.lab.ogb.run import differences

    changed = [f"{name} {own} instead of {other}" for name, (own, other) in differences(run.task, run.recipe).items()]
    if changed:
        return "; ".join(changed)
    # A network without a published number of parameters is one of ours.
    is_ours = PUBLISHED[run.task.name].parameters is None
    return "nothing: these settings are " + ("ours, since none are published" if is_ours else "the published ones")


def _published(published: Published, unit: str) -> str:
    valid = "" if published.valid is None else f", valid {_score(published.valid)}"
    return f"{published.method}: {unit} test {_score(published.test)}{valid} ({published.source})"


def _score(pair: Sequence[float | None]) -> str:
    mean, deviation = pair
    return f"{mean:.4f}" if deviation is None else f"{mean:.4f} ± {deviation:.4f}"


class _Progress:
    """Prints epochs to standard error: the first, the last, and at most one in five seconds."""

    def __init__(self, epochs: int, quiet: bool) -> None:
        self.epochs, self.quiet, self._last = epochs, quiet, -SECONDS_BETWEEN_LINES

    def __call__(self, seed: int, history: Sequence[Epoch]) -> None:
        from normplace.lab.report.text import duration

        now, epoch = time.monotonic(), history[-1]
        is_edge = epoch.epoch in (1, self.epochs)
        if self.quiet or not (is_edge or now - self._last >= SECONDS_BETWEEN_LINES):
            return
        self._last = now
        scores = next((epoch.scores for epoch in reversed(history) if epoch.scores), {})
        spent = sum(epoch.seconds + epoch.evaluation_seconds for epoch in history)
        left = spent / len(history) * (self.epochs - epoch.epoch)
        words = [f"seed {seed}", f"epoch {epoch.epoch}/{self.epochs}", f"loss {epoch.loss:.4f}"]
        words += [f"{side} {value:.4f}" for side, value in scores.items()]
        words += [f"{epoch.seconds:.2f} s/epoch", *([f"{duration(left)} left"] if left else [])]
        print("  ".join(words), file=sys.stderr, flush=True)


def _print_results(results: Sequence[SeedResult], numbers: dict[str, Any], unit: str) -> None:
    from normplace._shared.text_table import text_table
    from normplace.lab.report.text import count

    rows = [
        [
            str(result.seed),
            "–" if result.test is None else f"{result.test:.4f}",
            "–" if result.valid is None else f"{result.valid:.4f}",
            "–" if result.best_epoch is None else str(result.best_epoch),
            f"{result.seconds_per_epoch:.2f} s",
            f"{result.seconds_per_evaluation:.2f} s",
            "–" if result.peak_memory is None else f"{result.peak_memory / 2**30:.1f} GiB",
            result.status,
        ]
        for result in results
    ]
    headings = ["seed", f"test {unit}", "valid", "best epoch", "epoch", "evaluation", "GPU memory", "status"]
    print("\n" + text_table(headings, rows, right_from=0))
    published = numbers["published"]
    if numbers["test"] is not None:
        scored = sum(result.test is not None for result in results)
        of_all = f"{scored} of " if scored < len(rows) else ""  # others diverged before the first evaluation
        print(
            f"normplace {_score(numbers['test'])} over {of_all}{count(len(rows), 'seed')}; "
            f"published {_score(published['test'])} ({published['method']}, {published['source']})"
        )

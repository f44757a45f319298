"""``normplace select``."""

from __future__ import annotations

import contextlib
import sys
import time
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from normplace.cli.options import File, Words
from normplace.errors import UsageError, expect_installed

if TYPE_CHECKING:
    from normplace.lab.tasks.selection.graph_files import NamedGraph
    from normplace.lab.tasks.selection.select import SelectionResult

GraphFile = Annotated[Path, Parameter(name="GRAPH")]
Task = Literal["dismantling", "influence", "independent-set"]
AXES = {
    "dismantling": ("removed", "largest component"),
    "influence": ("seeds", "reached"),
    "independent-set": ("visited", "in the set"),
}
SHOWN = 10
WIDE_CURVE, NARROW_CURVE, WIDE_TERMINAL = 32, 16, 110
"""Bars of a curve, and the columns of a terminal from which on it has room for the larger number."""
WITHOUT_COMPILATION = ("kamis",)
"""Methods that are not compiled here and take seconds on any graph."""


def select(
    graph: GraphFile,
    /,
    *,
    task: Task = "dismantling",
    method: Words = ("policy",),
    budget: int | None = None,
    rounds: int | None = None,
    seed: int = 0,
    simulations: int | None = None,
    policy: File | None = None,
    out: File | None = None,
    picture: File | None = None,
    json: bool = False,
) -> int:
    """Order the nodes of a graph for dismantling, influence or an independent set.

    Reads edge lists (.txt, .edges, .edgelist, .el), .csv, .tsv, .mtx, .npz and .graphml, also compressed with gzip.
    Edges are undirected; weights, self-loops and repeated edges are dropped.

    Args:
        graph: The file of the graph.
        task: dismantling removes nodes until the graph falls apart; influence chooses seeds from which the weighted
            cascade reaches many nodes; independent-set takes nodes without edges between them.
        method: policy (a trained network), degree, adaptive-degree, k-core, corehd, collective-influence, pagerank,
            betweenness, ris, min-degree, kamis or random. Several methods are compared.
        budget: Number of seeds for influence. By default 50.
        rounds: Number of equal parts of the nodes after which the policy scores the rest of the graph again. By default
            100 for dismantling, and 1 otherwise.
        seed: Random seed of ties, randomized methods and cascades.
        simulations: Number of simulated cascades. By default 1000, and fewer on graphs of more than 40,000 nodes, down
            to 100.
        policy: A policy in a file, instead of the trained one of the package.
        out: Write the order of the first method: .csv, or .json with the measures of all methods.
        picture: Write the curves of all methods as .svg; without vl-convert, their numbers as .csv.
        json: Print JSON.
    """
    expect_installed("this command", "numba", "graphs")
    if out is not None and out.suffix not in (".csv", ".json"):
        raise UsageError(f"--out ends in .csv or .json, got {str(out)!r}.")
    if picture is not None and picture.suffix != ".svg":
        raise UsageError(f"--picture ends in .svg, got {str(picture)!r}.")
    if len(set(method)) < len(method):
        raise UsageError("a method is named twice: name each once.")
    for option, value in (("--budget", budget), ("--simulations", simulations)):
        if value is not None and task != "influence":
            raise UsageError(f"{option} is for --task influence: leave it out for {task}.")
    from normplace._shared.output import check_writable
    from normplace.lab.tasks.selection.graph_files import read_graph
    from normplace.lab.tasks.selection.select import POLICY, measure_order, select_nodes
    from normplace.models.policy_files import load_policy

    for option, value in (("--rounds", rounds), ("--policy", policy)):
        if value is not None and POLICY not in method:
            raise UsageError(f"{option} is for --method policy: leave it out, or add the method.")
    for path in filter(None, (out, picture)):
        check_writable(path)
    named = read_graph(graph)
    if named.doubt:
        print(f"note: {named.doubt}", file=sys.stderr)
    own = None if policy is None else load_policy(policy).policy
    orders, results, seconds = {}, {}, {}
    for name in method:
        options: dict[str, Any] = {"rounds": rounds, "policy": own} if name == POLICY else {}
        _compile(task, name)
        start = time.perf_counter()
        orders[name] = select_nodes(named.graph, task, name, budget=budget, seed=seed, **options)
        seconds[name] = time.perf_counter() - start
        results[name] = measure_order(
            named.graph, task, orders[name], budget=budget, simulations=simulations, seed=seed
        )
    report = _report(graph, task, named, results, seconds)
    first = method[0]
    written = []
    if not json:
        _print(task, named, results, report)  # first, in case that a file cannot be written
    if out is not None:
        _write_order(out, named, orders[first], results[first], report)
        written.append(str(out))
    if picture is not None:
        written.append(str(_draw(picture, task, results)))
    if json:
        print(dumps({**report, "files": written}, indent=1))
    else:
        for path in written:
            print(f"Wrote {path}")
    return 0


def _compile(task: str, method: str) -> None:
    """Run a method on a small graph, so that the time on another graph excludes the compilation of its loops."""
    from normplace.lab.tasks.selection import Graph
    from normplace.lab.tasks.selection.select import select_nodes

    if method not in WITHOUT_COMPILATION:
        with contextlib.suppress(UsageError):  # reported for the user's graph
            select_nodes(Graph.from_edges([[0, 1], [1, 2], [2, 0], [2, 3]]), task, method, budget=1)


def _report(
    path: Path, task: str, named: NamedGraph, results: dict[str, SelectionResult], seconds: dict[str, float]
) -> dict[str, Any]:
    methods = {name: {**result.numbers, "seconds": round(seconds[name], 4)} for name, result in results.items()}
    return {
        "graph": str(path),
        "nodes": named.graph.num_nodes,
        "edges": named.graph.num_edges,
        "task": task,
        "methods": methods,
    }


def _write_order(out: Path, named: NamedGraph, order: Any, result: SelectionResult, report: dict[str, Any]) -> None:
    from normplace._shared.output import write_atomic

    names = named.names[order].tolist()
    if out.suffix == ".json":
        selected = named.names[result.selected].tolist()
        write_atomic(out, dumps({**report, "selected": selected, "order": names}) + "\n")
        return
    import csv
    import io

    chosen = set(result.selected.tolist())
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["rank", "node", "selected"])
    writer.writerows(
        (rank, name, int(node in chosen))
        for rank, (node, name) in enumerate(zip(order.tolist(), names, strict=True), start=1)
    )
    write_atomic(out, text.getvalue())


def _draw(picture: Path, task: str, results: dict[str, SelectionResult]) -> Path:
    """Write the curves as a picture, or as numbers if charts are not installed; return the file."""
    from normplace._shared.output import write_atomic
    from normplace.lab.report.specs import curves
    from normplace.lab.report.still import draw_still

    x, y = AXES[task]
    rows = [
        {"method": name, x: along, y: value}
        for name, result in results.items()
        for along, value in zip(result.curve[x], result.curve[y], strict=True)
    ]
    spec = curves(
        x={"field": x, "title": "number of seeds" if x == "seeds" else f"share of nodes {x}"},
        y={"field": y, "title": f"share of nodes {y}" if y != "largest component" else f"share of nodes in the {y}"},
        series="method",
        order=list(results),
        width=520,
        height=300,
    )
    try:
        content = draw_still(spec, rows, alt=f"{y} against {x}, one line per method")
    except UsageError as error:
        picture = picture.with_suffix(".csv")
        print(f"{error} Until then, the numbers of the picture are in {picture}.", file=sys.stderr)
        content = "\n".join([f"method,{x},{y}", *(f"{row['method']},{row[x]:g},{row[y]:g}" for row in rows)]) + "\n"
    write_atomic(picture, content)
    return picture


def _print(task: str, named: NamedGraph, results: dict[str, SelectionResult], report: dict[str, Any]) -> None:
    from normplace._shared.sparkline import sparkline
    from normplace._shared.terminal import table_width
    from normplace._shared.text_table import text_table

    width = table_width(sys.stdout)
    bars = WIDE_CURVE if width is None or width >= WIDE_TERMINAL else NARROW_CURVE
    print(f"{report['nodes']:,} nodes, {report['edges']:,} edges, {task}")
    numbers = [*next(iter(report["methods"].values()))]
    headings = ["method", *(name.replace("_", " ") for name in numbers), AXES[task][1]]
    rows = [
        [name, *(f"{values[number]:,.6g}" for number in numbers), sparkline(results[name].curve[AXES[task][1]], bars)]
        for name, values in report["methods"].items()
    ]
    print(text_table(headings, rows, right_from=1, width=width))
    first, result = next(iter(results.items()))
    nodes = named.names[result.selected[:SHOWN]].tolist()
    shown = ", ".join([*map(str, nodes), *(["…"] if len(result.selected) > SHOWN else [])])
    count = "1 node" if len(result.selected) == 1 else f"{len(result.selected):,} nodes"
    print(f"{first} selects {count}: {shown}" if nodes else f"{first} selects no node")

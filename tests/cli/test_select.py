"""``normplace select``: order, measures and picture of a graph in a file."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from tests.cli.terminal import terminal_output
from tests.cli.usage_errors import usage_error

pytest.importorskip("numba", reason="node selection needs numba")
pytest.importorskip("torch_geometric", reason="the convolutions of the policies are PyG's")

from normplace.cli import main
from normplace.lab.report import chart_svg
from normplace.lab.tasks.selection import barabasi_albert, dismantle, read_graph

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def graph_file(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    edges = barabasi_albert(60, 2, np.random.default_rng(0)).edges()
    Path("graph.csv").write_text("source,target\n" + "".join(f"n{a},n{b}\n" for a, b in edges))
    return Path("graph.csv")


@pytest.mark.parametrize(("edges", "sentence"), [("a b", "selects 1 node: a"), ("a a\nb b", "selects no node")])
def test_few_nodes_are_counted_in_words(edges, sentence, tmp_path, capsys):
    path = tmp_path / "graph.txt"
    path.write_text(edges)
    assert main(["select", str(path), "--method", "degree"]) == 0
    assert capsys.readouterr().out.endswith(f"degree {sentence}\n")


def test_the_order_and_the_measures_agree(graph_file, capsys):
    words = ["select", str(graph_file), "--method", "corehd", "policy", "--out", "order.csv", "--json"]
    assert main(words) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["nodes"], report["task"], report["files"]) == (60, "dismantling", ["order.csv"])
    assert [*report["methods"]] == ["corehd", "policy"]
    rows = list(csv.DictReader(Path("order.csv").read_text().splitlines()))
    named = read_graph(graph_file)
    node = {name: number for number, name in enumerate(named.names.tolist())}
    order = [node[row["node"]] for row in rows]
    result = dismantle(named.graph, order)
    assert report["methods"]["corehd"]["R"] == pytest.approx(result.R)
    assert sum(row["selected"] == "1" for row in rows) == result.removals_to(0.01)


def test_influence_and_independent_sets(graph_file, capsys):
    assert (
        main(["select", "graph.csv", "--task", "influence", "--budget", "5", "--method", "ris", "--out", "o.json"]) == 0
    )
    written = json.loads(Path("o.json").read_text())
    assert len(written["order"]) == len(written["selected"]) == 5
    assert 5 <= written["methods"]["ris"]["reached"] <= 60
    assert main(["select", "graph.csv", "--task", "independent-set", "--method", "policy", "min-degree"]) == 0
    printed = capsys.readouterr().out
    assert "60 nodes, 116 edges, independent-set" in printed
    assert "policy selects" in printed


def test_a_picture_and_its_numbers_without_charts(graph_file, capsys, monkeypatch):
    pytest.importorskip("vl_convert")
    assert main(["select", "graph.csv", "--method", "degree", "random", "--picture", "curve.svg"]) == 0
    assert Path("curve.svg").read_text().startswith("<svg")
    assert "Wrote curve.svg" in capsys.readouterr().out

    def missing(request):
        raise ModuleNotFoundError

    monkeypatch.setattr("normplace.lab.report.charts.render_svg", missing)
    assert hasattr(chart_svg, "render_svg")
    assert main(["select", "graph.csv", "--method", "degree", "--picture", "other.svg"]) == 0
    captured = capsys.readouterr()
    assert "charts need vl-convert" in captured.err
    assert "Wrote other.csv" in captured.out
    assert Path("other.csv").read_text().startswith("method,removed,largest component\ndegree,0,1\n")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["none.csv"], "there is no file 'none.csv'"),
        (["graph.csv", "--task", "dismantle"], "unknown --task 'dismantle'"),
        (["graph.csv", "--method", "ris"], "ris is not a method for dismantling"),
        (["graph.csv", "--method", "degree", "degree"], "a method is named twice"),
        (["graph.csv", "--out", "order.txt"], "--out ends in .csv or .json"),
        (["graph.csv", "--picture", "a.png"], "--picture ends in .svg"),
        (["graph.csv", "--policy", "none.safetensors"], "there is no file 'none.safetensors'"),
        (["graph.csv", "--task", "influence", "--budget", "0"], "budget must be an integer from 1 to 60"),
        (["graph.csv", "--budget", "5"], "--budget is for --task influence: leave it out for dismantling"),
        (["graph.csv", "--simulations", "5"], "--simulations is for --task influence"),
        (["graph.csv", "--method", "degree", "--rounds", "5"], "--rounds is for --method policy"),
    ],
)
def test_wrong_arguments(graph_file, capsys, words, sentence):
    assert sentence in usage_error(capsys, "select", *words)


def test_the_table_is_printed_even_if_a_file_cannot_be_written(graph_file, capsys, monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device", "order.csv")

    monkeypatch.setattr("normplace._shared.output.write_atomic", fail)
    assert main(["select", "graph.csv", "--method", "degree", "--out", "order.csv"]) == 2
    assert "degree selects" in capsys.readouterr().out


def test_the_table_fits_a_narrow_terminal(graph_file, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    text = terminal_output(monkeypatch, "select", str(graph_file), no_color="1")
    assert max(map(len, text.splitlines()[:-1])) <= 80

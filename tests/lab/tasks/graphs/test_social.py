"""Social graphs in the format of the MUSAE collection, from small files."""

from __future__ import annotations

import json

import pytest
import torch

from normplace import UsageError
from normplace.lab.tasks.graphs.labelled import degree_alone
from normplace.lab.tasks.graphs.social import GRAPHS, SPLITS, load_social, read_social

NODES = 80


def write(folder, edges="from,to\n0,1\n1,0\n1,2\n2,2\n0,3\n", stem="DE", prefix="musae_"):
    """Twitch's three files: ids in another order than new ids, and views that are the new id."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [f"{1000 - n},7,{n % 4 == 0},{n},{n < 8},{n}" for n in reversed(range(NODES))]
    (folder / f"{prefix}{stem}_edges.csv").write_text(edges)
    (folder / f"{prefix}{stem}_target.csv").write_text("id,days,mature,views,partner,new_id\n" + "\n".join(rows))
    (folder / f"{prefix}{stem}_features.json").write_text(json.dumps({"0": [2, 0], "3": [4], "79": []}))
    return [folder / f"{prefix}{stem}{ending}" for ending in ("_edges.csv", "_target.csv", "_features.json")]


def test_files_become_a_labelled_graph(tmp_path):
    graph = read_social(*write(tmp_path), target="mature", name="mine")
    assert graph.name == "mine" and graph.num_nodes == NODES and graph.num_classes == 2
    assert graph.y.tolist() == [int(n % 4 == 0) for n in range(NODES)]
    assert set(map(tuple, graph.edge_index.T.tolist())) == {(0, 1), (1, 0), (1, 2), (2, 1), (0, 3), (3, 0)}
    assert graph.x.shape == (NODES, 5) and graph.x[0].tolist() == [1, 0, 1, 0, 0] and graph.x[79].sum() == 0
    parts = torch.stack([graph.train, graph.val, graph.test])
    assert parts.shape == (3, SPLITS, NODES) and (parts.sum(0) == 1).all()
    for part, share in zip(parts, (0.5, 0.25, 0.25), strict=True):
        assert (part[:, graph.y == 1].float().mean(1) == share).all()
    assert not torch.equal(graph.train[0], graph.train[1])


def test_many_numbers_are_split_at_the_median(tmp_path):
    edges, targets, _ = write(tmp_path)
    graph = read_social(edges, targets, None, "views")
    assert graph.y.tolist() == [int(n >= NODES // 2) for n in range(NODES)]
    assert torch.equal(graph.x, torch.ones(NODES, 1))


@pytest.mark.parametrize("prefix", ["musae_", ""])
def test_graphs_are_found_in_the_data_folder(tmp_path, monkeypatch, prefix):
    monkeypatch.setenv("NORMPLACE_DATA", str(tmp_path))
    monkeypatch.setenv("NORMPLACE_CACHE", str(tmp_path / "cache"))
    with pytest.raises(UsageError, match=r"put DE_edges.csv, .* into graphs/social/twitch/DE of NORMPLACE_DATA"):
        load_social("twitch-DE")
    write(tmp_path / "graphs" / "social" / "twitch" / "DE", prefix=prefix)
    assert load_social("twitch-DE").y.sum() == NODES // 2
    assert load_social("twitch-DE", "partner").y.sum() == 8
    assert {"github", "lastfm", "deezer"} < set(GRAPHS)


def test_the_degree_alone(tmp_path):
    hubs = "".join(f"{hub},{leaf}\n" for hub in range(8) for leaf in range(8, 40 + hub))
    graph = read_social(*write(tmp_path, "from,to\n" + hubs), target="partner")
    assert degree_alone(graph) == 1.0  # partners are hubs
    assert degree_alone(graph, graph.test[0]) == 1.0
    assert degree_alone(graph, edge_index=graph.edge_index[:, :0]) == 0.5
    random = read_social(*write(tmp_path / "other", "from,to\n" + hubs), target="mature")
    assert 0.5 <= degree_alone(random) < 0.65


@pytest.mark.parametrize(
    ("file", "text", "sentence"),
    [
        (0, "from,to\n0,99\n", "has the node 99, which the targets do not have"),
        (0, "from,to\n0,x\n", "has the id 'x', which is not a whole number"),
        (0, "from\n0\n", "needs two columns of ids"),
        (0, "from,to\n", "has no rows below its column names"),
        (1, "name,target\na,0\n", "has no column 'id' or 'new_id'"),
        (1, "id,mature\n" + "1,True\n" * 8, "has an id twice"),
        (1, "id,mature\n" + "".join(f"{n},True\n" for n in range(8)), "needs at least two classes"),
        (2, "[1]", "must be an object with a list of feature numbers"),
        (2, '{"0": [-1]}', "must be an object with a list of feature numbers"),
        (2, "{", "is not JSON"),
    ],
)
def test_damaged_files(tmp_path, file, text, sentence):
    paths = write(tmp_path)
    paths[file].write_text(text)
    with pytest.raises(UsageError, match=sentence):
        read_social(*paths, target="mature")


def test_unknown_names(tmp_path):
    paths = write(tmp_path)
    with pytest.raises(UsageError, match=r"unknown column of musae_DE_target.csv: 'matur': did you mean 'mature'"):
        read_social(*paths, target="matur")
    with pytest.raises(UsageError, match="unknown social graph 'twitch-de'"):
        load_social("twitch-de")
    paths[2].unlink()
    with pytest.raises(UsageError, match="there is no file"):
        read_social(*paths, target="mature")

"""Labelled graphs: file contents, checksums of the known graphs, and metrics."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from tests.lab.tasks.tables import labelled_fields

from normplace import UsageError
from normplace.lab.tasks.data_files import unavailable_reason
from normplace.lab.tasks.graphs import labelled
from normplace.lab.tasks.graphs.labelled import accuracy, load_labelled, roc_auc


def packed(**fields: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **fields)
    return buffer.getvalue()


@pytest.fixture
def fields():
    return labelled_fields()


@pytest.fixture
def known(fields, monkeypatch):
    """A random graph under the name of a known one, and its file content."""
    seen = []
    digest = labelled._digest
    monkeypatch.setattr(labelled, "SHA256", {"known": ""})
    monkeypatch.setattr(labelled, "_digest", lambda *arrays: seen.append(digest(*arrays)) or "")
    labelled._parse(packed(**fields), "known", "a test")
    monkeypatch.setattr(labelled, "_digest", digest)
    monkeypatch.setattr(labelled, "SHA256", {"known": seen[0]})
    return packed(**fields)


def test_a_file_becomes_a_graph(fields, tmp_path):
    (tmp_path / "mine.npz").write_bytes(packed(**fields))
    graph = load_labelled("mine", str(tmp_path / "mine.npz"))
    assert torch.equal(graph.x, torch.from_numpy(fields["node_features"]))
    assert graph.y.tolist() == fields["node_labels"].tolist()
    for name in ("train", "val", "test"):
        assert torch.equal(getattr(graph, name), torch.from_numpy(fields[f"{name}_masks"]))
    wanted = {(a, b) for a, b in fields["edges"].tolist() if a != b}
    wanted |= {(b, a) for a, b in wanted}
    pairs = list(map(tuple, graph.edge_index.T.tolist()))
    assert set(pairs) == wanted and len(pairs) == len(wanted)
    assert (graph.num_nodes, graph.num_classes, graph.num_splits) == (60, 2, 2)


def test_every_faithful_copy_is_taken_and_a_changed_one_is_not(known, fields, tmp_path):
    shuffled = np.random.default_rng(1).permutation(fields["edges"])[:, ::-1]
    copy = {**fields, "edges": shuffled.astype("i4"), "node_labels": fields["node_labels"].astype("u1")}
    (tmp_path / "copy.npz").write_bytes(packed(**copy))
    graph = load_labelled("known", str(tmp_path / "copy.npz"))
    assert torch.equal(graph.x, torch.from_numpy(fields["node_features"]))
    (tmp_path / "copy.npz").write_bytes(packed(**{**copy, "edges": shuffled[1:]}))
    with pytest.raises(UsageError, match=r"has other values than known \(checksum differs\)"):
        load_labelled("known", str(tmp_path / "copy.npz"))


def test_a_known_graph_is_downloaded_once(known, tmp_path, monkeypatch):
    monkeypatch.setenv("NORMPLACE_CACHE", str(tmp_path))
    asked = []
    monkeypatch.setattr(labelled, "download", lambda url, _: asked.append(url) or known)
    first = load_labelled("known")
    assert load_labelled("known") is first
    assert asked == [f"{labelled.URL}/known.npz"]
    assert [path.name for path in (tmp_path / labelled.TOPIC).iterdir()] == ["known.npz"]


def test_an_invalid_download_is_not_stored(known, tmp_path, monkeypatch):
    monkeypatch.setenv("NORMPLACE_CACHE", str(tmp_path))
    monkeypatch.setattr(labelled, "download", lambda *_: b"<html>busy</html>")
    with pytest.raises(UsageError, match=r"is not an \.npz file with the fields"):
        load_labelled("known")
    assert list(tmp_path.iterdir()) == []


def test_an_offline_error_explains_where_to_put_the_file():
    assert "put tolokers.npz into the folder NORMPLACE_DATA" in str(unavailable_reason(load_labelled, "tolokers"))
    with pytest.raises(UsageError, match="did you mean 'tolokers'"):
        load_labelled("toloker")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"val_masks": None}, "has no field 'val_masks'"),
        ({"node_features": np.ones((59, 4))}, r"features of shape \(n, d\) with n labels"),
        ({"node_features": np.full((60, 4), np.nan)}, "not finite numbers"),
        ({"node_labels": np.arange(60) % 2 * 2}, "numbered 0, 1, ... without gaps"),
        ({"node_labels": np.zeros(60, int)}, "at least two"),
        ({"edges": np.array([[0, 60]])}, "edges between nodes 0 to 60, but nodes 0 to 59"),
        ({"edges": np.ones((2, 9), int)}, "needs edges of shape"),
        ({"val_masks": np.ones((2, 59), bool)}, "needs masks of shape"),
        ({"val_masks": np.full((2, 60), 2)}, "needs masks of shape"),
        ({"val_masks": np.zeros((2, 60), bool)}, "a split without training"),
        ({"val_masks": np.ones((2, 60), bool)}, "a node in two parts"),
        ({"node_labels": np.array([None] * 60)}, r"is not an \.npz file with the fields"),
    ],
)
def test_other_files_are_rejected(change, sentence, fields, tmp_path):
    changed = {name: value for name, value in {**fields, **change}.items() if value is not None}
    (tmp_path / "mine.npz").write_bytes(packed(**changed))
    with pytest.raises(UsageError, match=sentence):
        load_labelled("mine", str(tmp_path / "mine.npz"))


def test_the_area_is_the_share_of_pairs_in_order():
    generator = torch.Generator().manual_seed(0)
    scores = torch.randint(12, (80,), generator=generator).double()  # with ties
    labels = torch.randint(2, (80,), generator=generator)
    pairs = scores[labels == 1][:, None] - scores[labels == 0][None]
    expected = float((pairs > 0).double().mean() + (pairs == 0).double().mean() / 2)
    assert roc_auc(scores, labels) == pytest.approx(expected, abs=1e-14)
    assert roc_auc(-scores, labels) == pytest.approx(1 - expected, abs=1e-14)
    with pytest.raises(UsageError, match="all labels are equal"):
        roc_auc(scores, torch.ones(80))
    with pytest.raises(UsageError, match="a score is NaN"):
        roc_auc(scores / 0 * 0, labels)


def test_the_official_metric_follows_the_number_of_classes(tmp_path):
    generator = torch.Generator().manual_seed(0)
    for classes, metric in ((2, "roc_auc"), (3, "accuracy")):
        path = tmp_path / f"{classes}.npz"
        path.write_bytes(packed(**labelled_fields(classes=classes)))
        graph = load_labelled("mine", str(path))
        assert graph.metric == metric
        logits, nodes = torch.randn(60, classes, generator=generator), graph.test[1]
        if classes == 2:
            expected = roc_auc(logits.softmax(1)[nodes, 1].double(), graph.y[nodes])
        else:
            expected = accuracy(logits[nodes], graph.y[nodes])
            hits = [row.index(max(row)) == label for row, label in zip(logits.tolist(), graph.y.tolist(), strict=True)]
            chosen = [hit for hit, node in zip(hits, nodes.tolist(), strict=True) if node]
            assert expected == pytest.approx(sum(chosen) / len(chosen))
        assert graph.score(logits, nodes) == pytest.approx(expected, abs=1e-12)
        with pytest.raises(UsageError, match="logits of mine must have shape"):
            graph.score(logits[:, :1], nodes)

"""Molecules: batches compared with single molecules, files, OGB's format, and errors."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.lab.tasks.graphs.molecule_cases import OGB, SIZES, ogb_graphs

from normplace import UsageError
from normplace.lab.tasks.data_files import unavailable_reason
from normplace.lab.tasks.graphs import molecules
from normplace.lab.tasks.graphs.molecules import (
    assemble,
    load_molhiv,
    molecules_from_ogb,
    write_molecules,
)


def some():
    return molecules_from_ogb(OGB(ogb_graphs()))


def test_a_batch_is_its_molecules():
    numbers = torch.tensor([4, 2, 0, 5])
    batch = some().batch(numbers)
    graphs = [ogb_graphs()[number] for number in numbers.tolist()]
    assert torch.equal(batch.x, torch.tensor(np.concatenate([graph["node_feat"] for graph, _ in graphs])))
    assert batch.batch.tolist() == [0] + [1] * 6 + [2] * 3 + [3] * 5
    assert batch.y[:, 0].tolist() == [1, 0, 1, 1]
    assert batch.num_graphs == 4
    expected, first = set(), 0
    for graph, _ in graphs:
        for (source, target), bond in zip(graph["edge_index"].T.tolist(), graph["edge_feat"].tolist(), strict=True):
            expected.add((source + first, target + first, *bond))
        first += graph["num_nodes"]
    rows = torch.cat([batch.edge_index, batch.edge_attr.T]).T
    assert {tuple(row) for row in rows.tolist()} == expected
    assert len(rows) == len(expected)
    assert torch.equal(batch.edge_index[1], batch.edge_index[1].sort().values)


def test_files_come_back(tmp_path, monkeypatch):
    write_molecules(some(), tmp_path / "graphs" / "molhiv")
    monkeypatch.setenv("NORMPLACE_DATA", str(tmp_path))
    loaded = load_molhiv()
    for name in ("x", "edge_index", "edge_attr", "nodes", "edges", "y", "train", "valid", "test"):
        assert torch.equal(getattr(loaded, name).long(), getattr(some(), name).long()), name
    assert unavailable_reason(molecules.load_molhiv) is None
    (tmp_path / "graphs" / "molhiv" / molecules.SPLIT).unlink()
    with pytest.raises(UsageError, match="put the scaffold split into the folder of"):
        load_molhiv()
    (tmp_path / "graphs" / "molhiv" / molecules.SPLIT).write_bytes(b"no archive")
    with pytest.raises(UsageError, match="with the fields train, valid, test"):
        load_molhiv()


def test_missing_files_error_explains_how_to_create_them():
    assert "write_molecules" in str(unavailable_reason(molecules.load_molhiv))


def arrays():
    graphs = ogb_graphs()
    return {
        "node_feat": np.concatenate([graph["node_feat"] for graph, _ in graphs]),
        "edge_index": np.concatenate([graph["edge_index"] for graph, _ in graphs], axis=1),
        "edge_feat": np.concatenate([graph["edge_feat"] for graph, _ in graphs]),
        "num_nodes": np.array(SIZES),
        "num_edges": np.array([2 * (n - 1) for n in SIZES]),
        "y": np.array([n % 2 for n in SIZES]),
    }


def broken(name, change):
    data = arrays()
    data[name] = change(data[name].copy())
    return data


def put(place, value):
    def change(array):
        array[place] = value
        return array

    return change


MISTAKES = [
    (broken("node_feat", lambda a: a[1:]), "node_feat has shape"),
    (broken("node_feat", put((0, 1), 4)), "category outside"),
    (broken("edge_feat", put((0, 2), 2)), "category outside"),
    (broken("edge_index", put((0, 0), 3)), "an atom index beyond its molecule"),
    (broken("edge_index", put((0, 0), -1)), "an atom index beyond its molecule"),
    (broken("y", put(0, 2)), "labels must be 0 or 1"),
    (broken("num_edges", lambda a: a[1:]), "the other fields require"),
]


@pytest.mark.parametrize(("data", "reason"), MISTAKES)
def test_invalid_data_raise_a_usage_error(data, reason):
    with pytest.raises(UsageError, match=reason):
        assemble(data, OGB().get_idx_split(), "x")


def test_invalid_splits_and_indices_raise_a_usage_error():
    for train in ([0, 0], [8], [4]):
        with pytest.raises(UsageError, match="each molecule at most once"):
            assemble(arrays(), {**OGB().get_idx_split(), "train": np.array(train)}, "x")
    for numbers in ([8], [-1], []):
        with pytest.raises(UsageError, match="indices from 0 to 7"):
            some().batch(torch.tensor(numbers, dtype=torch.long))

"""The protein table: every faithful copy is accepted, other files raise a UsageError."""

from __future__ import annotations

import gzip

import numpy as np
import pytest
import torch
from tests.lab.tasks.archives import zipped
from tests.lab.tasks.tables import accept, csv, protein_table

from normplace import UsageError
from normplace.lab.tasks.data_files import unavailable_reason
from normplace.lab.tasks.known_table import row_digest, sorted_rows
from normplace.lab.tasks.regression import protein


@pytest.fixture
def table(monkeypatch):
    table = protein_table()
    accept(monkeypatch, table)
    return table


def test_every_faithful_copy_gives_the_same_rows(table, tmp_path):
    shuffled = np.random.default_rng(1).permutation(table)
    copies = {
        "CASP.csv": csv(table),
        "plain.csv": csv(table, header=""),
        "commented.csv.gz": gzip.compress(csv(shuffled, header='# "RMSD"\n')),
        "windows.csv": csv(shuffled).replace(b"\n", b"\r\n"),
    }
    expected = torch.from_numpy(sorted_rows(table))
    for name, content in copies.items():
        (tmp_path / name).write_bytes(content)
        assert torch.equal(protein.load_protein(str(tmp_path / name)), expected)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "0 rows of 0 columns, but UCI's CASP.csv has 400 of 10"),
        (b"1,2\n3,4\n", "2 rows of 2 columns"),
        (b"1,2\nthree,4\n", "is not a table of numbers"),
        (b"\xff\xfe", "is not a table of numbers"),
    ],
)
def test_another_file_is_rejected(content, sentence, table, tmp_path):
    (tmp_path / "file.csv").write_bytes(content)
    with pytest.raises(UsageError, match=sentence):
        protein.load_protein(str(tmp_path / "file.csv"))


def test_a_changed_value_is_rejected(table, tmp_path):
    table[7, 3] += 0.0001
    (tmp_path / "file.csv").write_bytes(csv(table))
    with pytest.raises(UsageError, match=r"has other values than UCI's CASP.csv \(checksum differs\)"):
        protein.load_protein(str(tmp_path / "file.csv"))


def test_a_truncated_gzip_is_rejected(table, tmp_path):
    (tmp_path / "file.csv.gz").write_bytes(gzip.compress(csv(table))[:-100])
    with pytest.raises(UsageError, match="cannot read"):
        protein.load_protein(str(tmp_path / "file.csv.gz"))


def test_the_archive_is_downloaded_once(table, tmp_path, monkeypatch):
    monkeypatch.setenv("NORMPLACE_CACHE", str(tmp_path))
    asked = []
    monkeypatch.setattr(protein, "download", lambda url, _: asked.append(url) or zipped("CASP.csv", csv(table)))
    first = protein.load_protein()
    assert torch.equal(protein.load_protein(), first)
    assert asked == [protein.URL]
    assert [path.name for path in (tmp_path / "protein").iterdir()] == ["CASP.csv"]


@pytest.mark.parametrize("answer", [b"<html>busy</html>", zipped("other.csv", b"")])
def test_an_invalid_download_is_not_stored(answer, table, tmp_path, monkeypatch):
    monkeypatch.setenv("NORMPLACE_CACHE", str(tmp_path))
    monkeypatch.setattr(protein, "download", lambda *_: answer)
    with pytest.raises(UsageError, match=r"did not return an archive with CASP\.csv"):
        protein.load_protein()
    monkeypatch.setattr(protein, "download", lambda *_: zipped("CASP.csv", csv(table[1:])))
    with pytest.raises(UsageError, match="399 rows"):
        protein.load_protein()
    assert not (tmp_path / "protein").exists()


def test_an_unavailable_download_is_tried_once(monkeypatch, tmp_path):
    monkeypatch.setenv("NORMPLACE_CACHE", str(tmp_path))
    asked = []

    def refuse(url, remedy):
        asked.append(url)
        raise UsageError(f"no network: {remedy}.")

    monkeypatch.setattr(protein, "download", refuse)
    for _ in range(3):
        assert "put CASP.csv into the folder NORMPLACE_DATA" in str(unavailable_reason(protein.load_protein))
    assert len(asked) == 1


def test_the_split_is_by_area(table):
    rows = torch.from_numpy(sorted_rows(table))
    split = protein.split_by_area(rows, torch.Generator().manual_seed(0))
    small = int((rows[:, 1] < protein.LARGEST).sum())
    assert len(split.train.x) == round(0.9 * small)
    assert len(split.train.x) + len(split.inside.x) == small
    assert len(split.outside.x) == len(rows) - small
    assert float(split.outside.x[:, 0].min()) >= protein.LARGEST > float(split.train.x[:, 0].max())
    everything = torch.cat([torch.cat([part.y, part.x], 1) for part in (split.train, split.inside, split.outside)])
    assert row_digest(everything.numpy(), dtype="<f8") == protein.TABLE.sha256
    fewer = protein.split_by_area(rows, torch.Generator().manual_seed(0), rows=50)
    assert torch.equal(fewer.train.x, split.train.x[:50])
    assert torch.equal(fewer.inside.x, split.inside.x)


def test_the_published_sizes():
    """44,591 of UCI's rows are under 20,000, which determines the sizes of the split."""
    assert round(0.9 * 44_591) == 40_132
    assert 44_591 - 40_132 == 4_459
    assert protein.TABLE.rows - 44_591 == 1_139

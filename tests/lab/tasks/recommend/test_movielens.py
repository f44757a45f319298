"""MovieLens: every faithful copy is accepted, other files raise a UsageError; the split is by user."""

from __future__ import annotations

import gzip
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.lab.tasks.archives import zipped

from normplace import UsageError
from normplace.lab.tasks.data_files import unavailable_reason
from normplace.lab.tasks.known_table import row_digest, sorted_rows
from normplace.lab.tasks.recommend import load_movielens, load_ratings, movielens, split_by_user


@pytest.fixture
def table(monkeypatch):
    random = np.random.default_rng(0)
    chosen = random.permutation(30 * 20)[:240]
    ratings = np.column_stack(
        [7 + chosen // 20, 100 + chosen % 20, random.integers(1, 6, 240), random.integers(1, 10**9, 240)]
    )
    sha256 = row_digest(ratings, dtype="<i8")
    monkeypatch.setattr(movielens, "TABLE", replace(movielens.TABLE, rows=len(ratings), sha256=sha256))
    return ratings


def text(table, separator="\t", header=""):
    return (header + "".join(separator.join(map(str, row)) + "\n" for row in table.tolist())).encode()


def test_every_faithful_copy_gives_the_same_split(table, tmp_path):
    shuffled = np.random.default_rng(1).permutation(table)
    copies = {
        "u.data": text(table),
        "bars.gz": gzip.compress(text(shuffled, "|", "user|item|rating|timestamp\n")),
        "commas.csv": text(shuffled, ",").replace(b"\n", b"\r\n"),
    }
    for name, content in copies.items():
        (tmp_path / name).write_bytes(content)
    first, *others = [load_movielens(3, str(tmp_path / name)) for name in copies]
    for other in others:
        assert torch.equal(other.train, first.train)
        assert torch.equal(other.test, first.test)
    assert not torch.equal(load_movielens(4, str(tmp_path / "u.data")).test, first.test)


def test_a_fifth_of_every_users_interactions_is_for_testing(table):
    ratings = split_by_user(table[:, :2], np.random.default_rng(0))
    users, counts = np.unique(table[:, 0], return_counts=True)
    assert ratings.num_users == len(users)
    assert torch.bincount(ratings.test[0], minlength=len(users)).tolist() == (counts // 5).tolist()
    together = torch.cat([ratings.train, ratings.test], 1).T.numpy()
    names = np.column_stack([users[together[:, 0]], np.unique(table[:, 1])[together[:, 1]]])
    assert np.array_equal(sorted_rows(names), sorted_rows(table[:, :2]))


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "0 rows of 0 columns, but MovieLens 100K's u.data has 240 of 4"),
        (b"1\t2\t3\t4\n", "1 rows of 4 columns"),
        (b"1\t2\tx\t4\n", "is not a table of numbers"),
        (b"\xff", "is not a table of numbers"),
    ],
)
def test_another_file_is_rejected(content, sentence, table, tmp_path):
    (tmp_path / "u.data").write_bytes(content)
    with pytest.raises(UsageError, match=sentence):
        load_movielens(0, str(tmp_path / "u.data"))
    assert sentence.split()[-1] in str(unavailable_reason(load_ratings, str(tmp_path / "u.data")))


def test_a_changed_value_is_rejected(table, tmp_path):
    table[7, 2] += 1
    (tmp_path / "u.data").write_bytes(text(table))
    with pytest.raises(UsageError, match=r"other values than MovieLens 100K's u.data \(checksum differs\)"):
        load_movielens(0, str(tmp_path / "u.data"))


def test_the_archive_is_downloaded_once(table, tmp_path, monkeypatch):
    monkeypatch.setenv("NORMPLACE_CACHE", str(tmp_path))
    asked = []
    archive = zipped("ml-100k/u.data", text(table))
    monkeypatch.setattr(movielens, "download", lambda url, _: asked.append(url) or archive)
    first = load_movielens(0)
    assert torch.equal(load_movielens(0).train, first.train)
    assert asked == [movielens.URL]
    assert [path.name for path in (tmp_path / "recommend").iterdir()] == ["u.data"]


@pytest.mark.parametrize("answer", [b"<html>busy</html>", zipped("other", b"")])
def test_an_invalid_download_is_not_stored(answer, table, tmp_path, monkeypatch):
    monkeypatch.setenv("NORMPLACE_CACHE", str(tmp_path))
    monkeypatch.setattr(movielens, "download", lambda *_: answer)
    with pytest.raises(UsageError, match=r"did not return an archive with ml-100k/u\.data"):
        load_movielens(0)
    assert not (tmp_path / "recommend").exists()

"""Gowalla: the split from text files and from arrays, and errors for other files."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.lab.tasks.recommend.recommend_cases import clustered

from normplace import UsageError
from normplace.lab.tasks.data_files import unavailable_reason
from normplace.lab.tasks.known_table import row_digest
from normplace.lab.tasks.recommend import gowalla, load_gowalla, read_array_split, read_text_split


@pytest.fixture
def split(monkeypatch):
    interactions = clustered()
    monkeypatch.setattr(
        gowalla, "SHA256", row_digest(interactions.train.T.numpy(), interactions.test.T.numpy(), dtype="<i8")
    )
    return interactions


def lists(pairs, users):
    lines = [[user, *pairs[1][pairs[0] == user].flip(0).tolist()] for user in range(users)]
    return "".join(" ".join(map(str, line)) + "\n" for line in lines).encode()


def write_texts(folder, split):
    folder.mkdir(parents=True, exist_ok=True)
    for name, pairs in (("train.txt", split.train), ("test.txt", split.test)):
        (folder / name).write_bytes(lists(pairs, split.num_users))


def write_arrays(path, split, **changes):
    fields = {"num_users": split.num_users, "num_items": split.num_items, "train": split.train, "test": split.test}
    fields |= changes
    np.savez(path, **{key: np.asarray(value) for key, value in fields.items() if value is not None})


def test_texts_and_arrays_give_the_same_split(split, tmp_path, monkeypatch):
    write_texts(tmp_path / "gowalla", split)
    write_arrays(tmp_path / "gowalla.npz", split)
    from_text = load_gowalla(str(tmp_path / "gowalla" / "train.txt"))
    monkeypatch.setenv("NORMPLACE_DATA", str(tmp_path))
    from_folder = load_gowalla()
    for interactions in (from_text, from_folder, read_array_split(tmp_path / "gowalla.npz")):
        assert (interactions.num_users, interactions.num_items) == (split.num_users, split.num_items)
        assert torch.equal(interactions.train, split.train)
        assert torch.equal(interactions.test, split.test)


def test_a_user_without_items_is_still_a_user(tmp_path):
    (tmp_path / "train.txt").write_text("0 1 2\n1 0\n2\n")
    (tmp_path / "test.txt").write_text("0 0\n3 4 \n")
    interactions = read_text_split(tmp_path / "train.txt", tmp_path / "test.txt")
    assert (interactions.num_users, interactions.num_items) == (4, 5)
    assert interactions.train.tolist() == [[0, 0, 1], [1, 2, 0]]
    assert interactions.test.tolist() == [[0, 3], [0, 4]]


def test_the_text_files_are_downloaded_once(split, tmp_path, monkeypatch):
    monkeypatch.setenv("NORMPLACE_CACHE", str(tmp_path))
    parts = {"train.txt": split.train, "test.txt": split.test}
    asked = []

    def answer(url, remedy):
        asked.append(url)
        return lists(parts[url.rpartition("/")[2]], split.num_users)

    monkeypatch.setattr(gowalla, "download", answer)
    first = load_gowalla()
    assert torch.equal(load_gowalla().train, first.train)
    assert torch.equal(first.train, split.train)
    assert asked == [gowalla.URL + "train.txt", gowalla.URL + "test.txt"]


def test_an_invalid_download_is_not_stored(split, tmp_path, monkeypatch):
    monkeypatch.setenv("NORMPLACE_CACHE", str(tmp_path))
    monkeypatch.setattr(gowalla, "download", lambda url, _: b"0 1\n" if "train" in url else b"0 0\n")
    with pytest.raises(UsageError, match="is not LightGCN's split of Gowalla"):
        load_gowalla()
    assert list(tmp_path.iterdir()) == []


def test_other_files_are_rejected(split, tmp_path):
    write_arrays(tmp_path / "fewer.npz", split, test=split.test[:, 1:])
    assert "is not LightGCN's split" in str(unavailable_reason(load_gowalla, str(tmp_path / "fewer.npz")))
    write_arrays(tmp_path / "lacking.npz", split, num_items=None)
    with pytest.raises(UsageError, match=r"has no field .num_items.: it needs num_users, num_items, train, test"):
        read_array_split(tmp_path / "lacking.npz")
    (tmp_path / "torn.npz").write_bytes(b"PK torn")
    with pytest.raises(UsageError, match=r"torn\.npz is not an \.npz file"):
        read_array_split(tmp_path / "torn.npz")
    (tmp_path / "train.txt").write_text("0 one\n")
    with pytest.raises(UsageError, match="is not a list of whole numbers"):
        load_gowalla(str(tmp_path / "train.txt"))
    (tmp_path / "train.txt").write_text("0 1\n")
    with pytest.raises(UsageError, match=r"cannot read .*test\.txt"):
        load_gowalla(str(tmp_path / "train.txt"))
    assert "NORMPLACE_OFFLINE is set" in str(unavailable_reason(load_gowalla))

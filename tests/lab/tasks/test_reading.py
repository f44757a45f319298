"""Reading data files: damaged archives, archives that expand without end, and what is not a regular file."""

from __future__ import annotations

import gzip
import io
import os
import random
import zipfile

import numpy as np
import pytest

from normplace.errors import UsageError
from normplace.lab.tasks import reading
from normplace.lab.tasks.labelled import load_labelled
from normplace.lab.tasks.reading import open_arrays, read_file, unzip
from normplace.lab.tasks.selection.graph import load_graph


@pytest.fixture
def small_limit(monkeypatch):
    monkeypatch.setattr(reading, "LIMIT", 100_000)


def test_a_file_is_read_packed_or_not(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"text")
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"text"))
    assert read_file(tmp_path / "a.txt") == read_file(tmp_path / "a.txt.gz") == b"text"


def test_a_gzip_bomb_is_refused_before_it_is_unpacked(tmp_path, small_limit):
    (tmp_path / "bomb.gz").write_bytes(gzip.compress(bytes(200_000)))
    with pytest.raises(UsageError, match=r"bomb.gz: it expands to more than"):
        read_file(tmp_path / "bomb.gz")
    (tmp_path / "large").write_bytes(bytes(200_000))
    with pytest.raises(UsageError, match="large: it is larger than"):
        read_file(tmp_path / "large")


def test_a_zip_bomb_is_refused(tmp_path, small_limit):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("data", bytes(200_000))
    with pytest.raises(ValueError, match="expands to more than"):
        unzip(packed.getvalue(), "data")
    np.savez_compressed(tmp_path / "bomb.npz", num_nodes=3, edges=np.zeros((100_000, 2), dtype=np.int64))
    with pytest.raises(ValueError, match="expands to more than"):
        open_arrays(tmp_path / "bomb.npz")
    with pytest.raises(UsageError, match="expands to more than"):
        load_graph(tmp_path / "bomb.npz")


def test_what_is_not_a_regular_file_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(UsageError, match="cannot read"):
            read_file(path)
    with pytest.raises(UsageError, match="not a regular file"):
        load_graph(tmp_path / "pipe")


def test_a_cut_archive_is_one_sentence(tmp_path):
    whole = gzip.compress(random.Random(0).randbytes(1000))
    for cut in (0, 5, 100, len(whole) - 1):
        (tmp_path / "cut.gz").write_bytes(whole[:cut])
        if cut:
            with pytest.raises(UsageError, match="cannot read"):
                read_file(tmp_path / "cut.gz")


def test_no_damage_to_an_array_file_escapes(tmp_path):
    path = tmp_path / "graph.npz"
    np.savez_compressed(path, num_nodes=3, edges=np.array([[0, 1], [1, 2]]))
    whole = path.read_bytes()
    chance = random.Random(0)
    refused = 0
    for _ in range(200):
        damaged = bytearray(whole)
        for _ in range(chance.choice([1, 4])):
            damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
        path.write_bytes(damaged[: chance.choice([len(damaged), chance.randrange(len(damaged))])])
        for read in (load_graph, lambda path: load_labelled("cora", str(path))):
            try:
                read(path)
            except UsageError:
                refused += 1
    assert refused > 300

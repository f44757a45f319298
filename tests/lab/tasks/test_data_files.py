"""Data files: search order, downloads, damaged and oversized archives, and the error messages."""

from __future__ import annotations

import gzip
import http.server
import io
import os
import random
import threading
import zipfile

import numpy as np
import pytest

from normplace import UsageError
from normplace.lab.tasks import data_files
from normplace.lab.tasks.data_files import cache_folder, download, find_file, read_file, store, unzip
from normplace.lab.tasks.graphs.labelled import load_labelled
from normplace.lab.tasks.selection.graph import load_graph


@pytest.fixture
def data(tmp_path, monkeypatch):
    monkeypatch.setenv("NORMPLACE_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("NORMPLACE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "data").mkdir()
    return tmp_path


def test_the_search_goes_from_the_users_own_file_to_the_cache(data):
    assert find_file("", "topic", ["a.csv"]) is None
    for folder in ("cache/topic", "data", "data/topic"):
        (data / folder).mkdir(exist_ok=True, parents=True)
        (data / folder / "a.csv").touch()
        assert find_file("", "topic", ["b.csv", "a.csv"]) == data / folder / "a.csv"
    (data / "mine").touch()
    assert find_file(str(data / "mine"), "topic", ["a.csv"]) == data / "mine"


def test_a_missing_path_raises_a_usage_error(data, monkeypatch):
    with pytest.raises(UsageError, match="there is no file 'nowhere'"):
        find_file("nowhere", "topic", ["a.csv"])
    monkeypatch.setenv("NORMPLACE_DATA", "nowhere")
    with pytest.raises(UsageError, match="NORMPLACE_DATA is 'nowhere', which is not a folder"):
        find_file("", "topic", ["a.csv"])


def test_the_cache_is_in_the_users_cache_folder(monkeypatch, tmp_path):
    monkeypatch.delenv("NORMPLACE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "normplace"


@pytest.fixture
def server():
    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200 if self.path == "/there" else 404)
            self.end_headers()
            self.wfile.write(b"content" if self.path == "/there" else b"")

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{running.server_address[1]}"
        running.shutdown()
        thread.join()


def test_download(server, monkeypatch):
    monkeypatch.setenv("NORMPLACE_OFFLINE", "0")
    assert download(f"{server}/there", "do without") == b"content"
    with pytest.raises(UsageError, match=r"cannot be downloaded \(404 Not Found\): do without\.$"):
        download(f"{server}/gone", "do without")
    with pytest.raises(UsageError, match=r"cannot be downloaded \(.*\): do without\.$"):
        download("http://127.0.0.1:9/closed", "do without")
    monkeypatch.setenv("NORMPLACE_OFFLINE", "1")
    with pytest.raises(UsageError, match="because NORMPLACE_OFFLINE is set: do without"):
        download(f"{server}/there", "do without")


def test_store_leaves_nothing_but_the_whole_file(tmp_path):
    store(tmp_path / "deep" / "file", b"one")
    store(tmp_path / "deep" / "file", b"two")
    assert [path.read_bytes() for path in (tmp_path / "deep").iterdir()] == [b"two"]
    with pytest.raises(UsageError, match="cannot write"):
        store(tmp_path / "deep" / "file" / "inside", b"")


@pytest.fixture
def small_limit(monkeypatch):
    monkeypatch.setattr(data_files, "LIMIT", 100_000)


def test_a_file_is_read_with_and_without_gzip(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"text")
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"text"))
    assert read_file(tmp_path / "a.txt") == read_file(tmp_path / "a.txt.gz") == b"text"


def test_a_gzip_bomb_is_rejected(tmp_path, small_limit):
    (tmp_path / "bomb.gz").write_bytes(gzip.compress(bytes(200_000)))
    with pytest.raises(UsageError, match=r"bomb.gz: it expands to more than"):
        read_file(tmp_path / "bomb.gz")
    (tmp_path / "large").write_bytes(bytes(200_000))
    with pytest.raises(UsageError, match="large: it is larger than"):
        read_file(tmp_path / "large")


def test_a_zip_bomb_is_rejected(tmp_path, small_limit):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("data", bytes(200_000))
    with pytest.raises(UsageError, match="expands to more than"):
        unzip(packed.getvalue(), "data", "http://example.org/data.zip")
    np.savez_compressed(tmp_path / "bomb.npz", num_nodes=3, edges=np.zeros((100_000, 2), dtype=np.int64))
    with pytest.raises(UsageError, match="expands to more than"):
        load_graph(tmp_path / "bomb.npz")


def test_only_regular_files_are_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(UsageError, match="cannot read"):
            read_file(path)
    with pytest.raises(UsageError, match="not a regular file"):
        load_graph(tmp_path / "pipe")


def test_a_truncated_archive_raises_a_usage_error(tmp_path):
    whole = gzip.compress(random.Random(0).randbytes(1000))
    for cut in (0, 5, 100, len(whole) - 1):
        (tmp_path / "cut.gz").write_bytes(whole[:cut])
        if cut:
            with pytest.raises(UsageError, match="cannot read"):
                read_file(tmp_path / "cut.gz")


def test_a_damaged_array_file_raises_a_usage_error(tmp_path):
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

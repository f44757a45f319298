"""Where data files are found, and what a user reads when they are not."""

from __future__ import annotations

import http.server
import threading

import pytest

from normplace import UsageError
from normplace.lab.tasks.files import cache_folder, download, find_file, store


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


def test_a_wrong_path_is_named(data, monkeypatch):
    with pytest.raises(UsageError, match="there is no file 'nowhere'"):
        find_file("nowhere", "topic", ["a.csv"])
    monkeypatch.setenv("NORMPLACE_DATA", "nowhere")
    with pytest.raises(UsageError, match="NORMPLACE_DATA names 'nowhere', which is no folder"):
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

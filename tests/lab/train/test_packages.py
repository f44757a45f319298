from __future__ import annotations

import hashlib
import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from normplace import UsageError
from normplace.lab.train import corpus as reading
from normplace.lab.train import packages
from normplace.lab.train.corpus import load_corpus
from normplace.lab.train.packages import PackageFile, is_held_out, package_files, package_roots, read_packages
from normplace.lab.train.token_cache import TextFile


@pytest.fixture
def site(tmp_path) -> Path:
    """A folder of installed packages: text in three packages, and files that are left out."""
    root = tmp_path / "site-packages"
    texts = {
        "alpha/code.py": b"import beta\n" * 20,
        "alpha/deep/header.H": b"int x;\n",
        "beta/copy_of_code.py": b"import beta\n" * 20,
        "beta/notes.md": b"notes\n",
        "single.py": b"x = 1\n",
        "beta/data.json": b"{}",
        "beta/binary.c": b"a\0b",
        "beta/empty.py": b"",
        "beta/large.txt": b"x" * (packages.LARGEST + 1),
        ".hidden/code.py": b"hidden",
        "alpha/__pycache__/code.py": b"cache",
        "alpha-1.0.dist-info/notes.txt": b"metadata",
        "normplace/code.py": b"itself",
    }
    for name, content in texts.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    return root


@pytest.fixture
def installed(site, monkeypatch, tmp_path) -> Path:
    """The folder as the only one that packages are installed in, and an empty cache."""
    monkeypatch.setattr(reading, "package_roots", lambda: [site])
    monkeypatch.setattr(packages, "HELD_OUT_SHARE", 3)
    monkeypatch.setenv("NORMPLACE_CACHE", str(tmp_path / "cache"))
    return site


def test_text_files_are_found_in_the_order_of_their_paths(site):
    found = [(one.file.path.relative_to(site).as_posix(), one.package) for one in package_files([site])]
    assert found == [
        ("alpha/code.py", "alpha"),
        ("alpha/deep/header.H", "alpha"),
        ("beta/binary.c", "beta"),
        ("beta/copy_of_code.py", "beta"),
        ("beta/notes.md", "beta"),
        ("single.py", "single"),
    ]


def test_equal_files_count_once_and_each_file_is_in_one_part(site, monkeypatch):
    monkeypatch.setattr(packages, "HELD_OUT_SHARE", 3)
    text = read_packages(package_files([site]))
    contents = [b"import beta\n" * 20, b"int x;\n", b"notes\n", b"x = 1\n"]
    parts = {True: b"", False: b""}
    for content in contents:
        parts[is_held_out(hashlib.sha256(content).digest())] += content
    assert (text.held_out, text.train) == (parts[True], parts[False])
    assert [(own.name, own.files) for own in text.packages] == [("alpha", 2), ("beta", 1), ("single", 1)]
    assert sum(own.bytes for own in text.packages) == sum(map(len, contents))


def test_about_one_file_in_fifty_is_held_out():
    digests = [hashlib.sha256(str(number).encode()).digest() for number in range(5000)]
    assert 70 < sum(map(is_held_out, digests)) < 130


def test_installed_packages_are_listed_with_their_versions():
    folder = Path(pytest.__file__).parent
    assert folder.parent in package_roots()
    files = [PackageFile(TextFile.of(path), "pytest") for path in sorted(folder.glob("*.py"))]
    (own,) = read_packages(files).packages
    assert own.distributions == (f"pytest {pytest.__version__}",)
    assert own.files > 1


def test_no_packages(tmp_path):
    with pytest.raises(UsageError, match="no installed packages"):
        package_files([tmp_path])


def test_a_long_text_is_cached_and_memory_mapped(installed, monkeypatch, tmp_path):
    monkeypatch.setattr(packages, "is_held_out", lambda digest: digest[0] % 2 == 0)
    read = load_corpus("packages")
    assert not (tmp_path / "cache").exists()  # short
    monkeypatch.setattr(reading, "CACHED_SIZE", 10)
    written = load_corpus("packages")
    monkeypatch.setattr(reading, "read_packages", None)  # a second reading would fail
    cached = load_corpus("packages")
    for corpus in (written, cached):
        assert isinstance(corpus.train, np.memmap)
        assert np.array_equal(corpus.train, read.train)
        assert np.array_equal(corpus.held_out, read.held_out)
        assert (corpus.name, corpus.vocab_size, corpus.bytes_per_token) == ("packages", 256, 1.0)
        assert (corpus.sha256, corpus.packages) == (read.sha256, read.packages)
    (entry,) = (tmp_path / "cache" / "tokens").iterdir()
    assert json.loads((entry / "manifest.json").read_text())["sha256"] == read.sha256


def test_a_changed_file_is_read_again(monkeypatch, tmp_path):
    monkeypatch.setenv("NORMPLACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(reading, "CACHED_SIZE", 10)
    text = tmp_path / "text.txt"
    text.write_bytes(b"0123456789" * 3)
    assert load_corpus(str(text)).train.tobytes() == (b"0123456789" * 3)[:27]
    text.write_bytes(b"abcdefghij" * 4)
    assert load_corpus(str(text)).train.tobytes() == (b"abcdefghij" * 4)[:36]


def test_an_unwritable_cache(monkeypatch, tmp_path):
    (tmp_path / "cache").write_text("a file")
    monkeypatch.setenv("NORMPLACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(reading, "CACHED_SIZE", 10)
    (tmp_path / "text.txt").write_bytes(b"0123456789" * 3)
    with pytest.raises(UsageError, match="set NORMPLACE_CACHE to another folder"):
        load_corpus(str(tmp_path / "text.txt"))


def test_of_several_processes_one_tokenizes(monkeypatch, tmp_path):
    monkeypatch.setenv("NORMPLACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(reading, "CACHED_SIZE", 10)
    (tmp_path / "text").write_bytes(b"some text of some length\n" * 9)
    tokenize, calls = reading._tokenize, []

    def slowly(text, name):
        calls.append(name)
        time.sleep(0.3)
        return tokenize(text, name)

    monkeypatch.setattr(reading, "_tokenize", slowly)
    with ThreadPoolExecutor() as pool:
        corpora = list(pool.map(load_corpus, [str(tmp_path / "text")] * 3))
    assert calls == ["bytes"]
    assert len({corpus.sha256 for corpus in corpora}) == 1
    monkeypatch.chdir(tmp_path)
    assert load_corpus("text").name == "text"  # another name of the same file
    assert calls == ["bytes"]


def test_the_tokens_of_a_data_set_are_cached_by_its_content(monkeypatch, tmp_path):
    monkeypatch.setenv("NORMPLACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(reading, "CACHED_SIZE", 10)
    content = b"some text of some length\n" * 9
    monkeypatch.setattr(reading, "_dataset", lambda source: content)
    first, again = load_corpus("hf:any"), load_corpus("hf:any")
    assert isinstance(again.train, np.memmap)
    assert again.sha256 == first.sha256
    content = content.upper()
    assert load_corpus("hf:any").sha256 != first.sha256

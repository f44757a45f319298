"""References to objects in modules and files."""

from __future__ import annotations

import subprocess
import sys

import pytest

from normplace._shared.references import is_file_reference, load_reference
from normplace.errors import UsageError


@pytest.fixture(autouse=True)
def clean_imports(monkeypatch, tmp_path):
    """Undo the imports of a test."""
    monkeypatch.setattr(sys, "path", sys.path.copy())
    monkeypatch.chdir(tmp_path)
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_a_module_of_the_current_folder(tmp_path):
    (tmp_path / "own_reference_module.py").write_text("value = 3\n")
    assert load_reference("own_reference_module:value") == 3


def test_a_file_imports_its_neighbours(tmp_path):
    folder = tmp_path / "some folder"
    folder.mkdir()
    (folder / "own_sizes.py").write_text("WIDTH = 8\n")
    (folder / "own_network.py").write_text(
        "from __future__ import annotations\nfrom dataclasses import dataclass\nfrom own_sizes import WIDTH\n"
        "@dataclass\nclass Size:\n    width: int = WIDTH\n"
    )
    assert load_reference("some folder/own_network.py:Size")().width == 8
    assert load_reference(f"{folder}/own_network.py:Size") is load_reference("own_network:Size")


def test_a_file_in_a_package_keeps_its_relative_imports(tmp_path):
    package = tmp_path / "own_package" / "inner"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").touch()
    (package.parent / "sizes.py").write_text("WIDTH = 8\n")
    (package / "network.py").write_text("from ..sizes import WIDTH\n")
    assert load_reference("own_package/inner/network.py:WIDTH") == 8
    assert load_reference("own_package.inner.network:WIDTH") == 8


@pytest.mark.parametrize(
    ("reference", "sentence"),
    [
        ("missing.py:f", "there is no file 'missing.py'"),
        ("folder.py:f", "there is no file 'folder.py'"),
        ("a\0b.py:f", "not a possible file name"),
        ("a\nb.py:f", r"there is no file 'a\\nb.py'"),
        ("n" * 300 + ".py:f", "File name too long|possible file name|there is no file"),
        ("two-words.py:f", "rename the file so that 'two-words' is a module name"),
        ("types.py:f", "another module is called 'types'; rename the file"),
        ("binary.py:f", "importing 'binary' failed"),
        ("present.py:absent", "module 'present.py' has no 'absent'"),
        ("present.py:", "write package.module:name or file.py:name"),
        ("present.py", "write package.module:name or file.py:name"),
        (":f", "write package.module:name or file.py:name"),
        ("present.py:f()", "write package.module:name or file.py:name"),
    ],
)
def test_a_wrong_reference_is_one_sentence(reference, sentence, tmp_path):
    (tmp_path / "folder.py").mkdir()
    (tmp_path / "two-words.py").touch()
    (tmp_path / "types.py").touch()
    (tmp_path / "binary.py").write_bytes(bytes(range(256)))
    (tmp_path / "present.py").touch()
    with pytest.raises(UsageError, match=sentence) as error:
        load_reference(reference)
    assert "\n" not in str(error.value)


def test_references_to_files_are_recognized():
    assert is_file_reference("a/b.py:f")
    assert is_file_reference(r"C:\models\mine.py:f")
    assert not is_file_reference("a.b:f")
    assert not is_file_reference("py:f")


def test_the_current_folder_is_not_importable_in_safe_mode(tmp_path):
    (tmp_path / "own_unsafe_module.py").write_text("value = 3\n")
    code = "from normplace._shared.references import load_reference; load_reference('own_unsafe_module:value')"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False)
    assert "cannot import 'own_unsafe_module': run from its folder, or set PYTHONPATH." in done.stderr

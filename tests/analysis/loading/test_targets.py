"""What the argument TARGET of a command names."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from normplace.analysis.loading import targets
from normplace.analysis.loading.targets import ConfigTarget, FactoryTarget, find_target
from normplace.errors import UsageError


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_references_are_factories():
    assert find_target("package.module:build") == FactoryTarget("package.module:build")
    assert find_target("models/mine.py:build") == FactoryTarget("models/mine.py:build")


def test_files_and_folders_come_before_ids_of_the_hub(folder, monkeypatch):
    monkeypatch.setattr(targets, "fetch_config", lambda model_id: (Path("downloaded.json"), "a note"))
    (folder / "google" / "gemma").mkdir(parents=True)
    (folder / "google" / "gemma" / "config.json").write_text(json.dumps({}))
    (folder / "gpt2").write_text("{}")
    (folder / "odd:name").write_text("{}")
    assert find_target("google/gemma") == ConfigTarget(Path("google/gemma"))
    assert find_target("google/gemma/config.json") == ConfigTarget(Path("google/gemma/config.json"))
    assert find_target("gpt2") == ConfigTarget(Path("gpt2"))
    assert find_target("odd:name") == ConfigTarget(Path("odd:name"))
    pytest.importorskip("transformers", reason="needs transformers: pip install 'normplace[hf]'")
    assert find_target("google/other") == ConfigTarget(Path("downloaded.json"), "a note")


@pytest.mark.parametrize(
    ("target", "sentence"),
    [
        ("mine.py", r"mine.py needs the name of a function that returns \(model, inputs\): mine.py:function."),
        ("mine", r"mine needs the name of a function that returns \(model, inputs\): mine:function."),
        ("empty", "the folder 'empty' has no config.json"),
        ("missing.py", "there is no file or folder 'missing.py'"),
        ("missing.json", "there is no file or folder 'missing.json'"),
        ("./missing", "there is no file or folder './missing'"),
        ("/missing/folder", "there is no file or folder"),
        ("a/b/c", "there is no file or folder 'a/b/c'"),
        ("", "there is no file or folder ''"),
        ("a\nb", r"there is no file or folder 'a\\nb'"),
        ("a\0b", r"there is no file or folder 'a\\x00b'"),
        ("\udcff", "there is no file or folder"),
        ("n" * 5000, "there is no file or folder"),
    ],
)
def test_a_target_that_names_nothing_is_one_sentence(target, sentence, folder):
    (folder / "mine.py").touch()
    (folder / "empty").mkdir()
    with pytest.raises(UsageError, match=sentence) as error:
        find_target(target)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 400


def test_a_hub_id_without_transformers_is_not_downloaded(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr(targets, "fetch_config", lambda model_id: pytest.fail("downloaded"))
    with pytest.raises(UsageError, match=r"needs 'transformers': pip install 'normplace\[hf\]'"):
        find_target("google/gemma")


@pytest.mark.skipif(os.name == "nt", reason="Windows has no named pipes in folders")
def test_special_files_are_one_sentence(folder, capsys):
    from normplace.cli import main

    pytest.importorskip("transformers", reason="needs transformers: pip install 'normplace[hf]'")
    os.mkfifo(folder / "pipe")
    (folder / "binary").write_bytes(bytes(range(256)))
    for target in ("pipe", "binary", "/dev/null"):
        assert main(["audit", target]) == 2
        assert capsys.readouterr().err.count("\n") == 1

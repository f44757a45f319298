"""Where the code of a study is, which files belong to it, and what changes between two runs."""

from __future__ import annotations

import hashlib
import sys

import pytest
from tests.lab.trials.own_study import CODE

from normplace import UsageError
from normplace.lab.studies import STUDIES
from normplace.lab.trials.code_bundle import find_files, pack
from normplace.lab.trials.source import StudySource, changed_files, locate
from normplace.lab.trials.study import load_study


def source_of(file) -> StudySource:
    source = load_study(str(file), {}).source
    assert source is not None
    return source


def test_the_code_is_the_file_and_what_it_imports_from_its_folder(own_study):
    source = source_of(own_study)
    assert (source.module, source.attribute, source.folder) == ("own_levers", "STUDY", own_study.parent)
    assert source.hashes().keys() == CODE
    assert source.hashes()["own_levers.py"] == hashlib.sha256(own_study.read_bytes()).hexdigest()
    assert StudySource.from_dict(source.to_dict()) == source


def test_the_argument_is_a_path_that_works_here(own_study, monkeypatch):
    source = source_of(own_study)
    assert source.argument == str(own_study)
    monkeypatch.chdir(own_study.parent.parent)
    assert source.argument == "project/own_levers.py"
    assert StudySource("own_levers", "OTHER", own_study.parent).argument == "project/own_levers.py:OTHER"


def test_a_module_in_a_folder_without_init_is_named_by_its_module(own_study, monkeypatch):
    monkeypatch.chdir(own_study.parent)
    (own_study.parent / "plain").mkdir()
    (own_study.parent / "plain" / "nested_study.py").write_text("from own_levers import STUDY\n")
    source = load_study("plain.nested_study:STUDY", {}).source
    assert source is not None
    assert source.argument == "plain.nested_study:STUDY"
    assert source.hashes().keys() == CODE | {"plain/nested_study.py"}


def test_studies_of_normplace_and_of_installed_packages_have_no_files():
    study = load_study("periln", STUDIES)
    assert study.source is None
    assert study.argument == "periln"
    import torch

    source = locate("torch.nn:STUDY")
    assert torch.nn.__name__ == "torch.nn"
    assert source == StudySource("torch.nn", "STUDY", None)
    assert source.to_dict() == {"module": "torch.nn", "attribute": "STUDY"}
    assert source.argument == "torch.nn:STUDY"
    assert pack(source, ["data.csv"]) is None


def test_changed_files_are_named(own_study):
    before = source_of(own_study).to_dict()
    (own_study.parent / "late_import.py").write_text("FACTOR = 4.0\n")
    own_study.write_text(own_study.read_text().replace("from levers.length import", "from lengths import"))
    after = StudySource.from_dict(before).to_dict()
    assert changed_files(before, after) == sorted(CODE)
    assert changed_files(before, before) == []
    assert changed_files({}, after) == [], "older lines have no source"


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"module": "a b", "attribute": "c"},
        {"module": "a", "attribute": 1},
        {"module": "a", "attribute": "b", "folder": 3},
    ],
)
def test_a_wrong_source_is_an_error(data):
    with pytest.raises(UsageError, match="wrong 'source': add --study"):
        StudySource.from_dict(data)


def test_two_modules_of_one_name_are_an_error(own_study, tmp_path):
    source_of(own_study)
    other = tmp_path / "other"
    other.mkdir()
    (other / "second_study.py").write_text(own_study.read_text().replace('"levers"', '"second"'))
    (other / "levers").mkdir()
    (other / "levers" / "length.py").write_text("LENGTHS = {}\n")
    with pytest.raises(UsageError, match=r"second_study.py imports 'levers.length', but .*project.* has the same name"):
        load_study(str(other / "second_study.py"), {})


def test_files_of_a_study_must_exist_in_its_folder(own_study):
    source = source_of(own_study)
    assert [path.name for path in find_files(source, ["weights"])] == ["iron.txt"]
    with pytest.raises(UsageError, match=r"file 'wieghts' does not exist: there is no .*project/wieghts"):
        find_files(source, ["wieghts"])
    with pytest.raises(UsageError, match=r"is outside .*project: copy it there"):
        find_files(source, ["../elsewhere"])


def test_a_bundle_is_unpacked_once_and_replaced_by_a_newer_one(own_study):
    bundle = pack(source_of(own_study), ["weights"])
    assert bundle is not None
    assert bundle.files.keys() == CODE | {"weights/iron.txt"}
    for name in ("own_levers", *(name for name in list(sys.modules) if name.startswith("levers"))):
        del sys.modules[name]
    first = bundle.load()
    assert bundle.load() is first
    assert own_study.parent != first.HERE
    assert first.run(first.Lift("long", 0)).metrics == {"lifted": 42.0, "original": 0.0}
    (own_study.parent / "late_import.py").write_text("FACTOR = 4.0\n")
    newer = pack(StudySource("own_levers", "STUDY", own_study.parent), ["weights"])
    assert newer is not None
    second = newer.load()
    assert not first.HERE.exists()
    assert second.run(second.Lift("long", 0)).metrics == {"lifted": 56.0, "original": 0.0}


def test_a_bundle_has_a_largest_size(own_study, monkeypatch):
    monkeypatch.setattr("normplace.lab.trials.code_bundle.LARGEST", 10)
    with pytest.raises(UsageError, match="larger than 10 bytes: put the data where every worker can reach it"):
        pack(source_of(own_study), [])

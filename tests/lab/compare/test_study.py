"""The user's modules reach the workers of a comparison."""

from __future__ import annotations

import sys

import pytest

from normplace._shared.references import load_reference
from normplace.errors import UsageError
from normplace.lab.compare.study import STUDY, ComparisonCode


@pytest.fixture
def modules(tmp_path, monkeypatch):
    """A task and an edit in different folders; they are forgotten after the test."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    for folder, name, text in (("one", "shipped_task", "import shipped_part"), ("two", "shipped_edit", "")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"{name}.py").write_text(f"{text}\ndef function(): pass\n")
        (tmp_path / folder / "data.txt").write_text(folder)
    (tmp_path / "one" / "shipped_part.py").write_text("")
    load_reference(f"{tmp_path}/one/shipped_task.py:function")
    load_reference(f"{tmp_path}/two/shipped_edit.py:function")
    yield ["shipped_task:function", "shipped_edit:function"]
    for name in ("shipped_task", "shipped_part", "shipped_edit"):
        sys.modules.pop(name, None)


def test_workers_of_this_machine_import_from_the_folders(modules, tmp_path):
    code = ComparisonCode.collect(modules, remote=False)
    assert code.bundle is None and code.source["folder"] == str(tmp_path / "one")
    for name in ("shipped_task", "shipped_edit"):
        del sys.modules[name]
    sys.path[:] = [entry for entry in sys.path if not entry.startswith(str(tmp_path))]
    assert code.load() is STUDY
    assert {"shipped_task", "shipped_edit"} <= sys.modules.keys()


def test_other_machines_receive_code_and_files(modules):
    code = ComparisonCode.collect(modules, remote=True, files=("data.txt",))
    assert code.bundle is not None
    assert code.bundle.files.keys() == {"shipped_task.py", "shipped_part.py", "shipped_edit.py", "data.txt"}
    assert code.bundle.files["data.txt"] == b"one"


def test_two_different_files_of_the_same_name_are_refused(modules, tmp_path):
    (tmp_path / "two" / "shipped_part.py").write_text("other = 1\n")
    (tmp_path / "two" / "shipped_edit.py").write_text("import shipped_part\ndef function(): pass\n")
    with pytest.raises(UsageError, match=r"two different files are called 'shipped_part\.py'"):
        ComparisonCode.collect(modules, remote=True)


def test_tasks_of_normplace_need_no_code():
    code = ComparisonCode.collect(["normplace.lab.compare.study:STUDY"], remote=True)
    assert code.bundle is None and code.source == {} and code.load() is STUDY

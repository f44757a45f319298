"""Text as bytes: files, the split, and windows."""

from __future__ import annotations

import gzip
import hashlib

import pytest
import torch

from normplace import UsageError
from normplace.lab.tasks.data_files import unavailable_reason
from normplace.lab.tasks.sequences import load_text
from normplace.lab.tasks.sequences.text import find_text

CONTENT = bytes(range(200)) * 3


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "counted.txt.gz").write_bytes(gzip.compress(CONTENT))
    monkeypatch.setenv("NORMPLACE_DATA", str(tmp_path))
    return tmp_path / "text"


def test_a_file_is_split_at_nine_tenths(folder):
    text = load_text("counted", 16)
    assert bytes(text.train.tolist()) == CONTENT[:540]
    assert bytes(text.valid.tolist()) == CONTENT[540:]
    assert text.digest == hashlib.sha256(CONTENT).hexdigest()


def test_windows_are_slices(folder):
    text = load_text("counted", 16)
    inputs, targets = text.draw(400, torch.Generator().manual_seed(0))
    train = text.train.tolist()
    for row, wanted in zip(inputs.tolist(), targets.tolist(), strict=True):
        assert row[1:] == wanted[:-1]
        assert any(train[n : n + 17] == [*row, wanted[-1]] for n in range(len(train) - 16))
    exam = text.evaluation_batch(100)
    assert exam.inputs.flatten().tolist() == text.valid[:48].tolist()
    assert exam.targets.flatten().tolist() == text.valid[1:49].tolist()


def test_the_standard_library_is_always_there():
    text = load_text("python", 64)
    assert len(text.train) > 4 * len(text.valid) > 10**5
    assert b"import" in bytes(text.valid[:20_000].tolist())
    assert load_text("python", 64).digest == text.digest
    assert unavailable_reason(find_text, "python") is None


def test_invalid_arguments_raise_a_usage_error(folder, tmp_path):
    assert "there is no text 'missing'" in str(unavailable_reason(find_text, "missing"))
    with pytest.raises(UsageError, match="there is no file"):
        load_text(str(tmp_path / "nothing.txt"), 8)
    with pytest.raises(UsageError, match="shorter part has 60 bytes"):
        load_text("counted", 60)
    (folder / "broken.txt.gz").write_bytes(b"no archive")
    with pytest.raises(UsageError, match="cannot read"):
        load_text("broken", 8)

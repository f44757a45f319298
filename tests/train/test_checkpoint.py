from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from tests.train.training_cases import ALONE, network

from normplace.errors import UsageError
from normplace.train import checkpoint


def state(seed, steps=3):
    """A network after some steps, with its optimizer."""
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    chance = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randint(31, (2, 5), generator=chance)).square().mean().backward()
        optimizer.step()
    return model, optimizer


def facts(model, optimizer):
    held = {key: value.detach().clone() for key, value in checkpoint._tensors(model, optimizer)}
    assert len(held) == 4 * len(list(model.parameters()))
    return held


def same(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[key], second[key]) for key in first)


def test_all_state_comes_back(tmp_path):
    model, optimizer = state(0)
    torch.manual_seed(5)
    checkpoint.save(tmp_path, 3, model, optimizer, {"word": [1.5]}, ALONE)
    expected, drawn = facts(model, optimizer), torch.rand(3)
    other = network()
    fresh = torch.optim.AdamW(other.parameters(), lr=1e-2, fused=True)
    path = checkpoint.newest(tmp_path)
    assert path is not None
    checkpoint.load(path, other, fresh, ALONE)
    assert same(facts(other, fresh), expected)
    assert torch.equal(torch.rand(3), drawn)
    assert checkpoint.read_manifest(path) == {"format": 1, "step": 3, "processes": 1, "word": [1.5]}


def test_the_newest_two_are_kept(tmp_path):
    model, optimizer = state(0, steps=1)
    assert checkpoint.newest(tmp_path) is None
    for step in (1, 2, 9, 10):
        checkpoint.save(tmp_path, step, model, optimizer, {}, ALONE)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["latest", "step-00000009", "step-00000010"]
    assert (tmp_path / "latest").read_text() == "step-00000010\n"


def test_the_one_that_is_named_is_kept_however_many_later_ones_there_are(tmp_path):
    model, optimizer = state(0, steps=1)
    for step in (20, 30):
        checkpoint.save(tmp_path, step, model, optimizer, {}, ALONE)
    checkpoint.save(tmp_path / "other", 10, model, optimizer, {}, ALONE)
    (tmp_path / "other" / "step-00000010").rename(tmp_path / "step-00000010")
    (tmp_path / "latest").write_text("step-00000010\n")  # as one does when the later ones are of no use
    checkpoint.save(tmp_path, 15, model, optimizer, {}, ALONE)
    assert [path.name for path in checkpoint._whole(tmp_path)] == ["step-00000010", "step-00000015"]
    path = checkpoint.newest(tmp_path)
    assert path is not None
    assert path.name == "step-00000015"


def full_disk(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("fails", ["tensors", "fsync", "rename", "pointer"])
def test_a_full_disk_leaves_the_checkpoint_before_it(tmp_path, monkeypatch, fails):
    model, optimizer = state(0)
    checkpoint.save(tmp_path, 3, model, optimizer, {}, ALONE)
    expected = facts(model, optimizer)
    with monkeypatch.context() as patch:
        if fails == "tensors":
            patch.setattr(checkpoint, "_file", lambda rank: "/dev/full")  # which every write to is refused by
        elif fails == "fsync":
            patch.setattr("os.fsync", full_disk)
        elif fails == "rename":
            patch.setattr("pathlib.Path.rename", full_disk)
        else:
            patch.setattr("pathlib.Path.replace", full_disk)
        complaint = r"step 4 cannot be written to .*No space left on device\): step-00000003 is intact"
        with pytest.raises(UsageError, match=complaint) as caught:
            checkpoint.save(tmp_path, 4, *state(1), {}, ALONE)
        assert "\n" not in str(caught.value)
    assert not list(tmp_path.glob("step-*.part"))
    path = checkpoint.newest(tmp_path)
    assert path is not None
    assert path.name == "step-00000003"
    other = network()
    fresh = torch.optim.AdamW(other.parameters(), lr=1e-2, fused=True)
    checkpoint.load(path, other, fresh, ALONE)
    assert same(facts(other, fresh), expected)
    checkpoint.save(tmp_path, 4, *state(1), {}, ALONE)  # once there is space again
    path = checkpoint.newest(tmp_path)
    assert path is not None
    assert path.name == "step-00000004"


TOUCHES = [(os, "fsync"), (Path, "rename"), (Path, "replace"), (Path, "mkdir"), (shutil, "rmtree")]


def test_every_moment_of_a_save_leaves_a_readable_checkpoint(tmp_path, monkeypatch):
    """The process ends at every call that touches the disk, in turn; what is left must load."""
    model, optimizer = state(0, steps=1)
    checkpoint.save(tmp_path / "before", 3, model, optimizer, {}, ALONE)

    class Killed(BaseException):
        pass

    moments = 0
    while True:
        folder = tmp_path / f"moment{moments}"
        shutil.copytree(tmp_path / "before", folder)
        calls = 0

        def dying(function, moment=moments):
            def call(*arguments, **options):
                nonlocal calls
                if calls == moment:
                    raise Killed
                calls += 1
                return function(*arguments, **options)

            return call

        finished = False
        with monkeypatch.context() as patch:
            for owner, name in TOUCHES:
                patch.setattr(owner, name, dying(getattr(owner, name)))
            try:
                checkpoint.save(folder, 4, model, optimizer, {}, ALONE)
                finished = True
            except Killed:
                pass
        path = checkpoint.newest(folder)
        assert path is not None
        other = network()
        fresh = torch.optim.AdamW(other.parameters(), lr=1e-2, fused=True)
        checkpoint.load(path, other, fresh, ALONE)
        checkpoint.save(folder, 4, model, optimizer, {}, ALONE)  # the run that goes on is not in the way of the old one
        assert not list(folder.glob("*.part"))
        if finished:
            break
        moments += 1
    assert moments >= 9


def test_a_damaged_checkpoint_is_said_with_the_remedy(tmp_path):
    model, optimizer = state(0)
    for step in (1, 2):
        checkpoint.save(tmp_path, step, model, optimizer, {}, ALONE)
    path = checkpoint.newest(tmp_path)
    assert path is not None
    content = (path / "process-0.pt").read_bytes()
    (path / "process-0.pt").write_bytes(content[: len(content) // 2])
    with pytest.raises(UsageError, match=r"cannot be read .*write 'step-00000001' into .*latest\.") as caught:
        checkpoint.load(path, model, optimizer, ALONE)
    assert "\n" not in str(caught.value)
    (path / "manifest.json").write_text("{")
    with pytest.raises(UsageError, match="write 'step-00000001' into"):
        checkpoint.read_manifest(path)
    (path / "manifest.json").write_text(json.dumps({"format": 99}))
    with pytest.raises(UsageError, match="of format 99, this version reads format 1"):
        checkpoint.read_manifest(path)
    shutil.rmtree(path)
    with pytest.raises(UsageError, match="names 'step-00000002', which is not there"):
        checkpoint.newest(tmp_path)


def test_another_network_is_refused_by_its_first_difference(tmp_path):
    checkpoint.save(tmp_path, 1, *state(0), {}, ALONE)
    path = checkpoint.newest(tmp_path)
    assert path is not None
    other = network("pre")
    with pytest.raises(UsageError, match=r"is of another network: its .* is 16, here it is absent"):
        checkpoint.load(path, other, torch.optim.AdamW(other.parameters()), ALONE)

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from tests.lab.train.training_cases import ALONE, network

from normplace.errors import UsageError
from normplace.lab.train import checkpoint
from normplace.lab.train.checkpoint_shards import named_tensors
from normplace.models.weights import read_sealed, seal, write_tensors

safetensors = pytest.importorskip("safetensors", reason="checkpoints are kept as safetensors")


def state(seed, steps=3):
    """Return a network after some steps, with its optimizer."""
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    rng = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randint(31, (2, 5), generator=rng)).square().mean().backward()
        optimizer.step()
    return model, optimizer


def saved_tensors(model, optimizer):
    tensors = {key: value.detach().clone() for key, value in named_tensors(model, optimizer)}
    assert len(tensors) == 4 * len(list(model.parameters()))
    return tensors


def same(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[key], second[key]) for key in first)


def test_model_optimizer_and_rng_state_are_restored(tmp_path):
    model, optimizer = state(0)
    torch.manual_seed(5)
    checkpoint.save(tmp_path, 3, model, optimizer, {"word": [1.5]}, ALONE)
    expected, drawn = saved_tensors(model, optimizer), torch.rand(3)
    other = network()
    fresh = torch.optim.AdamW(other.parameters(), lr=1e-2, fused=True)
    path = checkpoint.newest(tmp_path)
    assert path is not None
    checkpoint.load(path, other, fresh, ALONE)
    assert same(saved_tensors(other, fresh), expected)
    assert torch.equal(torch.rand(3), drawn)
    manifest = checkpoint.read_manifest(path)
    files = manifest.pop("files")
    assert manifest == {"format": 2, "step": 3, "processes": 1, "word": [1.5]}
    content = (path / "process-0.safetensors").read_bytes()
    assert files == {
        "process-0.safetensors": {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()},
    }


def test_the_newest_two_are_kept(tmp_path):
    model, optimizer = state(0, steps=1)
    assert checkpoint.newest(tmp_path) is None
    for step in (1, 2, 9, 10):
        checkpoint.save(tmp_path, step, model, optimizer, {}, ALONE)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["latest", "step-00000009", "step-00000010"]
    assert (tmp_path / "latest").read_text() == "step-00000010\n"


def test_the_checkpoint_named_by_latest_is_kept(tmp_path):
    model, optimizer = state(0, steps=1)
    for step in (20, 30):
        checkpoint.save(tmp_path, step, model, optimizer, {}, ALONE)
    checkpoint.save(tmp_path / "other", 10, model, optimizer, {}, ALONE)
    (tmp_path / "other" / "step-00000010").rename(tmp_path / "step-00000010")
    (tmp_path / "latest").write_text("step-00000010\n")  # as a user does if the later ones are damaged
    checkpoint.save(tmp_path, 15, model, optimizer, {}, ALONE)
    assert [path.name for path in checkpoint.complete_checkpoints(tmp_path)] == ["step-00000010", "step-00000015"]
    path = checkpoint.newest(tmp_path)
    assert path is not None
    assert path.name == "step-00000015"


def full_disk(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("fails", ["tensors", "fsync", "rename", "pointer"])
def test_a_full_disk_keeps_the_previous_checkpoint(tmp_path, monkeypatch, fails):
    model, optimizer = state(0)
    checkpoint.save(tmp_path, 3, model, optimizer, {}, ALONE)
    expected = saved_tensors(model, optimizer)
    with monkeypatch.context() as patch:
        if fails == "tensors":
            patch.setattr(checkpoint, "file_name", lambda rank: "/dev/full")  # every write to it fails
        elif fails == "fsync":
            patch.setattr("os.fsync", full_disk)
        elif fails == "rename":
            patch.setattr("pathlib.Path.rename", full_disk)
        else:
            patch.setattr("pathlib.Path.replace", full_disk)
        message = r"cannot write the checkpoint of step 4 to .*No space left on device\): step-00000003 is intact"
        with pytest.raises(UsageError, match=message) as caught:
            checkpoint.save(tmp_path, 4, *state(1), {}, ALONE)
        assert "\n" not in str(caught.value)
    assert not list(tmp_path.glob("step-*.part"))
    path = checkpoint.newest(tmp_path)
    assert path is not None
    assert path.name == "step-00000003"
    other = network()
    fresh = torch.optim.AdamW(other.parameters(), lr=1e-2, fused=True)
    checkpoint.load(path, other, fresh, ALONE)
    assert same(saved_tensors(other, fresh), expected)
    checkpoint.save(tmp_path, 4, *state(1), {}, ALONE)  # after space was freed
    path = checkpoint.newest(tmp_path)
    assert path is not None
    assert path.name == "step-00000004"


TOUCHES = [(os, "fsync"), (Path, "rename"), (Path, "replace"), (Path, "mkdir"), (shutil, "rmtree")]


def test_a_kill_at_any_moment_of_a_save_leaves_a_readable_checkpoint(tmp_path, monkeypatch):
    """The process is killed at each call that touches the disk, one after another; the rest must load."""
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
        checkpoint.save(folder, 4, model, optimizer, {}, ALONE)  # a resumed run can save again
        assert not list(folder.glob("*.part"))
        if finished:
            break
        moments += 1
    assert moments >= 9


def resealed(path, **changes):
    """Change fields of a manifest and update its hash, as a faulty writer would."""
    manifest = read_sealed(path / "manifest.json")
    (path / "manifest.json").write_text(json.dumps(seal({**manifest, **changes})))


def rewritten(path, change):
    """Change the tensors of a checkpoint and update the hashes."""
    file = path / "process-0.safetensors"
    with safetensors.safe_open(str(file), framework="pt") as reader:
        tensors = {key: reader.get_tensor(key).clone() for key in reader.keys()}  # noqa: SIM118
        metadata = dict(reader.metadata())
    change(tensors, metadata)
    with file.open("wb") as stream:
        described = {"sha256": write_tensors(stream, tensors, metadata)}
    resealed(path, files={file.name: {"bytes": file.stat().st_size, **described}})


def flip(file, bit):
    content = bytearray(file.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    file.write_bytes(content)


def cut(file, share):
    content = file.read_bytes()
    file.write_bytes(content[: int(share * len(content))])


def fewer_rows(tensors, metadata):
    tensors["model/embed.weight"] = tensors["model/embed.weight"][:-1]


def other_dtype(tensors, metadata):
    tensors["model/embed.weight"] = tensors["model/embed.weight"].half()


def no_random_state(tensors, metadata):
    del tensors["random/cpu"]


def no_mean(tensors, metadata):
    del tensors["optimizer/exp_avg/embed.weight"]


def no_places(tensors, metadata):
    metadata["rows"] = "[]"


FILE = "process-0.safetensors"
DAMAGES = {
    "a bit of the header": lambda path: flip(path / FILE, 8 * 100),
    "a bit of the length": lambda path: flip(path / FILE, 30),
    "a bit of a weight": lambda path: flip(path / FILE, 8 * (path / FILE).stat().st_size - 20_001),
    "the last bit": lambda path: flip(path / FILE, 8 * (path / FILE).stat().st_size - 1),
    "half of it": lambda path: cut(path / FILE, 0.5),
    "nothing of it": lambda path: cut(path / FILE, 0.0),
    "a byte more": lambda path: (path / FILE).write_bytes((path / FILE).read_bytes() + b"\0"),
    "no tensors": lambda path: (path / FILE).unlink(),
    "renamed": lambda path: (path / FILE).rename(path / "process-1.safetensors"),
    "a folder instead": lambda path: ((path / FILE).unlink(), (path / FILE).mkdir()),
    "those of the other": lambda path: shutil.copy(path.parent / "step-00000001" / FILE, path / FILE),
    "no manifest": lambda path: (path / "manifest.json").unlink(),
    "an empty manifest": lambda path: cut(path / "manifest.json", 0.0),
    "half a manifest": lambda path: cut(path / "manifest.json", 0.5),
    "a list for a manifest": lambda path: (path / "manifest.json").write_text("[]"),
    "a deep manifest": lambda path: (path / "manifest.json").write_text("[" * 100_000),
    "a binary manifest": lambda path: (path / "manifest.json").write_bytes(b"\xff\xfe\x00"),
    "another step": lambda path: (path / "manifest.json").write_text(
        (path / "manifest.json").read_text().replace('"step": 2', '"step": 1000000')
    ),
    "another step, sealed": lambda path: resealed(path, step=1000000),
    "no process, sealed": lambda path: resealed(path, processes=0),
    "endless processes, sealed": lambda path: resealed(path, processes=10**15),
    "two processes, sealed": lambda path: resealed(path, processes=2),
    "a word for the files, sealed": lambda path: resealed(path, files="process-0.safetensors"),
    "no hash, sealed": lambda path: resealed(path, files={FILE: {"bytes": (path / FILE).stat().st_size}}),
    "fewer rows, sealed": lambda path: rewritten(path, fewer_rows),
    "no RNG state, sealed": lambda path: rewritten(path, no_random_state),
    "half the optimizer, sealed": lambda path: rewritten(path, no_mean),
    "no places, sealed": lambda path: rewritten(path, no_places),
    "the manifest of the other": lambda path: shutil.copy(
        path.parent / "step-00000001" / "manifest.json", path / "manifest.json"
    ),
}


def resume(folder):
    """Return the tensors after resuming, before the next step."""
    path = checkpoint.newest(folder)
    assert path is not None
    other = network()
    fresh = torch.optim.AdamW(other.parameters(), lr=1e-2, fused=True)
    checkpoint.load(path, other, fresh, ALONE)
    return saved_tensors(other, fresh)


@pytest.mark.parametrize("damage", DAMAGES)
def test_the_error_for_a_damaged_checkpoint_offers_the_previous_one(tmp_path, damage):
    model, optimizer = state(0)
    checkpoint.save(tmp_path, 1, model, optimizer, {}, ALONE)
    expected = saved_tensors(model, optimizer)
    checkpoint.save(tmp_path, 2, *state(1), {}, ALONE)
    DAMAGES[damage](tmp_path / "step-00000002")
    with pytest.raises(UsageError, match=r"step-00000002 is damaged \(.*\): step-00000001 is intact; to ") as caught:
        resume(tmp_path)
    assert "\n" not in str(caught.value)
    command = re.search("`(.*)`", str(caught.value))
    assert command is not None
    subprocess.run(command[1], shell=True, check=True)
    assert same(resume(tmp_path), expected)


def test_no_checkpoint_is_offered_if_none_is_intact(tmp_path):
    for step in (1, 2):
        checkpoint.save(tmp_path, step, *state(0), {}, ALONE)
        flip(tmp_path / f"step-0000000{step}" / FILE, 99_999)
    with pytest.raises(UsageError, match="no other checkpoint is intact, so choose another output folder"):
        resume(tmp_path)


@pytest.mark.parametrize("content", [b"", b"\xff\x00\xfe", b"step-00000009\n", b"../run/step-00000002", b"step-2"])
def test_the_error_for_a_damaged_pointer_offers_the_newest_intact_checkpoint(tmp_path, content):
    for step in (1, 2):
        checkpoint.save(tmp_path, step, *state(0), {}, ALONE)
    (tmp_path / "latest").write_bytes(content)
    with pytest.raises(UsageError, match=r"latest (is damaged|names).*: step-00000002 is intact") as caught:
        checkpoint.newest(tmp_path)
    assert "\n" not in str(caught.value)


def test_without_a_pointer_the_newest_checkpoint_is_used(tmp_path):
    """A run that is killed before it writes its first pointer leaves none."""
    for step in (1, 2):
        checkpoint.save(tmp_path, step, *state(0), {}, ALONE)
    (tmp_path / "latest").unlink()
    (tmp_path / "step-00000003.part").mkdir()
    assert checkpoint.newest(tmp_path) == tmp_path / "step-00000002"
    (tmp_path / "latest").mkdir()
    with pytest.raises(UsageError, match=r"cannot read .*latest"):
        checkpoint.newest(tmp_path)


def test_other_formats_are_errors(tmp_path):
    checkpoint.save(tmp_path, 1, *state(0), {}, ALONE)
    path = tmp_path / "step-00000001"
    resealed(path, format=99)
    with pytest.raises(UsageError, match="of format 99, but only format 2 is supported"):
        checkpoint.read_manifest(path)
    (path / "manifest.json").write_text(json.dumps({"format": 1, "step": 1, "processes": 1}))
    with pytest.raises(UsageError, match="format 1, which has no hashes, so damage would go unnoticed"):
        checkpoint.read_manifest(path)


def one_row(tensors, metadata):
    tensors["optimizer/step/embed.weight"] = tensors["optimizer/step/embed.weight"][None]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (other_dtype, r"'embed\.weight' is 31×16 F16, here it is 31×16 F32"),
        (one_row, r"'step/embed\.weight' is 1, here it is a number"),
    ],
)
def test_another_dtype_or_shape_is_an_error(tmp_path, change, message):
    checkpoint.save(tmp_path, 1, *state(0), {}, ALONE)
    rewritten(tmp_path / "step-00000001", change)
    with pytest.raises(UsageError, match=message):
        resume(tmp_path)


def test_tied_and_transposed_tensors_are_restored(tmp_path):
    class Tied(torch.nn.Module):
        def __init__(self, value):
            super().__init__()
            self.one = torch.nn.Parameter(torch.full((3, 4), value).T)  # a transposed view
            self.two = self.one
            self.register_buffer("empty", torch.zeros(0, 2))
            self.register_buffer("count", torch.tensor(int(value)))

    model, other = Tied(2.0), Tied(0.0)
    checkpoint.save(tmp_path, 1, model, torch.optim.AdamW(model.parameters()), {}, ALONE)
    checkpoint.load(tmp_path / "step-00000001", other, torch.optim.AdamW(other.parameters()), ALONE)
    assert same(model.state_dict(), other.state_dict())


def test_the_error_for_another_network_names_the_first_mismatch(tmp_path):
    checkpoint.save(tmp_path, 1, *state(0), {}, ALONE)
    path = checkpoint.newest(tmp_path)
    assert path is not None
    other = network("pre")
    with pytest.raises(UsageError, match=r"is of another network: its .* is 16, here it is absent"):
        checkpoint.load(path, other, torch.optim.AdamW(other.parameters()), ALONE)

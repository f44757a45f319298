"""Images as sequences of pixels: the digits, and files in CIFAR-10's binary format."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from normplace import UsageError
from normplace.lab.tasks.sequences import IGNORE, images, load_images

PER_FILE = 20


@pytest.fixture
def cifar(tmp_path, monkeypatch):
    """A folder with small files in the binary format, and their labels and planes."""
    monkeypatch.setattr(images, "PER_FILE", PER_FILE)
    monkeypatch.setenv("NORMPLACE_DATA", str(tmp_path))
    folder = tmp_path / "images" / images.FOLDER
    folder.mkdir(parents=True)
    rows = np.random.default_rng(0).integers(256, size=(6 * PER_FILE, 3073)).astype(np.uint8)
    rows[:, 0] %= 10
    for name, part in zip((*images.TRAINING_FILES, images.TEST_FILE), np.split(rows, 6), strict=True):
        (folder / name).write_bytes(part.tobytes())
    yield folder, rows
    images._load.cache_clear()  # entries of this folder


def test_cifar_has_gray_pixels_in_the_order_of_the_files(cifar):
    _, rows = cifar
    data = load_images("cifar10")
    assert [len(part.labels) for part in (data.train, data.valid, data.test)] == [90, 10, 20]
    labels = torch.cat([data.train.labels, data.valid.labels, data.test.labels])
    assert torch.equal(labels, torch.from_numpy(rows[:, 0].astype(np.int64)))
    red, green, blue = rows[-1, 1:].reshape(3, 1024).astype(np.float64)
    wanted = 0.299 * red + 0.587 * green + 0.114 * blue
    assert np.abs(data.test.pixels[-1].numpy() - wanted).max() <= 0.501  # rounded to a level
    assert data.train.vocab_size == 256 + 1 + 10


def test_the_class_is_asked_for_after_the_last_pixel(cifar):
    train = load_images("cifar10").train
    inputs, targets = train.draw(7, torch.Generator().manual_seed(0))
    assert inputs.shape == (7, train.context) == (7, 1025)
    assert inputs[:, :-1].max() < 256 and (inputs[:, -1] == 256).all()
    assert (targets[:, :-1] == IGNORE).all() and (targets[:, -1] > 256).all() and targets.max() < train.vocab_size
    batch = train.evaluation_batch(5)
    assert torch.equal(batch.targets[:, -1] - 257, train.labels[:5])
    predicted = batch.targets.clone()
    predicted[0, -1] -= 1
    assert train.score(predicted, batch).string.tolist() == [0, 1, 1, 1, 1]


def test_files_that_are_not_cifar_10(cifar):
    folder, _ = cifar
    path = folder / images.TRAINING_FILES[1]
    content = path.read_bytes()
    for damaged, reason in ((content[:-1], "has 61,459 bytes"), (b"\x0a" + content[1:], "not CIFAR-100")):
        path.write_bytes(damaged)
        with pytest.raises(UsageError, match=reason):
            load_images("cifar10")
    path.unlink()
    with pytest.raises(UsageError, match=r"has no data_batch_2\.bin"):
        load_images("cifar10")


def test_data_that_are_missing(tmp_path, monkeypatch):
    monkeypatch.setenv("NORMPLACE_DATA", str(tmp_path))
    with pytest.raises(UsageError, match="there is no CIFAR-10"):
        load_images("cifar10")
    with pytest.raises(UsageError, match="did you mean 'digits'"):
        load_images("digit")


def test_the_digits():
    pytest.importorskip("sklearn", reason="scikit-learn has the digits")
    data = load_images("digits")
    assert [len(part.labels) for part in (data.train, data.valid, data.test)] == [1293, 144, 360]
    assert data.train.pixels.shape[1] == 64
    assert int(data.train.pixels.max()) == data.train.levels - 1 == 16
    assert set(data.test.labels.tolist()) == set(range(10))

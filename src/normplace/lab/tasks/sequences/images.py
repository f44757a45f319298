"""Image classification with pixels as a sequence: one token per gray level, row by row, then a token that asks.

As in CausalRN's published code for images, the position that is classified comes last. The class is predicted as a
token. ``digits`` is scikit-learn's copy of 1,797 handwritten digits of 8 × 8 pixels with 17 gray levels (Alpaydin and
Kaynak 1998), which needs no download. ``cifar10`` is CIFAR-10 (Krizhevsky 2009) from its binary version, whose files
hold plain bytes; the other versions are pickles, which can run code and are not read. Its colors are converted to 256
gray levels, as in the Long Range Arena (arXiv 2011.04006), which gives 1,024 pixels.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from normplace.errors import UsageError, expect_choice
from normplace.lab.tasks.data_files import find_file, read_file, search_settings
from normplace.lab.tasks.sequences.batch import IGNORE, AnswerAccuracy, Batch, answer_accuracy

DIGITS, CIFAR10 = "digits", "cifar10"
CLASSES = 10
FOLDER = "cifar-10-batches-bin"
"""Folder of the binary version of CIFAR-10, as its archive unpacks."""
TRAINING_FILES = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
TEST_FILE = "test_batch.bin"
PER_FILE, SIDE = 10_000, 32
GRAY = (0.299, 0.587, 0.114)
"""Weights of red, green and blue (ITU-R BT.601)."""


@dataclass(frozen=True, eq=False)
class PixelSequences:
    """Images of one part of a data set as sequences.

    Args:
        pixels: Gray levels, uint8, one image per row; batches are on their device.
        labels: Class of each image, int64.
        levels: Number of gray levels.
    """

    pixels: Tensor
    labels: Tensor
    levels: int

    @property
    def vocab_size(self) -> int:
        """Gray levels, the token that asks, and the classes."""
        return self.levels + 1 + CLASSES

    @property
    def context(self) -> int:
        """Pixels and the token that asks."""
        return self.pixels.shape[1] + 1

    def draw(self, count: int, generator: torch.Generator) -> Batch:
        """Random images, on the device of the images."""
        chosen = torch.randint(len(self.labels), (count,), generator=generator, device=generator.device)
        return self._batch(self.pixels[chosen], self.labels[chosen])

    def evaluation_batch(self, count: int) -> Batch:
        """The first ``count`` images, or all if there are fewer."""
        return self._batch(self.pixels[:count], self.labels[:count])

    def score(self, predicted: Tensor, batch: Batch) -> AnswerAccuracy:
        """Whether each image is classified correctly."""
        return answer_accuracy(predicted, batch.targets)

    def to(self, device: torch.device | str) -> PixelSequences:
        """The same images on another device."""
        return PixelSequences(self.pixels.to(device), self.labels.to(device), self.levels)

    def _batch(self, pixels: Tensor, labels: Tensor) -> Batch:
        ask = torch.full_like(labels[:, None], self.levels)
        inputs = torch.cat([pixels.long(), ask], 1)
        targets = torch.full_like(inputs, IGNORE)
        targets[:, -1] = self.levels + 1 + labels
        return Batch(inputs, targets)


@dataclass(frozen=True, eq=False)
class ImageData:
    """A data set.

    Args:
        train: Training images.
        valid: Images to choose settings with.
        test: Test images.
    """

    train: PixelSequences
    valid: PixelSequences
    test: PixelSequences

    def to(self, device: torch.device | str) -> ImageData:
        """The same images on another device."""
        return ImageData(self.train.to(device), self.valid.to(device), self.test.to(device))


def load_images(name: str) -> ImageData:
    """Load a data set.

    The last fifth of the digits is the test part. The last tenth of the other digits, and of the training images of
    CIFAR-10, chooses settings. These splits are ours, except for the test part of CIFAR-10.

    Raises:
        UsageError: If the data set is unknown, missing or damaged.
    """
    expect_choice("image data set", name, LOADERS)
    return _load(name, search_settings())


@functools.lru_cache(maxsize=2)
def _load(name: str, _settings: tuple[str, ...]) -> ImageData:
    return LOADERS[name]()


def _digits() -> ImageData:
    try:
        from sklearn.datasets import load_digits
    except ModuleNotFoundError as error:
        raise UsageError("the digits need scikit-learn: pip install 'normplace[sklearn]'.") from error
    pixels, labels = load_digits(return_X_y=True)
    return _parts(pixels.astype(np.uint8), labels, len(labels) * 4 // 5, levels=17)


def _cifar10() -> ImageData:
    folder = find_cifar10()
    files = [_read_batch(folder / name) for name in (*TRAINING_FILES, TEST_FILE)]
    pixels, labels = (np.concatenate(arrays) for arrays in zip(*files, strict=True))
    return _parts(pixels, labels, PER_FILE * len(TRAINING_FILES), levels=256)


LOADERS = {DIGITS: _digits, CIFAR10: _cifar10}


def _parts(pixels: np.ndarray, labels: np.ndarray, known: int, levels: int) -> ImageData:
    """Split images into the first nine tenths of the ``known`` ones, the rest of those, and the others."""
    cut = known * 9 // 10
    tensors = torch.from_numpy(pixels), torch.from_numpy(labels.astype(np.int64))
    slices = slice(cut), slice(cut, known), slice(known, None)
    return ImageData(*(PixelSequences(tensors[0][part], tensors[1][part], levels) for part in slices))


def find_cifar10() -> Path:
    """The folder of the binary version of CIFAR-10.

    Raises:
        UsageError: If there is none, or a file is missing.
    """
    first = find_file("", "images", (f"{FOLDER}/{TRAINING_FILES[0]}",))
    if first is None:
        raise UsageError(
            f"there is no CIFAR-10: unpack its binary version, cifar-10-binary.tar.gz, so that {FOLDER} is in the "
            "folder images of NORMPLACE_DATA."
        )
    for name in (*TRAINING_FILES, TEST_FILE):
        if not (first.parent / name).is_file():
            raise UsageError(f"{first.parent} has no {name}: unpack the whole archive of the binary version.")
    return first.parent


def _read_batch(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Gray pixels and labels of a file: per image a label, then the red, green and blue planes.

    Raises:
        UsageError: If it is not a file of the binary version.
    """
    content = read_file(path)
    size = 1 + 3 * SIDE**2
    if len(content) != PER_FILE * size:
        raise UsageError(
            f"{path} has {len(content):,} bytes, but a file of CIFAR-10's binary version has {PER_FILE * size:,}: "
            "unpack the archive again."
        )
    rows = np.frombuffer(content, dtype=np.uint8).reshape(PER_FILE, size)
    if rows[:, 0].max() >= CLASSES:
        raise UsageError(f"{path} has a label of {CLASSES} or more: use CIFAR-10, not CIFAR-100.")
    planes = rows[:, 1:].reshape(PER_FILE, 3, SIDE**2)
    gray = np.tensordot(planes.astype(np.float32), np.array(GRAY, np.float32), axes=(1, 0))
    return gray.round().astype(np.uint8), rows[:, 0]

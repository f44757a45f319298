"""Age regression on frozen descriptors of UTKFace, split by its ethnicity code.

The split follows "Just One Layer Norm Guarantees Stable Extrapolation" (arXiv 2505.14512), section 4.3: codes 0 to 3
(White, Black, Asian, Indian) are for training, code 4 (Others) is the test outside the data. The images may not be
redistributed, so nothing is downloaded: the user provides a file of descriptors, or a folder of images and a backbone.
Two choices are ours: a tenth of the samples of codes 0 to 3 is the test inside the data, and descriptors and age are
standardized on the training samples.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from normplace.errors import UsageError
from normplace.lab.tasks.data_files import cached_by_file, find_file, read_arrays, store_arrays
from normplace.lab.tasks.regression.shifted import Regression, ShiftedRegression, hold_out

NAMES = ("utkface_descriptors.npz",)
FIELDS = ("features", "age", "ethnicity")
OUTSIDE = 4
"""UTKFace's code for Others."""
_FILE_NAME = re.compile(r"(?P<age>\d{1,3})_(?P<gender>[01])_(?P<ethnicity>[0-4])_\d+\.jpg", re.IGNORECASE)


@dataclass(frozen=True)
class Faces:
    """Descriptors of faces, one row per face.

    Args:
        features: Output of the frozen backbone.
        age: In years.
        ethnicity: UTKFace's code, 0 to 4.
        skipped: Images that were skipped because their name does not follow UTKFace's scheme.
    """

    features: Tensor
    age: Tensor
    ethnicity: Tensor
    skipped: tuple[str, ...] = ()


def load_faces(path: str = "") -> Faces:
    """Descriptors from a file.

    Args:
        path: The user's ``.npz`` file; by default the file is searched for.

    Raises:
        UsageError: If the file is missing or has other content.
    """
    file = find_file(path, "faces", NAMES)
    if file is None:
        raise UsageError(
            f"UTKFace may not be redistributed, and no {NAMES[0]} is in the folder NORMPLACE_DATA or the cache: make "
            "one from the images with normplace.lab.tasks.regression.faces.describe_folder and write_faces."
        )
    return _load(file)


@cached_by_file(2)
def _load(path: Path) -> Faces:
    features, age, ethnicity = read_arrays(path, FIELDS, str(path)).values()
    if features.ndim != 2 or age.shape != ethnicity.shape or age.shape != features.shape[:1]:
        raise UsageError(
            f"{path} needs features of shape (n, d), n ages and n codes, got {features.shape}, {age.shape}."
        )
    if not np.isfinite(features).all():
        raise UsageError(f"{path} has descriptors that are not finite: recompute them.")
    return Faces(
        torch.from_numpy(features.astype("f4")),
        torch.from_numpy(age.astype("f4")),
        torch.from_numpy(ethnicity.astype("i8")),
    )


def write_faces(faces: Faces, path: Path) -> None:
    """Write descriptors to a file that :func:`load_faces` reads.

    Raises:
        UsageError: If it cannot be written.
    """
    store_arrays(path, {name: getattr(faces, name).numpy() for name in FIELDS})


def parse_name(name: str) -> tuple[int, int] | None:
    """Age and ethnicity code in a UTKFace file name ``[age]_[gender]_[race]_[date].jpg``; None for any other name.

    Examples:
        >>> parse_name("26_1_4_20170116200023456.jpg.chip.jpg")
        (26, 4)
    """
    match = _FILE_NAME.match(name)
    return (int(match["age"]), int(match["ethnicity"])) if match else None


def describe_folder(
    folder: Path, backbone: Callable[[Tensor], Tensor], *, size: int = 224, batch_size: int = 64
) -> Faces:
    """Descriptors of a folder of UTKFace images, in the order of their names.

    Args:
        folder: Folder of the images.
        backbone: Maps images (n, 3, size, size) with values in [0, 1] to descriptors (n, d), including any color
            normalization; called without gradients.
        size: Height and width to which images are resized.
        batch_size: Images per call of the backbone.

    Raises:
        UsageError: If Pillow is missing, the folder has no such images, or an image cannot be read.
    """
    try:
        from PIL import Image  # pyright: ignore[reportMissingImports]
    except ModuleNotFoundError as error:
        raise UsageError("reading images needs Pillow: pip install 'normplace[images]'.") from error
    if not folder.is_dir():
        raise UsageError(f"there is no folder {folder}: use the folder of UTKFace's images.")
    names = sorted(path.name for path in folder.iterdir() if path.suffix.lower() == ".jpg")
    labels = {name: parsed for name in names if (parsed := parse_name(name)) is not None}
    if not labels:
        raise UsageError(f"{folder} has no images named [age]_[gender]_[race]_[date].jpg as in UTKFace.")

    def pixels(name: str) -> Tensor:
        try:
            with Image.open(folder / name) as image:
                return torch.from_numpy(np.array(image.convert("RGB").resize((size, size)))).permute(2, 0, 1) / 255
        except OSError as error:
            raise UsageError(f"cannot read the image {folder / name}: {error}.") from error

    chosen = list(labels)
    with torch.no_grad():
        rows = [
            backbone(torch.stack([pixels(name) for name in chosen[start : start + batch_size]])).float().cpu()
            for start in range(0, len(chosen), batch_size)
        ]
    age, ethnicity = (torch.tensor(column) for column in zip(*labels.values(), strict=True))
    return Faces(torch.cat(rows), age.float(), ethnicity, tuple(name for name in names if name not in labels))


def split_by_ethnicity(faces: Faces, generator: torch.Generator) -> ShiftedRegression:
    """Train on 90% of codes 0 to 3; the other 10% are inside, code 4 is outside.

    Raises:
        UsageError: If a part is empty.
    """
    outside = faces.ethnicity == OUTSIDE
    if not outside.any():
        raise UsageError(f"no face has the ethnicity code {OUTSIDE}, so the outside test set is empty.")
    rows = Regression(faces.features[~outside], faces.age[~outside, None])
    train, rest = hold_out(len(rows.x), round(0.9 * len(rows.x)), generator)
    return ShiftedRegression(
        Regression(rows.x[train], rows.y[train]),
        Regression(rows.x[rest], rows.y[rest]),
        Regression(faces.features[outside], faces.age[outside, None]),
    )

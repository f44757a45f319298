"""Face descriptors: files, file names, and and a folder of images with a backbone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.lab.tasks.tables import some_faces

from normplace import UsageError
from normplace.lab.tasks.data_files import unavailable_reason
from normplace.lab.tasks.regression.faces import (
    describe_folder,
    load_faces,
    parse_name,
    split_by_ethnicity,
    write_faces,
)


def test_a_file_comes_back_as_it_was_written(tmp_path):
    faces = some_faces()
    write_faces(faces, tmp_path / "faces.npz")
    read = load_faces(str(tmp_path / "faces.npz"))
    for name in ("features", "age", "ethnicity"):
        assert torch.equal(getattr(read, name), getattr(faces, name))


def test_half_precision_and_small_integers_are_read(tmp_path):
    path = tmp_path / "faces.npz"
    features = np.ones((3, 4), dtype="f2")
    np.savez(path, features=features, age=np.array([1, 2, 3], dtype="u1"), ethnicity=np.array([0, 1, 4], dtype="u1"))
    faces = load_faces(str(path))
    assert faces.features.dtype == faces.age.dtype == torch.float32
    assert faces.ethnicity.tolist() == [0, 1, 4]


def test_other_files_are_rejected(tmp_path):
    path = tmp_path / "faces.npz"

    def complaint(**fields) -> str:
        np.savez(path, **fields)
        with pytest.raises(UsageError) as caught:
            load_faces(str(path))
        path.unlink()
        return str(caught.value)

    good = {"features": np.ones((3, 4)), "age": np.ones(3), "ethnicity": np.ones(3)}
    assert "has no field 'ethnicity'" in complaint(features=good["features"], age=good["age"])
    assert "needs features of shape (n, d)" in complaint(**{**good, "age": np.ones(2)})
    assert "are not finite" in complaint(**{**good, "features": np.full((3, 4), np.nan)})
    assert "is not an .npz file" in complaint(**{**good, "age": np.array([None] * 3)})
    path.write_bytes(b"text")
    with pytest.raises(UsageError, match=r"is not an \.npz file with the fields"):
        load_faces(str(path))


def test_a_missing_file_error_explains_how_to_create_it():
    assert "make one from the images with normplace.lab.tasks.regression.faces.describe_folder" in str(
        unavailable_reason(load_faces)
    )


def test_the_split_is_by_ethnicity():
    split = split_by_ethnicity(some_faces(200), torch.Generator().manual_seed(0))
    assert [len(part.x) for part in (split.train, split.inside, split.outside)] == [144, 16, 40]
    assert split.train.y.shape == (144, 1)
    faces = some_faces(4)
    with pytest.raises(UsageError, match="no face has the ethnicity code 4"):
        split_by_ethnicity(faces, torch.Generator())


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("26_1_4_20170116200023456.jpg", (26, 4)),
        ("100_0_0_20170112213500903.jpg.chip.jpg", (100, 0)),
        ("61_1_20170109142408075.jpg.chip.jpg", None),
        ("39_1_7_20170116174525125.jpg", None),
        ("portrait.jpg", None),
    ],
)
def test_utkface_names(name, expected):
    assert parse_name(name) == expected


def test_a_folder_of_images(tmp_path):
    image = pytest.importorskip("PIL.Image")
    names = ["30_0_1_20170101000000000.jpg", "4_1_4_20170101000000000.jpg.chip.jpg", "61_1_20170101.jpg"]
    for shade, name in enumerate(names):
        image.new("RGB", (20, 30), (100 * shade, 0, 0)).save(tmp_path / name)
    sizes = []

    def backbone(images):
        sizes.append(tuple(images.shape))
        return images.mean((2, 3))

    faces = describe_folder(tmp_path, backbone, size=8, batch_size=1)
    assert sizes == [(1, 3, 8, 8)] * 2
    assert faces.age.tolist() == [30, 4]
    assert faces.ethnicity.tolist() == [1, 4]
    assert faces.features[:, 0].tolist() == pytest.approx([0, 100 / 255], abs=0.02)
    assert faces.skipped == ("61_1_20170101.jpg",)


def test_a_folder_without_images_or_without_pillow(tmp_path, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(UsageError, match=r"normplace\[images\]"):
        describe_folder(tmp_path, torch.flatten)

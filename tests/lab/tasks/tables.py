"""Small random data in the format of the real data sets."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from normplace.lab.tasks.known_table import row_digest
from normplace.lab.tasks.regression import protein
from normplace.lab.tasks.regression.faces import Faces


def protein_table(rows: int = 400, seed: int = 0) -> np.ndarray:
    """A target and nine features, the first of them an area above the paper's limit in a fifth of the rows."""
    random = np.random.default_rng(seed)
    features = random.normal(size=(rows, 9))
    features[:, 0] = random.uniform(5_000, 24_000, rows)
    target = features[:, 0] / 2_000 + features[:, 1] + 0.1 * random.normal(size=rows)
    return np.column_stack([target, features]).round(4)


def csv(table: np.ndarray, header: str = '"RMSD","F1","F2","F3","F4","F5","F6","F7","F8","F9"\n') -> bytes:
    return (header + "".join(",".join(map(repr, row)) + "\n" for row in table.tolist())).encode()


def accept(monkeypatch, table: np.ndarray) -> None:
    """Accept ``table`` as UCI's table."""
    sha256 = row_digest(table, dtype=protein.TABLE.dtype)
    monkeypatch.setattr(protein, "TABLE", replace(protein.TABLE, rows=len(table), sha256=sha256))


def some_faces(n: int = 200, seed: int = 0) -> Faces:
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(n, 16, generator=generator)
    age = (30 + 10 * features[:, 0]).clamp(1, 110).round()
    return Faces(features, age, torch.arange(n) % 5)


def labelled_fields(nodes: int = 60, classes: int = 2, splits: int = 2, seed: int = 0) -> dict[str, np.ndarray]:
    """The fields of a labelled graph's file: a random graph whose first feature is the class plus noise."""
    random = np.random.default_rng(seed)
    labels = np.arange(nodes) % classes
    features = random.normal(size=(nodes, 4)).astype("f4")
    features[:, 0] += 2 * labels
    parts = np.stack([random.permutation(np.arange(nodes) % 4) for _ in range(splits)])
    return {
        "node_features": features,
        "node_labels": labels,
        "edges": random.integers(nodes, size=(3 * nodes, 2)),
        "train_masks": parts < 2,
        "val_masks": parts == 2,
        "test_masks": parts == 3,
    }

"""Records, verdicts and stand-in data for the tests of studies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.lab.tasks.graphs.molecule_cases import OGB, ogb_graphs
from tests.lab.tasks.recommend.recommend_cases import clustered
from tests.lab.tasks.tables import accept, csv, labelled_fields, protein_table, some_faces

from normplace.lab.report.chart_layout import WIDE
from normplace.lab.report.chart_renderer import ChartRenderer
from normplace.lab.report.charts import chart_request, place_chart
from normplace.lab.tasks.graphs.molecules import molecules_from_ogb, write_molecules
from normplace.lab.tasks.regression.faces import write_faces
from normplace.lab.trials.claims import Claim, Verdict, judge
from normplace.lab.trials.results import TrialRecord
from normplace.lab.trials.study import Figure

WORDS = ("where", "should", "the", "norm", "sit", "before", "after", "around")


def record(part: str, seed: int, metrics: dict[str, float], **config: Any) -> TrialRecord:
    """The record of a successful trial."""
    return TrialRecord("study", part, "full", f"{part}{seed}{config}", {**config, "seed": seed}, seed, "ok", metrics)


def verdict(claims: Sequence[Claim], name: str, records: Sequence[TrialRecord]) -> Verdict:
    """The verdict of the claim called ``name``."""
    (claim,) = (claim for claim in claims if claim.id == name)
    return judge(claim, records).verdict


def draw(figures: Sequence[Figure]) -> list[str]:
    """Charts of the figures, after checks that every figure has data and a title of its own."""
    assert len({figure.title for figure in figures}) == len(figures)
    assert all(figure.rows for figure in figures)
    with ChartRenderer(workers=1) as renderer:  # the report draws the same charts, and caches them
        return [
            place_chart(chart_request(figure.spec, figure.rows, WIDE), figure.alt, f"f{number}", renderer)
            for number, figure in enumerate(figures)
        ]


def text_folder(folder: Path) -> None:
    """A short text that stands in for the standard library; its name is ``words``."""
    (folder / "text").mkdir()
    draws = np.random.default_rng(0).integers(len(WORDS), size=1500)
    (folder / "text" / "words.txt").write_text(" ".join(WORDS[index] for index in draws))


def _extrapolation(folder: Path, patch: pytest.MonkeyPatch) -> dict[str, Any]:
    table = protein_table()
    accept(patch, table)
    (folder / "CASP.csv").write_bytes(csv(table))
    write_faces(some_faces(), folder / "faces" / "utkface_descriptors.npz")
    return {"epochs": 2, "rows": 50, "sequences": 8, "rounds": 2}


def _postdeg(folder: Path, patch: pytest.MonkeyPatch) -> dict[str, Any]:
    pytest.importorskip("numba", reason="node selection needs numba")
    pytest.importorskip("torch_geometric", reason="the convolutions are PyG's")
    data = clustered()
    np.savez(folder / "own.npz", num_users=60, num_items=40, train=data.train.numpy(), test=data.test.numpy())
    np.savez(folder / "small.npz", **labelled_fields(nodes=200))
    recommend = {"dataset": "own", "table": str(folder / "own.npz"), "batch_size": 64}
    return {**recommend, "graph": "small", "path": str(folder / "small.npz"), "share": 0.5, "device": "cpu"}


def _deepergcn(folder: Path, patch: pytest.MonkeyPatch) -> dict[str, Any]:
    write_molecules(molecules_from_ogb(OGB(ogb_graphs())), folder / "graphs" / "molhiv")
    return {"epochs": 2, "device": "cpu", "batch_size": 2}


def _with_text(folder: Path, patch: pytest.MonkeyPatch) -> dict[str, Any]:
    text_folder(folder)
    return {"text": "words", "device": "cpu"}


def _causalrn(folder: Path, patch: pytest.MonkeyPatch) -> dict[str, Any]:
    pytest.importorskip("sklearn", reason="scikit-learn has the digits")
    pytest.importorskip("tokenizers", reason="a vocabulary is learned")
    patch.setenv("NORMPLACE_CACHE", str(folder / "cache"))
    return _with_text(folder, patch)


STAND_INS: dict[str, Callable[[Path, pytest.MonkeyPatch], dict[str, Any]]] = {
    "causalrn": _causalrn,
    "deepergcn": _deepergcn,
    "extrapolation": _extrapolation,
    "periln": _with_text,
    "postdeg": _postdeg,
}
"""Functions that write small stand-ins for a study's data into a folder and return the overrides of a smoke run."""


def stand_in_data(name: str, folder: Path, patch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Write stand-in data of a study, make it the data folder, and return the overrides of a smoke run."""
    patch.setenv("NORMPLACE_DATA", str(folder))
    return STAND_INS[name](folder, patch) if name in STAND_INS else {}

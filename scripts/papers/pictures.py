"""Figures of the committed results as SVG files.

A file contains a digest of the figure's specification and rows, so that a test can tell whether it is up to date
without drawing it again.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from normplace.lab.report.still import draw_still
from normplace.lab.trials.study import Figure, Study
from papers import committed

STYLE = 1
"""Version of :func:`draw`; a new one draws every picture again."""


@dataclass(frozen=True)
class Picture:
    """A figure of a study that its page shows.

    Args:
        name: Name of the file, without the study's name and the ending.
        scale: Scale of the run that it shows.
        title: Title of the figure.
        panel: Width of one panel in pixels, if the figure would be wider than the column of a page.
        columns: Panels side by side, if not all of them.
        legend: Entries of the legend side by side, if not all of them.
        is_pending: Whether its results may still be missing; the page then states it.
    """

    name: str
    scale: str
    title: str
    panel: int | None = None
    columns: int | None = None
    legend: int | None = None
    is_pending: bool = False


PICTURES = {
    "postdeg": (
        Picture(
            "falsifiers", "full", "PostDeg, its controls and its falsifiers: gain over the LayerNorm backbone", 140, 3
        ),
        Picture("map", "full", "Gain of an inverse-degree scale over the same network without it", columns=2),
        Picture("extended", "full", "Gain of a scale against the degree that already reaches the head", 150, 3, 4),
        Picture("eps", "full", "Gain of a scale before and after LayerNorm, by eps", panel=185),
        Picture("tolokers", "full", "Tolokers: ROC-AUC by aggregation and slot of the degree scale"),
    ),
    "extrapolation": (
        Picture("near", "laptop", "Predictions within ten times the range of the data", panel=185),
        Picture("far", "laptop", "Magnitude of the prediction far from the data", panel=180),
        Picture("protein", "full", "Protein: R² on proteins larger than those in training, and on proteins like them"),
        Picture("area", "full", "Protein: prediction against surface area", 600),
        Picture("bounds", "laptop", "Largest prediction found, over each bound"),
        Picture("linearized", "laptop", "Trained networks compared with their own kernel at initialization, by width"),
        Picture("faces", "full", "Faces: R² of age for the unseen ethnicity code and for the seen ones"),
    ),
    "causalrn": (
        Picture("training", "full", "Copying 300 characters: accuracy during training", 600, legend=4),
        Picture("ablation", "full", "Ablation of CausalRN: character accuracy"),
        Picture("head", "full", "A retrieval head built by hand: accuracy by number of keys", 600, legend=4),
        Picture("cost", "full", "Cost of a sequence by its length", panel=130),
        Picture("recall", "full", "Multi-query associative recall with a curriculum", panel=240),
        Picture("lookup", "full", "Look-up of the characters after an n-gram", panel=240, legend=3),
    ),
    "deepergcn": (
        Picture("depth", "full", "Score against depth, by block order", panel=185),
        Picture("aggregation", "full", "Score by aggregation, with and without MsgNorm", 165, 3),
        Picture("memory", "full", "Peak memory of a training step against depth", 600),
        Picture("recipes", "full", "Official recipe and recipes of ours, compared with published scores", 330, 1),
        Picture("train-test", "full", "Train and test score against depth", 240, 2),
        Picture("gradients", "full", "Gradient of every convolution in the deepest stacks", 240, 2),
        Picture("initial", "full", "Gradient of every convolution before training, by norm", 165, 3),
    ),
    "periln": (
        Picture("variance", "full", "Variance of the stream over depth and training, 120M", panel=185),
        Picture("rates", "full", "Bits per byte by placement and learning rate, 10M"),
        Picture("initialization", "full", "Bits per byte by placement, initial weights and learning rate, 24 layers"),
        Picture("bound", "full", "Gradient of an MLP's last matrix against the scale of its hidden features"),
        Picture("loss", "full", "Pretraining: loss against tokens, 60 million tokens", 600),
        Picture("loss-long", "full", "Pretraining: loss against tokens, 300 million tokens", 600, is_pending=True),
        Picture("loss-rate", "full", "Pretraining: loss against learning rate", 600),
        Picture("depth-variance", "full", "Pretraining: variance of the stream by depth", 240, 2),
        Picture("depth-peak", "full", "Pretraining: largest magnitude of the stream by depth", 240, 2),
        Picture("spikes", "full", "Pretraining: gradient norm and its spikes", 240),
        Picture("theory", "full", "Pretraining: mean-field theory and measurement before training", 240),
    ),
}
"""The pictures of each page; the first one leads."""


@cache
def _figures(name: str, scale: str) -> dict[str, Figure]:
    study, records = next((one, own) for one, at, own in committed.runs() if (one.name, at) == (name, scale))
    return {figure.title: figure for figure in study.figures(records)}


def available(study: Study) -> list[Picture]:
    """The pictures of a page, without pending ones that have no results."""
    return [
        picture
        for picture in PICTURES[study.name]
        if not picture.is_pending or picture.title in _figures(study.name, picture.scale)
    ]


def figure_of(study: Study, picture: Picture) -> Figure:
    """The figure, laid out for the column of a page."""
    figure = _figures(study.name, picture.scale)[picture.title]
    spec = dict(figure.spec)
    if picture.columns is not None:
        spec["columns"] = picture.columns
    if picture.panel is not None:
        if "spec" in spec:
            spec["spec"] = {**spec["spec"], "width": picture.panel}
        else:
            spec["width"] = picture.panel
    if picture.legend is not None:
        spec["config"] = {"legend": {"columns": picture.legend}}
    return replace(figure, spec=spec)


def file_name(study: Study, picture: Picture) -> str:
    """Name of the picture's file in docs/images/papers."""
    return f"{study.name}-{picture.name}.svg"


def block(study: Study, picture: Picture) -> str:
    """The picture with its caption, for a page in docs/papers."""
    if picture not in available(study):
        return f"*{picture.title}.* No results yet."
    figure = figure_of(study, picture)
    path = f"../images/papers/{file_name(study, picture)}"
    return f"[![{figure.alt}]({path})]({path})\n\n*{figure.title}.* {figure.caption} Scale `{picture.scale}`."


def digest(figure: Figure) -> str:
    """Hash of what the picture shows; numbers to five digits, because the last ones depend on the machine."""
    rows = [
        {key: f"{value:.5g}" if isinstance(value, float) else value for key, value in row.items()}
        for row in figure.rows
    ]
    content = json.dumps([STYLE, figure.spec, rows, figure.alt], sort_keys=True, default=str)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def recorded_digest(path: Path) -> str | None:
    """The digest in the file of a picture; None without one."""
    match = re.search(r"<desc>([0-9a-f]{16})</desc>", path.read_text()) if path.is_file() else None
    return match[1] if match else None


def draw(figure: Figure) -> str:
    """Draw a figure as an SVG file with its digest."""
    return draw_still(figure.spec, figure.rows, alt=figure.alt, description=digest(figure))

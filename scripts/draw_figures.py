"""Draw the figures of the tutorials and of the home page into docs/images, from runs of the tutorials' own code.

python scripts/draw_figures.py [name ...]
"""

from __future__ import annotations

import contextlib
import io
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

from papers.pictures import PICTURES, draw, figure_of  # noqa: E402
from tests.documents import PageRunner  # noqa: E402
from write_gallery import block_svg  # noqa: E402

from normplace.lab.report import curves  # noqa: E402
from normplace.lab.report.still import INK, PAPER  # noqa: E402
from normplace.lab.studies import STUDIES  # noqa: E402
from normplace.lab.trials.study import Figure, named_study  # noqa: E402

SEEDS = 5
WIDTH, HEIGHT = 640, 260


def namespace_of(page: str) -> dict[str, Any]:
    """Run a page and return the variables of its Python blocks."""
    stream = io.StringIO()
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder), contextlib.redirect_stdout(stream):
        runner = PageRunner(ROOT / "docs" / page, Path(folder), stream.getvalue)
        runner.check_output = lambda *_: None
        sys.modules["example"] = runner.module
        runner.run()
    return runner.module.__dict__


def figure(title: str, alt: str, rows: Sequence[Mapping[str, Any]], **encoding: Any) -> Figure:
    """Lines of the rows, one for each ``series``."""
    order = list(dict.fromkeys(row["series"] for row in rows))
    return Figure(title, "", rows, curves(series="series", order=order, width=WIDTH, height=HEIGHT, **encoding), alt)


def variance() -> Figure:
    """Variance of the stream by depth in trained Transformers of 120 million parameters, from the committed results."""
    study = named_study("periln", STUDIES)
    picture = next(one for one in PICTURES["periln"] if one.name == "variance")
    names = {
        "post": "Post-LN (BERT)",
        "pre": "Pre-LN (Llama)",
        "peri": "Peri-LN (Gemma 2)",
        "output": "output (OLMo 2)",
    }
    rows = [
        {"depth": row["depth"], "variance": row["variance"], "series": names[row["placement"]]}
        for row in figure_of(study, picture).rows
        if row["when"] == "after training"
    ]
    return figure(
        "Variance of the residual stream after training",
        "Post-norm keeps the variance near one; with the other placements it grows with depth.",
        rows,
        x={"field": "depth", "title": "branches added to the stream"},
        y={"field": "variance", "title": "variance", "scale": {"type": "log"}},
    )


def training_run() -> Figure:
    """Variance of the stream by depth, at several steps of the training-run tutorial."""
    history = namespace_of("tutorials/training-run.md")["decoder_history"]
    rows = [
        {"depth": depth, "variance": signal.variance, "series": f"step {step}"}
        for step, measured in history
        for depth, signal in enumerate(measured.depths)
    ]
    return figure(
        "Variance of the residual stream at every depth",
        "At every step of training the variance grows with depth; after training it is nine times as large as before.",
        rows,
        x={"field": "depth", "title": "branches added to the stream", "axis": {"tickMinStep": 1}},
        y={"field": "variance", "title": "variance"},
    )


def outside_data() -> Figure:
    """Predictions of the two networks of the extrapolation tutorial."""
    names = namespace_of("tutorials/outside-data.md")
    at = torch.linspace(-12, 12, 121)[:, None]
    rows = [
        {"x": float(x), "prediction": float(y), "series": series}
        for series, model in (("no norm", names["plain"]), ("one LayerNorm", names["normed"]))
        for x, y in zip(at, model(at).detach(), strict=True)
    ]
    return figure(
        "Predictions inside and outside the training data",
        "Outside the training data the network without a norm grows linearly; the one with a LayerNorm stays bounded.",
        rows,
        x={"field": "x", "title": "input x (dashed: range of the training data)"},
        y={"field": "prediction", "title": "prediction"},
        rules=(-3, 3),
    )


def degree_scale() -> Figure:
    """Test accuracy over training of the degree-scale tutorial's networks, for several seeds."""
    import normplace as npl

    names = namespace_of("tutorials/degree-scale.md")
    x, edges, hub, train = (names[name] for name in ("x", "edges", "hub", "train"))
    scales = {
        "no scale": None,
        "before LayerNorm": npl.Scale("degree", power=-1, where="before"),
        "after LayerNorm": npl.Scale("degree", power=-1),
    }

    def curve(series: str, seed: int) -> list[float]:
        torch.manual_seed(seed)
        model = names["GNN"]()
        if scales[series] is not None:
            model = npl.insert(model, scales[series])
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        accuracies = []
        for _ in range(60):
            logits = model(x, edges)
            accuracies.append((logits.argmax(1) == hub)[~train].double().mean().item())
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(logits[train], hub[train]).backward()
            optimizer.step()
        return accuracies

    return over_training(
        "Test accuracy over training",
        "Only the network with the degree scale after LayerNorm learns to find the hubs.",
        list(scales),
        curve,
        "test accuracy",
    )


def move_losses() -> Figure:
    """Training losses of the placements of the move tutorial, for several seeds."""
    import normplace as npl

    names = namespace_of("tutorials/move.md")

    def curve(series: str, seed: int) -> list[float]:
        torch.manual_seed(seed)
        model, tokens = names["Decoder"](), names["tokens"]
        return names["train"](npl.move(model, tokens, to=series))

    return over_training(
        "Training loss of three placements",
        "Pre-norm and Peri-LN reach a lower training loss than post-norm within 50 steps.",
        ["post", "pre", "peri"],
        curve,
        "training loss",
    )


def over_training(title: str, alt: str, order: Sequence[str], curve: Callable[..., list[float]], name: str) -> Figure:
    """Mean and range over seeds of a number at every step."""
    rows = []
    for series in order:
        for step, values in enumerate(zip(*(curve(series, seed) for seed in range(SEEDS)), strict=True), start=1):
            mean = sum(values) / len(values)
            rows.append({"step": step, name: mean, "low": min(values), "high": max(values), "series": series})
    return figure(
        title,
        alt,
        rows,
        x={"field": "step", "title": "step"},
        y={"field": name, "title": name, "scale": {"zero": False}},
        band=True,
    )


def audit_block() -> str:
    """A block of the model of the audit tutorial, as an SVG file."""
    block = namespace_of("tutorials/audit.md")["audit"].blocks[0]
    style = (
        f"svg{{color:{INK};background:{PAPER}}}text{{font:13px sans-serif;fill:currentColor}}"
        ".wire,.box{stroke:currentColor;fill:none}.filled{fill:#fff}"
        ".norm{fill:#2a78d6;fill-opacity:.25;stroke:#2a78d6}"
    )
    svg = block_svg(block).replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
    return svg.replace("<title>", f"<style>{style}</style><title>", 1) + "\n"


FIGURES = {
    "variance": variance,
    "audit-block": audit_block,
    "training-run": training_run,
    "outside-data": outside_data,
    "degree-scale": degree_scale,
    "move-losses": move_losses,
}

if __name__ == "__main__":
    torch.set_num_threads(1)
    for name, make in FIGURES.items():
        if len(sys.argv) < 2 or name in sys.argv[1:]:
            drawn = make()
            (IMAGES / f"{name}.svg").write_text(drawn if isinstance(drawn, str) else draw(drawn))
            print(IMAGES / f"{name}.svg")

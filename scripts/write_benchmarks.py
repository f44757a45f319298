"""Write docs/reference/benchmarks.md from the committed records of `normplace bench` and of `benchmarks/`."""

from __future__ import annotations

import json
import math
from datetime import datetime
from pathlib import Path
from typing import Any

from normplace._shared.text_table import markdown_table
from normplace.lab.bench.page import page
from normplace.lab.bench.record import Record

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
FUSED = "fused, branches compiled"
PASSES = {"step": "training step", "forward": "forward pass"}


def committed() -> list[Record]:
    """The records, those of a GPU first, the newest of each device first."""
    records = [Record.read(path) for path in RESULTS.glob("bench-*.json")]
    return sorted(records, key=lambda record: (record.device, record.date), reverse=True)


def fused_models(report: dict[str, Any]) -> str:
    """The section on whole models that `npl.fuse` changed.

    Args:
        report: The record of `benchmarks/fuse.py`.
    """
    settings, versions = report["settings"], report["versions"]
    # In the order in which the models were asked for, not in which they finished.
    report["models"] = {name: report["models"][name] for name in settings["models"] if name in report["models"]}
    date = datetime.fromisoformat(report["date"])
    tokens = settings["sequences"] * settings["length"]
    parts = [
        "## Fused models\n",
        f"`npl.fuse` of whole models of Hugging Face on an {report['hardware']['gpu']}, measured by "
        f"`benchmarks/fuse.py` on {date:%-d %B %Y}: bfloat16, {tokens:,} tokens per step, AdamW, in turns on the same "
        "weights, and the loss compiled in every column. *Liger* replaces the model's norms by Liger's. "
        '*Fused* is `npl.fuse(model, reach="stack")`. Times are medians in milliseconds, and the number in '
        "parentheses is the time divided by that of the last column.\n",
        f"Versions: {', '.join(f'{name} {version}' for name, version in versions.items())}.\n",
    ]
    for kind, title in PASSES.items():
        rows = []
        for name, model in report["models"].items():
            medians = model[f"{kind}_median_ms"]
            cells = [f"{ms:.1f} ({ms / medians[FUSED]:.2f}×)" for ms in medians.values()]
            rows.append([f"{name} ({model['placement']}), {model['parameters'] / 1e6:.0f}M", *cells])
        columns = next(iter(report["models"].values()))[f"{kind}_median_ms"]
        parts.append(f"{markdown_table([title, *columns], rows, right_from=1)}\n")
    parts += [_losses(report), _large(report.get("7B"))]
    return "\n".join(parts)


def _losses(report: dict[str, Any]) -> str:
    rows = []
    for name, model in report["models"].items():
        if gaps := model.get("loss_gaps"):
            others = [gap for variant, gap in gaps.items() if variant.startswith("perturbed")]
            rows.append([name, f"{gaps['fused']:.2e}", f"{min(others):.2e} to {max(others):.2e}"])
    title = (
        f"Training for {report['settings']['steps']} steps from the same weights on the same text: median relative "
        "difference of the loss from that of the original model over the last half, for the fused model, and for the "
        "original model from weights that differ by a millionth, which shows the effect of rounding."
    )
    return f"{title}\n\n{markdown_table(['model', 'fused', 'weights differ'], rows, right_from=1)}\n"


def _large(model: dict[str, Any] | None) -> str:
    if model is None:
        return ""
    rows = [
        [name, f"{values['step_median_ms']:.0f}", f"{values['peak_gib']:.1f}"]
        for name, values in model.items()
        if isinstance(values, dict)
    ]
    title = f"Llama with {model['parameters'] / 1e9:.1f} billion parameters, fused in place: training step and memory."
    return f"{title}\n\n{markdown_table(['7B', 'step, ms', 'peak, GiB'], rows, right_from=1)}\n"


def diffusion_transformer(report: dict[str, Any]) -> str:
    """The section on gates, scales and shifts.

    Args:
        report: The record of `benchmarks/dit.py`.
    """
    date = datetime.fromisoformat(report["date"])
    rows = []
    for shape, result in report["op"].items():
        for kind, title in (("forward", "forward"), ("training", "with backward")):
            rows.append([f"{shape}, {title}", *(f"{ms:.2f}" for ms in result[f"{kind}_ms"].values())])
    ops = markdown_table(["one op", "separate operators", "torch.compile", "gate_add_norm"], rows, right_from=1)
    times = report["model"]["training_ms"]
    model = markdown_table(
        ["12 DiT-XL blocks", *times], [["ms", *(f"{ms:.1f}" for ms in times.values())]], right_from=1
    )
    return (
        f"## Diffusion Transformers\n\n`npl.ops.gate_add_norm` and a fused DiT on an {report['hardware']['gpu']}, "
        f"measured by `benchmarks/dit.py` on {date:%-d %B %Y} in bfloat16. Times are median milliseconds of single "
        "calls from Python: for the two smaller shapes launching takes longer than the kernels, so they show overhead. "
        f"A step of the model is a forward and backward pass over 16,384 tokens.\n\n{ops}\n\n{model}\n"
    )


def growth(report: dict[str, Any]) -> str:
    """The section on time and memory against size.

    Args:
        report: The record of `benchmarks/growth.py`.
    """
    date = datetime.fromisoformat(report["date"])
    rows = []
    for name, subject in report["subjects"].items():
        sizes, seconds, peaks = subject["sizes"], subject["seconds"], subject["peak_bytes"]
        rows.append([
            f"{name}: {subject['setting']}", f"{sizes[0]:,} to {sizes[-1]:,} {subject['variable']}",
            f"{1e3 * seconds[0]:.3g} to {1e3 * seconds[-1]:,.4g}", f"{peaks[-1] / 2**20:.3g}",
            f"{subject['exponent']:.2f}", f"{math.log10(seconds[-1] / seconds[2]):.2f}", f"{subject['expected']:.0f}",
        ])  # fmt: skip
    columns = ["subject", "sizes", "CPU ms", "peak MiB at the largest", "exponent", "of the last decade", "expected"]
    parts = [
        "## Growth\n",
        f"CPU time on one thread of {report['hardware']['cpu']} against size, measured by `benchmarks/growth.py` on "
        f"{date:%-d %B %Y} at a load average of {report['load']:.1f}. Other work on the machine slows its caches, so "
        "times are upper bounds. The exponent is the slope of a line through the logarithms of five sizes and their "
        "times over two decades, after the time of a call of size 2 is subtracted; costs that grow more slowly lower it"
        " at small sizes.\n",
        f"{markdown_table(columns, rows, right_from=1)}\n",
    ]
    if model := report.get("config"):
        parts.append(
            f"Audit of a Llama with {model['parameters'] / 1e9:.0f} billion parameters and {model['norms']} norms on "
            f"the meta device: {model['build_s']:.1f} s to build, {model['audit_s']:.1f} s to audit, "
            f"{model['peak_gib']:.2f} GiB peak of the whole process.\n"
        )
    if graph := report.get("graph"):
        times = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in graph["seconds"].items())
        parts.append(
            f"A random graph of {graph['edges'] / 1e6:.0f} million edges and {graph['nodes'] / 1e6:.2f} million nodes: "
            f"{times}; {graph['peak_gib']:.1f} GiB peak of the whole process.\n"
        )
    return "\n".join(parts)


SECTIONS = {"growth-cpu.json": growth, "fuse-cuda.json": fused_models, "dit-cuda.json": diffusion_transformer}
"""Sections by the record that they show."""


def document() -> str:
    """The whole page."""
    paths = {RESULTS / name: section for name, section in SECTIONS.items()}
    sections = [section(json.loads(path.read_text())) for path, section in paths.items() if path.is_file()]
    return "\n".join([page(committed()), *sections])


if __name__ == "__main__":
    (ROOT / "docs" / "reference" / "benchmarks.md").write_text(document())

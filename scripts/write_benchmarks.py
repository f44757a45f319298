"""Write benchmarks.md and costs.md in docs/reference from the records of `normplace bench` and `benchmarks/`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from papers.benchmark_page import page

from normplace._shared.text_table import markdown_table
from normplace.lab.bench.record import Record

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
FUSED = "fused, branches compiled"
PASSES = {"step": "training step", "forward": "forward pass"}
KERNEL_TIMES = ("first_s", "seconds", "torch_func_s")
KERNEL_COLUMNS = ["tangent kernel", "samples", "first, ms", "later, ms", "torch.func, ms", "ratio"]
BOUNDARY_COLUMNS = ["boundary", "forward, µs", "calls", "ratio", "forward and backward, µs", "calls", "ratio"]


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


_LARGE = (
    "An exponent of the asymptotic growth needs sizes at which the fastest growing part is the largest, which the rows "
    "named *large* show. Tangent kernels and pairs start at 3,000 samples and 1,000 tokens, where their quadratic part "
    "exceeds the linear one. The features of the aggregation take 320 MB, the inputs and output of the scan 38 MB or "
    "more: both exceed the cache at every size, so that every row is read from memory.\n"
)


def growth(report: dict[str, Any]) -> str:
    """The section on time and memory against size.

    Args:
        report: The record of `benchmarks/growth.py`.
    """
    rows = []
    for name, subject in report["subjects"].items():
        sizes, seconds, peaks = subject["sizes"], subject["seconds"], subject["peak_bytes"]
        rows.append([
            f"{name}: {subject['setting']}", f"{sizes[0]:,} to {sizes[-1]:,} {subject['variable']}",
            f"{1e3 * seconds[0]:.3g} to {1e3 * seconds[-1]:,.4g}", f"{peaks[-1] / 2**20:.3g}",
            f"{subject['exponent']:.2f}", *(f"{exponent:.2f}" for exponent in subject["exponent_by_decade"]),
            f"{subject['expected']:.0f}",
        ])  # fmt: skip
    columns = ["subject", "sizes", "CPU ms", "peak MiB at the largest", "exponent", "first decade", "last", "expected"]
    subjects = report["subjects"]
    far, near = (subjects[name]["exponent_by_decade"][1] for name in ("aggregate", "aggregate, near"))
    return "\n".join([
        "## Growth\n",
        f"CPU time on one thread against size, measured by `benchmarks/growth.py` {_when(report)}. Other work on the "
        "machine slows its caches, so times are upper bounds. The exponent is the slope of a line through the "
        "logarithms of five sizes and their times over two decades, both beyond those of a call of size 2.\n",
        f"{markdown_table(columns, rows, right_from=1)}\n",
        "Exponents that differ from the expected ones have two causes. Features that no longer fit in the cache raise "
        f"them: in the last decade the aggregation has the exponent {far:.2f} on a random graph, and {near:.2f} on a "
        "graph of the same size whose edges connect nodes that are next to each other in memory. The topology scores "
        "read random nodes too. Costs that grow more slowly lower them at small sizes.\n",
        *([_LARGE] if "ntk, large" in subjects else []),
        *_plain_operations(subjects),
    ])  # fmt: skip


def _plain_operations(subjects: dict[str, Any]) -> list[str]:
    """The exponents of plain operations, and the parts of quadratic times."""
    rows, splits = [], []
    for name, subject in subjects.items():
        if plain := subject.get("plain"):
            ratios = [ours / theirs for ours, theirs in zip(subject["seconds"], plain["seconds"], strict=True)]
            exponents = (plain["exponent"], *plain["exponent_by_decade"])
            rows.append([
                f"{name}: {plain['operations']}", *(f"{exponent:.2f}" for exponent in exponents),
                f"{ratios[0]:.2f}", f"{ratios[-1]:.2f}",
            ])  # fmt: skip
        if split := subject.get("parts"):
            (b, b_low, b_high), (c, c_low, c_high) = ([1e6 * v for v in split["linear_s"]],
                                                      [1e9 * v for v in split["quadratic_s"]])  # fmt: skip
            splits.append([
                name, f"{1e3 * split['fixed_s'][0]:.2f}", f"{b:.2f} ({b_low:.2f} to {b_high:.2f})",
                f"{c:.2f} ({c_low:.2f} to {c_high:.2f})",
            ])  # fmt: skip
    if not rows:
        return []
    columns = ["plain operations", "exponent", "first decade", "last", "time ratio, smallest", "largest"]
    parts = ["part of", "fixed, ms", "linear, µs per size", "quadratic, ns per size²"]
    return [
        "Plain PyTorch operations that do the main part of the work at the same sizes have exponents of their own. The "
        "ratio is the subject's time divided by theirs.\n",
        f"{markdown_table(columns, rows, right_from=1)}\n",
        "Quadratic times as a sum of three parts, with the range of the fits that leave out one size. The diagonal "
        "panels of the tangent kernel, of which half is not needed, are a linear part.\n",
        f"{markdown_table(parts, splits, right_from=1)}\n",
    ]


def scale(report: dict[str, Any]) -> str:
    """The section on the largest inputs.

    Args:
        report: The record of `benchmarks/scale.py`.
    """
    rows = []
    for name, subject in report["subjects"].items():
        if "edges" in subject:
            size = f"{subject['edges'] / 1e6:.0f} million edges, {subject['nodes'] / 1e6:.2f} million nodes"
        else:
            name = "audit of a Llama on the meta device"
            size = f"{subject['parameters'] / 1e9:.0f} billion parameters, {subject['norms']} norms"
        times = ", ".join(f"{part} {seconds:.1f}" for part, seconds in subject["seconds"].items())
        rows.append([name, size, times, f"{subject['peak_gib']:.2f}"])
    return (
        f"## The largest inputs\n\nMeasured by `benchmarks/scale.py` {_when(report)}, each in its own process, once, "
        "on one thread. The graphs are uniformly random and are read through a memory map. The robustness curve "
        "removes nodes in the order of their degrees. Memory is the peak resident set of the process, which includes "
        "the imports and the pages of the edge file.\n\n"
        f"{markdown_table(['subject', 'size', 'CPU s', 'peak, GiB'], rows, right_from=3)}\n"
    )


def small(report: dict[str, Any]) -> str:
    """The section on small inputs.

    Args:
        report: The record of `benchmarks/small.py`.
    """
    starts = [[name, f"{1e3 * seconds:.1f}"] for name, seconds in report["startup"].items()]
    audits = [
        [
            row["model"], f"{1e3 * row['forward_s']:.2f}", f"{1e3 * row['audit_s']:.2f}",
            f"{row['audit_s'] / row['forward_s']:.1f}",
        ]
        for row in report["audits"]
    ]  # fmt: skip
    scales = [
        [row["scale"] or "none", f"{1e3 * row['seen_s']:.1f}", f"{1e3 * row['new_s']:.1f}"] for row in report["scales"]
    ]
    kernels = [
        [
            row["network"], str(row["samples"]), *(f"{1e3 * row[name]:.2f}" for name in KERNEL_TIMES),
            f"{row['torch_func_s'] / row['seconds']:.2f}",
        ]
        for row in report["kernels"]
    ]  # fmt: skip
    boundaries = [_boundary(row, report["boundaries"][0]) for row in report["boundaries"]]
    graph = report["scales"][0]
    return "\n".join([
        "## Small inputs\n",
        f"Measured by `benchmarks/small.py` {_when(report)}. Times are the least CPU milliseconds of several calls on "
        "one thread. An audit of a small model takes as long as Python needs to record its operators and modules, "
        "whatever they compute.\n",
        f"{markdown_table(['start', 'ms'], starts, right_from=1)}\n",
        f"{markdown_table(['audit', 'forward pass, ms', 'audit, ms', 'ratio'], audits, right_from=1)}\n",
        f"Forward pass of a graph network of two GENConv layers of 64 channels, with a topology scale, on a graph of "
        f"{graph['nodes']:,} nodes and {graph['edges']:,} edges: again on the same graph, whose scale is remembered, "
        "and on a new one. Without a scale, a new graph is sorted only.\n",
        f"{markdown_table(['scale', 'same graph, ms', 'new graph, ms'], scales, right_from=1)}\n",
        "Tangent kernels: the first of a model, which is probed; later ones for samples of the same shape, for which "
        "the plan is remembered; and the Jacobian contraction of torch.func, with its time relative to later ones.\n",
        f"{markdown_table(KERNEL_COLUMNS, kernels, right_from=1)}\n",
        "A boundary of two LayerNorms on four rows of 64 features, with the number of Python functions that a call "
        "enters, and PyTorch's time relative to it. The host side of the Triton kernels is measured on CPU tensors, "
        "with launches that do nothing. A GPU adds the time of its launches: one forward and two backward for the "
        "boundary, one for each of PyTorch's kernels.\n",
        f"{markdown_table(BOUNDARY_COLUMNS, boundaries, right_from=1)}\n",
    ])  # fmt: skip


def _boundary(row: dict[str, Any], peer: dict[str, Any]) -> list[str]:
    """One row of the table of boundaries."""
    cells = [row["method"]]
    for kind in ("forward", "step"):
        seconds = row[f"{kind}_s"]
        cells += [f"{1e6 * seconds:.1f}", str(row[f"{kind}_calls"]), f"{peer[f'{kind}_s'] / seconds:.2f}"]
    return cells


def _when(report: dict[str, Any]) -> str:
    """The machine and the date of a record."""
    date = datetime.fromisoformat(report["date"])
    hardware = report["hardware"]
    return f"on an {hardware['cpu']} on {date:%-d %B %Y} at a load average of {report['load']:.1f}"


SECTIONS = {"fuse-cuda.json": fused_models, "dit-cuda.json": diffusion_transformer}
"""Sections of the page that compares with peers, by the record that they show."""
COSTS = {"small-cpu.json": small, "growth-cpu.json": growth, "scale-cpu.json": scale}
"""Sections of the page on costs, by the record that they show."""
COSTS_TITLE = """# Costs

How long do everyday calls take, and how much memory? CPU times on small inputs, their growth with size, and the
largest inputs.
`scripts/write_benchmarks.py` writes this page from the committed records; the [benchmarks](benchmarks.md) compare the
ops with their peers.
"""


def document() -> str:
    """The page that compares with peers."""
    return "\n".join([page(committed()), *_sections(SECTIONS)])


def costs() -> str:
    """The page on costs."""
    return "\n".join([COSTS_TITLE, *_sections(COSTS)])


def _sections(sections: Mapping[str, Callable[[dict[str, Any]], str]]) -> list[str]:
    paths = {RESULTS / name: section for name, section in sections.items()}
    return [section(json.loads(path.read_text())) for path, section in paths.items() if path.is_file()]


if __name__ == "__main__":
    folder = ROOT / "docs" / "reference"
    (folder / "benchmarks.md").write_text(document())
    (folder / "costs.md").write_text(costs())

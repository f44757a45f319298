"""Training at the size of the Peri-LN paper on one to eight GPUs, estimated from committed measurements of one GPU."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from normplace._shared.text_table import markdown_table
from normplace.lab.studies.periln.pretraining import FULL, MAIN, PART, PretrainingTrial, config_of
from normplace.lab.train.throughput import flops_per_token
from normplace.lab.trials.per_seed import pick
from normplace.models.transformer import AttentionConfig, Transformer, TransformerConfig
from papers import committed
from papers.scaling import ScalingEstimate, estimate_step

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
STEP_RECORD = RESULTS / "peri_step-cuda.json"
PROCESSES_RECORD = RESULTS / "processes-cpu.json"
GPUS = (1, 2, 4, 8)
PAPER_RUNS = 3 * 5
"""Placements and seeds that summaries of the paper report at one size."""
BANDWIDTH = 300e9
"""Assumed bytes per second that a GPU receives: two thirds of the vendor's 450 GB/s of NVLink in each direction."""


@dataclass(frozen=True)
class Plan:
    """A training run to estimate.

    Args:
        placement: Norm placement.
        dim: Width of the stream.
        depth: Number of layers.
        heads: Number of attention heads.
        vocabulary: Number of distinct tokens.
        context: Context length in tokens.
        batch: Sequences per step, over all GPUs.
        sequences: Sequences that a GPU computes at once.
        tokens: Training tokens.
        learning_rate: Peak learning rate.
    """

    placement: str = "peri"
    dim: int = 1024
    depth: int = 24
    heads: int = 16
    vocabulary: int = 100_277
    context: int = 1024
    batch: int = 512
    sequences: int = 16
    tokens: float = 30e9
    learning_rate: float = 2e-3

    @property
    def steps(self) -> int:
        """Number of optimizer steps."""
        return math.ceil(self.tokens / (self.batch * self.context))

    def model(self) -> Transformer:
        """The network, without memory for its weights."""
        attention = AttentionConfig(heads=self.heads)
        config = TransformerConfig(self.vocabulary, self.dim, self.depth, self.placement, attention=attention)
        return Transformer(config, device="meta")

    def accumulate(self, gpus: int) -> int:
        """Gradient accumulation steps on a number of GPUs."""
        return max(1, self.batch // (self.sequences * gpus))

    def estimate(self, gpus: int, flops_per_second: float, bandwidth: float = BANDWIDTH) -> ScalingEstimate:
        """Estimate a step on a number of GPUs."""
        return estimate_step(
            self.model(),
            context=self.context,
            batch=self.batch,
            accumulate=self.accumulate(gpus),
            processes=gpus,
            flops_per_second=flops_per_second,
            bandwidth=bandwidth,
        )

    def command(self, gpus: int) -> str:
        """The command that trains it; text and tokenizer are to be filled in."""
        launch = f"torchrun --nproc-per-node {gpus} --max-restarts 3 -m -- " if gpus > 1 else ""
        return (
            f"{launch}normplace train --placement {self.placement} --dim {self.dim} --depth {self.depth} "
            f"--heads {self.heads} --context {self.context} --batch {self.batch} --accumulate {self.accumulate(gpus)} "
            f"--steps {self.steps} --learning-rate {self.learning_rate:g} --precision bfloat16 --compile "
            "--evaluate-every 1000 --checkpoint-every 1000 --text text --tokenizer tokenizer.json "
            f"--out runs/{self.placement}"
        )


@dataclass(frozen=True)
class Throughput:
    """A measured throughput of one GPU.

    Args:
        source: Where it was measured.
        network: The network, in words.
        tokens_per_second: Tokens per second.
        flops: Operations per token.
        peak: Operations per second in bfloat16 that the vendor states.
    """

    source: str
    network: str
    tokens_per_second: float
    flops: float
    peak: float

    @property
    def flops_per_second(self) -> float:
        """Operations per second."""
        return self.tokens_per_second * self.flops


def measured() -> list[Throughput]:
    """The committed measurements on an H200, the slowest first."""
    record = json.loads(STEP_RECORD.read_text())
    peak = 1e12 * record["settings"]["peak_tflops"]
    trials = _from_trials(peak, record["hardware"]["gpu"])
    return sorted((_from_step_record(record, peak), trials), key=lambda one: one.flops_per_second)


def _from_step_record(record: dict[str, Any], peak: float) -> Throughput:
    """Peri-LN with compiled branches and fused boundaries in the record of a training step."""
    wanted = {"placement": "peri", "boundaries": "fused", "branches": "compiled"}
    row = next(row for row in record["step"] if wanted.items() <= row.items())
    own = record["settings"]
    plan = Plan(
        dim=own["dim"],
        depth=own["depth"],
        heads=own["dim"] // own["head_dim"],
        vocabulary=own["vocabulary"],
        context=own["length"],
        batch=own["batch"],
    )
    source = f"`benchmarks/results/{STEP_RECORD.name}`: `peri`, fused, compiled"
    network = f"{plan.depth} layers of width {plan.dim}, {plan.batch} × {plan.context} tokens a step"
    return Throughput(source, network, row["tokens_per_s"], flops_per_token(plan.model(), plan.context), peak)


def _from_trials(peak: float, gpu: str) -> Throughput:
    """The median pretraining trial of Peri-LN on a kind of GPU, with its start, measurements and evaluation."""
    fields = {"placement": "peri", "variant": MAIN, "tokens": FULL.grid}
    lines = pick(committed.records("periln", "full"), PART.name, **fields)
    lines = [line for line in lines if line.hardware.get("gpu") == gpu]
    trial = PretrainingTrial(**lines[0].config)
    speed = median((line.metrics["tokens"] or 0.0) / line.seconds for line in lines)
    tokens = f"{FULL.grid / 1e6:.0f} million tokens"
    source = f"`periln-full.jsonl.gz`: median of {len(lines)} whole `pretraining` trials of `peri`, {tokens} each"
    network = f"{trial.depth} layers of width {trial.dim}, {trial.batch_size} × {trial.context} tokens a step"
    model = Transformer(config_of(trial), device="meta")
    return Throughput(source, network, speed, flops_per_token(model, trial.context), peak)


def throughputs() -> str:
    """The measurements as a table."""
    rows = [
        [
            one.source,
            one.network,
            f"{one.tokens_per_second:,.0f}",
            f"{one.flops / 1e9:.2f}",
            f"{one.flops_per_second / 1e12:.0f}",
            f"{100 * one.flops_per_second / one.peak:.0f}%",
        ]
        for one in measured()
    ]
    headings = ("measured on one H200", "network", "tokens / s", "GFLOP / token", "TFLOP / s", "MFU")
    return markdown_table(headings, rows, right_from=2)


def estimates(
    plan: Plan, speeds: Sequence[float], gpus: Sequence[int] = GPUS, bandwidth: float = BANDWIDTH
) -> list[list[ScalingEstimate]]:
    """The estimates for every number of GPUs, each with every measured speed."""
    return [[plan.estimate(count, speed, bandwidth) for speed in speeds] for count in gpus]


def scaling_table(plan: Plan, rows: Sequence[Sequence[ScalingEstimate]]) -> str:
    """Traffic, times and costs; a range is from the fastest to the slowest measurement."""
    headings = (
        "GPUs",
        "accumulation steps",
        "weights gathered, GB",
        "gradients reduced, GB",
        "compute, s",
        "communication, s",
        "not hidden, s",
        "hidden from, GB/s",
        "billion tokens a day",
        f"days for {plan.tokens / 1e9:g} billion tokens",
        "GPU-hours",
    )
    return markdown_table(headings, [_estimate_row(plan, row) for row in rows], right_from=0)


def _estimate_row(plan: Plan, row: Sequence[ScalingEstimate]) -> list[str]:
    one = row[0]
    traffic = one.traffic
    communication = [
        f"{traffic.gathered / 1e9:.1f}",
        f"{traffic.reduced / 1e9:.1f}",
        _range([estimate.compute for estimate in row], ".2f"),
        _range([estimate.communication for estimate in row], ".3f"),
        _range([estimate.exposed for estimate in row], ".3f"),
        _range([estimate.hiding_bandwidth / 1e9 for estimate in row], ".3g"),
    ]
    if one.processes == 1:
        communication = ["", "", communication[2], "", "", ""]
    return [
        str(one.processes),
        str(one.accumulate),
        *communication,
        _range([86_400 * estimate.tokens_per_second / 1e9 for estimate in row], ".3g"),
        _range([estimate.days(plan.tokens) for estimate in row], ".2f"),
        _range([estimate.gpu_hours(plan.tokens) for estimate in row], ",.0f"),
    ]


def _range(values: Sequence[float], number: str) -> str:
    low, high = f"{min(values):{number}}", f"{max(values):{number}}"
    return low if low == high else f"{low} to {high}"


def scaling() -> str:
    """The estimate for the page: the plan, its table and the command."""
    plan = Plan()
    rows = estimates(plan, [one.flops_per_second for one in measured()])
    hours = [estimate.gpu_hours(plan.tokens) for estimate in rows[-1]]
    all_hours = [PAPER_RUNS * number for number in hours]
    return "\n\n".join(
        (
            describe(plan, BANDWIDTH),
            scaling_table(plan, rows),
            f"One run on {GPUS[-1]} GPUs takes {_range(hours, '.0f')} GPU-hours; three placements with five seeds at "
            f"one learning rate take {_range(all_hours, ',.0f')}. The command of one run:",
            f"    {plan.command(GPUS[-1])}",
        )
    )


def describe(plan: Plan, bandwidth: float) -> str:
    """The network and the settings of an estimate, in words."""
    model = plan.model()
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return (
        f"{plan.depth} layers of width {plan.dim} with {plan.heads} heads and {plan.vocabulary:,} tokens have "
        f"{parameters / 1e6:.0f} million parameters. At a context of {plan.context}, training takes "
        f"{flops_per_token(model, plan.context) / 1e9:.2f} GFLOP for a token. A step has {plan.batch} sequences, of "
        f"which a GPU computes {plan.sequences} at once. Assumed bandwidth: {bandwidth / 1e9:g} GB/s."
    )


def processes() -> str:
    """Losses of one process and of several, in one command each."""
    rows = [
        [
            f"`{run['command'].split(' --placement')[0]}{_accumulation(run['command'])}`",
            f"{run['bits_per_byte']:.5f}",
            *(f"{run[name]:.1e}" if name in run else "" for name in ("first_gap", "largest_gap", "held_out_gap")),
        ]
        for run in json.loads(PROCESSES_RECORD.read_text())["runs"]
    ]
    headings = ("command", "held-out bits per byte", "first step", "largest of all steps", "held-out loss")
    return markdown_table(headings, rows, right_from=1)


def _accumulation(command: str) -> str:
    """The accumulation option of a command, if it has one."""
    _, found, number = command.partition(" --accumulate")
    return found + number

"""Transformers that differ in placement and learning rate alone, on bytes, with their signals along the way."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from normplace._shared.device import pick_device
from normplace.analysis.signal_probe.probe import Depth, Probe, Signals
from normplace.errors import UsageError
from normplace.lab.studies.periln.growth import linear_advantage, log_ratio
from normplace.lab.tasks.data_files import unavailable_reason
from normplace.lab.tasks.sequences import load_text
from normplace.lab.tasks.sequences.text import STANDARD_LIBRARY, find_text
from normplace.lab.train.sequence import SequenceTraining, bits_per_token, fit_sequence
from normplace.lab.trials.study import Outcome, Part
from normplace.models.transformer import AttentionConfig, HeadConfig, Transformer, TransformerConfig
from normplace.placement import Placement

BYTES = 256
UNIFORM = 8.0
"""Bits per byte of a guess that knows nothing."""
NAMED = ("post", "pre", "peri", "output")
OTHERS = ("deepnorm", "mix", "lns", "hybrid")
MORE = ("sub", "keel", "normformer", "layerscale")
MOMENTS = {"start": 0.0, "quarter": 0.25, "end": 1.0}
LOOKS = 8
"""How often training is looked at; a quarter of it is one of the looks."""
RISEN = 1.0
"""Bits per byte by which a loss above its lowest counts as diverged."""
NEAR = 0.05
"""Bits per byte by which a network must beat the frequencies of bytes, or it is stuck at them."""

RATES = (3e-3, 1.5e-2, 7.5e-2)
SIZES: dict[str, dict[str, Any]] = {
    "tiny": {"dim": 32, "depth": 6, "heads": 2, "context": 32, "batch_size": 16, "steps": 88, "warm_up": 8}
    | {"norm": "layer"},
    "10M": {"dim": 384, "depth": 6, "heads": 6},
    "40M": {"dim": 640, "depth": 8, "heads": 10},
    "120M": {"dim": 896, "depth": 12, "heads": 14},
    "400M": {"dim": 1536, "depth": 14, "heads": 12},
}
SEEDS = 5
"""Of every size but 400M: the paper's smallest has one, for the table and no claim."""


@dataclass(frozen=True, kw_only=True)
class TrainingTrial:
    """One Transformer.

    Args:
        size: What the plan calls its shape.
        placement: Where its norms stand, by name.
        learning_rate: AdamW's at its highest; it falls to a tenth along a cosine.
        seed: Of the initial weights and the windows.
        text: What :func:`load_text` reads.
        dim: Width of the stream.
        depth: Layers.
        heads: Of attention.
        context: Positions of a row.
        batch_size: Rows in a step.
        steps: Of training; a multiple of 8, the number of looks at it.
        warm_up: Steps in which the rate rises.
        weight_decay: AdamW's.
        exam: Rows of the validation part; the first half chooses rates, the second judges.
        probe: Rows of it that signals are measured on.
        norm: ``rms`` or ``layer``.
        precision: ``float32`` or ``bfloat16``, of matrix products.
        device: Where it trains: ``auto``, ``cpu`` or ``cuda``.

    Raises:
        UsageError: If the placement is unknown, or the steps cannot be looked at evenly.
    """

    size: str
    placement: str
    learning_rate: float
    seed: int
    text: str = STANDARD_LIBRARY
    dim: int = 384
    depth: int = 6
    heads: int = 6
    context: int = 256
    batch_size: int = 16
    steps: int = 304
    warm_up: int = 24
    weight_decay: float = 0.1
    exam: int = 256
    probe: int = 8
    norm: str = "rms"
    precision: str = "float32"
    device: str = "auto"

    def __post_init__(self) -> None:
        Placement.named(self.placement)
        if self.steps < LOOKS or self.steps % LOOKS:
            raise UsageError(f"training is looked at {LOOKS} times, so steps must be a multiple of that: {self.steps}.")


def plan(scale: str) -> Iterator[TrainingTrial]:
    """At ``laptop`` the tiny size; at ``full`` the ladder, whose larger sizes try fewer placements and rates."""
    if scale == "smoke":
        small = {"dim": 16, "depth": 2, "heads": 2, "context": 8, "batch_size": 2, "steps": 8, "exam": 8, "probe": 2}
        yield from _trials("tiny", NAMED, RATES[:2], 2, warm_up=2, **small)
    elif scale == "laptop":
        yield from _trials("tiny", NAMED + OTHERS, RATES, SEEDS, exam=128, probe=4, **SIZES["tiny"])
    else:
        half = {"precision": "bfloat16"}
        rates = (3e-4, 1.2e-3, 4.8e-3, 1.92e-2)
        yield from _trials("400M", NAMED, rates[:2], 1, **half, **SIZES["400M"])
        yield from _trials("120M", NAMED, rates[:2], SEEDS, **half, **SIZES["120M"])
        yield from _trials("40M", NAMED, rates[:3], SEEDS, **half, **SIZES["40M"])
        yield from _trials("10M", NAMED + OTHERS + MORE, rates, SEEDS, **half, **SIZES["10M"])


def _trials(
    size: str, placements: Sequence[str], rates: Sequence[float], seeds: int, **shape: Any
) -> Iterator[TrainingTrial]:
    for seed in range(seeds):
        for placement in placements:
            for rate in rates:
                yield TrainingTrial(size=size, placement=placement, learning_rate=rate, seed=seed, **shape)


def config_of(trial: TrainingTrial) -> TransformerConfig:
    """The trial's network; every placement starts from the same kind of weights, and embeddings from unit variance."""
    return TransformerConfig(
        BYTES,
        trial.dim,
        trial.depth,
        placement=trial.placement,
        norm=trial.norm,
        attention=AttentionConfig(heads=trial.heads),
        head=HeadConfig(tied=False),
        init="xavier",
        std=1.0,
    )


def run(trial: TrainingTrial) -> Outcome:
    """Train, look at the signals at the start, a quarter of the way and the end, and judge by the validation part."""
    return train_and_measure(trial, build(config_of(trial), trial))


def build(config: TransformerConfig, trial: TrainingTrial) -> Transformer:
    """The network of a trial with the initial weights of its seed, on the trial's device."""
    return Transformer(config, generator=torch.Generator().manual_seed(trial.seed)).to(pick_device(trial.device))


def train_and_measure(trial: TrainingTrial, model: Transformer) -> Outcome:
    """Train a network as its trial asks, and measure its signals at three moments and its held-out loss.

    Args:
        trial: How to train.
        model: The network; changed in place.
    """
    device = pick_device(trial.device)
    text = load_text(trial.text, trial.context).to(device)
    inputs, targets = (part[: trial.probe] for part in text.evaluation_batch(trial.exam))

    def loss(logits: Tensor) -> Tensor:
        return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())

    probe = Probe()
    seen: dict[str, Signals] = {"start": probe.measure(model, inputs, loss)}

    def watch(step: int) -> None:
        for moment, share in MOMENTS.items():
            if step == round(share * trial.steps):
                seen[moment] = probe.measure(model, inputs, loss)

    training = SequenceTraining(
        trial.steps,
        trial.batch_size,
        trial.learning_rate,
        warm_up=trial.warm_up,
        schedule="cosine",
        weight_decay=trial.weight_decay,
        precision=trial.precision,
        every=trial.steps // LOOKS,
    )
    course = fit_sequence(model, text, training, torch.Generator(device).manual_seed(trial.seed), watch)
    bits = [value / math.log(2) for value in course.loss]
    exam = text.evaluation_batch(trial.exam)
    halves = (part.tensor_split(2) for part in exam)
    chosen, judged = (bits_per_token(model, *half, precision=trial.precision) for half in zip(*halves, strict=True))
    metrics = {
        "bits_per_byte": judged,
        "choosing_bits": chosen,
        "diverged": float(diverged(bits, judged)),
        "stuck": float(judged > frequency_bits(text.train, exam.targets.tensor_split(2)[1]) - NEAR),
        "parameters": float(sum(parameter.numel() for parameter in model.parameters())),
        "digest": float(int(text.digest[:12], 16)),
    }
    series: dict[str, Sequence[float]] = {
        "step": course.steps,
        "loss": bits,
        "depth": list(range(2 * trial.depth + 1)),
        "layer": list(range(1, trial.depth + 1)),
    }
    for moment, found in seen.items():
        numbers, lists = summary(found.depths)
        metrics |= {f"{name}_{moment}": value for name, value in numbers.items()}
        metrics[f"gradient_{moment}"] = math.nan if found.gradient is None else found.gradient
        series |= {f"{name}_{moment}": values for name, values in lists.items()}
    return Outcome(metrics, series)


def diverged(course: Sequence[float], judged: float) -> bool:
    """Whether training came to nothing: no finite loss, none below a blind guess, or one that rose again.

    Args:
        course: Bits per byte in training, at every look.
        judged: The same of the validation part at the end.
    """
    if not all(map(math.isfinite, (*course, judged))) or judged >= UNIFORM:
        return True
    return course[-1] > min(course) + RISEN


def frequency_bits(train: Tensor, targets: Tensor) -> float:
    """Bits per byte of a guess that knows how often each byte is, and nothing else."""
    counts = torch.bincount(train, minlength=BYTES) + 1
    return -float((counts / counts.sum()).log2()[targets].mean())


def summary(depths: Sequence[Depth]) -> tuple[dict[str, float], dict[str, list[float]]]:
    """What claims and figures need of one stream's depths: numbers, and lists over depths or layers.

    A layer is two depths. Growth is read behind whole layers, from the first to the last, so that neither the size of
    the embedding nor the difference between attention and MLP counts as growth.
    """
    layers = depths[2::2]
    variance = [depth.variance for depth in layers]
    pairs = zip(depths[1::2], layers, strict=True)
    gradient = [math.hypot(one.gradient or 0.0, other.gradient or 0.0) for one, other in pairs]
    numbers = {
        "linear": linear_advantage(variance),
        "grown": log_ratio(variance[-1], variance[0], 2),
        "uneven": log_ratio(max(gradient), min(gradient), 10),
        "tilt": log_ratio(gradient[-1], gradient[0], 10),
        "peak": max(depth.peak for depth in depths),
        "ratio": max(depth.ratio for depth in depths),
        "massive": float(sum(depth.massive for depth in depths)),
        "headroom": min(depth.fp16_headroom for depth in depths),
        "score": max(depth.score for depth in depths if depth.score is not None),
        "turn": sum(depth.turn or 0.0 for depth in depths) / (len(depths) - 1),
    }
    return numbers, {"variance": [depth.variance for depth in depths], "gradient": gradient}


PART = Part(
    name="training",
    config=TrainingTrial,
    plan=plan,
    run=run,
    label=lambda trial: f"{trial.size}, {trial.placement}, rate {trial.learning_rate:g}, seed {trial.seed}",
    unavailable_reason=lambda trial: unavailable_reason(find_text, trial.text),
)

"""Transformers on bytes that differ only in placement and learning rate, with signals during training."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from normplace._shared.device import pick_device
from normplace._shared.modules import count_parameters
from normplace.analysis.signal_probe.probe import Probe
from normplace.analysis.signal_probe.results import Depth, Signals
from normplace.errors import UsageError
from normplace.lab.studies.periln.growth import linear_advantage, log_ratio
from normplace.lab.studies.rate_grid import UNIFORM
from normplace.lab.tasks.data_files import unavailable_reason
from normplace.lab.tasks.sequences import load_text
from normplace.lab.tasks.sequences.text import STANDARD_LIBRARY, find_text
from normplace.lab.train.sequence import SequenceTraining, bits_per_token, fit_sequence
from normplace.lab.trials.study import Outcome, Part
from normplace.models.transformer import AttentionConfig, HeadConfig, Transformer, TransformerConfig
from normplace.placement import Placement

BYTES = 256
NAMED = ("post", "pre", "peri", "output")
OTHERS = ("deepnorm", "mix", "lns", "hybrid")
MORE = ("sub", "keel", "normformer", "layerscale")
MOMENTS = {"start": 0.0, "quarter": 0.25, "end": 1.0}
EVALUATIONS = 8
"""Evaluations during training; one of them is after a quarter."""
DIVERGED_RISE = 1.0
"""Bits per byte above its lowest value from which a loss counts as diverged."""
STUCK_MARGIN = 0.05
"""Bits per byte by which a network must beat the byte frequencies; otherwise it counts as stuck."""

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
"""Seeds of every size except 400M, which has one seed and no claim."""


@dataclass(frozen=True, kw_only=True)
class TrainingTrial:
    """One Transformer.

    Args:
        size: Name of the size.
        placement: Name of the placement.
        learning_rate: AdamW's peak learning rate; a cosine schedule decays it to a tenth.
        seed: Random seed of the initial weights and the batches.
        text: Name of the text that :func:`load_text` reads.
        dim: Width of the stream.
        depth: Number of layers.
        heads: Number of attention heads.
        context: Context length in tokens.
        batch_size: Sequences per step.
        steps: Number of training steps, a multiple of 8, the number of evaluations.
        warm_up: Number of warm-up steps.
        weight_decay: AdamW's weight decay.
        exam: Validation sequences; the first half selects learning rates, the second half gives the score.
        probe: Validation sequences that signals are measured on.
        norm: ``rms`` or ``layer``.
        precision: ``float32`` or ``bfloat16``, of matrix products.
        device: Device to train on: ``auto``, ``cpu`` or ``cuda``.

    Raises:
        UsageError: If the placement is unknown, or the steps are not a multiple of the evaluations.
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
        if self.steps < EVALUATIONS or self.steps % EVALUATIONS:
            raise UsageError(f"steps must be a multiple of the {EVALUATIONS} evaluations, got {self.steps}.")


def plan(scale: str) -> Iterator[TrainingTrial]:
    """The tiny size at ``laptop``; the ladder at ``full``, with fewer placements and learning rates at larger sizes."""
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
    """The trial's network; every placement has Xavier weights and embeddings of unit variance."""
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
    """Train and measure the signals before training, after a quarter of it and after it, and the validation loss."""
    return train_and_measure(trial, build(config_of(trial), trial))


def build(config: TransformerConfig, trial: TrainingTrial) -> Transformer:
    """Build a network with the initial weights of the trial's seed, on its device."""
    return Transformer(config, generator=torch.Generator().manual_seed(trial.seed)).to(pick_device(trial.device))


def train_and_measure(trial: TrainingTrial, model: Transformer) -> Outcome:
    """Train a network, and measure its signals at three moments and its validation loss."""
    device = pick_device(trial.device)
    text = load_text(trial.text, trial.context).to(device)
    inputs, targets = (part[: trial.probe] for part in text.evaluation_batch(trial.exam))

    def loss(logits: Tensor) -> Tensor:
        return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())

    probe = Probe()
    signals: dict[str, Signals] = {"start": probe.measure(model, inputs, loss)}

    def watch(step: int) -> None:
        for moment, share in MOMENTS.items():
            if step == round(share * trial.steps):
                signals[moment] = probe.measure(model, inputs, loss)

    training = SequenceTraining(
        trial.steps,
        trial.batch_size,
        trial.learning_rate,
        warm_up=trial.warm_up,
        schedule="cosine",
        weight_decay=trial.weight_decay,
        precision=trial.precision,
        every=trial.steps // EVALUATIONS,
    )
    history = fit_sequence(model, text, training, torch.Generator(device).manual_seed(trial.seed), watch)
    bits = [value / math.log(2) for value in history.loss]
    exam = text.evaluation_batch(trial.exam)
    halves = (part.tensor_split(2) for part in exam)
    choosing, test = (bits_per_token(model, *half, precision=trial.precision) for half in zip(*halves, strict=True))
    metrics = {
        "bits_per_byte": test,
        "choosing_bits": choosing,
        "diverged": float(diverged(bits, test)),
        "stuck": float(test > frequency_bits(text.train, exam.targets.tensor_split(2)[1]) - STUCK_MARGIN),
        "parameters": float(count_parameters(model)),
        "digest": float(int(text.digest[:12], 16)),
    }
    series: dict[str, Sequence[float]] = {
        "step": history.steps,
        "loss": bits,
        "depth": list(range(2 * trial.depth + 1)),
        "layer": list(range(1, trial.depth + 1)),
    }
    for moment, measured in signals.items():
        numbers, lists = summary(measured.depths)
        metrics |= {f"{name}_{moment}": value for name, value in numbers.items()}
        metrics[f"gradient_{moment}"] = math.nan if measured.gradient is None else measured.gradient
        series |= {f"{name}_{moment}": values for name, values in lists.items()}
    return Outcome(metrics, series)


def diverged(losses: Sequence[float], test: float) -> bool:
    """Whether training diverged: a loss is not finite, the final one is no better than a uniform guess, or it rose.

    Args:
        losses: Bits per byte in training, at every evaluation.
        test: Bits per byte on the validation text after training.
    """
    if not all(map(math.isfinite, (*losses, test))) or test >= UNIFORM:
        return True
    return losses[-1] > min(losses) + DIVERGED_RISE


def frequency_bits(train: Tensor, targets: Tensor) -> float:
    """Bits per byte of a guess by byte frequencies."""
    counts = torch.bincount(train, minlength=BYTES) + 1
    return -float((counts / counts.sum()).log2()[targets].mean())


def summary(depths: Sequence[Depth]) -> tuple[dict[str, float], dict[str, list[float]]]:
    """Numbers for claims, and lists over depths or layers for figures.

    A layer is two depths. Growth is measured after whole layers, from the first to the last, so that neither the size
    of the embedding nor the difference between attention and MLP counts as growth.
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
        "turn": sum(depth.angular_distance or 0.0 for depth in depths) / (len(depths) - 1),
    }
    return numbers, {"variance": [depth.variance for depth in depths], "gradient": gradient}


PART = Part(
    name="training",
    config=TrainingTrial,
    plan=plan,
    run=run,
    label=lambda trial: f"{trial.size}, {trial.placement}, rate {trial.learning_rate:g}, seed {trial.seed}",
    unavailable_reason=lambda trial: unavailable_reason(find_text, trial.text),
    in_demo=lambda trial: trial.placement in {"post", "pre", "peri"} and trial.seed < 2,
)

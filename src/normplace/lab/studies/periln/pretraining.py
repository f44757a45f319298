"""Deep Transformers pretrained on hundreds of megabytes of source text, at many learning rates.

Every run records its loss and gradient norm at every step, and the signals by depth at :data:`MOMENTS`. Known from the
paper, through summaries: AdamW, a cosine schedule, a weight decay of 0.1, RMSNorm. The other settings are our choices.
``scripts/run_pretraining.py`` runs the trials.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from normplace._shared.device import pick_device
from normplace.analysis.recording.passes import uncompiled_calls
from normplace.analysis.signal_probe.probe import Probe
from normplace.errors import expect_choice, expect_ranges
from normplace.lab.studies.periln.pretraining_signals import headline_numbers, measure_signals, series_of
from normplace.lab.studies.periln.training import BYTES, STUCK_MARGIN, diverged
from normplace.lab.studies.pretrained import PretrainedTrial, held_out_loss, missing_text, text_source
from normplace.lab.studies.rate_grid import RATES
from normplace.lab.tasks.data_files import search_settings
from normplace.lab.tasks.sequences.text import STANDARD_LIBRARY
from normplace.lab.train.compiling import compile_regions
from normplace.lab.train.corpus import Corpus, load_corpus
from normplace.lab.train.data import TokenWindows, spread_sequences
from normplace.lab.train.optimizer import parameter_groups
from normplace.lab.train.steps import Pause, StepHistory, spikes, take_steps
from normplace.lab.trials.study import Outcome, Part
from normplace.models.transformer import AttentionConfig, Transformer, TransformerConfig
from normplace.placement import Placement

NAMED = ("pre", "peri", "post", "output")
OTHERS = ("mix", "normformer", "sub")
"""The three best of the other placements in the 10M networks of the training part."""
LONG_PLACEMENTS = ("pre", "peri")
SEEDS = 3
STABILITY_SEEDS = 6
"""Six seeds that agree are the fewest that decide about a share of seeds."""
EQUAL_RATE = 4e-3
"""The high learning rate at which Pre-LN and Peri-LN are compared."""
STABILITY_RATES = (4e-3, 8e-3)
MOMENTS = (0.0, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0)
"""Fractions of the training at which signals are measured."""
POINTS = 200
"""Points of the recorded curves; spikes are counted over all steps."""
LOSS_SPIKE = 0.2
"""Nats above the median of the 64 steps before that make a loss a spike."""
GRADIENT_SPIKE = 3.0
"""Multiple of the median of the 64 steps before that makes a gradient norm a spike."""
SAMPLE = 1 << 26
"""Bytes of training text that byte frequencies are counted in."""

MAIN = "main"
VARIANTS: dict[str, tuple[str, ...]] = {
    MAIN: (*NAMED, *OTHERS),
    "frozen-gains": ("peri",),
    "zero-gains": ("peri",),
    "decayed-gains": ("peri", "pre"),
    "embedding-norm": ("peri", "pre"),
    "layer-norm": ("peri", "pre"),
    "depth-start": ("peri", "pre"),
    "fixed-start": ("peri", "pre"),
    "48-layers": ("peri", "pre"),
}
"""Placements of each variant. The gains are those of output norms, except that decay applies to all gains."""


@dataclass(frozen=True, kw_only=True)
class PretrainingTrial(PretrainedTrial):
    """One Transformer.

    Args:
        placement: Name of the placement.
        variant: ``main``, or one of :data:`VARIANTS`, which changes one thing.
        probe: Held-out sequences that signals are measured on.

    Raises:
        UsageError: If the placement or variant is unknown, or a number is out of range.
    """

    placement: str
    variant: str = MAIN
    dim: int = 512
    depth: int = 24
    heads: int = 8
    context: int = 1024
    batch_size: int = 96
    exam: int = 1024
    probe: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        expect_ranges(self, "probe", least=2)
        Placement.named(self.placement)
        expect_choice("variant", self.variant, VARIANTS)


@dataclass(frozen=True)
class Setting:
    """Sizes of the plan.

    Args:
        grid: Tokens of a cell of the learning-rate grid.
        long: Tokens of the long runs.
        short: Tokens of the runs that count divergences.
        shape: Fields of every trial.
        shapes: Fields of the trials of a variant.
    """

    grid: int
    long: int
    short: int
    shape: Mapping[str, Any] = field(default_factory=dict)
    shapes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def trial(self, placement: str, rate: float, seed: int, tokens: int, variant: str = MAIN) -> PretrainingTrial:
        """The trial of one cell of the plan."""
        shape = {**self.shape, **self.shapes.get(variant, {})}
        return PretrainingTrial(
            placement=placement, learning_rate=rate, seed=seed, tokens=tokens, variant=variant, **shape
        )


FULL = Setting(60_000_000, 300_000_000, 20_000_000, shapes={"48-layers": {"dim": 384, "depth": 48, "heads": 6}})
TINY = Setting(
    grid=384,
    long=768,
    short=192,
    shape={"dim": 16, "depth": 2, "heads": 2, "context": 8, "batch_size": 2, "exam": 8, "probe": 2}
    | {"text": STANDARD_LIBRARY, "precision": "float32", "device": "cpu"},
)
"""Networks that train in a fraction of a second, to try out the order of the trials."""


def plan(scale: str) -> Iterator[PretrainingTrial]:
    """One tiny trial at ``smoke``, none at ``laptop``; at ``full`` every cell that the order may reach."""
    if scale == "smoke":
        yield TINY.trial("peri", 1e-3, 0, TINY.short)
    elif scale == "full":
        for variant, placements in VARIANTS.items():
            for placement in placements:
                for rate in RATES:
                    yield from (FULL.trial(placement, rate, seed, FULL.grid, variant) for seed in range(SEEDS))
        for placement in LONG_PLACEMENTS:
            for rate in RATES:
                yield from (FULL.trial(placement, rate, seed, FULL.long) for seed in range(SEEDS))
            for rate in STABILITY_RATES:
                yield from (FULL.trial(placement, rate, seed, FULL.short) for seed in range(STABILITY_SEEDS))


def config_of(trial: PretrainingTrial) -> TransformerConfig:
    """The trial's network: the defaults of ``normplace train`` with Xavier weights, changed by the variant."""
    placement = Placement.named(trial.placement)
    if trial.variant == "embedding-norm":
        placement = dataclasses.replace(placement, embedding=True)
    return TransformerConfig(
        BYTES,
        trial.dim,
        trial.depth,
        placement=placement,
        norm="layer" if trial.variant == "layer-norm" else "rms",
        attention=AttentionConfig(heads=trial.heads),
        init={"depth-start": "depth", "fixed-start": "fixed"}.get(trial.variant, "xavier"),
    )


def build(trial: PretrainingTrial) -> Transformer:
    """The network with the initial weights of the trial's seed, on its device."""
    model = Transformer(config_of(trial), generator=torch.Generator().manual_seed(trial.seed))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("output_norm.weight") and trial.variant == "zero-gains":
                parameter.zero_()
            if name.endswith("output_norm.weight") and trial.variant == "frozen-gains":
                parameter.requires_grad_(False)
    return model.to(pick_device(trial.device))


@dataclass(frozen=True, eq=False)
class PretrainingText:
    """A text, and how well simple guesses predict its held-out part, in bits per byte.

    Args:
        corpus: The text.
        byte_bits: Guess by byte frequencies.
        pair_bits: Guess by the frequencies of pairs of bytes.
    """

    corpus: Corpus
    byte_bits: float
    pair_bits: float


def pretraining_text(name: str) -> PretrainingText:
    """Read a text and its byte statistics, once in a process.

    Raises:
        UsageError: If there is no such text.
    """
    return _pretraining_text(name, search_settings())


@functools.lru_cache(maxsize=1)
def _pretraining_text(name: str, _settings: tuple[str, ...]) -> PretrainingText:
    corpus = load_corpus(text_source(name))
    pairs = np.ones((BYTES, BYTES))  # add-one smoothing
    for start in range(0, min(SAMPLE, len(corpus.train)), 1 << 22):
        piece = np.asarray(corpus.train[start : start + (1 << 22)], dtype=np.int64)
        pairs += np.bincount(piece[:-1] * BYTES + piece[1:], minlength=BYTES**2).reshape(BYTES, BYTES)
    held_out = np.asarray(corpus.held_out, dtype=np.int64)
    single = -np.log2(pairs.sum(0) / pairs.sum())[held_out[1:]].mean()
    pair = -np.log2(pairs / pairs.sum(1, keepdims=True))[held_out[:-1], held_out[1:]].mean()
    return PretrainingText(corpus, float(single), float(pair))


def run(trial: PretrainingTrial, pause: Pause | None = None) -> Outcome:
    """Train and measure, unless ``pause`` stops and saves the run first.

    Raises:
        Paused: If the deadline passed.
    """
    text, device, config = pretraining_text(trial.text), pick_device(trial.device), trial.train_config()
    exam = spread_sequences(text.corpus.held_out, trial.context, trial.exam).to(device)
    probe, sequences = Probe(), exam[: trial.probe]
    model = build(trial)
    optimizer = torch.optim.AdamW(
        parameter_groups(model, trial.weight_decay, decay_vectors=trial.variant == "decayed-gains"),
        lr=trial.learning_rate,
        betas=(config.beta1, config.beta2),
        fused=True,
    )
    if device.type == "cuda" and trial.variant != "layer-norm":  # compiled gradients of F.layer_norm can be wrong
        compile_regions(model)

    def loss(logits: Tensor) -> Tensor:
        return F.cross_entropy(logits.float().flatten(0, 1), sequences[:, 1:].flatten())

    def measure(taken: int) -> dict[str, Any]:
        with uncompiled_calls():  # the probe would compile every layer once more
            return measure_signals(probe.measure(model, sequences[:, :-1], loss, optimizer), model)

    history = take_steps(
        model,
        optimizer,
        TokenWindows(text.corpus.train, trial.context, trial.seed),
        config,
        device,
        measure=measure,
        measure_at={round(share * trial.steps) for share in MOMENTS},
        pause=pause,
    )
    with uncompiled_calls():
        choosing, test = (held_out_loss(model, part, trial) / math.log(2) for part in (exam[::2], exam[1::2]))
    return outcome(trial, text, history, choosing, test)


def outcome(
    trial: PretrainingTrial, text: PretrainingText, history: StepHistory, choosing: float, test: float
) -> Outcome:
    """Metrics and series of a finished run.

    Args:
        trial: The trial.
        text: Its text.
        history: Its steps and measurements.
        choosing: Bits per byte of the held-out sequences that select learning rates.
        test: Bits per byte of the other held-out sequences.
    """
    steps, warm = len(history.losses), int(trial.warm_up * trial.steps)
    bits = [value / math.log(2) for value in history.losses]
    blocks = np.array_split(np.arange(steps), min(POINTS, steps))
    curves = {
        "step": [float(block[-1]) + 1 for block in blocks],
        "loss": _reduced(bits, blocks, fmean),
        "loss_most": _reduced(bits, blocks, max),
        "gradient_norm": _reduced(history.gradient_norms, blocks, median),
        "gradient_norm_most": _reduced(history.gradient_norms, blocks, max),
    }
    loss_spikes = spikes(history.losses, lambda value, middle: value > middle + LOSS_SPIKE, warm)
    gradient_spikes = spikes(history.gradient_norms, lambda value, middle: value > GRADIENT_SPIKE * middle, warm)
    metrics = {
        "bits_per_byte": test,
        "choosing_bits": choosing,
        "diverged": float(history.diverged is not None or diverged(curves["loss"], test)),
        "stuck": float(not test < text.byte_bits - STUCK_MARGIN),
        "byte_bits": text.byte_bits,
        "pair_bits": text.pair_bits,
        "steps": float(steps),
        "tokens": float(steps * trial.context * trial.batch_size),
        "epochs": steps * trial.context * trial.batch_size / len(text.corpus.train),
        "loss_spikes": 1000 * loss_spikes / steps,
        "gradient_spikes": 1000 * gradient_spikes / steps,
        "gradient_norm_most": float(np.max(history.gradient_norms[warm:] or [math.nan])),
        "digest": float(int(text.corpus.sha256[:12], 16)),
    }
    return Outcome(metrics | headline_numbers(history.measured), curves | series_of(history.measured))


def _reduced(values: Sequence[float], blocks: Sequence[np.ndarray], function: Any) -> list[float]:
    return [float(f"{function([values[index] for index in block]):.5g}") for block in blocks]


def _unavailable(trial: PretrainingTrial) -> str | None:
    if trial.tokens >= FULL.short and not torch.cuda.is_available():
        return "24 layers on millions of tokens need a GPU; there, run scripts/run_pretraining.py"
    return missing_text(trial)


PART = Part(
    name="pretraining",
    config=PretrainingTrial,
    plan=plan,
    run=run,
    label=lambda trial: (
        f"{trial.placement}, {trial.variant}, rate {trial.learning_rate:g}, {trial.tokens / 1e6:g}M tokens, "
        f"seed {trial.seed}"
    ),
    unavailable_reason=_unavailable,
)

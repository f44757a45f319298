"""Language modeling on 100 million tokens of source text, at equal parameter counts.

Tokens are bytes, or those of a byte-level BPE that is learned from the text. The learning rate of each network is the
best of a grid of shorter runs with a seed that is not reported. ``scripts/run_pretraining.py --study causalrn`` runs
the trials, several in one process.
"""

from __future__ import annotations

import functools
import importlib.util
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import numpy as np
import torch

from normplace._shared.device import pick_device
from normplace._shared.output import write_atomic
from normplace._shared.seeding import seeded
from normplace.errors import UsageError, expect_choice, expect_ranges
from normplace.lab.studies.causalrn.language import matched_network
from normplace.lab.studies.causalrn.networks import NETWORKS, TITLES
from normplace.lab.studies.pretrained import PretrainedTrial, held_out_loss, missing_text, text_source
from normplace.lab.studies.rate_grid import RATES
from normplace.lab.tasks.data_files import cache_folder, search_settings
from normplace.lab.tasks.sequences.text import STANDARD_LIBRARY
from normplace.lab.train.corpus import Corpus, load_corpus
from normplace.lab.train.data import TokenWindows, spread_sequences
from normplace.lab.train.optimizer import graphed_adamw
from normplace.lab.train.steps import Pause, StepHistory, take_steps
from normplace.lab.train.tokenizer import BYTES, learn_tokenizer
from normplace.lab.trials.study import Outcome, Part
from normplace.models.sequence import SequenceModel, count_parameters

BYTE_VALUES = 256
VOCABULARIES = (BYTE_VALUES, 4096)
SEEDS = 3
GRID_SEED = 1000
"""Seed of the runs that choose learning rates; its results are not reported."""
POINTS = 100
"""Points of the recorded loss curve."""
SPEED_EVERY = 50
"""Steps between two readings of the clock."""


@dataclass(frozen=True, kw_only=True)
class PretrainingTrial(PretrainedTrial):
    """One network on one text.

    Args:
        network: Name of the network, at the Transformer's parameter count.
        vocab: Number of tokens; 256 for bytes.
        cuda_graph: Whether to replay training steps as a CUDA graph on a GPU.

    Raises:
        UsageError: If the network is unknown, or a number is out of range.
    """

    network: str
    vocab: int
    dim: int = 256
    depth: int = 6
    heads: int = 4
    context: int = 256
    batch_size: int = 128
    exam: int = 2048
    cuda_graph: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        expect_ranges(self, "vocab", least=BYTE_VALUES)
        expect_choice("network", self.network, NETWORKS)


@dataclass(frozen=True)
class Setting:
    """Sizes of the plan.

    Args:
        grid: Tokens of a run that chooses a learning rate.
        long: Tokens of a reported run.
        vocabularies: Numbers of tokens of the vocabularies.
        shape: Fields of every trial.
    """

    grid: int
    long: int
    vocabularies: tuple[int, ...] = VOCABULARIES
    shape: Mapping[str, Any] = field(default_factory=dict)

    def trial(self, network: str, vocab: int, rate: float, seed: int, tokens: int) -> PretrainingTrial:
        """The trial of one cell of the plan."""
        return PretrainingTrial(
            network=network, vocab=vocab, learning_rate=rate, seed=seed, tokens=tokens, **self.shape
        )


FULL = Setting(20_000_000, 100_000_000)
TINY = Setting(
    grid=96,
    long=192,
    vocabularies=(256, 272),
    shape={"dim": 16, "depth": 1, "heads": 2, "context": 8, "batch_size": 2, "exam": 8}
    | {"text": STANDARD_LIBRARY, "precision": "float32", "device": "cpu"},
)
"""Networks that train in a fraction of a second, to try out the order of the trials."""


def grid_fields(network: str, vocab: int, tokens: int = FULL.grid) -> dict[str, object]:
    """Configuration fields of the trials that choose a network's learning rate."""
    return {"network": network, "vocab": vocab, "tokens": tokens, "seed": GRID_SEED}


def plan(scale: str) -> Iterator[PretrainingTrial]:
    """Two tiny trials at ``smoke``, none at ``laptop``; at ``full`` every cell that the order may reach."""
    if scale == "smoke":
        for network in ("pairwise", "linear-attention"):
            yield TINY.trial(network, TINY.vocabularies[1], 1e-3, 0, TINY.grid)
    elif scale == "full":
        for vocab in FULL.vocabularies:
            for network in NETWORKS:
                for rate in RATES:
                    yield FULL.trial(network, vocab, rate, GRID_SEED, FULL.grid)
                    yield from (FULL.trial(network, vocab, rate, seed, FULL.long) for seed in range(SEEDS))


def build(trial: PretrainingTrial) -> SequenceModel:
    """The network with the initial weights of the trial's seed, on its device."""
    with seeded(trial.seed, gpus=True):
        shape = {"heads": trial.heads, "context": trial.context}
        model = matched_network(trial.network, trial.vocab, trial.dim, trial.depth, **shape)
    return model.to(pick_device(trial.device))


def pretraining_text(name: str, vocab: int = BYTE_VALUES) -> Corpus:
    """Read and tokenize a text, once in a process.

    Args:
        name: Name of the text.
        vocab: Number of tokens; more than 256 are learned from the training part of the text. The tokenizer is kept in
            the folder ``tokenizers`` of the cache, under the hash of the text.

    Raises:
        UsageError: If there is no such text, or it is too short for the tokens.
    """
    return _pretraining_text(name, vocab, search_settings())


@functools.lru_cache(maxsize=2)
def _pretraining_text(name: str, vocab: int, settings: tuple[str, ...]) -> Corpus:
    source = text_source(name)
    if vocab == BYTE_VALUES:
        return load_corpus(source, BYTES)
    bytes_of_text = _pretraining_text(name, BYTE_VALUES, settings)
    path = cache_folder() / "tokenizers" / f"{bytes_of_text.sha256[:16]}-{vocab}.json"
    if not path.is_file():
        tokenizer = learn_tokenizer(np.asarray(bytes_of_text.train).tobytes(), vocab)
        write_atomic(path, tokenizer.to_json(), "set NORMPLACE_CACHE to another folder")
    return load_corpus(source, str(path))


class _Clock:
    """Measures the speed of the training steps of this process, without its first ones."""

    def __init__(self) -> None:
        self.readings: list[tuple[int, float]] = []

    def read(self, taken: int) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.readings.append((taken, time.perf_counter()))

    def steps_per_second(self) -> float | None:
        """None if too few steps were taken."""
        if len(self.readings) < 2:
            return None
        (first, start), (last, end) = self.readings[0], self.readings[-1]
        return (last - first) / (end - start)


def run(trial: PretrainingTrial, pause: Pause | None = None) -> Outcome:
    """Train and evaluate, unless ``pause`` stops and saves the run first.

    Raises:
        Paused: If the deadline passed.
    """
    corpus, device, config = pretraining_text(trial.text, trial.vocab), pick_device(trial.device), trial.train_config()
    if corpus.vocab_size > trial.vocab:
        raise UsageError(f"the text has {corpus.vocab_size} tokens, but vocab is {trial.vocab}: increase vocab.")
    exam = spread_sequences(corpus.held_out, trial.context, trial.exam).to(device)
    model = build(trial)
    optimizer = graphed_adamw(model, trial.weight_decay, (config.beta1, config.beta2), device)
    clock = _Clock()
    history = take_steps(
        model,
        optimizer,
        TokenWindows(corpus.train, trial.context, trial.seed),
        config,
        device,
        measure=clock.read,
        measure_at=range(SPEED_EVERY, trial.steps, SPEED_EVERY),
        pause=pause,
        cuda_graph=trial.cuda_graph,
    )
    choosing, test = (
        corpus.bits_per_byte(held_out_loss(model, part, trial), part[:, 1:]) for part in (exam[::2], exam[1::2])
    )
    return outcome(trial, corpus, history, choosing, test, count_parameters(model), device, clock.steps_per_second())


def outcome(
    trial: PretrainingTrial,
    corpus: Corpus,
    history: StepHistory,
    choosing: float,
    test: float,
    parameters: int,
    device: torch.device,
    steps_per_second: float | None,
) -> Outcome:
    """Metrics and series of a finished run.

    Args:
        trial: The trial.
        corpus: Its text.
        history: Its steps.
        choosing: Bits per byte of the held-out sequences that select learning rates.
        test: Bits per byte of the other held-out sequences.
        parameters: Number of parameters.
        device: Where it ran.
        steps_per_second: Its speed, recorded on a GPU only, where results are not deterministic either.
    """
    steps, tokens_per_step = len(history.losses), trial.context * trial.batch_size
    blocks = np.array_split(np.arange(steps), min(POINTS, steps))
    metrics = {
        "bits_per_byte": test,
        "choosing_bits": choosing,
        "diverged": float(history.diverged is not None or not math.isfinite(test)),
        "steps": float(steps),
        "tokens": float(steps * tokens_per_step),
        "epochs": steps * tokens_per_step / len(corpus.train),
        "bytes_per_token": corpus.bytes_per_token,
        "parameters": float(parameters),
        "digest": float(int(corpus.sha256[:12], 16)),
    }
    if device.type == "cuda" and steps_per_second is not None:
        metrics["tokens_per_second"] = steps_per_second * tokens_per_step
    loss = [fmean(history.losses[index] for index in block) for block in blocks]
    curves = {
        "step": [float(block[-1]) + 1 for block in blocks],
        "loss": [float(f"{value / math.log(2) / corpus.train_bytes_per_token:.5g}") for value in loss],
    }
    return Outcome(metrics, curves)


def _unavailable(trial: PretrainingTrial) -> str | None:
    if trial.tokens >= FULL.grid and not torch.cuda.is_available():
        return "millions of tokens need a GPU; there, run scripts/run_pretraining.py --study causalrn"
    if trial.vocab > BYTE_VALUES and importlib.util.find_spec("tokenizers") is None:
        return "a learned vocabulary needs 'tokenizers': pip install 'normplace[train]'"
    return missing_text(trial)


PART = Part(
    name="pretraining",
    config=PretrainingTrial,
    plan=plan,
    run=run,
    label=lambda trial: (
        f"{TITLES[trial.network]}, {trial.vocab} tokens, rate {trial.learning_rate:g}, {trial.tokens / 1e6:g}M tokens, "
        f"seed {trial.seed}"
    ),
    unavailable_reason=_unavailable,
)

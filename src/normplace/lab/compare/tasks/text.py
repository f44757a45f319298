"""The text task: train a language model on the user's text.

The network is normplace's Transformer, or any causal language model of a Hugging Face ``config.json``. A tenth of the
text is held out (:mod:`normplace.lab.train.corpus`). Its windows alternate between the split that chooses and the split
that is reported, so both have the same mixture of documents. The measure is bits per byte.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normplace._shared.seeding import seeded
from normplace.analysis.loading.models import build_model, read_config
from normplace.errors import UsageError, expect_choice, expect_ranges
from normplace.lab.compare.start_folder import from_start_folder
from normplace.lab.compare.task import SPLITS, Start, Task, task_reference
from normplace.lab.tasks.sequences.text import STANDARD_LIBRARY
from normplace.lab.train.compiling import compile_edited
from normplace.lab.train.config import PRECISIONS, NetworkConfig
from normplace.lab.train.corpus import BYTES, Corpus, is_named_source, load_corpus, source_files
from normplace.lab.train.data import TokenWindows, spread_sequences
from normplace.lab.train.optimizer import parameter_groups
from normplace.lab.train.token_cache import TextFile
from normplace.models.transformer import Transformer

LEARNING_RATE, HF_LEARNING_RATE = 3e-3, 1e-3
WEIGHT_DECAY, BETAS = 0.1, (0.9, 0.95)
AUTO = "auto"
DEVICES = (AUTO, "cpu", "cuda")


@dataclass(frozen=True, kw_only=True)
class TextConfig(NetworkConfig):
    """Text, network and batches of a text task.

    Args:
        text: Files, folders, ``hf:NAME``, ``python`` or ``packages``; see :mod:`normplace.lab.train.corpus`.
        tokenizer: ``bytes``, a ``tokenizer.json``, or a name on the Hugging Face Hub.
        hf: A ``config.json`` of a causal language model, or its folder; empty for normplace's Transformer.
        context: Context length in tokens.
        batch: Sequences per step.
        held_out: Sequences of each held-out split.
        init: Initial weights of the Transformer: ``xavier``, with embeddings of variance 1, ``fixed`` or ``depth``.
            Small embeddings, and weights that are scaled down with depth, favour some placements over others.
        device: ``auto``, ``cpu`` or ``cuda``.
        precision: ``auto``, ``float32``, or ``bfloat16`` under autocast with float32 weights, which ``auto`` chooses on
            a GPU.
        compile: Compile the layers of the network. It takes about a minute per edit, which long trainings repay.

    Raises:
        UsageError: If a value has the wrong type, is out of range or is an unknown name.
    """

    text: tuple[str, ...] = (STANDARD_LIBRARY,)
    tokenizer: str = BYTES
    hf: str = ""
    context: int = 64
    batch: int = 8
    held_out: int = 128
    init: str = "xavier"
    device: str = AUTO
    precision: str = AUTO
    compile: bool = False
    placement: str = "pre"
    dim: int = 64

    def __post_init__(self) -> None:
        super().__post_init__()
        expect_ranges(self, "context", "batch", "held_out", least=1)
        for name, options in (("device", DEVICES), ("precision", (AUTO, *PRECISIONS))):
            expect_choice(name, getattr(self, name), options)


class TextTask(Task):
    """Next-token prediction on the user's text.

    Args:
        **settings: The fields of :class:`TextConfig`; ``text`` may also be one string.

    Raises:
        UsageError: If a setting is wrong, or the text is missing or too short.
    """

    def __init__(self, **settings: Any) -> None:
        text = settings.get("text", (STANDARD_LIBRARY,))
        sources = (text,) if isinstance(text, str | Path) else text
        self.config = TextConfig(**{**settings, "text": tuple(map(str, sources))})
        config = self.config
        self.device = _chosen_device(config.device)
        self.is_rounded = config.precision == "bfloat16" or (config.precision == AUTO and self.device.type == "cuda")
        self.autocast = torch.autocast(self.device.type, torch.bfloat16, enabled=self.is_rounded)
        self.corpus = _read_corpus([_located(source) for source in config.text], config.tokenizer)
        self.splits = _held_out_splits(self.corpus, config.context, config.held_out)
        TokenWindows(self.corpus.train, config.context, seed=0)  # raises if the text is too short
        self.name = f"text {' '.join(Path(source).absolute().name for source in config.text)}"
        self.learning_rate = HF_LEARNING_RATE if config.hf else LEARNING_RATE
        self.reference = task_reference(TextTask, dataclasses.asdict(config))
        self.hf_path = from_start_folder(config.hf)
        self.hf_config = _read_causal_config(self.hf_path, self.corpus, config.context) if config.hf else None
        self.notes = tuple(self._notes())

    def start(self, seed: int) -> Start:
        """Build the network and the data order of a seed."""
        model = self._build(seed).to(self.device)
        compiling = compile_edited if self.config.compile else None
        return Start(
            model, lambda epoch: self._batches(seed), self.loss, self.validate, optimizer=_adamw, compiling=compiling
        )

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        """Mean negative log-likelihood of the next token, in nats."""
        tokens, targets = batch[:, :-1], batch[:, 1:]
        with self.autocast:
            logits = model(tokens) if self.hf_config is None else model(input_ids=tokens, use_cache=False).logits
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())

    def validate(self, model: nn.Module, split: str) -> float:
        """Bits per byte of a held-out split."""
        sequences = self.splits[split]
        total = sum(
            float(self.loss(model, part.to(self.device))) * len(part) for part in sequences.split(self.config.batch)
        )
        return self.corpus.bits_per_byte(total / len(sequences), sequences[:, 1:])

    def describe(self) -> dict[str, Any]:
        """The text, the network and the batches."""
        return {
            **super().describe(),
            "measure": "bits per byte",
            "sha256": self.corpus.sha256,
            "settings": dataclasses.asdict(self.config),
        }

    def _build(self, seed: int) -> nn.Module:
        if self.hf_config is None:
            network = self.config.transformer_config(self.corpus.vocab_size, self.config.context)
            head = dataclasses.replace(network.head, tied=False)  # so that the embeddings may be large
            std = 1.0 if self.config.init == "xavier" else network.std
            network = dataclasses.replace(network, init=self.config.init, std=std, head=head)
            return Transformer(network, generator=torch.Generator().manual_seed(seed))
        from transformers import AutoModelForCausalLM

        with seeded(seed):
            return build_model(self.hf_path, self.hf_config, AutoModelForCausalLM.from_config)

    def _batches(self, seed: int) -> Iterator[Tensor]:
        """An endless sequence of batches, count × (context + 1)."""
        windows = TokenWindows(self.corpus.train, self.config.context, seed)
        first = 0
        while True:
            sequences = windows.sequences(first, self.config.batch)
            if self.device.type == "cuda":  # the copy does not wait for the GPU
                sequences = sequences.pin_memory().to(self.device, non_blocking=True)
            yield sequences
            first += self.config.batch

    def _notes(self) -> Iterator[str]:
        corpus, count = self.corpus, len(self.splits[SPLITS[0]])
        yield (
            f"{len(corpus.train):,} tokens train; {count} sequences of {self.config.context} held-out "
            f"tokens choose the learning rate, and {len(self.splits[SPLITS[1]])} others are reported."
        )
        numbers = "bfloat16 autocast with float32 weights" if self.is_rounded else "float32"
        yield f"Trainings run on {self.device.type} in {numbers}{', with compiled layers' * self.config.compile}."
        if self.hf_config is not None:
            yield f"The model has the vocabulary of the tokenizer, {corpus.vocab_size} tokens."


def _located(source: str) -> str:
    """The source of text with its path from the start folder; names of texts are returned unchanged."""
    return source if is_named_source(source) or not source.strip() else str(from_start_folder(source))


def _chosen_device(name: str) -> torch.device:
    if name == "cuda" and not torch.cuda.is_available():
        raise UsageError("device is cuda, but PyTorch sees no GPU: leave it out, or install a build for it.")
    return torch.device(("cuda" if torch.cuda.is_available() else "cpu") if name == AUTO else name)


def _read_corpus(sources: Sequence[str], tokenizer: str) -> Corpus:
    """The text; a worker reads it once for all its trials, unless its files change."""
    files = tuple(file for source in sources for file in source_files(source))
    return _corpus(tuple(sources), tokenizer, files)


@lru_cache(maxsize=2)
def _corpus(sources: tuple[str, ...], tokenizer: str, files: tuple[TextFile, ...]) -> Corpus:
    """The text of files as they are now."""
    return load_corpus(sources, tokenizer)


def _held_out_splits(corpus: Corpus, context: int, count: int) -> dict[str, Tensor]:
    windows = spread_sequences(corpus.held_out, context, 2 * count)
    if len(windows) < 2:
        raise UsageError(
            f"the held-out tenth of {corpus.name} has {len(corpus.held_out)} tokens, and two splits need "
            f"{2 * context + 1}: give more text, or set context={max(1, (len(corpus.held_out) - 1) // 2)}."
        )
    return {split: windows[index::2] for index, split in enumerate(SPLITS)}


def _read_causal_config(path: Path, corpus: Corpus, context: int) -> Any:
    """A configuration of a causal language model, with the vocabulary of the text.

    Raises:
        UsageError: If it is none, or its context is shorter.
    """
    config, _ = read_config(path)
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise UsageError(f"{path} does not configure a causal language model: {type(config).__name__} is another kind.")
    longest = getattr(config, "max_position_embeddings", None)
    if isinstance(longest, int) and 0 < longest < context:
        raise UsageError(f"{path} has {longest} positions, but the context is {context} tokens: lower context.")
    config.vocab_size = corpus.vocab_size
    for name in ("pad_token_id", "bos_token_id", "eos_token_id"):
        if isinstance(token := getattr(config, name, None), int) and token >= corpus.vocab_size:
            setattr(config, name, None)
    return config


def _adamw(model: nn.Module, learning_rate: float) -> torch.optim.Optimizer:
    groups = parameter_groups(model, WEIGHT_DECAY)
    on_gpu = next(model.parameters()).is_cuda
    return torch.optim.AdamW(groups, lr=learning_rate, betas=BETAS, fused=on_gpu or None)

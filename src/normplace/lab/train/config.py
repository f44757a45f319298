"""What a training run is asked for: a network's shape and a recipe, both frozen values."""

from __future__ import annotations

import math
from dataclasses import dataclass

from normplace._shared.fields import check_range, check_types
from normplace.errors import unknown
from normplace.lab.train.schedule import Schedule
from normplace.models.transformer import AttentionConfig, MLPConfig, PositionConfig, TransformerConfig

PRECISIONS = ("float32", "bfloat16")
PARALLEL = ("fsdp", "ddp")
SEEDS = 1 << 62
"""Seeds are below this, so that every process can add its rank."""


@dataclass(frozen=True, kw_only=True)
class NetworkConfig:
    """A decoder in a few words; :class:`normplace.models.transformer.TransformerConfig` knows more.

    Args:
        placement: Where norms stand: the name of a preset.
        norm: What stands there.
        dim: Width of the stream.
        depth: Layers.
        heads: Of attention.
        key_value_heads: Of keys and values; 0 for as many.
        mlp: Kind of MLP.
        positions: ``rotary``, ``learned``, ``alibi`` or ``none``.
        length: How many positions are learned, where they are; 0 for the context.

    Raises:
        UsageError: If a number is too small or of another type.
    """

    placement: str = "peri"
    norm: str = "rms"
    dim: int = 128
    depth: int = 4
    heads: int = 4
    key_value_heads: int = 0
    mlp: str = "swiglu"
    positions: str = "rotary"
    length: int = 0

    def __post_init__(self) -> None:
        check_types(self)
        check_range(self, "dim", "depth", "heads", least=1)
        check_range(self, "key_value_heads", "length", least=0)

    def config(self, vocab_size: int, context: int) -> TransformerConfig:
        """The whole configuration.

        Args:
            vocab_size: How many tokens there are.
            context: Positions of a row.
        """
        learned = (self.length or context) if self.positions == "learned" else None
        return TransformerConfig(
            vocab_size,
            self.dim,
            self.depth,
            self.placement,
            self.norm,
            attention=AttentionConfig(self.heads, self.key_value_heads or None),
            mlp=MLPConfig(kind=self.mlp),
            positions=PositionConfig(self.positions, length=learned),
        )


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """How to train.

    Args:
        context: Positions of a row.
        batch: Rows of a step, over all processes.
        accumulate: Parts a step's rows are computed in, one after the other.
        steps: Of the optimizer.
        rate: Highest learning rate.
        schedule: ``cosine``, ``wsd`` or ``constant``; see :class:`normplace.lab.train.schedule.Schedule`.
        warm_up: Part of the steps in which the rate rises.
        decay: Part of the steps in which ``wsd`` falls.
        floor: Part of the rate that is left at the end.
        weight_decay: AdamW's, of matrices; vectors have none.
        beta1: AdamW's.
        beta2: AdamW's.
        clip: Largest norm of the gradient.
        seed: Of the initial weights and the order of the text.
        precision: ``bfloat16`` computes under autocast; weights and optimizer stay in float32.
        device: ``auto``, ``cpu`` or ``cuda``.
        compile: Whether to compile the network.
        deterministic: Whether to refuse algorithms whose result may differ from run to run.
        parallel: How several processes share the work: ``fsdp`` shards the weights, ``ddp`` copies them.
        spike: Nats above the usual loss that make a loss a spike; see :mod:`normplace.lab.train.divergence`.
        patience: Spikes in a row that end the run.
        evaluate_every: Steps between two looks at held-out text.
        evaluate_rows: Rows of held-out text that are judged.
        checkpoint_every: Steps between two checkpoints.
        peak_tflops: What one device can do, for the utilisation; 0 to measure it.

    Raises:
        UsageError: If a number is out of range or of another type, or a name unknown.
    """

    context: int = 128
    batch: int = 16
    accumulate: int = 1
    steps: int = 500
    rate: float = 3e-3
    schedule: str = "cosine"
    warm_up: float = 0.05
    decay: float = 0.2
    floor: float = 0.1
    weight_decay: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.95
    clip: float = 1.0
    seed: int = 0
    precision: str = "float32"
    device: str = "auto"
    compile: bool = False
    deterministic: bool = False
    parallel: str = "fsdp"
    spike: float = 2.0
    patience: int = 8
    evaluate_every: int = 100
    evaluate_rows: int = 128
    checkpoint_every: int = 100
    peak_tflops: float = 0.0

    def __post_init__(self) -> None:
        check_types(self)
        check_range(self, "context", "batch", "accumulate", "steps", "patience", least=1)
        check_range(self, "evaluate_every", "evaluate_rows", "checkpoint_every", least=1)
        check_range(self, "rate", "clip", "spike", above=0, below=math.inf)
        check_range(self, "beta1", "beta2", "warm_up", least=0, below=1)
        check_range(self, "decay", "floor", least=0, most=1)
        check_range(self, "weight_decay", "peak_tflops", least=0, below=math.inf)
        check_range(self, "seed", least=0, below=SEEDS)
        for name, options in (("precision", PRECISIONS), ("parallel", PARALLEL)):
            if getattr(self, name) not in options:
                raise unknown(name, getattr(self, name), options)
        self.rates()  # refuses what does not fit together

    def rates(self) -> Schedule:
        """The learning rate of every step."""
        warm_up = int(self.warm_up * self.steps)
        return Schedule(self.rate, self.steps, self.schedule, warm_up, self.decay, self.floor)


# What may change when a run goes on: at most the rounding of the losses depends on it.
FREE = {"evaluate_every", "evaluate_rows", "checkpoint_every", "peak_tflops", "device", "compile", "parallel"}

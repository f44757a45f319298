"""Settings of a training run: the network's shape and how to train it. This module does not import torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from normplace._shared.fields import check_types
from normplace.errors import expect_choice, expect_ranges
from normplace.lab.train.schedule import Schedule

if TYPE_CHECKING:
    from normplace.models.transformer import TransformerConfig

PRECISIONS = ("float32", "bfloat16")
PARALLEL = ("fsdp", "ddp")
SEED_LIMIT = 1 << 62
"""Seeds are below this, so that every process can add its rank."""
OLD_NAMES = {
    "length": "learned_positions",
    "rate": "learning_rate",
    "evaluate_rows": "evaluate_sequences",
    "recipe": "config",
    "usual": "normal_losses",
}
"""Earlier names of settings and of checkpoint fields, and their present names."""
MAY_DIFFER = {
    "evaluate_every",
    "evaluate_sequences",
    "checkpoint_every",
    "peak_tflops",
    "device",
    "compile",
    "parallel",
}
"""Settings that a resumed run may change: they affect at most the rounding of the losses."""


@dataclass(frozen=True, kw_only=True)
class NetworkConfig:
    """Shape of a decoder; :class:`normplace.models.transformer.TransformerConfig` has all options.

    Args:
        placement: Norm placement: plain, none, post, pre, peri, output, pre-post, deepnorm, lns, mix, rezero,
            layerscale, sub, normformer, qk, qkv, hybrid, hybrid-star, b2t, residual-dual, siamese, keel, lns-init,
            gpas, bert-residual, embedding-norm or parallel; see 'normplace list placements'.
        norm: Norm type: rms, layer, dyt or identity.
        dim: Width of the residual stream.
        depth: Number of layers.
        heads: Attention heads.
        key_value_heads: Heads of keys and values; 0 for as many as heads.
        mlp: MLP type.
        positions: Position encoding: rotary, learned, alibi or none.
        learned_positions: Number of learned positions; 0 for the context length.

    Raises:
        UsageError: If a value has the wrong type or is too small.
    """

    placement: str = "peri"
    norm: str = "rms"
    dim: int = 128
    depth: int = 4
    heads: int = 4
    key_value_heads: int = 0
    mlp: str = "swiglu"
    positions: str = "rotary"
    learned_positions: int = 0

    def __post_init__(self) -> None:
        check_types(self)
        expect_ranges(self, "dim", "depth", "heads", least=1)
        expect_ranges(self, "key_value_heads", "learned_positions", least=0)

    def transformer_config(self, vocab_size: int, context: int) -> TransformerConfig:
        """Return the full configuration of the Transformer.

        Args:
            vocab_size: Number of distinct tokens.
            context: Context length in tokens.
        """
        from normplace.models.transformer import AttentionConfig, MLPConfig, PositionConfig, TransformerConfig

        learned = (self.learned_positions or context) if self.positions == "learned" else None
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
        context: Context length in tokens.
        batch: Sequences per step, over all processes.
        accumulate: Gradient accumulation steps.
        steps: Optimizer steps.
        learning_rate: Peak learning rate.
        schedule: Learning rate schedule: cosine, wsd or constant.
        warm_up: Fraction of the steps with a rising learning rate.
        decay: Fraction of the steps in which wsd decays.
        floor: Final learning rate as a fraction of the peak.
        weight_decay: Weight decay of matrices; vectors have none.
        beta1: Beta1 of AdamW.
        beta2: Beta2 of AdamW.
        clip: Largest gradient norm.
        seed: Random seed for initialization and data order.
        precision: float32, or bfloat16 under autocast with float32 weights.
        device: auto, cpu or cuda.
        compile: Compile the layers.
        deterministic: Use deterministic algorithms only.
        parallel: Under torchrun: fsdp shards the weights, ddp replicates them.
        spike: Nats above the median loss that make a loss a spike.
        patience: Consecutive spikes that end the run as diverged.
        evaluate_every: Steps between two evaluations on held-out text.
        evaluate_sequences: Held-out sequences per evaluation.
        checkpoint_every: Steps between two checkpoints.
        peak_tflops: Peak of one device, for the MFU; 0 to measure it.

    Raises:
        UsageError: If a value has the wrong type, is out of range or is an unknown name.
    """

    context: int = 128
    batch: int = 16
    accumulate: int = 1
    steps: int = 500
    learning_rate: float = 3e-3
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
    evaluate_sequences: int = 128
    checkpoint_every: int = 100
    peak_tflops: float = 0.0

    def __post_init__(self) -> None:
        check_types(self)
        expect_ranges(self, "context", "batch", "accumulate", "steps", "patience", least=1)
        expect_ranges(self, "evaluate_every", "evaluate_sequences", "checkpoint_every", least=1)
        expect_ranges(self, "learning_rate", "clip", "spike", above=0, below=math.inf)
        expect_ranges(self, "beta1", "beta2", "warm_up", least=0, below=1)
        expect_ranges(self, "decay", "floor", least=0, most=1)
        expect_ranges(self, "weight_decay", "peak_tflops", least=0, below=math.inf)
        expect_ranges(self, "seed", least=0, below=SEED_LIMIT)
        for name, options in (("precision", PRECISIONS), ("parallel", PARALLEL)):
            expect_choice(name, getattr(self, name), options)
        self.learning_rate_schedule()  # raises if the warm-up does not fit into the steps

    def learning_rate_schedule(self) -> Schedule:
        """Return the learning rate of every step."""
        warm_up = int(self.warm_up * self.steps)
        return Schedule(self.learning_rate, self.steps, self.schedule, warm_up, self.decay, self.floor)


def rename_old_keys(value: Any) -> Any:
    """Return JSON data with earlier names of keys replaced by the present ones, at every depth.

    Examples:
        >>> rename_old_keys({"recipe": {"rate": 0.1}, "step": 3})
        {'config': {'learning_rate': 0.1}, 'step': 3}
    """
    if not isinstance(value, dict):
        return value
    return {OLD_NAMES.get(key, key): rename_old_keys(inner) for key, inner in value.items()}

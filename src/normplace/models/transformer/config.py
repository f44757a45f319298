"""The shape of a Transformer as a value, in five small parts."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from normplace._shared.fields import check_types
from normplace.errors import UsageError, expect_layers, expect_whole, unknown
from normplace.models.transformer.init import WeightInit, suited_init
from normplace.norms import NORMS
from normplace.placement import Placement, known_fields

POSITIONS = ("rotary", "learned", "alibi", "none")
ROW_NORMS = ("rms", "layer", "dyt", "identity")


@dataclass(frozen=True)
class AttentionConfig:
    """The attention branches; as in :class:`normplace.models.transformer.Attention`.

    Args:
        heads: How many heads queries have.
        key_value_heads: How many keys and values have; None for as many.
        head_dim: Width of a head; None for ``dim / heads``.
        bias: Whether the projections have one.
        windows: How far the layers read, in turn and again from the init: ``(4096, None)`` for every other layer.
        score_scale: Multiplier of the scores; None for 1 / sqrt(head_dim).
        softcap: Bound of the scores; None for none.
    """

    heads: int = 8
    key_value_heads: int | None = None
    head_dim: int | None = None
    bias: bool = False
    windows: tuple[int | None, ...] = ()
    score_scale: float | None = None
    softcap: float | None = None

    def __post_init__(self) -> None:
        if isinstance(self.windows, list):
            object.__setattr__(self, "windows", tuple(self.windows))
        check_types(self)

    def window(self, layer: int) -> int | None:
        """How far ``layer``, counted from 1, reads; None for all the way."""
        return self.windows[(layer - 1) % len(self.windows)] if self.windows else None


@dataclass(frozen=True)
class MLPConfig:
    """The MLP branches; as in :class:`normplace.models.transformer.FeedForward`.

    Args:
        hidden: Width between; None for four times the stream's, or 8/3 where the MLP is gated, in multiples of 8.
        kind: ``swiglu``, ``geglu``, ``gelu``, ``gelu-tanh`` or ``relu``.
        bias: Whether the projections have one.
    """

    hidden: int | None = None
    kind: str = "swiglu"
    bias: bool = False

    def __post_init__(self) -> None:
        check_types(self)


@dataclass(frozen=True)
class PositionConfig:
    """What tells a token where it stands.

    Args:
        kind: ``rotary``, ``learned``, ``alibi`` or ``none``.
        theta: Base of the wavelengths, for ``rotary``.
        length: How many positions are learned, for ``learned``.
    """

    kind: str = "rotary"
    theta: float = 10000.0
    length: int | None = None

    def __post_init__(self) -> None:
        check_types(self)
        if self.kind not in POSITIONS:
            raise unknown("kind of positions", self.kind, POSITIONS)
        if (self.kind == "learned") != (self.length is not None):
            raise UsageError("learned positions, and no others, need a length: PositionConfig('learned', length=1024).")


@dataclass(frozen=True)
class HeadConfig:
    """What turns the stream into scores of tokens.

    Args:
        tied: Whether it shares the embedding's weights.
        bias: Whether each token has one.
        transform: Whether a dense map, a GELU and a norm come first, as in BERT.
        scale: Multiplier of the scores.
        softcap: Bound of the scores, ``c tanh(score / c)``; None for none.
    """

    tied: bool = True
    bias: bool = False
    transform: bool = False
    scale: float = 1.0
    softcap: float | None = None

    def __post_init__(self) -> None:
        check_types(self)
        if self.softcap is not None and not self.softcap > 0:
            raise UsageError(f"softcap bounds the scores, so it must be positive, got {self.softcap}.")


PARTS = {"attention": AttentionConfig, "mlp": MLPConfig, "positions": PositionConfig, "head": HeadConfig}


@dataclass(frozen=True)
class TransformerConfig:
    """A Transformer of ``depth`` layers, each an attention branch and an MLP branch.

    Args:
        vocab_size: How many tokens there are.
        dim: Width of the stream.
        depth: How many layers; what the equations of placements call L.
        placement: Where norms stand: a :class:`normplace.Placement` or the name of a preset.
        norm: What stands there: the name of a norm of one row, such as ``rms``, ``layer`` or ``dyt``.
        eps: The eps of all norms; None for each norm's own.
        causal: True for a decoder, whose tokens read those before them; False for an encoder.
        attention: The attention branches.
        mlp: The MLP branches.
        positions: What tells a token where it stands.
        head: What turns the stream into scores.
        embedding_scale: Multiplier of the embedding.
        token_types: How many types a token may be marked with, as BERT's two segments; 0 for no such marks.
        init: ``depth``, ``fixed`` or ``xavier``, as in :class:`WeightInit`; None for what suits the placement, see
            :func:`normplace.models.transformer.init.suited_init`.
        std: Standard deviation of the initial weights.

    Raises:
        UsageError: If a choice is unknown or they contradict each other.

    Example:
        >>> config = TransformerConfig(100, 32, 2, placement="peri", attention=AttentionConfig(heads=4))
        >>> TransformerConfig.from_dict(config.to_dict()) == config
        True
    """

    vocab_size: int
    dim: int
    depth: int
    placement: str | Placement = "pre"
    norm: str = "rms"
    eps: float | None = None
    causal: bool = True
    attention: AttentionConfig = field(default_factory=AttentionConfig)
    mlp: MLPConfig = field(default_factory=MLPConfig)
    positions: PositionConfig = field(default_factory=PositionConfig)
    head: HeadConfig = field(default_factory=HeadConfig)
    embedding_scale: float = 1.0
    token_types: int = 0
    init: str | None = None
    std: float = 0.02

    def __post_init__(self) -> None:
        check_types(self)
        expect_whole(1, vocab_size=self.vocab_size, dim=self.dim)
        expect_layers(depth=self.depth)
        if self.token_types < 0:
            raise UsageError(f"token_types must be at least 0, got {self.token_types}.")
        if self.norm not in ROW_NORMS:
            if self.norm not in NORMS:
                raise unknown("norm", self.norm, ROW_NORMS)
            raise UsageError(
                f"{self.norm!r} looks at other rows than its own, which are other tokens here: "
                f"choose one of {', '.join(ROW_NORMS)}."
            )
        if isinstance(self.placement, str):
            object.__setattr__(self, "placement", Placement.named(self.placement))
        self.weight_init()  # refuses what is unknown

    @property
    def rule(self) -> Placement:
        """The placement as a value."""
        assert isinstance(self.placement, Placement)
        return self.placement

    @property
    def head_dim(self) -> int:
        """Width of a head of attention."""
        return self.attention.head_dim or self.dim // self.attention.heads

    def weight_init(self) -> WeightInit:
        """The initial weights."""
        return WeightInit(suited_init(self.rule) if self.init is None else self.init, self.std, self.depth)

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready form that :meth:`from_dict` reads back."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> TransformerConfig:
        """The configuration that :meth:`to_dict` wrote.

        Raises:
            UsageError: If a key is unknown.
        """
        fields = known_fields(cls, data)
        for name, part in PARTS.items():
            if isinstance(fields.get(name), Mapping):
                fields[name] = part(**known_fields(part, fields[name]))
        if isinstance(fields.get("placement"), Mapping):
            fields["placement"] = Placement.from_dict(fields["placement"])
        return cls(**fields)

"""The configuration of a Transformer as frozen values."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from normplace._shared.fields import check_range, check_types
from normplace.errors import UsageError, expect_layers, expect_whole, unknown
from normplace.models.transformer.init import WeightInit, suited_init
from normplace.models.transformer.positions import ALiBi, Rotary
from normplace.models.transformer.rotary_scaling import RotaryScaling, read_scaling
from normplace.norms import NORMS
from normplace.placement import Placement, known_fields

POSITIONS = ("rotary", "learned", "alibi", "none")
ROW_NORMS = ("rms", "layer", "dyt", "identity")
NORM_PARAMETERS = ("all", "gain", "none")


@dataclass(frozen=True)
class AttentionConfig:
    """The attention branches; as in :class:`normplace.models.transformer.Attention`.

    Args:
        heads: Number of query heads.
        key_value_heads: Number of key and value heads; None for ``heads``.
        head_dim: Width of a head; None for ``dim / heads``.
        bias: Whether the projections have a bias.
        windows: Attention windows of the layers, repeated cyclically: ``(4096, None)`` limits every other layer.
        score_scale: Multiplier of the scores; None for 1 / sqrt(head_dim).
        softcap: Bound of the scores; None for no bound.
        output_bias: Whether the output projection has a bias; None for the same as ``bias``.
        clip: Bound of queries, keys and values, as in OLMo 1; None for no bound.
    """

    heads: int = 8
    key_value_heads: int | None = None
    head_dim: int | None = None
    bias: bool = False
    windows: tuple[int | None, ...] = ()
    score_scale: float | None = None
    softcap: float | None = None
    output_bias: bool | None = None
    clip: float | None = None

    def __post_init__(self) -> None:
        if isinstance(self.windows, list):
            object.__setattr__(self, "windows", tuple(self.windows))
        check_types(self)

    def window(self, layer: int) -> int | None:
        """The attention window of ``layer``, counted from 1; None for no limit."""
        return self.windows[(layer - 1) % len(self.windows)] if self.windows else None


@dataclass(frozen=True)
class MLPConfig:
    """The MLP branches; as in :class:`normplace.models.transformer.FeedForward`.

    Args:
        hidden: Hidden width; None for 4 times the stream's, or 8/3 times if the MLP is gated, in multiples of 8.
        kind: ``swiglu``, ``geglu``, ``geglu-erf``, ``reglu``, ``gelu``, ``gelu-tanh``, ``silu`` or ``relu``.
        bias: Whether the projections have a bias.
    """

    hidden: int | None = None
    kind: str = "swiglu"
    bias: bool = False

    def __post_init__(self) -> None:
        check_types(self)


@dataclass(frozen=True)
class PositionConfig:
    """The position encoding.

    Args:
        kind: ``rotary``, ``learned``, ``alibi`` or ``none``.
        theta: Base of the wavelengths, for ``rotary``.
        length: Number of learned positions, for ``learned``.
        offset: Number of unused entries before the first learned position, as in OPT.
        rotary_features: Number of features of a head that rotate, for ``rotary``; None for all.
        interleaved: Whether neighbouring features rotate, as in GPT-J, instead of the two halves of a head.
        scaling: Scaling of the rotary frequencies for long sequences; None for none.
        window_theta: Base of the layers that have a window, whose frequencies are then not scaled, as in Gemma 3; None
            for the same positions in all layers.
        rotary_layers: Which layers rotate, repeated cyclically; empty for all. ``(True, True, True, False)`` leaves
            every fourth layer without positions, as in SmolLM 3.
    """

    kind: str = "rotary"
    theta: float = 10000.0
    length: int | None = None
    offset: int = 0
    rotary_features: int | None = None
    interleaved: bool = False
    scaling: RotaryScaling | None = None
    window_theta: float | None = None
    rotary_layers: tuple[bool, ...] = ()

    def __post_init__(self) -> None:
        if isinstance(self.rotary_layers, list):
            object.__setattr__(self, "rotary_layers", tuple(self.rotary_layers))
        if isinstance(self.scaling, Mapping):
            object.__setattr__(self, "scaling", read_scaling(self.scaling))
        check_types(self)
        check_range(self, "offset", least=0)
        if self.kind not in POSITIONS:
            raise unknown("kind of positions", self.kind, POSITIONS)
        if (self.kind == "learned") != (self.length is not None):
            raise UsageError(
                "only learned positions need a length, and they do: PositionConfig('learned', length=1024)."
            )

    def rotates(self, layer: int) -> bool:
        """Whether ``layer``, counted from 1, has rotary positions."""
        if self.kind != "rotary":
            return False
        return self.rotary_layers[(layer - 1) % len(self.rotary_layers)] if self.rotary_layers else True

    def encoding(self, layer: int, window: int | None) -> Rotary | ALiBi | None:
        """The position encoding inside the attention of a layer.

        Args:
            layer: Number of the layer, counted from 1.
            window: Its attention window.
        """
        if self.kind == "alibi":
            return ALiBi()
        if not self.rotates(layer):
            return None
        if window is not None and self.window_theta is not None:
            return Rotary(self.window_theta, self.rotary_features, self.interleaved)
        return Rotary(self.theta, self.rotary_features, self.interleaved, self.scaling)


@dataclass(frozen=True)
class HeadConfig:
    """The head, which maps the stream to logits.

    Args:
        tied: Whether it shares the embedding's weights.
        bias: Whether the logits have a bias.
        transform: Whether a dense map, a GELU and a norm come first, as in BERT.
        scale: Multiplier of the logits.
        softcap: Bound of the logits, ``c tanh(logit / c)``; None for no bound.
    """

    tied: bool = True
    bias: bool = False
    transform: bool = False
    scale: float = 1.0
    softcap: float | None = None

    def __post_init__(self) -> None:
        check_types(self)
        if self.softcap is not None and not self.softcap > 0:
            raise UsageError(f"softcap must be positive, got {self.softcap}.")


PARTS = {"attention": AttentionConfig, "mlp": MLPConfig, "positions": PositionConfig, "head": HeadConfig}


@dataclass(frozen=True)
class TransformerConfig:
    """A Transformer of ``depth`` layers, each an attention branch and an MLP branch.

    Args:
        vocab_size: Number of different tokens.
        dim: Width of the stream.
        depth: Number of layers, the L of placement equations.
        placement: A :class:`normplace.Placement` or the name of a preset.
        norm: Name of a norm over features: ``rms``, ``layer``, ``dyt`` or ``identity``.
        eps: The eps of all norms; None for the default of each.
        causal: True for a decoder, whose tokens attend to earlier ones; False for an encoder.
        attention: The attention branches.
        mlp: The MLP branches.
        positions: The position encoding.
        head: The head.
        embedding_scale: Multiplier of the embedding.
        token_types: Number of token types, such as BERT's two segments; 0 for none.
        init: ``depth``, ``fixed`` or ``xavier``, as in :class:`WeightInit`; None for the default of the placement, see
            :func:`normplace.models.transformer.init.suited_init`.
        std: Standard deviation of the initial weights.
        norm_parameters: Learned parameters of the norms: ``all`` that they have, the ``gain`` alone, or ``none``.
        embedding_dim: Width of the embedding table, with linear maps to and from the stream, as in OPT 350M; None for
            ``dim``.

    Raises:
        UsageError: If a choice is unknown, or the fields contradict each other.

    Examples:
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
    norm_parameters: str = "all"
    embedding_dim: int | None = None

    def __post_init__(self) -> None:
        check_types(self)
        if self.norm_parameters not in NORM_PARAMETERS:
            raise unknown("norm_parameters", self.norm_parameters, NORM_PARAMETERS)
        expect_whole(1, vocab_size=self.vocab_size, dim=self.dim)
        expect_layers(depth=self.depth)
        if self.token_types < 0:
            raise UsageError(f"token_types must be at least 0, got {self.token_types}.")
        if self.norm not in ROW_NORMS:
            if self.norm not in NORMS:
                raise unknown("norm", self.norm, ROW_NORMS)
            raise UsageError(
                f"{self.norm!r} needs more than the features of one token: choose one of {', '.join(ROW_NORMS)}."
            )
        if isinstance(self.placement, str):
            object.__setattr__(self, "placement", Placement.named(self.placement))
        self.weight_init()  # raises an error for an unknown kind

    @property
    def rule(self) -> Placement:
        """The placement as a value."""
        assert isinstance(self.placement, Placement)
        return self.placement

    @property
    def head_dim(self) -> int:
        """Width of an attention head."""
        return self.attention.head_dim or self.dim // self.attention.heads

    def norm_options(self) -> dict[str, Any]:
        """Keyword arguments of the norms."""
        options: dict[str, Any] = {} if self.eps is None else {"eps": self.eps}
        if self.norm_parameters == "none":
            return {**options, "elementwise_affine": False}
        return {**options, "bias": False} if self.norm_parameters == "gain" and self.norm != "rms" else options

    def weight_init(self) -> WeightInit:
        """The initial weights."""
        return WeightInit(suited_init(self.rule) if self.init is None else self.init, self.std, self.depth)

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready dictionary; :meth:`from_dict` reads it."""
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

"""The configuration of a Transformer as frozen values."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from normplace._shared.fields import check_types
from normplace.errors import UsageError, expect_choice, expect_layers, expect_ranges, expect_whole, unknown
from normplace.models.transformer.init import WeightInit, suited_init
from normplace.models.transformer.positions import ALiBi, Rotary
from normplace.models.transformer.rotary_scaling import RotaryScaling, read_scaling
from normplace.norms import NORMS
from normplace.placement import Placement, known_fields

POSITIONS = ("rotary", "learned", "alibi", "relative", "none")
ROW_NORMS = ("rms", "layer", "dyt", "identity")
NORM_PARAMETERS = ("all", "gain", "none")
Value = TypeVar("Value")


def cyclic(values: Sequence[Value], layer: int) -> Value | None:
    """The value of ``layer``, counted from 1, in a pattern that repeats; None in an empty one."""
    return values[(layer - 1) % len(values)] if values else None


def make_tuples(settings: Any, *names: str) -> None:
    """Replace lists, such as JSON has, by tuples."""
    for name in names:
        if isinstance(value := getattr(settings, name), list):
            object.__setattr__(settings, name, tuple(value))


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
        chunks: Chunk sizes of the layers, repeated cyclically: a token attends only to its own chunk; None for all.
        temperature: Growth of the scores with the logarithm of the position in layers that do not rotate; 0 for none.
        temperature_floor: Number of tokens before the scores start to grow.
        qk_gain: Whether norms on queries and keys have a learned gain.
        qk_bias: Whether norms on queries and keys have a bias, if the other norms have one.
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
    chunks: tuple[int | None, ...] = ()
    temperature: float = 0.0
    temperature_floor: int = 8192
    qk_gain: bool = True
    qk_bias: bool = True

    def __post_init__(self) -> None:
        make_tuples(self, "windows", "chunks")
        check_types(self)
        expect_ranges(self, "temperature", least=0)
        expect_whole(1, temperature_floor=self.temperature_floor)

    def window(self, layer: int) -> int | None:
        """The attention window of ``layer``, counted from 1; None for no limit."""
        return cyclic(self.windows, layer)

    def chunk(self, layer: int) -> int | None:
        """The chunk size of ``layer``, counted from 1; None for no chunks."""
        return cyclic(self.chunks, layer)


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
class ExpertsConfig:
    """Mixtures of experts as MLP branches; as in :class:`normplace.models.transformer.MixtureOfExperts`.

    Args:
        count: Number of experts.
        active: Number of experts that a token uses.
        hidden: Hidden width of an expert; None for that of the MLP.
        shared: Number of further experts that every token uses.
        scores: ``softmax`` or ``sigmoid``.
        normalized: Whether the weights of a token are divided by their sum.
        weighed: Whether an expert's weight multiplies its ``output`` or its ``input``.
        layers: Which layers have a mixture, repeated cyclically: ``(False, True)`` for every other; empty for all.
    """

    count: int
    active: int = 2
    hidden: int | None = None
    shared: int = 0
    scores: str = "softmax"
    normalized: bool = True
    weighed: str = "output"
    layers: tuple[bool, ...] = ()

    def __post_init__(self) -> None:
        make_tuples(self, "layers")
        check_types(self)

    def at(self, layer: int) -> bool:
        """Whether ``layer``, counted from 1, has a mixture."""
        return cyclic(self.layers, layer) is not False


@dataclass(frozen=True)
class PositionConfig:
    """The position encoding.

    Args:
        kind: ``rotary``, ``learned``, ``alibi``, ``relative`` or ``none``.
        theta: Base of the wavelengths, for ``rotary``.
        length: Number of learned positions, for ``learned``.
        offset: Number of unused entries before the first learned position, as in OPT.
        rotary_features: Number of features of a head that rotate, for ``rotary``; None for all.
        interleaved: Whether neighbouring features rotate, as in GPT-J, instead of the two halves of a head.
        scaling: Scaling of the rotary frequencies for long sequences; None for none.
        window_theta: Base of the layers that have a window, whose frequencies are then not scaled, as in Gemma 3; None
            for the same positions in all layers.
        rotary_layers: Which layers rotate, repeated cyclically; empty for all. ``(True, True, True, False)`` leaves
            every fourth layer without positions, as in Llama 4 and SmolLM 3.
        padding: A token that is not counted and takes the entry before the first learned position, as in RoBERTa.
        buckets: Number of buckets of distances, for ``relative``.
        distance: Distance from which all are in the last bucket, for ``relative``.
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
    padding: int | None = None
    buckets: int = 32
    distance: int = 128

    def __post_init__(self) -> None:
        make_tuples(self, "rotary_layers")
        if isinstance(self.scaling, Mapping):
            object.__setattr__(self, "scaling", read_scaling(self.scaling))
        check_types(self)
        expect_ranges(self, "offset", least=0)
        expect_choice("kind of positions", self.kind, POSITIONS)
        if (self.kind == "learned") != (self.length is not None):
            raise UsageError(
                "only learned positions need a length, and they do: PositionConfig('learned', length=1024)."
            )
        if self.padding is not None and (self.kind != "learned" or self.offset < 1):
            raise UsageError("padding takes the entry before the first learned position: set an offset of at least 1.")

    @property
    def cache_limit(self) -> int | None:
        """The length above which keys in a cache no longer fit; None for no limit."""
        return None if self.scaling is None else self.scaling.restarts_at()

    def rotates(self, layer: int) -> bool:
        """Whether ``layer``, counted from 1, has rotary positions."""
        return self.kind == "rotary" and cyclic(self.rotary_layers, layer) is not False

    def encoding(self, layer: int, window: int | None) -> Rotary | ALiBi | None:
        """The position encoding inside the attention of a layer."""
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
        transform_bias: Whether that dense map has a bias.
        scale: Multiplier of the logits.
        softcap: Bound of the logits, ``c tanh(logit / c)``; None for no bound.
    """

    tied: bool = True
    bias: bool = False
    transform: bool = False
    transform_bias: bool = True
    scale: float = 1.0
    softcap: float | None = None

    def __post_init__(self) -> None:
        check_types(self)
        if self.softcap is not None and not self.softcap > 0:
            raise UsageError(f"softcap must be positive, got {self.softcap}.")


PARTS = {
    "attention": AttentionConfig,
    "mlp": MLPConfig,
    "experts": ExpertsConfig,
    "positions": PositionConfig,
    "head": HeadConfig,
}


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
        experts: Mixtures of experts in place of MLPs; None for none.
        encoder_depth: Number of layers of an encoder, whose output every layer of the decoder attends to in a third
            branch; 0 for no encoder. Everything else is as in the decoder.

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
    experts: ExpertsConfig | None = None
    encoder_depth: int = 0

    def __post_init__(self) -> None:
        check_types(self)
        expect_choice("norm_parameters", self.norm_parameters, NORM_PARAMETERS)
        expect_whole(1, vocab_size=self.vocab_size, dim=self.dim)
        expect_layers(depth=self.depth)
        expect_ranges(self, "token_types", least=0)
        if self.norm not in ROW_NORMS:
            if self.norm not in NORMS:
                raise unknown("norm", self.norm, ROW_NORMS)
            raise UsageError(
                f"{self.norm!r} needs more than the features of one token: choose one of {', '.join(ROW_NORMS)}."
            )
        if isinstance(self.placement, str):
            pair = {"part": "decoder"} if self.encoder_depth and self.placement in ("deepnorm", "sub") else {}
            object.__setattr__(self, "placement", Placement.named(self.placement, **pair))
        expect_whole(0, encoder_depth=self.encoder_depth)
        if self.encoder_depth and not self.causal:
            raise UsageError("a network with an encoder is a decoder: set causal=True, or encoder_depth=0.")
        if self.encoder_depth and self.token_types:
            raise UsageError("a network with an encoder has no token types: set token_types=0, or encoder_depth=0.")
        if self.positions.padding is not None and self.causal:
            raise UsageError("only an encoder can leave padding out of its positions: set causal=False.")
        if self.experts is not None and self.mlp.bias:
            raise UsageError("experts have no bias: set bias=False in MLPConfig.")
        for name in ("qk_gain", "qk_bias"):
            if not getattr(self.attention, name) and self.norm not in ("rms", "layer"):
                part = name.removeprefix("qk_")
                raise UsageError(f"{self.norm!r} cannot leave out its {part}: set {name}=True in AttentionConfig.")
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
        kind = suited_init(self.rule) if self.init is None else self.init
        return WeightInit(kind, self.std, self.depth, self.branches)

    @property
    def branches(self) -> int:
        """Number of branches in a layer."""
        return 3 if self.encoder_depth else 2

    def encoder(self) -> TransformerConfig:
        """The configuration of the encoder.

        Raises:
            UsageError: If there is none.
        """
        if not self.encoder_depth:
            raise UsageError("the network has no encoder: set encoder_depth.")
        placement, depths = self.rule, {"encoder": self.encoder_depth, "decoder": self.depth}
        if placement == Placement.named("deepnorm", part="decoder"):
            placement = Placement.named("deepnorm", part="encoder", decoder=self.depth)
        elif placement == Placement.named("sub", part="decoder"):
            placement = Placement.named("sub", part="encoder", **depths)
        return dataclasses.replace(self, depth=self.encoder_depth, encoder_depth=0, causal=False, placement=placement)

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

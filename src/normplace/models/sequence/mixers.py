"""Mixers as values: each describes the branches of one layer of a sequence model."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

from torch import nn

from normplace.errors import UsageError, expect_choice
from normplace.models.sequence.linear import GatedLinear, LinearAttention, LinearCache
from normplace.models.sequence.mamba import Mamba2, MambaCache
from normplace.models.sequence.relation import RelationBranch, RelationCache
from normplace.models.transformer import ALiBi, Attention, FeedForward, HardALiBi, LayerCache, Rotary, WeightInit

POSITIONS = ("learned", "sinusoidal", "none")
"""Position encodings that work with any mixer, since they are added to the embedding or left out."""
ENCODINGS = {"rotary": Rotary(), "alibi": ALiBi(), "hard-alibi": HardALiBi()}
"""Position encodings inside attention."""


class Mixer(Protocol):
    """Describes the branches of one layer."""

    kind: ClassVar[str]

    @property
    def positions(self) -> tuple[str, ...]:
        """The position encodings that the mixer supports."""
        ...

    def branches(self, dim: int, positions: str, init: WeightInit, **factory: Any) -> list[nn.Module]:
        """The branches of one layer in order; the first one mixes tokens.

        Args:
            dim: Width of the stream.
            positions: A supported position encoding.
            init: The initial weights; its depth is the number of layers.
            **factory: Generator, device and dtype of the parameters.
        """
        ...

    def cache(self) -> Any:
        """An empty cache for the mixing branch."""
        ...


@dataclass(frozen=True)
class Relation:
    """CausalRN's branch, without an MLP, as published.

    Rotary positions are not supported. Rotating ``a_i`` and ``b_j`` would make the length of their sum depend on the
    distance only, as intended, but would also rotate the channels of the result.

    Args:
        hidden: Number of channels of a pair, D; by default the width of the stream.
        heads: Number of channel groups that are normalized separately.
        norm: Norm of a pair before the activation: ``joint``, ``separate`` or ``none``.
        activation: ``exp``, ``relu``, ``gelu`` or ``elu``.
        post_norm: Whether the mean over pairs is normalized.
        eps: The eps of these norms; published: 0.
        form: ``scan``, ``pairwise``, or ``auto`` for the scan if it computes the same.
    """

    kind: ClassVar[str] = "relation"
    branch: ClassVar[type[RelationBranch]] = RelationBranch
    hidden: int | None = None
    heads: int = 1
    norm: str = "joint"
    activation: str = "exp"
    post_norm: bool = True
    eps: float = 1e-5
    form: str = "auto"

    @property
    def positions(self) -> tuple[str, ...]:
        """The encodings that are added to the embedding."""
        return POSITIONS

    def branches(self, dim: int, positions: str, init: WeightInit, **factory: Any) -> list[nn.Module]:
        """One branch; ``depth`` divides its initial last weights by sqrt(depth), as published."""
        hidden = dim if self.hidden is None else self.hidden
        last_std = init.std / math.sqrt(init.depth) if init.kind == "depth" else init.of(hidden, dim)
        return [
            self.branch(
                dim,
                hidden,
                heads=self.heads,
                norm=self.norm,
                activation=self.activation,
                post_norm=self.post_norm,
                eps=self.eps,
                form=self.form,
                std=init.of(dim, hidden),
                last_std=last_std,
                **factory,
            )
        ]

    def cache(self) -> RelationCache:
        """An empty cache."""
        return RelationCache()


@dataclass(frozen=True)
class SelfAttention:
    """A Transformer layer: causal attention, then an MLP.

    Attention has no biases and the MLP has them, as in CausalRN's published baseline.

    Args:
        heads: Number of attention heads.
        hidden: Hidden width of the MLP; by default 4 times the stream's.
        mlp: Kind of MLP.
    """

    kind: ClassVar[str] = "attention"
    heads: int = 1
    hidden: int | None = None
    mlp: str = "gelu"

    @property
    def positions(self) -> tuple[str, ...]:
        """The encodings that are added to the embedding, and those of attention."""
        return (*POSITIONS, *ENCODINGS)

    def branches(self, dim: int, positions: str, init: WeightInit, **factory: Any) -> list[nn.Module]:
        """Attention and the MLP; ``depth`` divides their initial last weights by sqrt(2 depth), as in GPT-2."""
        return [
            Attention(dim, self.heads, positions=ENCODINGS.get(positions), init=init, **factory),
            FeedForward(dim, self.hidden, kind=self.mlp, bias=True, init=init, **factory),
        ]

    def cache(self) -> LayerCache:
        """An empty cache."""
        return LayerCache()


@dataclass(frozen=True)
class LinearMixer:
    """Linear attention, then an MLP; biases and initial weights as in :class:`SelfAttention`.

    Args:
        heads: Number of heads of linear attention.
        hidden: Hidden width of the MLP; by default 4 times the stream's.
        mlp: Kind of MLP.
    """

    kind: ClassVar[str] = "linear-attention"
    branch: ClassVar[type[LinearAttention]] = LinearAttention
    heads: int = 1
    hidden: int | None = None
    mlp: str = "gelu"

    @property
    def positions(self) -> tuple[str, ...]:
        """The encodings that are added to the embedding."""
        return POSITIONS

    def branches(self, dim: int, positions: str, init: WeightInit, **factory: Any) -> list[nn.Module]:
        """Linear attention and the MLP."""
        return [
            self.branch(dim, self.heads, init=init, **factory),
            FeedForward(dim, self.hidden, kind=self.mlp, bias=True, init=init, **factory),
        ]

    def cache(self) -> LinearCache:
        """An empty cache."""
        return LinearCache()


@dataclass(frozen=True)
class GatedMixer(LinearMixer):
    """Gated linear attention, then an MLP."""

    kind: ClassVar[str] = "gated-linear"
    branch: ClassVar[type[LinearAttention]] = GatedLinear


@dataclass(frozen=True)
class MambaMixer:
    """A Mamba-2 layer, which has no MLP.

    Args:
        heads: Number of heads, each with its own decay.
        hidden: Number of channels; by default 2 times the stream's.
        state: Numbers of the state for each channel.
    """

    kind: ClassVar[str] = "mamba-2"
    heads: int = 1
    hidden: int | None = None
    state: int = 64

    @property
    def positions(self) -> tuple[str, ...]:
        """The encodings that are added to the embedding."""
        return POSITIONS

    def branches(self, dim: int, positions: str, init: WeightInit, **factory: Any) -> list[nn.Module]:
        """One branch; ``depth`` divides its initial last weights by sqrt(depth), as in :class:`Relation`."""
        single = replace(init, branches=1)
        return [Mamba2(dim, self.heads, self.hidden, state=self.state, init=single, **factory)]

    def cache(self) -> MambaCache:
        """An empty cache."""
        return MambaCache()


MIXERS: dict[str, Callable[..., Mixer]] = {
    mixer.kind: mixer for mixer in (Relation, SelfAttention, LinearMixer, GatedMixer, MambaMixer)
}


def build_mixer(kind: str, **settings: Any) -> Mixer:
    """Build a mixer by name.

    Raises:
        UsageError: If there is no such mixer or setting.
    """
    expect_choice("mixer", kind, MIXERS)
    try:
        return MIXERS[kind](**settings)
    except TypeError as error:
        raise UsageError(f"the mixer {kind!r} does not take the settings {', '.join(settings)}: {error}.") from error

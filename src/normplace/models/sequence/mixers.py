"""What passes information between tokens, as a value: each mixer says which branches one block of a network has."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from torch import nn

from normplace.errors import UsageError, unknown
from normplace.models.sequence.linear import GatedLinear, LinearAttention, LinearCache
from normplace.models.sequence.relation import RelationBranch, RelationCache
from normplace.models.transformer import ALiBi, Attention, FeedForward, LayerCache, Rotary, WeightInit

POSITIONS = ("learned", "sinusoidal", "none")
"""Positions that any mixer can be told: they are added to the embedding, or left out."""


class Mixer(Protocol):
    """What a block is made of."""

    kind: ClassVar[str]

    @property
    def positions(self) -> tuple[str, ...]:
        """The kinds of position that the mixer can use."""
        ...

    def branches(self, dim: int, positions: str, init: WeightInit, **factory: Any) -> list[nn.Module]:
        """The branches of one block, in the order in which they are added to the stream; the first one mixes.

        Args:
            dim: Width of the stream.
            positions: One of those the mixer can use.
            init: The initial weights; its depth is the number of blocks.
            **factory: Generator, device and dtype of the parameters.
        """
        ...

    def cache(self) -> Any:
        """What the mixing branch remembers of tokens it has read: nothing yet."""
        ...


@dataclass(frozen=True)
class Relation:
    """CausalRN's branch, alone in its block: there is no MLP beside it, as published.

    Rotary positions are not offered. They would turn ``a_i`` and ``b_j`` by their positions; the length of the sum
    would then depend on the distance alone, as wanted, but its channels, which are the result, would be turned too.

    Args:
        hidden: Channels of a pair, D; by default as many as the stream has.
        heads: Groups of channels that are normalized apart.
        norm: Of a pair before the activation: ``joint``, ``separate`` or ``none``.
        activation: ``exp``, ``relu``, ``gelu`` or ``elu``.
        post_norm: Whether the sum over pairs is normalized.
        eps: Of these norms; published: 0.
        form: ``scan``, ``pairwise``, or ``auto`` for the scan wherever it computes the same.
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
        """Those that are added to the embedding."""
        return POSITIONS

    def branches(self, dim: int, positions: str, init: WeightInit, **factory: Any) -> list[nn.Module]:
        """One branch; ``depth`` starts its last weights smaller by sqrt(depth), as published."""
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
        """An empty memory."""
        return RelationCache()


@dataclass(frozen=True)
class SelfAttention:
    """A Transformer's block: causal attention, then an MLP.

    Attention has no biases and the MLP has them, as in CausalRN's published baseline.

    Args:
        heads: Of attention.
        hidden: Inner width of the MLP; by default four times the stream's.
        mlp: Kind of MLP.
    """

    kind: ClassVar[str] = "attention"
    heads: int = 1
    hidden: int | None = None
    mlp: str = "gelu"

    @property
    def positions(self) -> tuple[str, ...]:
        """Those added to the embedding, and those attention knows."""
        return (*POSITIONS, "rotary", "alibi")

    def branches(self, dim: int, positions: str, init: WeightInit, **factory: Any) -> list[nn.Module]:
        """Attention and the MLP; ``depth`` starts their last weights smaller by sqrt(2 depth), as GPT-2 does."""
        where = {"rotary": Rotary(), "alibi": ALiBi()}.get(positions)
        return [
            Attention(dim, self.heads, positions=where, init=init, **factory),
            FeedForward(dim, self.hidden, kind=self.mlp, bias=True, init=init, **factory),
        ]

    def cache(self) -> LayerCache:
        """No keys and values yet."""
        return LayerCache()


@dataclass(frozen=True)
class LinearMixer:
    """Linear attention, then an MLP; biases and initial weights as in :class:`SelfAttention`.

    Args:
        heads: Of linear attention.
        hidden: Inner width of the MLP; by default four times the stream's.
        mlp: Kind of MLP.
    """

    kind: ClassVar[str] = "linear-attention"
    branch: ClassVar[type[LinearAttention]] = LinearAttention
    heads: int = 1
    hidden: int | None = None
    mlp: str = "gelu"

    @property
    def positions(self) -> tuple[str, ...]:
        """Those that are added to the embedding."""
        return POSITIONS

    def branches(self, dim: int, positions: str, init: WeightInit, **factory: Any) -> list[nn.Module]:
        """Linear attention and the MLP."""
        return [
            self.branch(dim, self.heads, init=init, **factory),
            FeedForward(dim, self.hidden, kind=self.mlp, bias=True, init=init, **factory),
        ]

    def cache(self) -> LinearCache:
        """An empty state."""
        return LinearCache()


@dataclass(frozen=True)
class GatedMixer(LinearMixer):
    """Gated linear attention, then an MLP."""

    kind: ClassVar[str] = "gated-linear"
    branch: ClassVar[type[LinearAttention]] = GatedLinear


MIXERS: dict[str, Callable[..., Mixer]] = {
    mixer.kind: mixer for mixer in (Relation, SelfAttention, LinearMixer, GatedMixer)
}


def build_mixer(kind: str, **settings: Any) -> Mixer:
    """The mixer of that kind.

    Raises:
        UsageError: If there is none, or it has no such setting.
    """
    if kind not in MIXERS:
        raise unknown("mixer", kind, MIXERS)
    try:
        return MIXERS[kind](**settings)
    except TypeError as error:
        raise UsageError(f"the mixer {kind!r} takes other settings than {', '.join(settings)}: {error}.") from error

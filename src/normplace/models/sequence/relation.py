"""CausalRN's branch: every pair of tokens added, activated and averaged."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from normplace.errors import UsageError, unknown
from normplace.models.transformer.init import Projection
from normplace.ops.relation import (
    PairState,
    ScanState,
    relation_pairwise,
    relation_pairwise_prefill,
    relation_pairwise_step,
    relation_scan,
    relation_scan_prefill,
    relation_scan_step,
)
from normplace.residual import Branch

FORMS = ("auto", "scan", "pairwise")
NORMS = ("joint", "separate", "none")
ACTIVATIONS = ("exp", "relu", "gelu", "elu")


class RelationCache:
    """What one relation branch remembers: sums of fixed size in the scan, one row per token in the pairwise form."""

    def __init__(self) -> None:
        self.length = 0
        self.state: ScanState | PairState | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the numbers remembered, without counts and masks."""
        if self.state is None:
            return 0
        held = (self.state.keys,) if isinstance(self.state, PairState) else self.state.sums
        return sum(part.numel() * part.element_size() for part in held if part is not None)


class RelationBranch(Branch):
    """``W3 N(BAR(W1 x + b1, W2 x)) + b3`` (Cui et al. 2024, arXiv 2406.16168), as a branch.

    ``BAR(a, b)_i`` is the mean over j <= i of ``act(N(a_i + b_j))`` (``joint``), ``act(N(a_i) + N(b_j))``
    (``separate``) or ``act(a_i + b_j)`` (``none``). Where the activation is the exponential and no pair is normalized
    as such, it factorises, and the ``scan`` form computes the same in linear time. The inner norms have no gain or
    shift. It offers the place ``pre_output`` for another norm, after ``post_norm`` or in its stead.

    Args:
        dim: Width of the stream.
        hidden: Channels of a pair; by default ``dim``.
        heads: Groups of channels that are normalized apart.
        norm: ``joint``, ``separate`` or ``none``.
        activation: ``exp``, ``relu``, ``gelu`` or ``elu``.
        post_norm: Whether the mean is normalized.
        eps: Of these norms.
        form: ``scan``, ``pairwise``, or ``auto`` for the scan wherever it computes the same.
        std: Standard deviation of the initial W1 and W2.
        last_std: That of W3.
        generator: Source of the initial values.
        device: Where the parameters live.
        dtype: Their dtype.

    Raises:
        UsageError: If a name is unknown, the heads do not divide the channels, or the scan is asked for where it does
            not compute the same.
    """

    def __init__(
        self,
        dim: int,
        hidden: int | None = None,
        *,
        heads: int = 1,
        norm: str = "joint",
        activation: str = "exp",
        post_norm: bool = True,
        eps: float = 1e-5,
        form: str = "auto",
        std: float = 0.02,
        last_std: float = 0.02,
        generator: torch.Generator | None = None,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        for kind, choice, choices in (
            ("norm of a pair", norm, NORMS),
            ("activation of a pair", activation, ACTIVATIONS),
            ("form", form, FORMS),
        ):
            if choice not in choices:
                raise unknown(kind, choice, choices)
        width = dim if hidden is None else hidden
        if min(dim, width, heads) < 1 or width % heads:
            raise UsageError(f"{heads} heads cannot share {width} channels: choose a divisor of their number.")
        if not eps >= 0:
            raise UsageError(f"eps must be zero or more, got {eps}.")
        factorises = norm != "joint" and activation == "exp"
        if form == "scan" and not factorises:
            raise UsageError(
                f"the scan needs a sum of exponentials that factorises, which norm={norm!r} with activation="
                f"{activation!r} does not give: use norm='separate' or 'none' with 'exp', or form='pairwise'."
            )
        self.form = "scan" if factorises and form != "pairwise" else "pairwise"
        self.norm_sites = {"pre_output": width}
        self.options: dict[str, Any] = {"norm": norm, "post_norm": post_norm, "eps": eps, "heads": heads}
        if self.form == "pairwise":
            self.options["activation"] = activation
        self.activation = activation
        factory = (generator, device, dtype)
        self.query = Projection(dim, width, True, std, *factory)
        self.key = Projection(dim, width, False, std, *factory)
        self.output = Projection(width, dim, True, last_std, *factory)

    def forward(self, x: Tensor, mask: Tensor | None = None, cache: RelationCache | None = None) -> Tensor:
        """What each token makes of its pairs.

        Args:
            x: Tokens, batch × length × dim.
            mask: True where a token is real, batch × length; None for all.
            cache: What was read before; the new tokens are added to it.

        Raises:
            UsageError: If a cache is given and the result would need gradients.
        """
        a, b = self.query(x), self.key(x)
        y = self.relate(a, b, mask) if cache is None else self._remember(a, b, cache)
        return self.output(self.normalize_at("pre_output", y))

    def relate(self, a: Tensor, b: Tensor, mask: Tensor | None) -> Tensor:
        """Every pair added, normalized, activated and averaged, batch × length × channels."""
        operate = relation_scan if self.form == "scan" else relation_pairwise
        return operate(a, b, mask=mask, **self.options)

    def _remember(self, a: Tensor, b: Tensor, cache: RelationCache) -> Tensor:
        if torch.is_grad_enabled() and b.requires_grad:
            raise UsageError("a cache holds no gradients: call the network under torch.no_grad(), or without a cache.")
        prefill, step = (
            (relation_scan_prefill, relation_scan_step)
            if self.form == "scan"
            else (relation_pairwise_prefill, relation_pairwise_step)
        )
        if cache.state is None:
            y, cache.state = prefill(a, b, **self.options)
        else:
            rows = []
            for query, key in zip(a.unbind(1), b.unbind(1), strict=True):
                row, cache.state = step(cache.state, query, key, **self.options)  # pyright: ignore[reportArgumentType]
                rows.append(row)
            y = torch.stack(rows, 1)
        cache.length += a.shape[1]
        return y

    def extra_repr(self) -> str:
        """The relation, and the form it is computed in."""
        settings = ", ".join(f"{name}={value!r}" for name, value in self.options.items() if name != "activation")
        return f"{self.activation}, {settings}, {self.form}"

"""CausalRN's branch, the mean of an activation over all pairs of tokens."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from normplace.errors import UsageError, expect_choice
from normplace.models.transformer.cache import check_no_gradients
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
    """The cache of one relation branch: sums of fixed size for the scan, one row per token for the pairwise form."""

    def __init__(self) -> None:
        self.length = 0
        self.state: ScanState | PairState | None = None

    @property
    def nbytes(self) -> int:
        """Size of the cached numbers in bytes, without counts and masks."""
        if self.state is None:
            return 0
        tensors = (self.state.keys,) if isinstance(self.state, PairState) else self.state.sums
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors if tensor is not None)


class RelationBranch(Branch):
    """``W3 N(BAR(W1 x + b1, W2 x)) + b3`` (Cui et al. 2024, arXiv 2406.16168), as a branch.

    ``BAR(a, b)_i`` is the mean over j <= i of ``act(N(a_i + b_j))`` (``joint``), ``act(N(a_i) + N(b_j))``
    (``separate``) or ``act(a_i + b_j)`` (``none``). With the exponential and without a joint norm it factorizes,
    and the ``scan`` form computes the same in linear time. These norms have no gain and bias. The norm site
    ``pre_output`` is after ``post_norm``.

    Args:
        dim: Width of the stream.
        hidden: Number of channels of a pair; by default ``dim``.
        heads: Number of channel groups that are normalized separately.
        norm: ``joint``, ``separate`` or ``none``.
        activation: ``exp``, ``relu``, ``gelu`` or ``elu``.
        post_norm: Whether the mean is normalized.
        eps: The eps of these norms.
        form: ``scan``, ``pairwise``, or ``auto`` for the scan if it computes the same.
        std: Standard deviation of the initial W1 and W2.
        last_std: Standard deviation of the initial W3.
        generator: Random generator of the initial values.
        device: Device of the parameters.
        dtype: Dtype of the parameters.

    Raises:
        UsageError: If a name is unknown, the heads do not divide the channels, or ``form="scan"`` does not compute the
            same.
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
            expect_choice(kind, choice, choices)
        width = dim if hidden is None else hidden
        if min(dim, width, heads) < 1 or width % heads:
            raise UsageError(f"{heads} heads cannot share {width} channels: choose a divisor of their number.")
        if not eps >= 0:
            raise UsageError(f"eps must be zero or more, got {eps}.")
        factorizes = norm != "joint" and activation == "exp"
        if form == "scan" and not factorizes:
            raise UsageError(
                f"the scan needs a sum of exponentials that factorizes, which norm={norm!r} with activation="
                f"{activation!r} does not: use norm='separate' or 'none' with 'exp', or form='pairwise'."
            )
        self.form = "scan" if factorizes and form != "pairwise" else "pairwise"
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
        """The output of each token.

        Args:
            x: Tokens, batch × length × dim.
            mask: True for real tokens, batch × length; None for all.
            cache: The state after earlier tokens; it is updated.

        Raises:
            UsageError: If a cache is given and the result would require gradients.
        """
        a, b = self.query(x), self.key(x)
        y = self.relate(a, b, mask) if cache is None else self._relate_with_cache(a, b, cache)
        return self.output(self.normalize_at("pre_output", y))

    def relate(self, a: Tensor, b: Tensor, mask: Tensor | None) -> Tensor:
        """The mean over pairs for each token, batch × length × channels."""
        operate = relation_scan if self.form == "scan" else relation_pairwise
        return operate(a, b, mask=mask, **self.options)

    def _relate_with_cache(self, a: Tensor, b: Tensor, cache: RelationCache) -> Tensor:
        check_no_gradients(b)
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
        """The main settings."""
        settings = ", ".join(f"{name}={value!r}" for name, value in self.options.items() if name != "activation")
        return f"{self.activation}, {settings}, {self.form}"

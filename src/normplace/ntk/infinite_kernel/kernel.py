"""The kernels of infinitely wide fully connected networks, with LayerNorm or RMSNorm at any hidden layer.

The neural network Gaussian process (NNGP) kernel is the covariance of the random network, the neural tangent
kernel (NTK; Jacot, Gabriel and Hongler 2018) the inner product of its parameter gradients. The recursion
without norms, and with LayerNorm before the activation, is that of Lee et al. 2019 and the
``neural-tangents`` package. Norms after the activation are derived here and agree with averages over wide
networks. Ziomek, Whittle and Osborne (arXiv 2505.14512) prove that LayerNorm before the
activation bounds the NTK.

NTK parametrization: z = σ_w/√n W h + σ_b b with standard normal W and b, hidden layers, then one linear
read-out:

    S = T = σ_w² x xᵀ/n + σ_b²
    each hidden layer:
      norm before the activation    S ← S/√(s sᵀ), T ← T/√(s sᵀ)             s = diag S
      activation                    Q = E φφ, m = E φ, T ← T ∘ E φ'φ'        over N(0, S)
      norm after the activation     C = Q − m mᵀ (layer) or Q (rms);  Q ← C/√(c cᵀ), T ← T/√(c cᵀ)
      next linear map               S ← σ_w² Q + σ_b², T ← S + σ_w² T

A norm's Jacobian also has two rank-one terms (it projects out the mean and the radius); their contribution to the
kernel is O(1/width). Before the activation the layer mean is zero in the limit, so LayerNorm and RMSNorm are
the same map there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, overload

import torch
from torch import Tensor

from normplace.errors import UsageError, expect_number, expect_whole
from normplace.ntk.checks import require_choice, require_rows, require_same_device
from normplace.ntk.infinite_kernel.moments import Erf, LeakyReLU, Moments
from normplace.ntk.infinite_kernel.power_moments import ReluPower
from normplace.ntk.infinite_kernel.smooth_moments import Gelu, Silu

_MOMENTS: dict[str, Moments] = {
    "relu": LeakyReLU(0.0),
    "erf": Erf(),
    "gelu": Gelu(),
    "silu": Silu(),
    "relu2": ReluPower(2),
    "relu3": ReluPower(3),
}
_ACTIVATIONS = (*_MOMENTS, "leaky_relu")
_NORMS = ("layer", "rms")
_WHERE = ("none", "first", "last", "every")
_POSITIONS = ("before", "after")
_KINDS = ("ntk", "nngp", "both")

# Entries of one block: 32 MiB per buffer in float64; the recursion uses about eight buffers.
_BLOCK_ENTRIES = 2**22


class Kernels(NamedTuple):
    """The two kernels of one network."""

    nngp: Tensor
    ntk: Tensor


@dataclass(frozen=True)
class FullyConnected:
    """An infinitely wide fully connected network.

    Attributes:
        depth: Number of hidden layers, at least one; the linear read-out is not counted.
        activation: "relu", "leaky_relu", "erf", "gelu", "silu", or a power of ReLU, "relu2" or "relu3".
        negative_slope: Slope of the leaky ReLU below zero; other activations ignore it.
        weight_variance: σ_w² of every linear map but the last.
        bias_variance: σ_b² of every linear map; the paper needs a positive value for a nondegenerate kernel.
        last_weight_variance: σ_w² of the read-out; None means ``weight_variance``.
        norm: "layer", "rms" or None; norms have no learned scale or shift, as in the paper.
        norm_at: "none", "first", "last", "every", or a tuple of hidden layers, counted from 1.
        norm_position: "before" or "after" the activation.
        eps: Added to the variance inside the norm's square root: 0 as in the paper; ``torch.nn.LayerNorm`` uses
            1e-5.
    """

    depth: int = 2
    activation: str = "relu"
    negative_slope: float = 0.01
    weight_variance: float = 2.0
    bias_variance: float = 0.01
    last_weight_variance: float | None = 1.0
    norm: str | None = None
    norm_at: str | tuple[int, ...] = "none"
    norm_position: str = "before"
    eps: float = 0.0

    def __post_init__(self) -> None:
        """Check the fields.

        Raises:
            UsageError: If a field has an unknown name or an invalid value.
        """
        expect_whole(1, depth=self.depth)
        require_choice("activation", self.activation, _ACTIVATIONS)
        if self.norm is not None:
            require_choice("norm", self.norm, _NORMS)
        require_choice("norm_position", self.norm_position, _POSITIONS)
        for name in ("weight_variance", "bias_variance", "last_weight_variance", "eps"):
            if name != "last_weight_variance" or self.last_weight_variance is not None:
                expect_number(name, getattr(self, name), 0)
        expect_number("negative_slope", self.negative_slope)
        if self.normed_layers and self.norm is None:
            raise UsageError(f"norm_at={self.norm_at!r} places a norm, but norm is None: choose 'layer' or 'rms'.")

    @property
    def normed_layers(self) -> frozenset[int]:
        """The hidden layers with a norm, counted from 1.

        Raises:
            UsageError: If ``norm_at`` is an unknown name or contains layers that do not exist.
        """
        if isinstance(self.norm_at, str):
            named = {"none": (), "first": (1,), "last": (self.depth,), "every": range(1, self.depth + 1)}
            return frozenset(named[require_choice("norm_at", self.norm_at, _WHERE)])
        if not isinstance(self.norm_at, tuple | list | set | frozenset):
            raise UsageError(f"norm_at must be a name or a tuple of layers, not of type {type(self.norm_at).__name__}.")
        layers = frozenset(layer if isinstance(layer, int) else 0 for layer in self.norm_at)
        if not all(1 <= layer <= self.depth for layer in layers):
            raise UsageError(f"norm_at={self.norm_at!r} must contain hidden layers from 1 to {self.depth}.")
        return layers

    @property
    def moments(self) -> Moments:
        """The activation's Gaussian moments."""
        return LeakyReLU(self.negative_slope) if self.activation == "leaky_relu" else _MOMENTS[self.activation]

    def variance_after(self, layer: int) -> float:
        """σ_w² of the linear map that follows hidden layer ``layer``."""
        if layer == self.depth and self.last_weight_variance is not None:
            return self.last_weight_variance
        return self.weight_variance


class _Scales(NamedTuple):
    """The scales that one hidden layer applies to each input; None if it has no norm there."""

    before: Tensor | None  # multiplies the pre-activation
    variance: Tensor  # of the pre-activation, after that
    mean: Tensor | None  # of the activation, if a norm subtracts it
    after: Tensor | None  # multiplies the activation


def _inverse_root(variance: Tensor) -> Tensor:
    """1/√variance, or 0 if the variance is 0: a norm maps the zero vector to zero for any eps."""
    return torch.where(variance > 0, variance, torch.inf).rsqrt()


def _diagonal(spec: FullyConnected, x: Tensor) -> tuple[list[_Scales], Tensor, Tensor]:
    """Per-layer scales of each input, and the final diagonals (NNGP, NTK), without rounding in ρ."""
    moments, normed = spec.moments, spec.normed_layers
    s = t = x.square().mean(1) * spec.weight_variance + spec.bias_variance
    layers = []
    for layer in range(1, spec.depth + 1):
        before = mean = after = None
        if layer in normed and spec.norm_position == "before":
            before = _inverse_root(s + spec.eps)
            s, t = s * before.square(), t * before.square()
        variance, q = s, moments.square(s)
        t = t * moments.slope_square(s)
        if layer in normed and spec.norm_position == "after":
            if spec.norm == "layer":
                mean = moments.mean(s)
                q = (q - mean.square()).clamp(min=0)
            after = _inverse_root(q + spec.eps)
            q, t = q * after.square(), t * after.square()
        layers.append(_Scales(before, variance, mean, after))
        weight = spec.variance_after(layer)
        s = weight * q + spec.bias_variance
        t = s + weight * t
    if not all(bool(torch.isfinite(values).all()) for values in (*(layer.variance for layer in layers), s, t)):
        raise UsageError("the inputs are so large that the kernel overflows float64: rescale them.")
    return layers, s, t


def _correlation(s: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """s/√(ab) in [−1, 1]; values within rounding of ±1 become ±1.

    acos turns a rounding error δ near ±1 into √δ. Without this step a sample would differ from its copy by 1e-8.
    """
    rho = s * _inverse_root(a) * _inverse_root(b)
    snap = 1 - 4 * torch.finfo(rho.dtype).eps
    return torch.where(rho.abs() >= snap, rho.sign(), rho)


def _kernel_block(
    spec: FullyConnected, x1: Tensor, x2: Tensor, rows: list[_Scales], columns: list[_Scales], with_ntk: bool
) -> tuple[Tensor, Tensor | None]:
    """The recursion for one block of rows."""
    moments = spec.moments
    s = (x1 @ x2.T).mul_(spec.weight_variance / x1.shape[1]).add_(spec.bias_variance)
    t = s.clone() if with_ntk else None
    for layer, (one, two) in enumerate(zip(rows, columns, strict=True), start=1):
        if one.before is not None and two.before is not None:
            s.mul_(one.before[:, None]).mul_(two.before)
            if t is not None:
                t.mul_(one.before[:, None]).mul_(two.before)
        a, b = one.variance[:, None], two.variance
        rho = _correlation(s, a, b)
        s = moments.product(a, b, rho)
        if t is not None:
            t.mul_(moments.slope_product(a, b, rho))
        if one.mean is not None and two.mean is not None:
            s.addr_(one.mean, two.mean, alpha=-1)
        if one.after is not None and two.after is not None:
            s.mul_(one.after[:, None]).mul_(two.after)
            if t is not None:
                t.mul_(one.after[:, None]).mul_(two.after)
        weight = spec.variance_after(layer)
        s.mul_(weight).add_(spec.bias_variance)
        if t is not None:
            t.mul_(weight).add_(s)
    return s, t


def _select_inputs(layers: list[_Scales], part: slice) -> list[_Scales]:
    def cut(value: Tensor | None) -> Tensor | None:
        return None if value is None else value[part]

    return [_Scales(cut(layer.before), layer.variance[part], cut(layer.mean), cut(layer.after)) for layer in layers]


@overload
def infinite(
    spec: FullyConnected,
    x1: Tensor,
    x2: Tensor | None = None,
    *,
    kind: Literal["ntk", "nngp"] = "ntk",
    block_rows: int | None = None,
) -> Tensor: ...
@overload
def infinite(
    spec: FullyConnected, x1: Tensor, x2: Tensor | None = None, *, kind: Literal["both"], block_rows: int | None = None
) -> Kernels: ...
@torch.no_grad()
def infinite(
    spec: FullyConnected, x1: Tensor, x2: Tensor | None = None, *, kind: str = "ntk", block_rows: int | None = None
) -> Tensor | Kernels:
    """The infinite-width NTK, NNGP kernel, or both, of a fully connected network.

    Args:
        spec: The network.
        x1: Inputs (N1, features).
        x2: Other inputs (N2, features); None computes the symmetric kernel of ``x1`` with an exact diagonal.
        kind: "ntk", "nngp" or "both".
        block_rows: Rows per block; the recursion needs memory for about eight blocks. None uses blocks of about
            32 MiB.

    Returns:
        The kernel (N1, N2) in float64 on the inputs' device, or both as ``Kernels(nngp, ntk)``.

    Raises:
        UsageError: If the inputs are inconsistent or ``kind`` is unknown.

    >>> x = torch.tensor([[0.0], [25.0]], dtype=torch.float64)
    >>> infinite(FullyConnected(norm="layer", norm_at="first"), x).diagonal()
    tensor([1.5200, 1.5200], dtype=torch.float64)
    """
    if not isinstance(spec, FullyConnected):
        raise UsageError(f"spec must be a FullyConnected, not {type(spec).__name__}.")
    require_choice("kind", kind, _KINDS)
    if block_rows is not None:
        expect_whole(1, block_rows=block_rows)
    x1 = require_rows("x1", x1)
    symmetric = x2 is None
    other = x1 if x2 is None else require_rows("x2", x2)
    require_same_device(x1=x1, x2=other)
    if x1.shape[1] != other.shape[1]:
        raise UsageError(f"x1 has {x1.shape[1]} features and x2 has {other.shape[1]}: they must agree.")
    n1, n2 = len(x1), len(other)
    step = max(1, _BLOCK_ENTRIES // n2) if block_rows is None else block_rows

    rows, s_diagonal, t_diagonal = _diagonal(spec, x1)
    columns = rows if symmetric else _diagonal(spec, other)[0]
    nngp = None if kind == "ntk" else x1.new_empty(n1, n2)
    ntk = None if kind == "nngp" else x1.new_empty(n1, n2)
    for start in range(0, n1, step):
        part = slice(start, min(start + step, n1))
        # The symmetric kernel needs only the blocks on and right of the diagonal.
        rest = slice(start, n2) if symmetric else slice(0, n2)
        s, t = _kernel_block(
            spec, x1[part], other[rest], _select_inputs(rows, part), _select_inputs(columns, rest), ntk is not None
        )
        for out, value, diagonal in ((nngp, s, s_diagonal), (ntk, t, t_diagonal)):
            if out is None:
                continue
            assert value is not None
            if symmetric:
                square = value[:, : part.stop - part.start]
                square.copy_((square + square.T) / 2).diagonal().copy_(diagonal[part])
                out[rest, part] = value.T
            out[part, rest] = value
    if nngp is not None and ntk is not None:
        return Kernels(nngp, ntk)
    result = nngp if ntk is None else ntk
    assert result is not None
    return result

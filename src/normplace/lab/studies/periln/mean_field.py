"""Mean-field theory of a Transformer at initialization: the variance of the stream and the gradients of its layers.

With random weights and in the limit of many features, the features of all tokens are jointly Gaussian. A matrix of
covariances between tokens, the kernel, describes them. Each operation maps one kernel to the next:

- a matrix multiplies it by its fan-in and the variance of its weights;
- a norm divides it by the standard deviations of both tokens;
- attention with weights ``A`` maps ``K`` to ``A K Aᵀ``: averaging over tokens keeps what the tokens share;
- the MLP applies the kernel of its activation (Cho and Saul 2009), here a series in the correlation;
- a residual add sums two kernels, since the weights of the branch are independent of the stream.

Gradients are described by a second kernel, which passes the same operations backward. The squared gradient norm of a
matrix is the sum over pairs of tokens of the kernel of its input times the kernel of its output's gradient.

Attention weights are sampled: queries and keys are drawn with the covariance of the kernel. In the backward pass they
are constants, and the gradients of queries, keys, gains and the projection of a norm are left out: they are small.
Tokens are drawn independently from a Zipf distribution that has the entropy of the text. Nothing is fitted.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache

import numpy as np
import torch
from torch import Tensor

from normplace.models.transformer import TransformerConfig
from normplace.models.transformer.positions import Rotary, rotate
from normplace.norms import build_norm
from normplace.placement import BlockSpec

TOKENS = 128
"""Length of the sequence; a longer one changes the predictions little."""
HEADS = 2
"""Sampled heads of an attention branch."""
TERMS = 24
NODES = 120
JITTER = 1e-6

Backward = Callable[[Tensor], tuple[Tensor, float]]
"""From the kernel of the output's gradient to that of the input's gradient, and the squared gradient norm of the
parameters."""


@dataclass(frozen=True)
class Prediction:
    """Signals of an average network at initialization.

    Attributes:
        variance: Variance of the stream before the first layer and after each one.
        gradient: Gradient norm of the matrices of each layer, except those of queries and keys.
    """

    variance: tuple[float, ...]
    gradient: tuple[float, ...]


def zipf(entropy: float, size: int) -> np.ndarray:
    """Frequencies proportional to a power of the rank that have an entropy, in bits.

    Examples:
        >>> frequencies = zipf(5.0, 256)
        >>> round(float(-(frequencies * np.log2(frequencies)).sum()), 3)
        5.0
    """
    low, high = 0.0, 20.0
    for _ in range(60):
        power = (low + high) / 2
        frequencies = _power_law(power, size)
        bits = -(frequencies * np.log2(np.maximum(frequencies, 1e-300))).sum()
        low, high = (power, high) if bits > entropy else (low, power)
    return _power_law(low, size)


def _power_law(power: float, size: int) -> np.ndarray:
    weights = np.arange(1, size + 1, dtype=np.float64) ** -power
    return weights / weights.sum()


def powers(function: Callable[[np.ndarray], np.ndarray], std: float) -> np.ndarray:
    """Coefficients of the kernel of an activation as a power series in the correlation of two inputs.

    They are the squared coefficients of the function in normalized Hermite polynomials.
    """
    nodes, weights, polynomials = _hermite()
    values = function(std * nodes) * weights / math.sqrt(2 * math.pi)
    return np.array([(values * polynomial).sum() for polynomial in polynomials]) ** 2


@cache
def _hermite() -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
    """Nodes and weights of the Gaussian quadrature, and the normalized Hermite polynomials at the nodes."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(NODES)
    polynomials = [np.ones_like(nodes), nodes]
    for n in range(1, TERMS):
        polynomials.append((nodes * polynomials[n] - math.sqrt(n) * polynomials[n - 1]) / math.sqrt(n + 1))
    return nodes, weights, polynomials


def series(coefficients: np.ndarray, correlation: Tensor) -> Tensor:
    """The sum of a power series."""
    total = torch.zeros_like(correlation)
    for coefficient in coefficients[::-1]:
        total = total * correlation + coefficient
    return total


def silu(x: np.ndarray) -> np.ndarray:
    """The activation of SwiGLU."""
    return x / (1 + np.exp(-x))


def silu_slope(x: np.ndarray) -> np.ndarray:
    """Its derivative."""
    gate = 1 / (1 + np.exp(-x))
    return gate * (1 + x * (1 - gate))


class MeanField:
    """The kernels of one network on one random sequence.

    Args:
        config: Of a network with SwiGLU, rotary positions and norms that divide by the RMS or standard deviation.
        entropy: Of the tokens, in bits.
        seed: Of the sequence and the attention weights.
    """

    def __init__(self, config: TransformerConfig, entropy: float, seed: int) -> None:
        self.config = config
        self.init = config.weight_init()
        self.generator = torch.Generator().manual_seed(seed)
        norm = build_norm(config.norm, config.dim, **({} if config.eps is None else {"eps": config.eps}))
        self.eps = float(norm.eps)  # pyright: ignore[reportArgumentType]
        frequencies = torch.from_numpy(zipf(entropy, config.vocab_size))
        drawn = torch.multinomial(frequencies, TOKENS + 1, replacement=True, generator=self.generator)
        self.inputs, self.targets = drawn[:-1], drawn[1:]
        self.hidden = config.mlp.hidden or 8 * math.ceil(config.dim / 3)
        self.causal = torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril()

    def run(self) -> Prediction:
        """The stream forward, then the gradients backward."""
        config = self.config
        kernel = config.std**2 * (self.inputs[:, None] == self.inputs[None, :]).double()
        if config.rule.embedding:
            kernel, _ = self.norm(kernel)
        variances, blocks = [mean_variance(kernel)], []
        for layer in range(1, config.depth + 1):
            for kind, branch in (("attention", self.attention), ("mlp", self.mlp)):
                spec = config.rule.at(layer, config.depth, kind)
                kernel, backward = self.block(kernel, spec, branch)
                blocks.append(backward)
            variances.append(mean_variance(kernel))
        kernel, scale = self.norm(kernel) if config.rule.final else (kernel, torch.ones_like(kernel))
        gradient = self.head(kernel) / scale
        squares = []
        for backward in reversed(blocks):
            gradient, square = backward(gradient)
            squares.append(square)
        squares.reverse()
        layers = [math.sqrt(first + second) for first, second in zip(squares[::2], squares[1::2], strict=True)]
        return Prediction(tuple(variances), tuple(layers))

    def norm(self, kernel: Tensor) -> tuple[Tensor, Tensor]:
        """The kernel after a norm, and the divisor, which is also that of the gradient's kernel."""
        size = (kernel.diagonal() + self.eps).sqrt()
        scale = torch.outer(size, size)
        return kernel / scale, scale

    def block(
        self, stream: Tensor, spec: BlockSpec, branch: Callable[[Tensor, BlockSpec], tuple[Tensor, Backward]]
    ) -> tuple[Tensor, Backward]:
        """A residual block: the stream after it, and its backward pass."""
        one = torch.ones_like(stream)
        read, read_scale = self.norm(stream) if spec.input else (stream, one)
        written, branch_backward = branch(read, spec)
        written, write_scale = self.norm(written) if spec.output else (written, one)
        total, stream_scale = self.norm(stream + written) if spec.stream else (stream + written, one)

        def backward(gradient: Tensor) -> tuple[Tensor, float]:
            gradient = gradient / stream_scale
            through, square = branch_backward(gradient / write_scale)
            return gradient + through / read_scale, square

        return total, backward

    def attention(self, kernel: Tensor, spec: BlockSpec) -> tuple[Tensor, Backward]:
        """Values averaged over tokens, then the output matrix."""
        dim, width = self.config.dim, self.config.head_dim
        std = self.init.of(dim, dim)
        value, last = (dim * (scale * init_gain(spec)) ** 2 for scale in (std, self.init.of(dim, dim, last=True)))
        weights = self.attention_weights(kernel * dim * std**2, width)
        values = value * kernel
        heads = weights @ values @ weights.mT
        mixed = heads.mean(0)
        inner, inner_scale = self.norm(mixed) if "pre_output" in spec.inner else (mixed, torch.ones_like(mixed))

        def backward(gradient: Tensor) -> tuple[Tensor, float]:
            square = float((gradient * inner).sum())
            at_heads = last * gradient / inner_scale
            at_values = (weights.mT @ at_heads @ weights).mean(0)
            square += float((at_values * kernel).sum())
            return value * at_values, dim**2 * square

        return last * inner, backward

    def attention_weights(self, kernel: Tensor, width: int) -> Tensor:
        """Sampled attention weights, heads × tokens × tokens, for queries and keys of this kernel."""
        jitter = JITTER * kernel.diagonal().mean() * torch.eye(TOKENS, dtype=kernel.dtype)
        root = torch.linalg.cholesky(kernel + jitter)
        table = Rotary(self.config.positions.theta).table(0, TOKENS, width, dtype=kernel.dtype)
        shape = (2, HEADS, TOKENS, width)
        drawn = torch.randn(shape, generator=self.generator, dtype=kernel.dtype)
        queries, keys = rotate(root @ drawn, table)
        scores = queries @ keys.mT / math.sqrt(width)
        return scores.masked_fill(~self.causal, -math.inf).softmax(-1)

    def mlp(self, kernel: Tensor, spec: BlockSpec) -> tuple[Tensor, Backward]:
        """SwiGLU: the activation of the gate times the other projection, then the last matrix."""
        dim, hidden, gain = self.config.dim, self.hidden, init_gain(spec)
        first, last = (gain * self.init.of(dim, hidden)) ** 2, (gain * self.init.of(hidden, dim, last=True)) ** 2
        up = dim * first * kernel
        size = up.diagonal().sqrt()
        correlation = up / torch.outer(size, size)
        std = float(size.mean())
        gate, slope = (series(powers(function, std), correlation) for function in (silu, silu_slope))
        product = gate * up
        inner, scale = self.norm(product) if "pre_output" in spec.inner else (product, torch.ones_like(product))

        def backward(gradient: Tensor) -> tuple[Tensor, float]:
            square = hidden * dim * float((gradient * inner).sum())
            at_hidden = dim * last * gradient / scale
            at_inputs = at_hidden * (gate + slope * up)
            square += hidden * dim * float((at_inputs * kernel).sum())
            return hidden * first * at_inputs, square

        return hidden * last * inner, backward

    def head(self, kernel: Tensor) -> Tensor:
        """The kernel of the loss gradient before the head, for sampled logits."""
        dim, size = self.config.dim, self.config.vocab_size
        variance = self.config.std**2 if self.config.head.tied else self.init.of(dim, size) ** 2
        jitter = JITTER * kernel.diagonal().mean() * torch.eye(TOKENS, dtype=kernel.dtype)
        root = torch.linalg.cholesky(dim * variance * (kernel + jitter))
        logits = root @ torch.randn(TOKENS, size, generator=self.generator, dtype=kernel.dtype)
        errors = (logits.softmax(-1) - torch.nn.functional.one_hot(self.targets, size)) / TOKENS
        return variance * (errors @ errors.mT)


def init_gain(spec: BlockSpec) -> float:
    """Factor on the initial weights of a block; the spec of one layer has a number."""
    assert isinstance(spec.init_gain, int | float)
    return float(spec.init_gain)


def mean_variance(kernel: Tensor) -> float:
    """Mean variance of the features over tokens."""
    return float(kernel.diagonal().mean())


@lru_cache(maxsize=64)
def predict(config: TransformerConfig, entropy: float, seed: int = 0) -> Prediction:
    """The prediction for a network, once in a process.

    Args:
        config: The network.
        entropy: Entropy of its tokens, in bits.
        seed: Of the sequence and the attention weights.
    """
    return MeanField(config, entropy, seed).run()

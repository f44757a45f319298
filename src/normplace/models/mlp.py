"""Fully connected networks with norms in chosen layers and slots, residual or not."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normplace.errors import UsageError, expect_choice, expect_number, expect_whole
from normplace.models.activations import build_activation, variance_gain
from normplace.ops.features import check_features
from normplace.placement import Placement
from normplace.residual import Branch, NormChoice, Residual, build_slot_norm, reset_tree
from normplace.stack import run_blocks

PARAMETRIZATIONS = ("standard", "ntk")


class Dense(nn.Linear):
    """A linear map with Gaussian initial weights, in one of two parametrizations.

    Initially both compute ``weight_std / sqrt(in) W x + bias_std b`` with W, b standard normal. In ``standard`` the
    parameters contain the factors. In ``ntk`` (Jacot et al. 2018, arXiv 1806.07572) the factors are outside, so that
    gradients have a limit as the width grows.

    Args:
        in_features: Input width.
        out_features: Output width.
        parametrization: ``standard`` or ``ntk``.
        weight_std: Standard deviation of the weights times sqrt(in_features).
        bias_std: Standard deviation of the bias.
        bias: Whether to add a bias.
        generator: Random generator of the initial values.
        device: Device of the parameters.
        dtype: Dtype of the parameters.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        parametrization: str = "standard",
        weight_std: float = 1.0,
        bias_std: float = 0.1,
        bias: bool = True,
        generator: torch.Generator | None = None,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        expect_choice("parametrization", parametrization, PARAMETRIZATIONS)
        self.parametrization, self.weight_std, self.bias_std = parametrization, weight_std, bias_std
        self._generator = generator
        super().__init__(in_features, out_features, bias, device, dtype)
        self._generator = None

    def reset_parameters(self) -> None:
        """Draw new initial values."""
        outside = self.parametrization == "ntk"
        std = 1.0 if outside else self.weight_std / math.sqrt(self.in_features)
        nn.init.normal_(self.weight, std=std, generator=self._generator)
        if self.bias is not None:
            nn.init.normal_(self.bias, std=1.0 if outside else self.bias_std, generator=self._generator)

    def forward(self, input: Tensor) -> Tensor:
        """The linear map."""
        check_features("the input of the MLP", input, self.in_features, like=self.weight)
        if self.parametrization == "standard":
            return F.linear(input, self.weight, self.bias)
        # Scale the input: it is smaller than the weight, and the weight stays a plain argument of linear.
        out = F.linear(input * (self.weight_std / math.sqrt(self.in_features)), self.weight)
        return out if self.bias is None else out + self.bias * self.bias_std

    def extra_repr(self) -> str:
        """The main arguments."""
        return f"{super().extra_repr()}, {self.parametrization}, std {self.weight_std:.4g} and {self.bias_std:g}"


class DenseBranch(Branch):
    """A dense map and its activation, with the norm site ``preactivation`` between them."""

    def __init__(self, dense: Dense, activation: str) -> None:
        super().__init__()
        self.norm_sites = {"preactivation": dense.out_features}
        self.dense = dense
        self.activation = build_activation(activation)

    def forward(self, x: Tensor) -> Tensor:
        """``activation(dense(x))``, with a norm before the activation if the site holds one."""
        return self.activation(self.normalize_at("preactivation", self.dense(x)))


def norm_layers(norm_at: str | Iterable[int], hidden: int) -> frozenset[int]:
    """The hidden layers, counted from 1, that ``norm_at`` selects.

    Raises:
        UsageError: If it is an unknown word or a layer outside the network.
    """
    words = {"none": (), "first": (1,), "last": (hidden,), "every": range(1, hidden + 1)}
    if isinstance(norm_at, str):
        expect_choice("choice of layers", norm_at, words)
        return frozenset(words[norm_at])
    if not isinstance(norm_at, Iterable):
        raise UsageError(f"norm_at must be a word or several layers, such as (1,), got {norm_at!r}.")
    chosen = frozenset(norm_at)
    if outside := sorted(chosen - set(words["every"])):
        raise UsageError(f"the network has hidden layers 1 to {hidden}, but norm_at names layer {outside[0]}.")
    return chosen


class MLP(nn.Module):
    """A fully connected network whose hidden layers are :class:`Residual` blocks.

    With the default placement, ``plain``, they have no skip: a layer is ``activation(W h + b)``. With a residual
    placement, the first hidden layer embeds the input and the others are residual blocks of equal width.

    Args:
        widths: Input, hidden and output widths, such as ``(1, 128, 128, 1)``.
        norm: The norm of the slots: a name, a factory that takes the width, or a mapping from slot to either.
        norm_at: Which hidden layers have norms: ``none``, ``first``, ``last``, ``every``, or their numbers from 1.
            In a residual network, layer 1 is the embedding, with the placement's embedding norm, and the blocks are
            counted from 2.
        norm_where: In a plain network, ``before`` or ``after`` the activation.
        placement: ``plain``, or the residual placement of the hidden layers.
        activation: Name of the activation.
        parametrization: ``standard`` or ``ntk``.
        weight_std: Standard deviation of the weights times sqrt(fan-in); by default Kaiming's for the activation.
        bias_std: Standard deviation of the biases; 0.1 is the published setting of arXiv 2505.14512.
        generator: Random generator of the initial values.
        device: Device of the parameters.
        dtype: Dtype of the parameters.

    Raises:
        UsageError: If an argument is unknown or they contradict each other.

    Examples:
        >>> net = MLP((1, 128, 128, 1), norm_at="first")
        >>> net(torch.zeros(5, 1)).shape
        torch.Size([5, 1])
    """

    def __init__(
        self,
        widths: Sequence[int],
        *,
        norm: NormChoice = "layer",
        norm_at: str | Iterable[int] = "every",
        norm_where: str = "before",
        placement: str | Placement = "plain",
        activation: str = "relu",
        parametrization: str = "standard",
        weight_std: float | None = None,
        bias_std: float = 0.1,
        generator: torch.Generator | None = None,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        if not isinstance(widths, Sequence) or isinstance(widths, str) or len(widths) < 3:
            raise UsageError(f"an MLP needs input, hidden and output widths, got {widths!r}.")
        for width in widths:
            expect_whole(1, **{"each width": width})
        expect_number("bias_std", bias_std, 0)
        if weight_std is not None:
            expect_number("weight_std", weight_std, 0)
        expect_choice("side of the activation", norm_where, ("before", "after"))
        if placement == "plain":
            rule = Placement.named("plain", norm="preactivation" if norm_where == "before" else "output")
        else:
            rule = Placement.of(placement)
        hidden, self.in_features = tuple(widths[1:-1]), widths[0]
        std = math.sqrt(variance_gain(activation)) if weight_std is None else weight_std

        def dense(fan_in: int, fan_out: int) -> Dense:
            return Dense(fan_in, fan_out, parametrization, std, bias_std, True, generator, device, dtype)

        chosen = norm_layers(norm_at, len(hidden))
        branches = [DenseBranch(dense(a, b), activation) for a, b in zip(widths, hidden, strict=False)]
        self.embed = self.embedding_norm = self.final_norm = None
        first = 1
        if not rule.at(1, 1).is_plain:
            if len(set(hidden)) > 1 or len(hidden) < 2:
                raise UsageError(f"a residual MLP needs two or more hidden layers of one width, got {hidden}.")
            self.embed = branches.pop(0)
            first = 2
            if rule.embedding and 1 in chosen:
                self.embedding_norm = build_slot_norm(norm, "embedding", hidden[0])
        self.blocks = nn.ModuleList()
        for index, branch in enumerate(branches, start=1):
            spec = rule.at(index, len(branches))
            here = Placement.uniform(spec if index + first - 1 in chosen else spec.without_norms())
            self.blocks.append(Residual(branch, branch.dense.out_features, here, norm, index, len(branches)))
        if self.embed is not None and rule.final and len(hidden) in chosen:
            self.final_norm = build_slot_norm(norm, "final", hidden[-1])
        self.head = dense(hidden[-1], widths[-1])
        self.to(device=device, dtype=dtype)  # norm factories do not take them

    def reset_parameters(self) -> None:
        """Reset every parameter to an initial value."""
        for child in self.children():
            reset_tree(child)

    def forward(self, x: Tensor) -> Tensor:
        """The output, features last."""
        check_features("the input of the MLP", x, self.in_features)
        if self.embed is not None:
            x = self.embed(x)
        if self.embedding_norm is not None:
            x = self.embedding_norm(x)
        return self.head(run_blocks(self.blocks, x, self.final_norm))

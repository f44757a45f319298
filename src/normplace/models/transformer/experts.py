"""The mixture of experts: an MLP branch in which a router chooses a few of many MLPs for each token."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from normplace.errors import UsageError, expect_choice
from normplace.models.activations import build_activation
from normplace.models.transformer.feedforward import KINDS, FeedForward, hidden_width
from normplace.models.transformer.init import Projection, WeightInit
from normplace.ops import grouped_linear
from normplace.residual import Branch

SCORES: dict[str, Callable[[Tensor], Tensor]] = {"softmax": lambda logits: logits.softmax(-1), "sigmoid": torch.sigmoid}
WEIGHED = ("output", "input")


class MixtureOfExperts(Branch):
    """A weighted sum of the MLPs that a router chooses for each token (Shazeer et al. 2017, arXiv 1701.06538).

    Tokens are sorted by expert, so each expert is one matrix product. No token is dropped. The norm site
    ``pre_output`` is before the last matrix of every expert; all experts of a layer share that norm.

    Args:
        dim: Width of the stream.
        experts: Number of experts.
        active: Number of experts that a token uses.
        hidden: Hidden width of an expert, by default as in :class:`FeedForward`.
        kind: Kind of the experts, as in :class:`FeedForward`.
        shared: Number of further experts that every token uses with weight 1 (DeepSeekMoE, arXiv 2401.06066).
        scores: ``softmax`` over all experts, or ``sigmoid`` of each; an expert's weight is its score.
        normalized: Whether the weights of a token are divided by their sum.
        weighed: Whether the weight multiplies the expert's ``output``, or its ``input`` as in Llama 4.
        init: The initial weights.
        generator: Random generator of the initial values.
        device: Device of the parameters.
        dtype: Dtype of the parameters.

    Raises:
        UsageError: If a choice is unknown or a number is out of range.

    Examples:
        >>> from normplace import Residual
        >>> block = Residual(MixtureOfExperts(32, experts=4, active=2), 32, "peri", norm="rms")
        >>> block(torch.randn(2, 5, 32)).shape
        torch.Size([2, 5, 32])
    """

    kind = "mlp"

    def __init__(
        self,
        dim: int,
        experts: int,
        active: int = 2,
        *,
        hidden: int | None = None,
        kind: str = "swiglu",
        shared: int = 0,
        scores: str = "softmax",
        normalized: bool = True,
        weighed: str = "output",
        init: WeightInit | None = None,
        generator: torch.Generator | None = None,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        if not 1 <= active <= experts or shared < 0:
            raise UsageError(
                f"a token uses between 1 and all of the experts, and shared experts are optional: got active={active} "
                f"of {experts} experts and shared={shared}."
            )
        for name, value, choices in (("scores", scores, SCORES), ("weighed part", weighed, WEIGHED)):
            expect_choice(name, value, choices)
        expect_choice("kind of MLP", kind, KINDS)
        activation, gated = KINDS[kind]
        init = WeightInit() if init is None else init
        factory = {"generator": generator, "device": device, "dtype": dtype}
        width = hidden_width(dim, hidden, gated)
        self.count, self.active, self.hidden = experts, active, width
        self.scores, self.normalized, self.weighed = scores, normalized, weighed
        # A weight on the input multiplies it outside a matrix product, which rounding would change.
        self.accepts_rounded_input = weighed == "output"
        self.norm_sites = {"pre_output": width}
        self.router = Projection(dim, experts, std=init.of(dim, experts), **factory)

        def stacked(fan_in: int, fan_out: int, last: bool = False) -> StackedProjection:
            return StackedProjection(experts, fan_in, fan_out, init.of(fan_in, fan_out, last), **factory)

        self.experts = nn.ModuleDict({"gate": stacked(dim, width)} if gated else {})
        self.experts["up"] = stacked(dim, width)
        self.experts["down"] = stacked(width, dim, last=True)
        self.shared = FeedForward(dim, shared * width, kind=kind, init=init, **factory) if shared else None
        self.activation = build_activation(activation)

    def rescale_init(self, gain: float) -> None:
        """Scale the initial weights of the experts, as DeepNorm and sub-LN do; the router keeps its own."""
        with torch.no_grad():
            for part in (self.experts, self.shared):
                for parameter in () if part is None else part.parameters():
                    parameter.mul_(gain)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the chosen experts to each token."""
        tokens = x.flatten(0, -2)
        weight, chosen = self.route(tokens)
        expert, order = chosen.flatten().sort(stable=True)
        rows = tokens[order // self.active]
        if self.weighed == "input":
            rows = rows * weight.flatten()[order, None].to(rows.dtype)
        hidden = self.experts["up"](rows, expert)
        if "gate" in self.experts:
            hidden = self.activation(self.experts["gate"](rows, expert)) * hidden
        else:
            hidden = self.activation(hidden)
        rows = self.experts["down"](self.normalize_at("pre_output", hidden), expert)
        out = rows[order.argsort()].unflatten(0, (len(tokens), self.active))
        if self.weighed == "output":
            out = (out * weight[..., None]).to(rows.dtype)
        out = out.sum(1)
        if self.shared is not None:
            out = out + self._shared(tokens)
        return out.unflatten(0, x.shape[:-1])

    def route(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """The weights, in float32 or wider, and the numbers of the experts of each token, both tokens × active.

        A forward hook on ``router`` sees the logits, for example for a load-balancing loss.
        """
        logits = self.router(tokens)
        chosen = logits.topk(self.active, -1).indices
        scores = SCORES[self.scores](logits.to(torch.promote_types(logits.dtype, torch.float32)))
        weight = scores.gather(-1, chosen)
        if self.normalized:
            weight = weight / weight.sum(-1, keepdim=True)
        return weight, chosen

    def _shared(self, tokens: Tensor) -> Tensor:
        """The sum of the shared experts, which are one MLP; the norm is over the features of each."""
        assert self.shared is not None
        hidden = self.shared.hidden(tokens)
        if "pre_output" in self.norms:
            hidden = self.normalize_at("pre_output", hidden.unflatten(-1, (-1, self.hidden))).flatten(-2)
        return self.shared.down(hidden)

    def extra_repr(self) -> str:
        """The main settings."""
        return f"{self.active} of {self.count} experts of width {self.hidden}, {self.scores}"


class StackedProjection(nn.Module):
    """One matrix for each expert, with normally distributed initial weights."""

    def __init__(
        self,
        experts: int,
        in_features: int,
        out_features: int,
        std: float = 0.02,
        generator: torch.Generator | None = None,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.std = std
        self.weight = nn.Parameter(torch.empty(experts, out_features, in_features, device=device, dtype=dtype))
        nn.init.normal_(self.weight, std=std, generator=generator)

    def reset_parameters(self) -> None:
        """Draw new initial weights."""
        nn.init.normal_(self.weight, std=self.std)

    def forward(self, rows: Tensor, expert: Tensor) -> Tensor:
        """Each row times the matrix of its expert; the rows are sorted by expert."""
        return grouped_linear(rows, self.weight, expert)

    def extra_repr(self) -> str:
        """The shape of the weights."""
        return "×".join(map(str, self.weight.shape))

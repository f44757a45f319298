"""Several networks of one architecture and different weights, computed as one network with their channels side by side.

A GPU spends most of a step of these small networks on launching kernels. Ten networks that read the same graph share
the launches: the aggregation, BatchNorm and the activation work on each channel alone, so wider tensors serve them; a
linear map becomes one batched matrix product. The networks do not influence each other.

At ten networks a step is limited by memory traffic. On CUDA, products are written where the next operation reads them,
and :class:`DropoutMasks` draws the masks of all layers with one kernel per network. Products are in float32, not TF32.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from normplace.models import GENConv, GraphStack
from normplace.models.aggregation import FIXED_TEMPERATURE, Aggregation
from normplace.models.graph_parts import Concat
from normplace.models.messages import EdgeTerms
from normplace.ops import powermean_aggregate, softmax_aggregate
from normplace.ops.aggregate.adjacency import Graph, as_neighbours

PARTS = 32
"""Parts of the nodes whose products are computed side by side in the gradient of a linear map's weights."""


def stack_networks(
    models: Sequence[GraphStack], generators: Sequence[torch.Generator], *, shared_input: bool = True
) -> GraphStack:
    """One network that computes all of them; the channels of each are consecutive.

    Row ``n`` of the output holds the outputs of node ``n`` of every network, one after another. Every parameter of the
    result reshapes to networks × numbers.

    Args:
        models: Networks of the same architecture, with ``GENConv`` convolutions and BatchNorm.
        generators: The generator of each network's dropout, on the device of the network.
        shared_input: Whether all networks read the same node features; otherwise the features of each are consecutive.
    """
    stacked = copy.deepcopy(models[0])
    modules: list[dict[str, Any]] = [dict(model.named_modules()) for model in models]
    _replace_leaves(stacked, modules, generators, "")
    if shared_input:
        stacked.embed = _shared_input_linear([network["embed"] for network in modules])
    return stacked


def unstack(stacked: GraphStack, models: Sequence[GraphStack]) -> None:
    """Copy the weights and running statistics of a stacked network back into the networks that it was made of."""
    for one in (nn.Module.parameters, nn.Module.buffers):
        for wide, *narrow in zip(one(stacked), *(one(model) for model in models), strict=True):
            same = wide.numel() == narrow[0].numel()  # the number of batches that BatchNorm has seen
            values = [wide] * len(narrow) if same and len(narrow) > 1 else wide.detach().reshape(len(narrow), -1)
            for tensor, value in zip(narrow, values, strict=True):
                tensor.data.copy_(value.reshape(tensor.shape))


def _replace_leaves(
    parent: nn.Module, modules: Sequence[Mapping[str, Any]], generators: Sequence[torch.Generator], prefix: str
) -> None:
    """Replace every child that has parameters or draws random numbers, and recurse into the others."""
    for name, child in list(parent.named_children()):
        path = f"{prefix}{name}"
        same = [network[path] for network in modules]
        if kind := next((kind for kind in _STACKED if isinstance(child, kind)), None):
            replacement = _STACKED[kind](same)
        elif isinstance(child, nn.Dropout):
            replacement = SeededDropout(child.p, generators)
        else:
            _replace_leaves(child, modules, generators, f"{path}.")
            if isinstance(child, GENConv):
                child.out_channels *= len(same)
            replacement = StackedConcat(child, len(same)) if isinstance(child, Concat) else None
        if replacement is not None:
            parent.add_module(name, replacement)


def _shared_input_linear(layers: Sequence[Any]) -> nn.Linear:
    """A linear map of an input that the networks share: their outputs side by side."""
    wide = copy.deepcopy(layers[0])  # a new one would draw random numbers
    wide.out_features *= len(layers)
    wide.weight, wide.bias = (
        nn.Parameter(torch.cat([getattr(layer, name).detach() for layer in layers])) for name in ("weight", "bias")
    )
    return wide


class StackedLinear(nn.Module):
    """The linear map of each network on its own channels."""

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        super().__init__()
        self.in_features = len(layers) * layers[0].in_features
        self.weight = nn.Parameter(torch.stack([layer.weight.detach() for layer in layers]))
        biases = [layer.bias.detach() for layer in layers if layer.bias is not None]
        self.bias = nn.Parameter(torch.stack(biases)) if biases else None

    def forward(self, x: Tensor) -> Tensor:
        """Map the channels of every network."""
        if x.is_cuda:
            return cast(Tensor, ProductInPlace.apply(x, self.weight, self.bias))
        rows = x.unflatten(1, (len(self.weight), -1)).transpose(0, 1)
        matrices = self.weight.transpose(1, 2)
        y = rows @ matrices if self.bias is None else torch.baddbmm(self.bias[:, None], rows, matrices)
        return y.transpose(0, 1).flatten(1)


class ProductInPlace(torch.autograd.Function):
    """The products of :class:`StackedLinear` and their gradients, without transposed copies.

    The gradient of the weights sums over all nodes. A product of two tall matrices has few tiles, so the nodes are
    divided into parts whose products are added.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Nodes × outputs of all networks, from nodes × inputs of all networks and networks × outputs × inputs."""
        x = x.contiguous()
        ctx.save_for_backward(x, weight)
        networks, outputs, _ = weight.shape
        y = x.new_empty(len(x), networks, outputs)
        rows, matrices = x.unflatten(1, (networks, -1)).transpose(0, 1), weight.transpose(1, 2)
        if bias is None:
            torch.bmm(rows, matrices, out=y.transpose(0, 1))
        else:
            torch.baddbmm(bias[:, None], rows, matrices, out=y.transpose(0, 1))
        return y.flatten(1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor, Tensor | None]:
        """Gradients of the input, the weights and the biases."""
        x, weight = ctx.saved_tensors
        networks = len(weight)
        grad, rows = (tensor.unflatten(1, (networks, -1)) for tensor in (grads[0].contiguous(), x))
        dx = None
        if ctx.needs_input_grad[0]:
            dx = torch.empty_like(rows)
            torch.bmm(grad.transpose(0, 1), weight, out=dx.transpose(0, 1))
            dx = dx.flatten(1)
        return dx, _sum_of_products(grad, rows), grad.sum(0) if ctx.needs_input_grad[2] else None


def _sum_of_products(left: Tensor, right: Tensor) -> Tensor:
    """For each network, the sum over nodes of outer products; both are nodes × networks × channels."""
    networks, whole = left.shape[1], len(left) - len(left) % PARTS

    def products(nodes: slice, parts: int) -> Tensor:
        # Neighbouring nodes belong to different parts, so that one stride leads from part to part and network to
        # network, as a batched product requires.
        first, second = (side[nodes].reshape(-1, parts * networks, side.shape[2]) for side in (left, right))
        both = torch.bmm(first.permute(1, 2, 0), second.transpose(0, 1))
        return both.unflatten(0, (parts, networks)).sum(0)

    total = products(slice(0, whole), PARTS) if whole else 0
    return total + products(slice(whole, None), 1) if whole < len(left) else cast(Tensor, total)


def _stacked_batch_norm(layers: Sequence[nn.BatchNorm1d]) -> nn.BatchNorm1d:
    """The norm of all channels; BatchNorm treats each alone."""
    wide = copy.deepcopy(layers[0])
    wide.num_features = sum(layer.num_features for layer in layers)
    states = [layer.state_dict() for layer in layers]
    for name in ("running_mean", "running_var"):
        setattr(wide, name, torch.cat([state[name] for state in states]))
    for name in ("weight", "bias"):
        setattr(wide, name, nn.Parameter(torch.cat([state[name] for state in states])))
    return wide


class StackedAggregation(Aggregation):
    """The aggregation of each network, whose learned numbers hold for the channels of that network."""

    def __init__(self, layers: Sequence[Aggregation]) -> None:
        first = layers[0]
        learned = {name: isinstance(getattr(first, name), nn.Parameter) for name in first.initial}
        options = {f"learn_{name}": learn for name, learn in learned.items()}
        super().__init__(first.kind, **first.initial, **options, clamp=first.clamp)
        for name, learn in learned.items():
            if learn:
                setattr(self, name, nn.Parameter(torch.cat([getattr(layer, name).detach() for layer in layers])))

    def over_edges(self, x: Tensor, graph: Graph, edge: EdgeTerms, num_dst: int, eps: float, dim: int = -2) -> Tensor:
        """Aggregate over the edges, with one number for each channel where numbers are learned."""
        neighbours = as_neighbours(graph, len(x), num_dst)
        if self.base == "powermean":
            y = powermean_aggregate(x, neighbours, self._channels(self.p, x), edge, relu=True, eps=eps)
        else:
            temperature = FIXED_TEMPERATURE.get(self.base, self._channels(self.t, x))
            semi = self.base == "softmax_sg"
            y = softmax_aggregate(x, neighbours, temperature, edge, relu=True, eps=eps, semi_gradient=semi)
        if not self.scaled and self.base != "add":
            return y
        degree = neighbours.degree.clamp(min=1).to(y.dtype)[:, None]
        return y * degree.pow(self._channels(self.y, x) if self.scaled else 1.0)

    @staticmethod
    def _channels(number: float | Tensor, x: Tensor) -> float | Tensor:
        """A learned number for each channel; a fixed one is the same for all."""
        if not isinstance(number, Tensor) or len(number) == x.shape[1]:
            return number
        return number.repeat_interleave(x.shape[1] // len(number))


class SeededDropout(nn.Module):
    """Dropout whose mask for each network comes from the generator of that network.

    The mask of a network does not depend on which networks are computed with it.
    """

    def __init__(self, p: float, generators: Sequence[torch.Generator]) -> None:
        super().__init__()
        self.p, self.generators = p, generators
        self.size: tuple[int, int] | None = None
        """Nodes and channels per network of the last input in training mode."""
        self.drawn: Tensor | None = None
        """Which entries are kept, networks × nodes × channels, if :class:`DropoutMasks` draws them."""

    def forward(self, x: Tensor) -> Tensor:
        """Drop channels in training mode."""
        if not self.training or not self.p:
            return x
        rows = x.unflatten(1, (len(self.generators), -1))
        if self.drawn is not None:
            return cast(Tensor, MaskAndScale.apply(rows, self.drawn.transpose(0, 1), 1 / (1 - self.p))).flatten(1)
        self.size = rows.shape[0], rows.shape[2]
        kept = torch.empty(rows.transpose(0, 1).shape, dtype=torch.bool, device=x.device)
        for mask, generator in zip(kept, self.generators, strict=True):
            mask.bernoulli_(1 - self.p, generator=generator)
        return (rows * kept.transpose(0, 1) / (1 - self.p)).flatten(1)


class MaskAndScale(torch.autograd.Function):
    """Multiply by a boolean mask and a number, with one kernel in each pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, kept: Tensor, scale: float) -> Tensor:
        """The product."""
        ctx.save_for_backward(kept)
        ctx.scale = scale
        return torch.ops.aten.native_dropout_backward(x, kept, scale)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        """The gradient of the first factor."""
        (kept,) = ctx.saved_tensors
        return torch.ops.aten.native_dropout_backward(grads[0], kept, ctx.scale), None, None


class DropoutMasks:
    """Draws the masks of all dropout layers of a step at once: one kernel per network, instead of one per layer too.

    The first step draws them layer by layer, which determines their sizes.
    """

    def __init__(self, model: nn.Module) -> None:
        self.layers = [module for module in model.modules() if isinstance(module, SeededDropout) and module.p]
        self.drawn: Tensor | None = None
        assert len({layer.p for layer in self.layers}) <= 1, "the masks of one kernel have one probability"

    def draw(self) -> None:
        """Draw the masks of the next step."""
        sizes = [layer.size for layer in self.layers if layer.size is not None]
        if not sizes:
            return
        first = self.layers[0]
        if self.drawn is None:
            assert len(sizes) == len(self.layers), "a dropout layer had no input in the first step"
            counts = [nodes * channels for nodes, channels in sizes]
            device = first.generators[0].device
            self.drawn = torch.empty(len(first.generators), sum(counts), dtype=torch.bool, device=device)
            for layer, size, mask in zip(self.layers, sizes, self.drawn.split(counts, dim=1), strict=True):
                layer.drawn = mask.unflatten(1, size)
        for mask, generator in zip(self.drawn, first.generators, strict=True):
            mask.bernoulli_(1 - first.p, generator=generator)


class StackedConcat(nn.Module):
    """A concatenating block whose new channels join those of their network.

    Args:
        block: The block with stacked parts, which appends the new channels of all networks at the end.
        networks: Number of networks.
    """

    def __init__(self, block: nn.Module, networks: int) -> None:
        super().__init__()
        self.block, self.networks = block, networks

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """The stream with the new channels of each network after its old ones."""
        parts = self.block(x, *args, **kwargs).tensor_split([x.shape[1]], dim=1)
        return torch.cat([part.unflatten(1, (self.networks, -1)) for part in parts], dim=2).flatten(1)


_STACKED: dict[type[nn.Module], Callable[[Any], nn.Module]] = {
    nn.Linear: StackedLinear,
    nn.BatchNorm1d: _stacked_batch_norm,
    Aggregation: StackedAggregation,
}
"""How to stack a module of each type that has parameters."""

"""The network of ogbg-molhiv for several seeds at once, each with its own batch, made of operations of constant shape.

It computes what :func:`normplace.lab.studies.deepergcn.molhiv.build` builds, and a test compares them. Everything is
seeds × atoms × channels, so a linear map is one batched matrix product.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from normplace.lab.studies.deepergcn.molhiv_batches import FixedBatch
from normplace.models import GraphStack

LARGEST = 80.0
"""Largest logit of the softmax, whose exponential is finite in float32; logits of a trained network are below 30."""
EPS = 1e-7


class SoftmaxMessages(torch.autograd.Function):
    """Softmax aggregation of ``relu(x_j + e_ij) + eps`` with an inverse temperature for each seed.

    With messages m, weights a and their mean y, the gradients are ``dy/dm = a (1 + t (m - y))`` and
    ``dy/dt = Σ a m (m - y)``. Messages are not negative, so no maximum is subtracted before the exponential.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, edge: Tensor, temperature: Tensor, source: Tensor, target: Tensor) -> Tensor:
        """Aggregate over the edges.

        Args:
            ctx: Context of autograd.
            x: Seeds × atoms × channels.
            edge: Seeds × bonds × channels.
            temperature: One number for each seed.
            source: Atom that each edge comes from, counted over all seeds.
            target: Atom that it arrives at.
        """
        seeds, atoms, channels = x.shape
        message = x.reshape(-1, channels).index_select(0, source).view_as(edge).add_(edge).relu_().add_(EPS)
        weight = (message * temperature[:, None, None]).clamp_(max=LARGEST).exp_()
        total = x.new_zeros(seeds * atoms, channels).index_add_(0, target, weight.view(-1, channels))
        y = x.new_zeros(seeds * atoms, channels).index_add_(0, target, (weight * message).view(-1, channels))
        total = total.masked_fill_(total == 0, 1.0)  # an atom without edges
        y /= total
        ctx.save_for_backward(message, weight, total, y, temperature, source, target)
        return y.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Gradients of the features, the edge terms and the temperatures."""
        message, weight, total, y, temperature, source, target = ctx.saved_tensors
        (grad,) = grad_outputs
        channels = message.shape[2]
        shared = (grad.reshape(-1, channels) / total).index_select(0, target).view_as(message).mul_(weight)
        above = message - y.index_select(0, target).view_as(message)
        of_temperature = (shared * above).mul_(message).sum((1, 2))
        of_message = above.mul_(temperature[:, None, None]).add_(1).mul_(shared)
        of_message = torch.ops.aten.threshold_backward(of_message, message, EPS)
        of_x = grad.new_zeros(y.shape).index_add_(0, source, of_message.view(-1, channels))
        return of_x.view_as(grad), of_message, of_temperature, None, None


class SeedLinear(nn.Module):
    """The linear map of each seed.

    Args:
        layers: One linear map for each seed.
    """

    def __init__(self, layers: Iterable[Any]) -> None:
        super().__init__()
        layers = list(layers)
        self.weight = nn.Parameter(torch.stack([layer.weight.detach().t() for layer in layers]))
        self.bias = nn.Parameter(torch.stack([layer.bias.detach()[None] for layer in layers]))

    def forward(self, x: Tensor) -> Tensor:
        """Map seeds × rows × channels."""
        return torch.baddbmm(self.bias, x, self.weight)


class SeedBatchNorm(nn.Module):
    """BatchNorm over the used atoms of each seed.

    Args:
        norms: The norm of each seed.
    """

    mean: Tensor
    variance: Tensor

    def __init__(self, norms: Iterable[Any]) -> None:
        super().__init__()
        norms = list(norms)
        self.eps, self.momentum = norms[0].eps, norms[0].momentum
        self.weight = nn.Parameter(torch.stack([norm.weight.detach()[None] for norm in norms]))
        self.bias = nn.Parameter(torch.stack([norm.bias.detach()[None] for norm in norms]))
        self.register_buffer("mean", torch.stack([norm.running_mean[None] for norm in norms]))
        self.register_buffer("variance", torch.stack([norm.running_var[None] for norm in norms]))

    def forward(self, x: Tensor, share: Tensor, unbiased: Tensor) -> Tensor:
        """Normalize seeds × atoms × channels.

        Args:
            x: The features.
            share: 1 / (number of atoms) for used atoms and 0 for others, seeds × 1 × atoms.
            unbiased: n / (n - 1) for the number of atoms n of each seed, seeds × 1 × 1.
        """
        if not self.training:
            return torch.addcmul(self.bias, x - self.mean, self.weight * (self.variance + self.eps).rsqrt())
        y: Any
        y, mean, variance = NormalizeUsed.apply(x, share, self.weight, self.bias, self.eps)
        with torch.no_grad():
            self.mean.lerp_(mean, self.momentum)
            self.variance.lerp_(variance * unbiased, self.momentum)  # running variances are unbiased
        return y


class NormalizeUsed(torch.autograd.Function):
    """BatchNorm in training mode over the used atoms of each seed, with as few operations as its gradient allows.

    Unused atoms must have no gradient: nothing that the loss reads may depend on them.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, share: Tensor, weight: Tensor, bias: Tensor, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Normalize, and return the mean and the variance as well."""
        mean = share @ x
        centred = x - mean
        variance = share @ centred.square()
        inverse = (variance + eps).rsqrt_()
        normed = centred.mul_(inverse)
        ctx.save_for_backward(normed, share, weight * inverse)
        ctx.mark_non_differentiable(mean, variance)
        ctx.set_materialize_grads(False)
        return torch.addcmul(bias, normed, weight), mean, variance

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Gradients of the features, the gain and the bias."""
        normed, share, scale = ctx.saved_tensors
        grad = grad_outputs[0]
        of_bias = grad.sum(1, keepdim=True)
        of_weight = (grad * normed).sum(1, keepdim=True)
        means = torch.addcmul(of_bias, normed, of_weight)  # times the share of an atom, the part that the norm removes
        return torch.addcmul(grad, share.transpose(1, 2), means, value=-1).mul_(scale), None, of_weight, of_bias, None


class SeedConv(nn.Module):
    """The convolution of each seed, with its bond encoder.

    Args:
        branches: One convolution with bond encoder for each seed.
    """

    def __init__(self, branches: Iterable[Any]) -> None:
        super().__init__()
        branches = list(branches)
        self.linear = SeedLinear(branch.conv.mlp[0] for branch in branches)
        self.table = nn.Parameter(torch.stack([branch.bonds.table.detach() for branch in branches]))
        self.temperature = nn.Parameter(torch.cat([branch.conv.aggr_module.t.detach() for branch in branches]))

    def forward(self, x: Tensor, bonds: Tensor, source: Tensor, target: Tensor) -> Tensor:
        """Aggregate and map; ``bonds`` are the categories as zeros and ones."""
        aggregated: Any = SoftmaxMessages.apply(x, bonds @ self.table, self.temperature, source, target)
        return self.linear(aggregated + x)


class MoleculeNetworks(nn.Module):
    """Several seeds of the network.

    Args:
        models: One network for each seed, on the device.
        generators: The generator of each seed's dropout, on the device.
        dropout: Dropout probability in branches and before the readout.
        most_atoms: Largest number of atoms of a batch, for which dropout masks are drawn.
        postdeg: Whether the norms in the blocks are followed by a division by the degree.
    """

    def __init__(
        self,
        models: Sequence[GraphStack],
        generators: Sequence[torch.Generator],
        dropout: float,
        most_atoms: int,
        postdeg: bool,
    ) -> None:
        super().__init__()
        nets: list[Any] = list(models)
        self.generators, self.dropout, self.most_atoms, self.postdeg = generators, dropout, most_atoms, postdeg
        self.atoms = nn.Parameter(torch.stack([net.embed.table.detach() for net in nets]))
        self.stem = SeedConv(net.stem.conv for net in nets)
        depth = len(nets[0].blocks)
        self.norms = nn.ModuleList(SeedBatchNorm(net.blocks[i].input_norm for net in nets) for i in range(depth))
        self.convs = nn.ModuleList(SeedConv(net.blocks[i].branch.conv for net in nets) for i in range(depth))
        self.final_norm = SeedBatchNorm(net.final_norm for net in nets)
        self.head = SeedLinear(net.head for net in nets)

    def forward(self, batch: FixedBatch, tables: tuple[Tensor, Tensor]) -> Tensor:
        """Logits, seeds × molecules.

        Args:
            batch: One batch for each seed.
            tables: The result of :func:`~normplace.lab.studies.deepergcn.molhiv_batches.multi_hot`.
        """
        seeds, atoms = batch.atoms.shape
        molecules = batch.y.shape[1]
        used = (batch.molecule < molecules).float()[:, None]
        count = used.sum(2, keepdim=True)
        share, unbiased = used / count, count / (count - 1)
        first = torch.arange(seeds, device=used.device)[:, None]
        source, target = ((end + first * atoms).flatten() for end in (batch.source, batch.target))
        atom_rows, bond_rows = (
            table.index_select(0, rows.flatten()).view(*rows.shape, -1).float()
            for table, rows in zip(tables, (batch.atoms, batch.bonds), strict=True)
        )
        factor = self._inverse_degree(target, seeds, atoms) if self.postdeg else None
        masks = self._masks(atoms)
        x = self.stem(atom_rows @ self.atoms, bond_rows, source, target)
        for norm, conv in zip(self.norms, self.convs, strict=True):
            read = norm(x, share, unbiased)
            read = read if factor is None else factor * read
            x = x + conv(self._drop(read.relu(), masks), bond_rows, source, target)
        x = self._drop(self.final_norm(x, share, unbiased), masks)
        where = (batch.molecule + first * (molecules + 1)).flatten()
        pooled = x.new_zeros(seeds * (molecules + 1), x.shape[2]).index_add(0, where, x.flatten(0, 1))
        sizes = x.new_zeros(seeds * (molecules + 1)).index_add_(0, where, x.new_ones(len(where))).clamp_(min=1)
        mean = (pooled / sizes[:, None]).view(seeds, molecules + 1, -1)[:, :molecules]
        return self.head(mean)[..., 0]

    @staticmethod
    def _inverse_degree(target: Tensor, seeds: int, atoms: int) -> Tensor:
        ones = torch.ones(len(target), device=target.device)
        degree = torch.zeros(seeds * atoms, device=target.device).index_add_(0, target, ones)
        return degree.clamp_(min=1).reciprocal_().view(seeds, atoms, 1)

    def _masks(self, atoms: int) -> Iterator[Tensor]:
        """The dropout masks of the layers: zero, or the factor that keeps the mean.

        They are drawn at once, and for the largest batch, so that they do not depend on the other seeds' batches.
        """
        if not self.training or not self.dropout:
            return iter(())
        shape = (len(self.convs) + 1, self.most_atoms, self.atoms.shape[2])
        kept = self.atoms.new_empty(len(self.generators), *shape)
        for masks, generator in zip(kept, self.generators, strict=True):
            masks.bernoulli_(1 - self.dropout, generator=generator)
        return (mask[:, :atoms] for mask in kept.div_(1 - self.dropout).unbind(1))

    @staticmethod
    def _drop(x: Tensor, masks: Iterator[Tensor]) -> Tensor:
        mask = next(masks, None)
        return x if mask is None else x * mask

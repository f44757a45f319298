"""The network of ogbg-molhiv for several seeds at once, each with its own batch, made of operations of constant shape.

It computes what :func:`normplace.lab.studies.deepergcn.molhiv.build` builds, and a test compares them. Everything is
seeds × atoms × channels, so a linear map is one batched matrix product.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from normplace.lab.studies.deepergcn.molhiv_aggregation import Bonds, softmax_messages
from normplace.lab.studies.deepergcn.molhiv_batches import FixedBatch, kind_table
from normplace.lab.studies.deepergcn.molhiv_dropout import drop
from normplace.models import GraphStack


class SeedLinear(nn.Module):
    """The linear map of each seed."""

    def __init__(self, layers: Iterable[Any]) -> None:
        super().__init__()
        layers = list(layers)
        self.weight = nn.Parameter(torch.stack([layer.weight.detach().t() for layer in layers]))
        self.bias = nn.Parameter(torch.stack([layer.bias.detach()[None] for layer in layers]))

    def forward(self, x: Tensor) -> Tensor:
        """Map seeds × rows × channels."""
        return x @ self.weight + self.bias


class SeedBatchNorm(nn.Module):
    """BatchNorm over the used atoms of each seed."""

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
            share: 1 / (number of atoms) for used atoms and 0 for others, seeds × atoms × 1.
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

    Mean and variance come from the distances to the first used atom, so one pass computes both. Unused atoms
    must have no gradient: nothing that the loss reads may depend on them.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, share: Tensor, weight: Tensor, bias: Tensor, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Normalize, and return the mean and the variance as well."""
        first = x[:, 1:2]  # after the spare atom
        distance = x - first
        shift = (share * distance).sum(1, keepdim=True)
        variance = ((share * distance.square()).sum(1, keepdim=True) - shift.square()).clamp(min=0)
        inverse = (variance + eps).rsqrt()
        normed = (distance - shift) * inverse
        ctx.save_for_backward(normed, share, weight * inverse)
        mean = first + shift
        ctx.mark_non_differentiable(mean, variance)
        return normed * weight + bias, mean, variance

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Gradients of the features, the gain and the bias."""
        normed, share, scale = ctx.saved_tensors
        grad = grad_outputs[0]
        of_bias = grad.sum(1, keepdim=True)
        of_weight = (grad * normed).sum(1, keepdim=True)
        means = of_bias + normed * of_weight  # times the share of an atom, the part that the norm removes
        return (grad - share * means) * scale, None, of_weight, of_bias, None


class SeedConv(nn.Module):
    """The convolution of each seed, with its bond encoder."""

    def __init__(self, branches: Iterable[Any]) -> None:
        super().__init__()
        branches = list(branches)
        self.linear = SeedLinear(branch.conv.mlp[0] for branch in branches)
        self.table = nn.Parameter(torch.stack([branch.bonds.table.detach() for branch in branches]))
        self.temperature = nn.Parameter(torch.cat([branch.conv.aggr_module.t.detach() for branch in branches]))

    def forward(self, x: Tensor, bonds: Bonds) -> Tensor:
        """Aggregate and map."""
        return self.linear(softmax_messages(x, kind_table(self.table), self.temperature, bonds))


class MoleculeNetworks(nn.Module):
    """Several seeds of the network.

    Args:
        models: One network for each seed.
        dropout: Dropout probability in branches and before the readout.
        postdeg: For each seed, whether the norms in the blocks are followed by a division by the degree.
    """

    postdeg: Tensor

    def __init__(self, models: Sequence[GraphStack], dropout: float, postdeg: Sequence[bool]) -> None:
        super().__init__()
        nets: list[Any] = list(models)
        self.dropout = dropout
        self.register_buffer("postdeg", torch.tensor(postdeg)[:, None])
        self.atoms = nn.Parameter(torch.stack([net.embed.table.detach() for net in nets]))
        self.stem = SeedConv(net.stem.conv for net in nets)
        depth = len(nets[0].blocks)
        self.norms = nn.ModuleList(SeedBatchNorm(net.blocks[i].input_norm for net in nets) for i in range(depth))
        self.convs = nn.ModuleList(SeedConv(net.blocks[i].branch.conv for net in nets) for i in range(depth))
        self.final_norm = SeedBatchNorm(net.final_norm for net in nets)
        self.head = SeedLinear(net.head for net in nets)

    def forward(self, batch: FixedBatch, atom_table: Tensor, keys: Tensor | None = None) -> Tensor:
        """Logits, seeds × molecules.

        Args:
            batch: One batch for each seed.
            atom_table: The result of :func:`~normplace.lab.studies.deepergcn.molhiv_batches.multi_hot`.
            keys: Keys of the dropout masks, seeds × blocks and readout; None for no dropout.
        """
        seeds, atoms = batch.atoms.shape
        molecules = batch.y.shape[1]
        bonds = Bonds(batch.first, batch.source, batch.kind)
        used = (batch.molecule < molecules).float()[:, :, None]
        count = used.sum(1, keepdim=True)
        share, unbiased = used / count, count / (count - 1)
        rows = atom_table.index_select(0, batch.atoms.flatten()).view(seeds, atoms, -1).float()
        factor = (1 / batch.first.diff().clamp(min=1).float()).where(self.postdeg, 1.0)[:, :, None]
        masks = iter(()) if keys is None else iter(keys.unbind(1))
        x = self.stem(rows @ self.atoms, bonds)
        for norm, conv in zip(self.norms, self.convs, strict=True):
            read = (factor * norm(x, share, unbiased)).relu()
            x = x + conv(self._drop(read, masks), bonds)
        x = self._drop(self.final_norm(x, share, unbiased), masks)
        # The head is linear, so the mean of the atoms' scores is the score of their mean.
        scores = (x * self.head.weight.transpose(1, 2)).sum(2).flatten()
        first = torch.arange(seeds, device=x.device)[:, None] * (molecules + 1)
        where = (batch.molecule + first).flatten()
        sums, sizes = (
            x.new_zeros(seeds * (molecules + 1)).index_add(0, where, values)
            for values in (scores, torch.ones_like(scores))
        )
        return (sums / sizes.clamp(min=1)).view(seeds, -1)[:, :molecules] + self.head.bias[:, 0]

    def _drop(self, x: Tensor, masks: Iterator[Tensor]) -> Tensor:
        key = next(masks, None)
        return x if key is None else drop(x, key, self.dropout)

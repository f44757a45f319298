"""Load weights of the official DeeperGCN code (lightaime/deep_gcns_torch, the examples of OGB) into a graph stack.

The examples are networks of the block order ``res+`` for ogbn-arxiv, ogbn-products, ogbn-proteins, ogbg-ppa and
ogbg-mol. Their parameters have the names ``gcns.0.mlp.0.weight``, ``norms.0.weight``, ``node_features_encoder.weight``
and so on.
"""

from __future__ import annotations

import itertools
import math
import os
import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from normplace.errors import UsageError, expect_choice, expect_whole
from normplace.models.gen import GENConv
from normplace.models.graph import GraphStack
from normplace.models.graph_parts import READOUTS, Dropout, SumOfEmbeddings
from normplace.norms import BatchNorm, LayerNorm

AGGREGATIONS = ("softmax", "softmax_sg", "softmax_sum", "power", "power_sum", "mean", "max", "add")
CLAMP = {"clamp_min": 1e-7, "clamp_max": 10.0}
"""Range of the official power mean."""
NORMS: dict[str, Callable[[int], nn.Module]] = {"batch": BatchNorm, "layer": LayerNorm}


def load_deep_gcns(
    checkpoint: str | os.PathLike[str] | Mapping[str, Any],
    *,
    aggr: str | None = None,
    t: float = 1.0,
    p: float = 1.0,
    readout: str = "mean",
    dropout: float = 0.0,
) -> GraphStack:
    """The graph stack that computes what an official DeeperGCN with these weights does, before its log-softmax.

    Widths, depth, norms, MsgNorm, learned temperatures and powers, and encoders of nodes and edges are read from the
    weights; everything must be used. Linear maps in sequence become one: those of proteins' edges in every layer, and
    of its species. Bonds of molecules become edge types, see :func:`combine_categories`. The official code learns the
    logit of the degree's power; here it is the power itself.

    Args:
        checkpoint: A file of ``torch.save``, or the dictionary in it: a state dict, or one under
            ``model_state_dict``.
        aggr: ``--gcn_aggr`` of the training; needed if no temperature or power was learned.
        t: ``--t``, if it was not learned.
        p: ``--p``, if it was not learned.
        readout: ``--graph_pooling`` of networks for whole graphs.
        dropout: Dropout probability, for further training.

    Raises:
        UsageError: If weights are missing or unknown, or belong to a network that a stack cannot express.
    """
    weights = _Weights.read(checkpoint)
    if any(name.startswith(("virtualnode_embedding", "mlp_virtualnode_list")) for name in weights.tensors):
        raise UsageError("this network has the official virtual node, which differs from GraphStack's: load another.")
    expect_choice("readout", readout, READOUTS)
    layers = [_layer(weights, number) for number in range(weights.count("gcns"))]
    if not layers:
        raise UsageError("the checkpoint has no 'gcns.0.mlp.0.weight': pass one of a DeeperGCN of deep_gcns_torch.")
    settings = _settings(layers, aggr, t, p)
    is_graph = "graph_pred_linear.weight" in weights.tensors
    norm_list = "layer_norms" if "layer_norms.0.weight" in weights.tensors else "norms"
    norms = [weights.take_all(f"{norm_list}.{number}.") for number in range(len(layers))]
    build_norm = _norm_of(norms[0], norm_list)
    edges = _edge_parts(weights, len(layers))
    embedding, embed = _embedding(weights)
    head = weights.take_all("graph_pred_linear." if is_graph else "node_pred_linear.", "weight", "bias")
    weights.expect_empty()

    dim = layers[0]["mlp.0.weight"].shape[1]
    final = build_norm if is_graph else lambda width: nn.Sequential(build_norm(width), nn.ReLU())
    stack = GraphStack(
        lambda a, b: GENConv(a, b, bias=True, **settings, **edges.arguments(dim)),
        embed["weight"].shape[1] if "weight" in embed else 1,
        dim,
        head["weight"].shape[0],
        len(layers),
        placement="pre",
        order="activation-conv",
        norm={"input": build_norm, "final": final},
        embedding=embedding,
        stem=True,
        readout=readout if is_graph else None,
        dropout=Dropout(branch=dropout, head=dropout),
        dtype=head["weight"].dtype,
    )
    state = {f"embed.{name}": tensor for name, tensor in embed.items()}
    state |= {f"head.{name}": tensor for name, tensor in head.items()}
    for number, (layer, norm) in enumerate(zip(layers, norms, strict=True)):
        place = "stem." if number == 0 else f"blocks.{number - 1}.branch."
        converted = _converted(layer) | edges.tensors(number)
        state |= {f"{place}conv.{name}": tensor for name, tensor in converted.items()}
        # Each norm belongs to the block after its convolution, and the last to the head.
        slot = f"blocks.{number}.input_norm." if number < len(layers) - 1 else f"final_norm.{'' if is_graph else '0.'}"
        state |= {f"{slot}{name}": tensor for name, tensor in norm.items()}
    _load(stack, state, settings)
    return stack


def combine_categories(categories: Tensor, sizes: Sequence[int]) -> Tensor:
    """One type for each combination of categories, as ``edge_attr`` of a stack with the weights of ogbg-mol.

    Args:
        categories: Category of each feature, items × features.
        sizes: Number of categories of each feature, such as (5, 6, 2) for OGB's bonds.

    Raises:
        UsageError: If there is another number of features, or a category is out of range.

    Examples:
        >>> combine_categories(torch.tensor([[0, 0, 1], [4, 5, 1]]), (5, 6, 2)).tolist()
        [1, 59]
    """
    if categories.dim() != 2 or categories.shape[1] != len(sizes):
        raise UsageError(f"expected {len(sizes)} categories for each item, got {tuple(categories.shape)}.")
    limits = torch.tensor(sizes, device=categories.device)
    if bool(((categories < 0) | (categories >= limits)).any()):
        raise UsageError(f"categories must be from 0 to below {tuple(sizes)}: pass the sizes of the data's encoder.")
    types = torch.zeros(len(categories), dtype=torch.long, device=categories.device)
    for column, size in zip(categories.unbind(1), sizes, strict=True):
        types = types * size + column
    return types


class _Weights:
    """The tensors of a checkpoint; those that are read are removed, so that none is forgotten."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self.tensors = tensors

    @classmethod
    def read(cls, checkpoint: object) -> _Weights:
        """From a file or a dictionary, with the prefix of ``DataParallel`` removed."""
        if isinstance(checkpoint, str | os.PathLike):
            try:
                checkpoint = torch.load(checkpoint, map_location="cpu", weights_only=True)
            except (OSError, RuntimeError, ValueError, pickle.UnpicklingError) as error:
                raise UsageError(f"cannot read {checkpoint}: pass a file of torch.save with weights alone.") from error
        if isinstance(checkpoint, Mapping) and "model_state_dict" in checkpoint:
            checkpoint = checkpoint["model_state_dict"]
        if not isinstance(checkpoint, Mapping) or not all(isinstance(part, Tensor) for part in checkpoint.values()):
            raise UsageError(f"a checkpoint must be a file or a state dict, got {type(checkpoint).__name__}.")
        return cls({str(name).removeprefix("module."): tensor.detach() for name, tensor in checkpoint.items()})

    def count(self, prefix: str) -> int:
        """How many modules a list has."""
        names = {name.split(".")[1] for name in self.tensors if name.startswith(f"{prefix}.")}
        return next(number for number in itertools.count() if str(number) not in names)

    def take_all(self, prefix: str, *required: str) -> dict[str, Tensor]:
        """The tensors below a prefix, removed, by the rest of their names.

        Raises:
            UsageError: If a required one is missing.
        """
        names = [name for name in self.tensors if name.startswith(prefix)]
        taken = {name.removeprefix(prefix): self.tensors.pop(name) for name in names}
        for name in required:
            if name not in taken:
                raise UsageError(f"the checkpoint has no {prefix + name!r}: it is not of a DeeperGCN with a head.")
        return taken

    def take_list(self, prefix: str) -> list[Tensor]:
        """The weights of a list of embeddings, removed."""
        return [self.take_all(f"{prefix}.{number}.", "weight")["weight"] for number in range(self._length(prefix))]

    def _length(self, prefix: str) -> int:
        return sum(name.startswith(f"{prefix}.") for name in self.tensors)

    def expect_empty(self) -> None:
        """Raise an error for a tensor that was not read."""
        if self.tensors:
            raise UsageError(f"the checkpoint has the unknown weights {min(self.tensors)!r}: it is not a DeeperGCN.")


def _layer(weights: _Weights, number: int) -> dict[str, Tensor]:
    """The tensors of one convolution but for its edge encoder."""
    layer = weights.take_all(f"gcns.{number}.")
    encoder = {name: layer.pop(name) for name in list(layer) if name.startswith("edge_encoder.")}
    weights.tensors.update({f"gcns.{number}.{name}": tensor for name, tensor in encoder.items()})
    return layer


def _settings(layers: Sequence[Mapping[str, Tensor]], aggr: str | None, t: float, p: float) -> dict[str, Any]:
    """Arguments of the convolutions but for their edges."""
    first = layers[0]
    learned = {name for name in ("t", "p", "y") if name in first}
    if aggr is None:
        if not learned & {"t", "p"}:
            raise UsageError(f"the weights do not tell the aggregation: pass aggr, one of {', '.join(AGGREGATIONS)}.")
        aggr = ("softmax" if "t" in learned else "power") + ("_sum" if "y" in learned else "")
    expect_choice("aggregation", aggr, AGGREGATIONS)
    is_power = aggr.startswith("power")
    wrong = learned - ({"p"} if is_power else {"t"} if aggr.startswith("softmax") else set())
    if wrong - ({"y"} if aggr.endswith("_sum") else set()) or (aggr.endswith("_sum") and "y" not in learned):
        raise UsageError(f"the learned numbers {sorted(learned)} are not those of {aggr!r}: pass another aggr.")
    linears = [name for name, tensor in first.items() if name.startswith("mlp.") and tensor.dim() == 2]
    settings: dict[str, Any] = {
        "aggr": aggr,
        "num_layers": len(linears),
        "norm": _kind({name.removeprefix("mlp.1."): part for name, part in first.items()})
        if len(linears) > 1
        else None,
        "msg_norm": "msg_norm.msg_scale" in first,
        "learn_msg_scale": True,
    }
    if is_power:
        # A power that is not learned is a frozen parameter, because the official code clamps with a power of 1 too.
        settings["aggr_kwargs"] = {"p": p, "learn": True, **CLAMP}
    elif aggr.startswith("softmax"):
        # Without a learned temperature the official softmax has no gradient.
        semi = "t" not in learned
        settings["aggr"] = aggr.replace("softmax_sg", "softmax").replace("softmax", "softmax_sg") if semi else aggr
        settings |= {"t": t, "learn_t": not semi}
    return settings | ({"learn_y": True} if "y" in learned else {})


def _kind(norm: Mapping[str, Tensor]) -> str:
    """The kind of a norm by the names of its tensors.

    Raises:
        UsageError: If it has none.
    """
    if "weight" not in norm:
        raise UsageError("this network has instance norms, which have no weights: only batch and layer norms load.")
    return "batch" if "running_mean" in norm else "layer"


def _norm_of(norm: Mapping[str, Tensor], name: str) -> Callable[[int], nn.Module]:
    if not norm:
        raise UsageError(f"the checkpoint has no '{name}.0.weight': only networks with batch or layer norms load.")
    return NORMS[_kind(norm)]


def _converted(layer: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a convolution by the names of :class:`GENConv`."""
    converted = {}
    for name, tensor in layer.items():
        if name.startswith("mlp."):
            _, index, rest = name.split(".", 2)
            # Linear map, norm and activation there; a dropout follows here.
            name = f"mlp.{4 * (int(index) // 3) + int(index) % 3}.{rest}"
        elif name == "msg_norm.msg_scale":
            name = "msg_norm.scale"
        elif name in ("t", "p", "y"):
            name, tensor = f"aggr_module.{name}", tensor.sigmoid() if name == "y" else tensor
        converted[name] = tensor
    return converted


class _Edges:
    """What is added to the messages of each layer: a linear map of features, a table of types, or nothing."""

    def __init__(self, maps: list[tuple[Tensor, Tensor]] | None = None, tables: list[Tensor] | None = None) -> None:
        self.maps, self.tables = maps, tables

    def arguments(self, dim: int) -> dict[str, Any]:
        """Arguments of the convolutions."""
        if self.tables is not None:
            return {"edge_types": len(self.tables[0])}
        if self.maps is None:
            return {}
        width = self.maps[0][0].shape[1]
        if width == dim:
            raise UsageError(f"edge features of the stream's width, {dim}, have no linear map in GENConv.")
        return {"edge_dim": width}

    def tensors(self, number: int) -> dict[str, Tensor]:
        """The tensors of one layer."""
        if self.tables is not None:
            return {"edge_table.weight": self.tables[number]}
        if self.maps is None:
            return {}
        weight, bias = self.maps[number]
        return {"lin_edge.weight": weight, "lin_edge.bias": bias}


def _edge_parts(weights: _Weights, depth: int) -> _Edges:
    """The edge encoders of all layers; a shared one is copied to each."""
    shared = weights.take_list("bond_encoder.bond_embedding_list")
    if shared:
        return _Edges(tables=[_table(shared)] * depth)
    bonds = [weights.take_list(f"gcns.{number}.edge_encoder.bond_embedding_list") for number in range(depth)]
    if bonds[0]:
        return _Edges(tables=[_table(parts) for parts in bonds])
    first = weights.take_all("edge_encoder.")
    own = [weights.take_all(f"gcns.{number}.edge_encoder.") for number in range(depth)]
    if not first:
        return _Edges() if not own[0] else _Edges(maps=[(part["weight"], part["bias"]) for part in own])
    return _Edges(maps=[_composed(first, part) if part else (first["weight"], first["bias"]) for part in own])


def _composed(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Weight and bias of two linear maps in sequence, multiplied in float64."""
    weight, bias = second["weight"].double(), second["bias"].double()
    product, shift = weight @ first["weight"].double(), weight @ first["bias"].double() + bias
    return product.to(second["weight"].dtype), shift.to(second["bias"].dtype)


def _table(embeddings: Sequence[Tensor]) -> Tensor:
    """The sum of embeddings for every combination of categories, in the order of :func:`combine_categories`."""
    sizes = [len(embedding) for embedding in embeddings]
    categories = torch.cartesian_prod(*(torch.arange(size) for size in sizes)).reshape(math.prod(sizes), len(sizes))
    return sum(
        (embedding[column] for embedding, column in zip(embeddings, categories.unbind(1), strict=True)),
        torch.zeros(()),
    )


def _embedding(weights: _Weights) -> tuple[nn.Module | None, dict[str, Tensor]]:
    """The embedding of nodes, None for a linear map, and its tensors."""
    atoms = weights.take_list("atom_encoder.atom_embedding_list")
    if atoms:
        sizes = [len(part) for part in atoms]
        return SumOfEmbeddings(sizes, atoms[0].shape[1]), {"table": torch.cat(atoms)}
    encoder = weights.take_all("node_features_encoder.", "weight", "bias")
    species = weights.take_all("node_one_hot_encoder.")
    if species:
        known, width = encoder["weight"].shape[1] - len(species["weight"]), species["weight"].shape[1]
        expect_whole(0, **{"the width of the node features": known})
        weight, bias = _composed(species, {"weight": encoder["weight"][:, known:], "bias": encoder["bias"]})
        assert weight.shape[1] == width
        encoder = {"weight": torch.cat([encoder["weight"][:, :known], weight], 1), "bias": bias}
    return None, encoder


def _load(stack: GraphStack, state: dict[str, Tensor], settings: Mapping[str, Any]) -> None:
    """Load strictly, and freeze powers that were not learned."""
    powers = [name for name in stack.state_dict() if name.endswith("aggr_module.p")]
    fixed = [name for name in powers if name not in state]
    for name in fixed:
        state[name] = torch.full((1,), float(settings["aggr_kwargs"]["p"]))
        stack.get_parameter(name).requires_grad_(False)
    try:
        stack.load_state_dict(state)
    except RuntimeError as error:
        lines = " ".join(str(error).split())
        raise UsageError(
            f"the weights are not those of a DeeperGCN with the block order res+: {lines[:300]}"
        ) from error

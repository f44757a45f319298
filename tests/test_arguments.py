"""Invalid numbers raise an error at construction."""

from __future__ import annotations

import math

import pytest
import torch

from normplace import BlockSpec, Placement, Scale, UsageError
from normplace.models import CausalRN, GENConv, GraphStack
from normplace.models.transformer import TransformerConfig
from normplace.norms import BatchNorm, DyT, GraphNorm, LayerNorm, MsgNorm, PairNorm, RMSNorm
from normplace.ops import norm_add_norm, relation_scan, softmax_aggregate
from normplace.placement import First
from normplace.placement.factors import LearnedScale, Power

X = torch.ones(3, 4)
COMPLEX = torch.ones(4, dtype=torch.complex64)
EDGES = torch.tensor([[0, 1], [1, 2]])


@pytest.mark.parametrize(
    "options",
    [
        {"out_eps": -1},
        {"in_eps": math.nan},
        {"in_eps": math.inf},
        {"stream_dtype": torch.int64},
        {"stream_dtype": torch.complex64},
        {"skip_scale": math.nan},
        {"branch_scale": math.inf},
        {"branch_scale": torch.ones((), dtype=torch.complex64)},
        {"branch_scale": COMPLEX},
        {"out_weight": COMPLEX},
        {"in_bias": COMPLEX},
        {"out_scale": COMPLEX[:3]},
        {"in_scale": [1.0, 1.0, 1.0]},
        {"dropout": 0.5, "seed": 1.5},
        {"dropout": 0.5, "seed": 2**70},
        {"dropout": math.nan},
    ],
)
def test_boundary(options):
    with pytest.raises(UsageError):
        norm_add_norm(X, X, **options)


@pytest.mark.parametrize("eps", [-1, math.nan, math.inf, "1e-5", None])
@pytest.mark.parametrize("norm", [LayerNorm, RMSNorm, BatchNorm, GraphNorm, PairNorm, MsgNorm])
def test_eps_of_a_norm(norm, eps):
    norm(4, eps=0.0)
    with pytest.raises(UsageError, match="eps"):
        norm(4, eps=eps)


@pytest.mark.parametrize("dim", [0, -3, 2.5, True, "8"])
@pytest.mark.parametrize("norm", [LayerNorm, RMSNorm, BatchNorm, GraphNorm, PairNorm, MsgNorm, DyT])
def test_width_of_a_norm(norm, dim):
    with pytest.raises(UsageError):
        norm(dim)


@pytest.mark.parametrize(
    "make",
    [
        lambda: BlockSpec(branch_scale=math.nan),
        lambda: BlockSpec(branch_scale=-math.inf),
        lambda: BlockSpec(branch_scale="2"),  # pyright: ignore[reportArgumentType]
        lambda: BlockSpec(inner="qk"),  # pyright: ignore[reportArgumentType]
        lambda: BlockSpec(inner=(1,)),  # pyright: ignore[reportArgumentType]
        lambda: BlockSpec(inner_scale="q"),  # pyright: ignore[reportArgumentType]
        lambda: BlockSpec(skip_scale=math.nan),
        lambda: BlockSpec(skip_scale=-1.0),
        lambda: BlockSpec(input=True, input_scale=0.0),
        lambda: BlockSpec(init_gain=None),  # pyright: ignore[reportArgumentType]
        lambda: BlockSpec(skip_scale=None),  # pyright: ignore[reportArgumentType]
        lambda: LearnedScale(init=math.nan),
        lambda: Power("depth", math.nan),
        lambda: Power("depth", 1.0, times=-2),
        lambda: First(1.5),  # pyright: ignore[reportArgumentType]
        lambda: First(0),
        lambda: First(True),
        lambda: Placement(((math.nan, BlockSpec()), (1.0, BlockSpec()))),
        lambda: Placement(((1.0, "pre"),)),  # pyright: ignore[reportArgumentType]
        lambda: Placement.named("pre").at(1, -2),
        lambda: Placement.named("pre").at(1.5, 3),  # pyright: ignore[reportArgumentType]
        lambda: Scale("degree", math.nan),
        lambda: Scale(3),  # pyright: ignore[reportArgumentType]
        lambda: Scale("degree").factor(torch.ones(3, dtype=torch.complex64)),
        lambda: MsgNorm(4, scale_init=math.inf),
        lambda: PairNorm(4, scale=math.nan),
        lambda: DyT(4, alpha_init=math.nan),
        lambda: BatchNorm(4, momentum=-0.5),
        lambda: GENConv(4, 4, eps=-1.0),
        lambda: GENConv(4, 4, p=math.nan),
        lambda: GENConv(4, 4, t=math.nan),
        lambda: GENConv(4, 4, num_layers=1.5),  # pyright: ignore[reportArgumentType]
        lambda: GENConv((4, 4, 4), 4),  # pyright: ignore[reportArgumentType]
        lambda: GENConv(4, 4, edge_types=0),
        lambda: softmax_aggregate(X, EDGES, eps=math.nan),
        lambda: softmax_aggregate(X, EDGES, num_dst=-1),
        lambda: relation_scan(X[None], X[None], heads=2.0),  # pyright: ignore[reportArgumentType]
        lambda: relation_scan(X[None], X[None], eps=math.nan),
    ],
)
def test_other_numbers(make):
    with pytest.raises(UsageError):
        make()


@pytest.mark.parametrize("count", [0, -1, 1.5, True, "2", 100_001, 10**30])
@pytest.mark.parametrize(
    "build",
    [
        lambda count: GENConv(4, 4, num_layers=count),
        lambda count: GraphStack(GENConv, 4, 8, 2, depth=count),
        lambda count: CausalRN(11, 8, depth=count),
        lambda count: TransformerConfig(11, 8, depth=count),
    ],
)
def test_number_of_layers(build, count):
    with pytest.raises(UsageError):
        build(count)

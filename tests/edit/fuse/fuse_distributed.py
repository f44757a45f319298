"""Run by test_fuse_distributed.py in two processes: a fused model trains as the model itself does, whole or sharded."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from tests.edit.fuse.fuse_models import WIDTH, peri, rows
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

import normplace as npl
from normplace.edit.fuse import runtime as fuse_runtime
from normplace.lab.train.distributed import exit_now

NORMS, BRANCHES = ("before", "after", "before2", "after2"), ("first", "second")
X = rows(2, 4)
Gradients = dict[str, Tensor]


def standard_norm() -> nn.RMSNorm:
    return nn.RMSNorm(WIDTH, 1e-6)


def gradients(model: nn.Module, x: Tensor) -> Gradients:
    """The gradients of a step, whole where parameters are sharded."""
    model.zero_grad()
    model(x).square().mean().backward()
    values = {name.removeprefix("module."): parameter.grad for name, parameter in model.named_parameters()}
    return {name: grad.full_tensor() if isinstance(grad, DTensor) else grad for name, grad in values.items()}


def shard(model: nn.Module, mesh: DeviceMesh, **options) -> nn.Module:
    """As usual: every layer, and the rest with the whole."""
    for block in model.blocks:
        fully_shard(block, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


def tensor_parallel(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """The first linear layer of a branch by columns, the second by rows; norms are whole."""
    plan = {}
    for branch in (f"blocks.{index}.{name}" for index in range(2) for name in BRANCHES):
        plan |= {f"{branch}.0": ColwiseParallel(), f"{branch}.2": RowwiseParallel()}
    return parallelize_module(model, mesh, plan)


def sequence_parallel(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Also the norms, by positions: stream and norms are sharded between the linear layers."""
    whole, positions = Replicate(), Shard(1)
    plan = {
        "blocks.0": PrepareModuleInput(input_layouts=whole, desired_input_layouts=positions, use_local_output=False),
        "final": SequenceParallel(use_local_output=False),
        "head": ColwiseParallel(input_layouts=positions, output_layouts=whole),
    }
    for index in range(2):
        for name in NORMS:
            plan[f"blocks.{index}.{name}"] = SequenceParallel(use_local_output=False)
        for name in BRANCHES:
            plan[f"blocks.{index}.{name}.0"] = ColwiseParallel(input_layouts=positions)
            plan[f"blocks.{index}.{name}.2"] = RowwiseParallel(output_layouts=positions, use_local_output=False)
    return parallelize_module(model, mesh, plan)


def main(rank: int, folder: Path) -> None:
    """Write the largest error of a gradient and the number of fused sums of a step, for each way."""
    distributed.init_process_group("gloo", init_method=f"file://{folder / 'meeting'}", rank=rank, world_size=2)
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module")  # of a layer that returns a view
    mesh, calls, plain = init_device_mesh("cpu", (2,)), [], fuse_runtime.norm_add_norm
    fuse_runtime.norm_add_norm = lambda *args, **options: (calls.append(0), plain(*args, **options))[1]
    own_part = X[rank : rank + 1]
    results = {}

    def compare(name: str, distribute: Callable[[nn.Module], nn.Module], x: Tensor, norm=None, **options) -> None:
        model = peri(norm) if norm else peri()
        expected = gradients(model, X)
        distributed_model = distribute(npl.fuse(model, X, only_if_faster=False, **options))
        for turn in ("", ", second step"):
            calls.clear()
            values = gradients(distributed_model, x)
            assert values.keys() == expected.keys()
            errors = [float((values[key] - grad).abs().max() / grad.abs().max()) for key, grad in expected.items()]
            results[name + turn] = {"error": max(errors), "sums": len(calls)}

    for reach in ("layer", "stack"):
        compare(f"DDP, {reach}", nn.parallel.DistributedDataParallel, own_part, reach=reach)
        compare(f"FSDP2, {reach}", lambda model: shard(model, mesh), own_part, reach=reach)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    compare("FSDP2, bfloat16", lambda model: shard(model, mesh, mp_policy=policy), own_part)
    compare("tensor parallel", lambda model: tensor_parallel(model, mesh), X)
    compare("sequence parallel", lambda model: sequence_parallel(model, mesh), X, standard_norm)
    for inplace in (False, True):
        try:
            npl.fuse(shard(peri(), mesh), own_part, only_if_faster=False, inplace=inplace)
        except npl.UsageError as error:
            results[f"fused after sharding, inplace={inplace}"] = str(error)
    if rank == 0:
        (folder / "results.json").write_text(json.dumps(results))
    distributed.barrier()
    exit_now()

"""Run by test_layer.py in two processes: a Transformer sharded in several ways trains as the whole one does."""

from __future__ import annotations

from pathlib import Path

import torch
from tests.models.transformer.reference import build, tokens
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from normplace import fusion_mode
from normplace.lab.train.distributed import exit_now
from normplace.stack import run as scheduler


def parts(model, way):
    """The modules that are sharded by themselves, before the whole."""
    blocks = [block for layer in model.layers for block in layer.children()]
    return {
        "whole": [],
        "layers": list(model.layers),
        "blocks": blocks,
        "norms": [*(block.output_norm for block in blocks), model.final_norm],
    }[way]


def gradients(model, ids):
    model(ids).square().mean().backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def main(rank: int, folder: Path) -> None:
    """Compare, and write how many boundaries were one pass; the processes find each other through a file."""
    distributed.init_process_group("gloo", init_method=f"file://{folder / 'meeting'}", rank=rank, world_size=2)
    mesh, ids, calls, true = init_device_mesh("cpu", (2,)), tokens(), [], scheduler.norm_add_norm
    scheduler.norm_add_norm = lambda *args, **options: (calls.append(0), true(*args, **options))[1]
    expected = gradients(build("peri"), ids)  # both processes read the same tokens, so their mean is that of one
    for way in ("whole", "layers", "blocks", "norms"):
        model = build("peri")
        for part in parts(model, way):
            fully_shard(part, mesh=mesh)
        fully_shard(model, mesh=mesh)
        calls.clear()
        with fusion_mode("always"):
            actual = gradients(model, ids)
        for name, grad in actual.items():
            torch.testing.assert_close(grad.full_tensor(), expected[name], rtol=1e-9, atol=1e-11, msg=f"{way}: {name}")
        if rank == 0:
            with (folder / "passes.txt").open("a") as file:
                print(way, len(calls), file=file)
    distributed.destroy_process_group()
    exit_now()

"""A model is copied only if the copy fits into memory and does not depend on the original."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from normplace.edit.model import copying
from normplace.edit.model.copying import copy_model, require_independent, require_memory
from normplace.errors import UsageError


class Captured(nn.Module):
    """A function refers to a module of this object, in a copy too."""

    def __init__(self):
        super().__init__()
        self.up = nn.Linear(4, 4)
        self.branch = lambda x: self.up(x)

    def forward(self, x):
        return self.branch(x)


def test_a_model_that_does_not_fit_is_refused(monkeypatch):
    model = nn.Linear(100, 100)  # 40,400 bytes
    monkeypatch.setattr(copying, "available_memory", lambda: 60_000)
    copy_model(model)
    with pytest.raises(UsageError, match=r"2 copies need about .*: use less\."):
        require_memory(model, "use less")
    monkeypatch.setattr(copying, "available_memory", lambda: None)  # unknown
    require_memory(model, "use less")


def test_a_tied_weight_counts_once(monkeypatch):
    model = nn.Sequential(nn.Linear(100, 100, bias=False), nn.Linear(100, 100, bias=False))
    monkeypatch.setattr(copying, "available_memory", lambda: 60_000)
    with pytest.raises(UsageError, match="1 copy needs"):
        require_memory(model, "use less", copies=1)
    model[1].weight = model[0].weight
    require_memory(model, "use less", copies=1)


def test_a_copy_that_calls_the_original_is_refused():
    x = torch.randn(2, 4)
    model = Captured()
    with pytest.raises(UsageError, match="calls modules of the original"), require_independent(model):
        copy_model(model)(x)
    plain = nn.Linear(4, 4)
    with require_independent(plain):
        copy_model(plain)(x)


def test_a_copy_in_inference_mode_is_refused():
    with torch.inference_mode(), pytest.raises(UsageError, match=r"torch\.inference_mode never has gradients"):
        copy_model(nn.Linear(4, 4))
    with torch.no_grad():
        assert copy_model(nn.Linear(4, 4)).weight.requires_grad


def test_a_distributed_model_is_refused():
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        wrapped = nn.parallel.DistributedDataParallel(nn.Linear(4, 4))
        with pytest.raises(UsageError, match="DistributedDataParallel does not distribute what an edit adds"):
            copy_model(wrapped)
        sharded = fully_shard(nn.Linear(4, 4), mesh=init_device_mesh("cpu", (1,)))
        with pytest.raises(UsageError, match="edit the model before it is sharded"):
            copy_model(sharded)
    finally:
        torch.distributed.destroy_process_group()


def test_an_offloaded_model_is_refused():
    accelerate = pytest.importorskip("accelerate")
    offloaded = accelerate.cpu_offload(nn.Sequential(nn.Linear(4, 4)), torch.device("cpu"))
    with pytest.raises(UsageError, match="offloaded by accelerate"):
        copy_model(offloaded)

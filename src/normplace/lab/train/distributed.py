"""The processes of a run: one, or those that ``torchrun`` started.

With ``fsdp`` the parameters of every :class:`normplace.Residual` are gathered before it computes and sharded again
afterwards (FSDP2, Zhao et al. 2023, arXiv 2304.11277); with ``ddp`` every process holds all parameters. Both average
the gradient over processes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor, nn

from normplace._shared.device import pick_device
from normplace.errors import UsageError
from normplace.lab.train.compiling import compile_modules, compile_regions
from normplace.lab.train.rendezvous import rendezvous
from normplace.models.transformer import Transformer
from normplace.residual import Residual

TWO_STREAMS = ("branch_output", "add_to_stream")
PARALLEL_BRANCHES = ("read", "run_branch", "scale_output")
STAGES: dict[str, tuple[str, ...]] = {
    "one": (),
    "b2t": (),
    "dual": TWO_STREAMS,
    "siamese": TWO_STREAMS,
    "parallel": PARALLEL_BRANCHES,
    "parallel-shared": PARALLEL_BRANCHES,
}
"""Methods of a block that are called from outside, by the streams of the placement."""


@dataclass(frozen=True)
class ProcessGroup:
    """The processes of a run, from the view of one of them.

    Args:
        rank: Rank of this process.
        size: Number of processes.
        device: Device of this process.
        is_distributed: Whether torchrun started the processes; False for a single process.
    """

    rank: int
    size: int
    device: torch.device
    is_distributed: bool

    @property
    def is_first(self) -> bool:
        """Whether this process has rank 0, and so writes the files that are written once."""
        return self.rank == 0

    def all_reduce(self, value: Tensor) -> Tensor:
        """Return the sum over processes."""
        value = value.detach().clone()
        if self.is_distributed:
            dist.all_reduce(value)
        return value

    def all_gather(self, value: Any) -> list[Any]:
        """All-gather an object; the list is ordered by rank."""
        if not self.is_distributed:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    @contextmanager
    def share_errors(self) -> Iterator[None]:
        """Raise a UsageError of one process in all of them; the block must not wait for another process.

        Raises:
            UsageError: If a process raised one, with the message of the lowest rank.
        """
        own_error = None
        try:
            yield
        except UsageError as error:
            own_error = error
        messages = self.all_gather(None if own_error is None else str(own_error))
        message = next((message for message in messages if message is not None), None)
        if message is not None:
            raise UsageError(message) from own_error


@contextmanager
def join_process_group(device: str = "auto") -> Iterator[ProcessGroup]:
    """Join the processes that torchrun started, while the block runs.

    Args:
        device: A name that :func:`normplace._shared.device.pick_device` accepts. With several GPUs, each process uses
            the GPU of its local rank.

    Raises:
        UsageError: If the device is not available.
    """
    chosen = pick_device(device)
    if "WORLD_SIZE" not in os.environ:
        yield ProcessGroup(0, 1, chosen, is_distributed=False)
        return
    if chosen.type == "cuda":
        local_size, devices = int(os.environ.get("LOCAL_WORLD_SIZE", "1")), torch.cuda.device_count()
        if local_size > devices:
            raise UsageError(f"{local_size} processes need as many GPUs, but this machine has {devices}: start fewer.")
        chosen = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(chosen)
    store, rank, size = rendezvous()
    dist.init_process_group("nccl" if chosen.type == "cuda" else "gloo", store=store, rank=rank, world_size=size)
    try:
        yield ProcessGroup(rank, size, chosen, is_distributed=True)
    finally:
        dist.destroy_process_group()


def exit_now() -> NoReturn:
    """Flush the streams and end this process at once, without the interpreter's shutdown.

    torch keeps gloo's threads alive after the group is destroyed. If one of them frees a tensor during the shutdown,
    the process aborts (pytorch pull request 179291), and torchrun reports the run as failed.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def distribute(model: nn.Module, group: ProcessGroup, parallel: str, compiled: bool = False) -> nn.Module:
    """Return the model on the group's devices; ``fsdp`` changes it in place.

    Args:
        model: The model, with the same parameters in every process.
        group: The processes.
        parallel: ``fsdp`` or ``ddp``.
        compiled: Whether to compile its layers, blocks or branches; with ``fsdp``, its blocks or branches.
    """
    model.to(group.device)
    sharded = group.is_distributed and parallel == "fsdp"
    if compiled and not sharded:
        compile_regions(model)
    if not group.is_distributed:
        return model
    if not sharded:
        return nn.parallel.DistributedDataParallel(model)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    mesh, stages = init_device_mesh(group.device.type, (group.size,)), _called_stages(model)
    blocks = [module for module in model.modules() if isinstance(module, Residual)]
    if compiled:
        calls_blocks = not (isinstance(model, Transformer) and stages)
        compile_modules(blocks if calls_blocks else [block.branch for block in blocks])
    for block in blocks:
        fully_shard(block, mesh=mesh)
        for method in stages:
            register_fsdp_forward_method(block, method)
    fully_shard(model, mesh=mesh)
    return model


def _called_stages(model: nn.Module) -> tuple[str, ...]:
    """The methods of a block that a network calls instead of its forward; the compiler breaks its graph at them."""
    return STAGES[model.config.rule.streams] if isinstance(model, Transformer) else TWO_STREAMS


def unwrap(model: nn.Module) -> nn.Module:
    """Return the model that was passed to :func:`distribute`."""
    return model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model


def gradient_sync(model: nn.Module, enabled: bool) -> AbstractContextManager[Any]:
    """Return the context of one gradient accumulation step.

    Args:
        model: The model that :func:`distribute` returned.
        enabled: Whether the processes exchange gradients in this step; only the last one needs to.
    """
    from torch.distributed.fsdp import FSDPModule

    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(enabled)
    elif isinstance(model, nn.parallel.DistributedDataParallel) and not enabled:
        return model.no_sync()
    return nullcontext()


def full_tensor(value: Tensor) -> Tensor:
    """Return a sharded tensor gathered in every process, and any other tensor unchanged."""
    from torch.distributed.tensor import DTensor

    return value.full_tensor() if isinstance(value, DTensor) else value


def full_state_dict(model: nn.Module, group: ProcessGroup) -> dict[str, Tensor]:
    """Return the gathered state on the CPU in the first process; an empty one in the others."""
    state = {}
    for name, value in unwrap(model).state_dict().items():
        value = full_tensor(value.detach())
        if group.is_first:
            state[name] = value.cpu()
    return state

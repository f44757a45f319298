"""The processes of a run: one, or those that ``torchrun`` started, which share rows, weights and the optimizer's state.

With ``fsdp`` every :class:`normplace.Residual` is gathered when it computes and sharded again after (FSDP2, Zhao et al.
2023, arXiv 2304.11277); with ``ddp`` every process holds all weights. Both average the gradient over processes.
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
from normplace.lab.train.rendezvous import rendezvous
from normplace.residual import Residual


@dataclass(frozen=True)
class ProcessGroup:
    """The processes of a run, seen from one of them.

    Args:
        rank: Which this one is.
        size: How many there are.
        device: Where this one computes.
        joined: Whether they talk to each other.
    """

    rank: int
    size: int
    device: torch.device
    joined: bool

    @property
    def first(self) -> bool:
        """Whether this process writes what is written once."""
        return self.rank == 0

    def total(self, value: Tensor) -> Tensor:
        """The sum over processes."""
        value = value.detach().clone()
        if self.joined:
            dist.all_reduce(value)
        return value

    def all_gather(self, value: Any) -> list[Any]:
        """What every process has to say, by rank; all wait until all have said it."""
        if not self.joined:
            return [value]
        said: list[Any] = [None] * self.size
        dist.all_gather_object(said, value)
        return said

    @contextmanager
    def agreeing(self) -> Iterator[None]:
        """Raise a UsageError of one process in all of them; the block itself must not wait for another process.

        Raises:
            UsageError: If a process raised one, with the sentence of the first that did.
        """
        problem = None
        try:
            yield
        except UsageError as error:
            problem = error
        sentence = next((said for said in self.all_gather(problem and str(problem)) if said is not None), None)
        if sentence is not None:
            raise UsageError(sentence) from problem


@contextmanager
def join(device: str = "auto") -> Iterator[ProcessGroup]:
    """The group while the block runs.

    Args:
        device: As :func:`normplace._shared.device.pick_device` reads it; of several GPUs each process takes its own.

    Raises:
        UsageError: If the device is not there.
    """
    chosen = pick_device(device)
    if "WORLD_SIZE" not in os.environ:
        yield ProcessGroup(0, 1, chosen, joined=False)
        return
    if chosen.type == "cuda":
        here, devices = int(os.environ.get("LOCAL_WORLD_SIZE", "1")), torch.cuda.device_count()
        if here > devices:
            raise UsageError(f"{here} processes on this machine need as many GPUs, but it has {devices}: start fewer.")
        chosen = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(chosen)
    store, rank, size = rendezvous()
    dist.init_process_group("nccl" if chosen.type == "cuda" else "gloo", store=store, rank=rank, world_size=size)
    try:
        yield ProcessGroup(rank, size, chosen, joined=True)
    finally:
        dist.destroy_process_group()


def exit_now() -> NoReturn:
    """End this process, whose work is done, at once.

    torch keeps gloo's threads to the end, also after the group is destroyed. One that is just freeing a tensor while
    the interpreter ends aborts it (pytorch pull request 179291), and torchrun would take that for a failure of the run.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def distribute(model: nn.Module, group: ProcessGroup, parallel: str, compiled: bool = False) -> nn.Module:
    """The model on the group's devices; with ``fsdp`` it is changed in place.

    Args:
        model: With the same weights in every process.
        group: The processes.
        parallel: ``fsdp`` or ``ddp``.
        compiled: Whether to compile it: whole, or block by block where blocks are gathered one by one.
    """
    model.to(group.device)
    sharded = group.joined and parallel == "fsdp"
    if compiled and not sharded:
        model.compile()
    if not group.joined:
        return model
    if not sharded:
        return nn.parallel.DistributedDataParallel(model)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    mesh = init_device_mesh(group.device.type, (group.size,))
    for block in [module for module in model.modules() if isinstance(module, Residual)]:
        if compiled:
            block.compile()
        fully_shard(block, mesh=mesh)
        for entry in ("added", "joined"):  # how placements of two streams call a block
            register_fsdp_forward_method(block, entry)
    fully_shard(model, mesh=mesh)
    return model


def inner(model: nn.Module) -> nn.Module:
    """The model that :func:`distribute` was given."""
    return model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model


def without_sync(model: nn.Module, last: bool) -> AbstractContextManager[Any]:
    """The context of one part of an accumulated step: only the last exchanges gradients.

    Args:
        model: From :func:`distribute`.
        last: Whether it is the last part.
    """
    from torch.distributed.fsdp import FSDPModule

    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(last)
    elif isinstance(model, nn.parallel.DistributedDataParallel) and not last:
        return model.no_sync()
    return nullcontext()


def gathered(value: Tensor) -> Tensor:
    """A tensor whole, in every process."""
    from torch.distributed.tensor import DTensor

    return value.full_tensor() if isinstance(value, DTensor) else value


def full_state_dict(model: nn.Module, group: ProcessGroup) -> dict[str, Tensor]:
    """Every weight whole and on the CPU, in the first process; the others help to gather one tensor at a time."""
    whole = {}
    for name, value in inner(model).state_dict().items():
        value = gathered(value.detach())
        if group.first:
            whole[name] = value.cpu()
    return whole

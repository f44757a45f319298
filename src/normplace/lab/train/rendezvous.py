"""How the processes of one attempt find each other, and none of an attempt before.

torchrun keeps its store of addresses over a restart (pytorch issue 135712), so a process that was started again may
read where one that is dead used to listen. Here the processes of an attempt agree on a word of their own first, and
keep their addresses under it.
"""

from __future__ import annotations

import json
import time
import uuid

from torch.distributed import PrefixStore, Store  # pyright: ignore[reportPrivateImportUsage]
from torch.distributed.rendezvous import rendezvous as torch_rendezvous

from normplace.errors import UsageError

PATIENCE = 600.0
"""Seconds in which all processes must have come."""
PAUSE = 0.02


def rendezvous() -> tuple[Store, int, int]:
    """A store for this attempt alone, the rank of this process, and the number of processes, as torchrun says."""
    store, rank, size = next(torch_rendezvous("env://"))
    return PrefixStore(agree(store, rank, size), store), rank, size


def agree(store: Store, rank: int, size: int) -> str:
    """A word that all processes of this attempt have, and that no attempt before had.

    The first process chooses it, and the others answer with a name of their own. They take the word once the first has
    heard that name: whatever else is in the store is of an attempt before.

    Args:
        store: What all processes read and write.
        rank: Of this process.
        size: How many there are.

    Raises:
        UsageError: If the others do not come.
    """
    name, prefix = uuid.uuid4().hex, "normplace"
    if rank == 0:
        store.set(f"{prefix}/word", name)
        heard = [store.get(f"{prefix}/{name}/{other}").decode() for other in range(1, size)]
        store.set(f"{prefix}/{name}/heard", json.dumps(heard))
        return name
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        word = store.get(f"{prefix}/word").decode()
        store.set(f"{prefix}/{word}/{rank}", name)
        if store.check([f"{prefix}/{word}/heard"]) and name in json.loads(store.get(f"{prefix}/{word}/heard")):
            return word
        time.sleep(PAUSE)
    raise UsageError(f"the other processes did not come within {PATIENCE:g} seconds: check that all were started.")

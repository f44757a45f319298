"""How the processes of one torchrun attempt find each other, and not those of an earlier attempt.

torchrun keeps its store of addresses over a restart (pytorch issue 135712), so a restarted process may read the
address of a dead one. Here the processes of an attempt first agree on a random prefix, and keep their addresses under
it.
"""

from __future__ import annotations

import json
import time
import uuid

from torch.distributed import PrefixStore, Store  # pyright: ignore[reportPrivateImportUsage]
from torch.distributed.rendezvous import rendezvous as torch_rendezvous

from normplace.errors import UsageError

TIMEOUT = 600.0
"""Seconds in which all processes must have arrived."""
POLL_INTERVAL = 0.02
NAMESPACE = "normplace"


def rendezvous() -> tuple[Store, int, int]:
    """Return a store for this attempt only, the rank of this process and the number of processes."""
    store, rank, size = next(torch_rendezvous("env://"))
    return PrefixStore(agree_on_prefix(store, rank, size), store), rank, size


def agree_on_prefix(store: Store, rank: int, size: int) -> str:
    """Return a prefix that all processes of this attempt share and that no earlier attempt used.

    Rank 0 proposes a prefix. Each other rank answers with a random id. A rank accepts the prefix once rank 0 has
    confirmed that id; all other entries of the store are of an earlier attempt.

    Args:
        store: The store that all processes read and write.
        rank: Rank of this process.
        size: Number of processes.

    Raises:
        UsageError: If the other processes do not arrive in time.
    """
    own_id = uuid.uuid4().hex
    if rank == 0:
        store.set(f"{NAMESPACE}/prefix", own_id)
        ids = [store.get(f"{NAMESPACE}/{own_id}/{other}").decode() for other in range(1, size)]
        store.set(f"{NAMESPACE}/{own_id}/confirmed", json.dumps(ids))
        return own_id
    deadline = time.monotonic() + TIMEOUT
    while time.monotonic() < deadline:
        prefix = store.get(f"{NAMESPACE}/prefix").decode()
        store.set(f"{NAMESPACE}/{prefix}/{rank}", own_id)
        confirmed = f"{NAMESPACE}/{prefix}/confirmed"
        if store.check([confirmed]) and own_id in json.loads(store.get(confirmed)):
            return prefix
        time.sleep(POLL_INTERVAL)
    raise UsageError(f"the other processes did not arrive within {TIMEOUT:g} seconds: check that all were started.")

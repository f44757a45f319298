"""What the server of :mod:`normplace.lab.trials.spawn` imports before it starts workers."""

import atexit
import gc

gc.disable()  # nothing that is imported is garbage: collections would take a seventh of the time

import torch  # noqa: E402

import normplace.lab.trials.trial  # noqa: E402, F401

if not torch.backends.cuda.is_built():
    # The first optimizer of a process imports the compiler of PyTorch, which takes as long as the rest of PyTorch. A
    # build for CUDA might start CUDA on the way, which a fork cannot use.
    import torch._dynamo

gc.freeze()  # a collection in a worker would visit, and so copy, the memory that it shares with the server
atexit.register(gc.unfreeze)  # Triton's library reports objects that are left when the server exits
gc.enable()

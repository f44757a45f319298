"""What the server of :mod:`normplace.lab.trials.spawn` imports before it starts workers."""

import torch

import normplace.lab.trials.trial  # noqa: F401

if not torch.backends.cuda.is_built():
    # The first optimizer of a process imports the compiler of PyTorch, which takes as long as the rest of PyTorch. A
    # build for CUDA might start CUDA on the way, which a fork cannot use.
    import torch._dynamo

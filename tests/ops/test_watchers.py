"""Each watcher is noticed, and nobody is where there is none."""

from __future__ import annotations

import torch
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

from normplace.ops.watchers import elsewhere, traced, transformed


class Mode(TorchDispatchMode):
    """Watches and changes nothing."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def test_nobody_watches():
    assert not traced()
    assert not transformed()
    assert not elsewhere(torch.zeros(1))


def test_a_dispatch_mode_and_a_compiler_are_noticed():
    with Mode():
        assert traced()
    compiled = torch.compile(lambda x: x + traced(), backend="eager", fullgraph=True)
    assert compiled(torch.zeros(1)) == 1


def test_transforms_are_noticed():
    seen = []
    torch.func.grad(lambda x: seen.append(transformed()) or x)(torch.tensor(1.0))
    with forward_ad.dual_level():
        seen.append(transformed())
    assert seen == [True, True]

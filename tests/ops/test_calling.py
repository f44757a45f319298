"""Each watcher is noticed, and nobody is where there is none; kernels are launched where their tensors are."""

from __future__ import annotations

import torch
from tests.ops.kernels import needs_gpu
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

from normplace.ops.calling import on_its_device, traced, transformed


class Mode(TorchDispatchMode):
    """Watches and changes nothing."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def test_nobody_watches():
    assert not traced()
    assert not transformed()


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


def test_a_call_is_given_its_arguments():
    x = torch.zeros(1)
    assert on_its_device(x, lambda *given: given, x, 3) == (x, 3)


@needs_gpu
def test_the_device_of_a_tensor_is_the_current_one():
    x = torch.zeros(1, device=f"cuda:{torch.cuda.device_count() - 1}")
    assert on_its_device(x, torch.cuda.current_device) == x.get_device()

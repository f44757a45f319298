"""Detection of tracing and transforms, and the device of kernel launches."""

from __future__ import annotations

import torch
from tests.ops.kernels import needs_gpu
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

import normplace as npl
from normplace.ops.backends import on_device_of
from normplace.ops.tracing import all_plain, in_transform, is_traced


class Mode(TorchDispatchMode):
    """A dispatch mode that changes nothing."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class Wrapped(Tensor):
    """A tensor subclass that wraps another tensor and records this package's operators."""

    @staticmethod
    def __new__(cls, held):
        return Tensor._make_wrapper_subclass(cls, held.shape, dtype=held.dtype, device=held.device)

    def __init__(self, held):
        super().__init__()
        self.held, self.seen = held, []

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func.namespace == "normplace":
            next(given for given in args if isinstance(given, cls)).seen.append(func.name())
        return func(*(given.held if isinstance(given, cls) else given for given in args), **(kwargs or {}))


def test_a_tensor_subclass_goes_through_the_dispatcher():
    x, f = torch.randn(2, 3, 4), torch.randn(2, 3, 4)
    assert all_plain(x, None, torch.nn.Parameter(f))
    for name, call in (
        ("relation_scan", npl.ops.relation_scan),
        ("relation_pairs", npl.ops.relation_pairwise),
        ("norm_add_norm", lambda x, f: npl.ops.norm_add_norm(x, f, out_norm="rms", backend="reference")[0]),
    ):
        wrapped = Wrapped(x)
        assert not all_plain(x, wrapped)
        with torch.no_grad():
            torch.testing.assert_close(call(wrapped, f), call(x, f))
        assert wrapped.seen == [f"normplace::{name}"]


def test_nothing_is_active_by_default():
    assert not is_traced()
    assert not in_transform()


def test_a_dispatch_mode_and_a_compiler_are_detected():
    with Mode():
        assert is_traced()
    compiled = torch.compile(lambda x: x + is_traced(), backend="eager", fullgraph=True)
    assert compiled(torch.zeros(1)) == 1


def test_transforms_are_detected():
    seen = []
    torch.func.grad(lambda x: seen.append(in_transform()) or x)(torch.tensor(1.0))
    with forward_ad.dual_level():
        seen.append(in_transform())
    assert seen == [True, True]


def test_on_device_of_passes_arguments():
    x = torch.zeros(1)
    assert on_device_of(x, lambda *given: given, x, 3) == (x, 3)


@needs_gpu
def test_the_device_of_a_tensor_becomes_current():
    x = torch.zeros(1, device=f"cuda:{torch.cuda.device_count() - 1}")
    assert on_device_of(x, torch.cuda.current_device) == x.get_device()

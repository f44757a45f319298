"""The boundary as an operator: registration, compilation, saved memory and errors."""

from __future__ import annotations

import shutil

import pytest
import torch
from tests.ops.norm_add_norm.boundary import Boundary, variants
from torch.utils.checkpoint import checkpoint

from normplace.errors import UsageError
from normplace.ops import boundary_backend, norm_add_norm
from normplace.ops.backends import INSTALLED
from normplace.ops.norm_add_norm import op
from normplace.ops.norm_add_norm.reference import BoundarySpec, OptionalTensors

FLOATS = (torch.float32,) * 3


@pytest.fixture(autouse=True)
def reset_compiler():
    """Start each test without compiled functions, so that the limit of recompilations does not apply."""
    torch.compiler.reset()


@pytest.mark.parametrize(("out_norm", "in_norm"), [("rms", "layer"), (None, "rms"), ("layer", None), (None, None)])
def test_the_operator_is_registered_for_all_optional_tensors(out_norm, in_norm):
    case = Boundary(out_norm, in_norm, shifts=True, scales=True, branch="channel", dropout=0.2)
    leaves = case.leaves()
    names = ("out_weight", "out_bias", "in_weight", "in_bias", "branch_scale", "out_scale", "in_scale")
    tensors = OptionalTensors(*(leaves.get(name) for name in names), torch.tensor(3))
    norms = out_norm or "none", in_norm or "none"
    spec = BoundarySpec(*norms, 1e-6, 1e-6, False, 1.1, 1.0, 0.2, *FLOATS, torch.float32, "reference")
    torch.library.opcheck(op.BOUNDARY.operator, (leaves["x"], leaves["f"], *tensors, *spec))


@pytest.mark.parametrize(("out_norm", "in_norm"), [("rms", "rms"), ("layer", "layer"), (None, "rms"), ("rms", None)])
def test_gradients_are_the_same_when_traced_in_one_graph(out_norm, in_norm):
    for options in ({}, {"shifts": True, "scales": True, "branch": "scalar", "dropout": 0.2}):
        case = Boundary(out_norm, in_norm, **options)
        case.compare(wrap=lambda call: torch.compile(call, backend="aot_eager", fullgraph=True))


@pytest.mark.skipif(not shutil.which("g++"), reason="torch.compile needs a C++ compiler")
def test_gradients_are_the_same_when_compiled():
    case = Boundary("layer", "rms", shifts=True, branch="channel")
    case.compare(wrap=lambda call: torch.compile(call, fullgraph=True))


def test_checkpointing_drops_the_same_elements():
    case = Boundary("rms", "rms", dropout=0.4)
    case.compare(wrap=lambda call: lambda *a, **k: checkpoint(call, *a, use_reentrant=False, **k))


def test_autograd_saves_the_branch_the_stream_and_two_statistics_per_row():
    sizes = []

    def pack(tensor):
        sizes.append(tensor.untyped_storage().nbytes())
        return tensor

    def saved(out_norm, in_norm):
        sizes.clear()
        x, f = (torch.randn(64, 32, requires_grad=True) for _ in range(2))
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            norm_add_norm(x, f, out_norm=out_norm, in_norm=in_norm, backend="reference")
        return sum(sizes)

    rows, tensor = 64 * 4, 64 * 32 * 4
    assert saved("rms", "rms") == 2 * tensor + 2 * rows
    assert saved("layer", "layer") == 2 * tensor + 4 * rows
    assert saved(None, "rms") == tensor + 2 * rows
    assert saved("rms", None) == tensor + 2 * rows


def test_a_plain_add_reuses_the_incoming_gradient():
    x, f = (torch.randn(3, 4, requires_grad=True) for _ in range(2))
    stream, y = norm_add_norm(x, f, out_norm=None, backend="reference")
    grads = torch.autograd.grad([stream, y], [x, f], [torch.ones_like(x), torch.ones_like(x)])
    assert grads[0].data_ptr() == grads[1].data_ptr()


def test_the_backend_is_reported_with_its_reason():
    x = torch.ones(2, 3)
    assert "on cpu" in boundary_backend(x).reason and boundary_backend(x).backend == "composed"
    assert boundary_backend(x.bfloat16()).backend == "reference"
    assert op.choose_backend("cuda", FLOATS, 16384).backend == ("triton" if INSTALLED["triton"] else "reference")
    assert "float64" in op.choose_backend("cuda", (torch.float64,), 8).reason or not INSTALLED["triton"]
    assert "16384" in op.choose_backend("cuda", FLOATS, 16385).reason or not INSTALLED["triton"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"backend": "numba"}, "backend"),
        ({"out_norm": "batch"}, "norm"),
        ({"f": torch.ones(2, 4)}, "one shape"),
        ({"f": torch.ones(2, 3, dtype=torch.int64)}, "floating point"),
        ({"out_weight": torch.ones(2)}, "3 features"),
        ({"x": torch.ones(2, 0), "f": torch.ones(2, 0)}, "at least one feature"),
        ({"branch_scale": torch.ones(2)}, "3 features"),
        ({"out_scale": torch.ones(3)}, "each row"),
        ({"in_weight": torch.ones(3, device="meta")}, "must be on cpu"),
        ({"in_norm": None, "in_scale": torch.ones(2)}, "need a norm"),
        ({"out_norm": None, "out_bias": torch.ones(3)}, "need a norm"),
        ({"dropout": 0.5}, "needs a seed"),
        ({"dropout": 1.0}, "less than 1"),
        ({"dropout": 0.5, "seed": torch.ones(2)}, "int64"),
        ({"backend": "triton"}, "cannot run"),
    ],
)
def test_a_bad_argument_raises(options, words):
    with pytest.raises(UsageError, match=words):
        norm_add_norm(**({"x": torch.ones(2, 3), "f": torch.ones(2, 3)} | options))


def test_fake_results_match_for_every_variant():
    """The fake results have the shapes and dtypes of the real ones."""
    for case in variants(dtype=torch.bfloat16, stream_dtype=torch.float32):
        with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True):
            fake = case.results()
        real = case.results()
        assert {k: (v.shape, v.dtype) for k, v in fake.items()} == {k: (v.shape, v.dtype) for k, v in real.items()}


@pytest.mark.parametrize("backend", ["composed", "reference"])
def test_results_are_contiguous_whatever_the_inputs_are(backend):
    x, f = torch.randn(3, 5, 4).transpose(0, 1), torch.randn(5, 3, 8)[..., ::2]
    stream, y = norm_add_norm(x, f, backend=backend)
    assert stream.is_contiguous() and y.is_contiguous()
    expected = norm_add_norm(x.contiguous(), f.contiguous(), backend=backend)
    assert torch.equal(stream, expected[0]) and torch.equal(y, expected[1])

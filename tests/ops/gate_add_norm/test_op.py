"""Gate, add, norm and modulation as an operator: registration, compilation, saved memory and errors."""

from __future__ import annotations

import pytest
import torch
from tests.ops.gate_add_norm.gates import GateCase, variants
from torch.utils.checkpoint import checkpoint

from normplace.errors import UsageError
from normplace.ops import gate_add_norm
from normplace.ops.backends import INSTALLED
from normplace.ops.gate_add_norm import op
from normplace.ops.gate_add_norm.reference import GateSpec


@pytest.fixture(autouse=True)
def reset_compiler():
    """Start each test without compiled functions, so that the limit of recompilations does not apply."""
    torch.compiler.reset()


@pytest.mark.parametrize("norm", ["layer", "rms", "none"])
@pytest.mark.parametrize("branch", [True, False])
def test_the_operator_is_registered_for_all_optional_tensors(norm, branch):
    if norm == "none" and not branch:
        pytest.skip("the op computes nothing")
    case = GateCase(None if norm == "none" else norm, affine=True, branch=branch)
    leaves = case.leaves()
    tensors = [leaves.get(name) for name in ("x", "f", "gate", "scale", "shift", "weight", "bias")]
    spec = GateSpec(norm, 1e-5, *(torch.float32,) * 4, branch, "once", "reference")
    torch.library.opcheck(op.GATE_ADD_NORM.operator, (*tensors, *spec))


def test_gradients_are_the_same_when_traced_in_one_graph():
    for options in ({"branch": False}, {"norm": None}):  # the contract of all ops has the others
        GateCase(**options).compare(wrap=lambda call: torch.compile(call, backend="aot_eager", fullgraph=True))


def test_checkpointing_changes_nothing():
    GateCase().compare(wrap=lambda call: lambda **tensors: checkpoint(call, use_reentrant=False, **tensors))


def test_fake_results_match_for_every_variant():
    for case in variants(dtype=torch.bfloat16, x_dtype=torch.float32):
        with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True):
            fake = case.results()
        real = case.results()
        assert {k: (v.shape, v.dtype) for k, v in fake.items()} == {k: (v.shape, v.dtype) for k, v in real.items()}


def test_autograd_saves_the_stream_the_branch_and_statistics():
    sizes = []

    def pack(tensor):
        sizes.append(tensor.untyped_storage().nbytes())
        return tensor

    def saved(**needs):
        sizes.clear()
        x, f = (torch.randn(4, 16, 32, requires_grad=True) for _ in range(2))
        gate = torch.randn(4, 32, **needs)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            gate_add_norm(x, f, gate=gate, backend="reference")
        return sum(sizes)

    rows, tensor, factor = 64 * 4, 64 * 32 * 4, 4 * 32 * 4
    assert saved(requires_grad=True) == 2 * tensor + 4 * rows + factor
    assert saved(requires_grad=False) == tensor + 4 * rows + factor


def test_without_a_gate_a_gradient_is_reused():
    x, f = (torch.randn(2, 3, 4, requires_grad=True) for _ in range(2))
    stream, y = gate_add_norm(x, f, backend="reference")
    grads = torch.autograd.grad([stream, y], [x, f], [torch.ones_like(x), torch.ones_like(x)])
    assert grads[0].data_ptr() == grads[1].data_ptr()


def test_the_backend_is_chosen_with_a_reason():
    assert "float64" in op.choose_backend("cuda", (torch.float64,), 8).reason or not INSTALLED["triton"]
    assert "9000" in op.choose_backend("cuda", (torch.float32,), 9000).reason or not INSTALLED["triton"]
    assert op.choose_backend("cpu", (torch.float32,), 8).backend == "reference"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"backend": "composed"}, "backend"),
        ({"norm": "batch"}, "norm"),
        ({"rounding": "twice"}, "rounding"),
        ({"eps": -1.0}, "eps"),
        ({"x": torch.ones(2, 3, 0), "f": torch.ones(2, 3, 0)}, "at least one feature"),
        ({"f": torch.ones(2, 5, 4)}, "one shape"),
        ({"f": torch.ones(2, 3, 4, dtype=torch.int64)}, "floating point"),
        ({"gate": torch.ones(3, 4)}, "each sample"),
        ({"scale": torch.ones(2, 3)}, "4 features"),
        ({"shift": torch.ones(1, 3, 4)}, "each sample"),
        ({"gate": torch.ones(2, 4, device="meta")}, "must be on cpu"),
        ({"norm": None, "shift": torch.ones(2, 4)}, "need a norm"),
        ({"f": None, "gate": torch.ones(2, 4)}, "nothing to gate"),
        ({"f": None, "stream_dtype": torch.float64}, "keeps its dtype"),
        ({"y_dtype": torch.int64}, "floating-point dtype"),
        ({"weight": torch.ones(3)}, "4 features"),
        ({"backend": "triton"}, "cannot run"),
    ],
)
def test_a_bad_argument_raises(options, words):
    with pytest.raises(UsageError, match=words):
        gate_add_norm(**({"x": torch.ones(2, 3, 4), "f": torch.ones(2, 3, 4)} | options))

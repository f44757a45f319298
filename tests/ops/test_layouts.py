"""Layouts tuned on one GPU stay within the limits of others."""

from __future__ import annotations

import pytest
import torch

triton = pytest.importorskip("triton", reason="layouts are those of Triton kernels")

from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from normplace.ops.layouts import INTERPRETER, GPULimits, gpu_limits  # noqa: E402
from normplace.ops.norm_add_norm import layouts as boundary  # noqa: E402
from normplace.ops.relation import pair_plan, scale_kernels  # noqa: E402
from normplace.ops.relation.common import RelationKey, RelationSpec  # noqa: E402

CPU = torch.device("cpu")
H200 = GPULimits(multiprocessors=132, shared_bytes=232_448, warp_size=32)
T4 = GPULimits(multiprocessors=40, shared_bytes=65_536, warp_size=32)
MI300 = GPULimits(multiprocessors=304, shared_bytes=65_536, warp_size=64)
WIDTHS = (1, 3, 64, 100, 1024, 4096, 8192, 16384)


def boundary_layouts(monkeypatch, limits, row_bytes=8, channel_bytes=16):
    """The layouts of forward and backward passes for every width on a GPU with these limits."""
    monkeypatch.setattr(boundary, "gpu_limits", lambda device: limits)
    for width in WIDTHS:
        for flag in (False, True):
            for table in (boundary.forward_table(width, flag, True), boundary.backward_table(width, flag)):
                layout = boundary.layout_for(table, width, CPU, row_bytes, channel_bytes)
                constants = layout.constants
                pipelined = (constants["STAGES"] - 1) * constants["BLOCK"]
                yield layout, pipelined * (constants["ROWS"] * row_bytes + channel_bytes)


def test_a_cpu_has_the_limits_of_the_interpreter():
    assert gpu_limits(CPU) is INTERPRETER


@pytest.mark.parametrize("limits", [H200, T4, MI300])
def test_boundaries_fit_threads_and_shared_memory(monkeypatch, limits):
    for layout, pipelined_bytes in boundary_layouts(monkeypatch, limits):
        assert layout.warps * limits.warp_size <= 1024
        assert pipelined_bytes <= limits.shared_bytes - boundary.RESERVED_BYTES


def test_the_tuned_layouts_are_used_unchanged_where_they_fit(monkeypatch):
    layouts = [layout for layout, _ in boundary_layouts(monkeypatch, H200)]
    assert max(layout.warps for layout in layouts) == 32
    assert max(layout.constants["STAGES"] for layout in layouts) > 1


# Shared memory that one program may use, by compute capability (CUDA C++ Programming Guide, technical specifications).
SHARED_BYTES = {75: 64 * 1024, 86: 99 * 1024}


def shared_bytes(launch, capability, dtype):
    """Shared memory of a compiled kernel; needs no GPU."""
    kernel, constants = launch.kernel, launch.constants
    numbers = {"first", "T", "D", "heads", "width", "stride"}
    types = {
        name: "constexpr" if name in constants else "i32" if name in numbers else "*fp32" for name in kernel.arg_names
    }
    types |= dict.fromkeys(("a", "b"), dtype) | ({"eps": "fp32"} if "eps" in types else {})
    values = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    source = ASTSource(fn=kernel, signature=types, constexprs=values)
    return triton.compile(source, GPUTarget("cuda", capability, 32), dict(launch.options)).metadata.shared


@pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")
@pytest.mark.skipif(
    type(scale_kernels.pair_scales).__name__ != "JITFunction", reason="the interpreter does not compile"
)
@pytest.mark.parametrize("capability", SHARED_BYTES)
def test_matrix_products_fit_small_gpus(capability):
    for dtype, pointer in ((torch.float32, "*fp32"), (torch.bfloat16, "*bf16")):
        plan = pair_plan.PairPlan(RelationKey(RelationSpec("joint"), (4, 512, 256), dtype, False, CPU))
        through = plan.through_scale(4)
        assert through is not None
        for call in (*plan.scales(4), through):
            assert shared_bytes(call.launch, capability, pointer) <= SHARED_BYTES[capability]

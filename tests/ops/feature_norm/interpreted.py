"""The norm by the kernels of the boundary on a CPU; test_feature_norm.py runs it with TRITON_INTERPRET=1."""

from __future__ import annotations

import torch
from tests.ops import interpreter  # noqa: F401 (sets up Triton's interpreter)
from tests.ops.feature_norm.norms import NormCase, variants
from tests.ops.norm_add_norm.boundary import Boundary
from tests.ops.norm_add_norm.interpreted import poison

from normplace.ops import feature_norm
from normplace.ops.launch import clear_plans
from normplace.ops.norm_add_norm import layouts


def rounds_like_the_reference(dtype: torch.dtype) -> None:
    """Kernel and reference round the same way: of 2,000 elements few differ, by the order of the reduction.

    Not in bfloat16, to which the interpreter truncates.
    """
    single = torch.float32
    orders = [("result", "once", None, None), ("gain", "gain", None, None), ("once", "gain", None, None)]
    orders += [("rows", "gain", single, single), ("rows", "gain", dtype, single), ("gain", "gain", single, dtype)]
    for out, after, stream_dtype, y_dtype in orders:
        case = Boundary("rms", "rms", shape=(20, 100), dtype=dtype, parameter_dtype=single if stream_dtype else None)
        options = {"out_rounding": out, "in_rounding": after, "stream_dtype": stream_dtype, "y_dtype": y_dtype}
        case.options = lambda plain=case.options, options=options: plain() | options
        kernel, reference = case.results("triton"), case.results("reference")
        for name, value in kernel.items():
            expected = reference[name]
            assert value.dtype == expected.dtype
            error = (value.double() - expected.double()).abs().max() / expected.double().abs().max()
            assert error < 2e-3, (out, after, name, error)
            if value.dtype == dtype and name in ("stream", "y"):
                assert (value != expected).double().mean() < 0.01, (out, after, name)


def is_nan_where_squares_overflow() -> None:
    """And not zero."""
    x = torch.randn(3, 12)
    x[1] *= 1e25
    for norm in ("layer", "rms"):
        y = feature_norm(x, norm=norm, backend="triton")
        assert y[1].isnan().all()
        assert y[::2].isfinite().all()


def main() -> None:
    """Compare with the brute force; a mismatch raises an AssertionError."""
    poison()
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for case in variants(shape=(5, 12), dtype=dtype):
            case.compare("triton")
    for width in (1, 2, 3, 31, 64, 257, 2053):
        NormCase("layer", (3, width), bias=True).compare("triton")
        NormCase("rms", (2, 1, width)).compare("triton")
    for rows in (1, 33, 70):
        NormCase("rms", (rows, 130)).compare("triton")
    strided = torch.randn(3, 4, 5, 12).transpose(1, 2)
    assert torch.equal(feature_norm(strided, backend="triton"), feature_norm(strided.contiguous(), backend="triton"))
    rounds_like_the_reference(torch.float16)
    is_nan_where_squares_overflow()
    # Rows processed in blocks, the last of them padded, and sums computed by the separate kernel.
    layouts.MAX_REGISTER_WIDTH = layouts.FEW_ROWS = layouts.MAX_SUMMED_WIDTH = 0
    layouts.BACKWARD_WIDE = {128: layouts.BoundaryTile(rows=2, warps=1)}
    layouts.COLUMN_SUMS = layouts.BoundaryTile(rows=2, warps=1, per_sm=4, columns=4)
    layouts.FORWARD_BLOCKS = {128: layouts.BoundaryTile(rows=1, warps=1, columns=8)}
    clear_plans()
    for case in variants(shape=(5, 12)):
        case.compare("triton")
    is_nan_where_squares_overflow()
    # Wider blocks for wider rows, the last still padded.
    layouts.FORWARD_BLOCKS = {128: layouts.BoundaryTile(rows=1, warps=1, columns=32)}
    layouts.COLUMN_SUMS = layouts.BoundaryTile(rows=4, warps=1, per_sm=4, columns=32)
    clear_plans()
    rounds_like_the_reference(torch.float16)
    print("every kernel agrees")


if __name__ == "__main__":
    main()

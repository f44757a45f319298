"""Every branch of the kernels on a CPU; test_triton.py runs it in a process with TRITON_INTERPRET=1."""

from __future__ import annotations

import torch
from tests.ops import interpreter  # noqa: F401 (sets up Triton's interpreter)
from tests.ops.norm_add_norm.boundary import Boundary, variants

from normplace.ops import norm_add_norm
from normplace.ops.launch import clear_plans
from normplace.ops.norm_add_norm import layouts


def poison() -> None:
    """Fill the results of ``torch.empty`` with nan, so that an element that no kernel writes is detected."""
    for name in ("empty", "empty_like"):
        plain = getattr(torch, name)

        def filled(*args, plain=plain, **kwargs):
            tensor = plain(*args, **kwargs)
            return tensor.fill_(float("nan")) if tensor.is_floating_point() else tensor

        setattr(torch, name, filled)


def needs_no_gradients(case: Boundary) -> None:
    """Results are the same without statistics for a backward pass."""
    with torch.no_grad():
        stream, y = norm_add_norm(**case.tensors, **case.options(), backend="triton")
    kept = case.results("triton")
    assert torch.equal(stream, kept["stream"]) and torch.equal(y, kept["y"])


def main() -> None:
    """Compare with the brute force; a mismatch raises an AssertionError."""
    poison()
    for case in variants(shape=(5, 12)):
        case.compare("triton")
    needs_no_gradients(Boundary("layer", "rms", shifts=True))
    for width in (1, 2, 3, 7, 31, 64, 127, 257, 1021, 2053):
        if width == 1021:  # wide rows add few partial sums at a time, of many channels
            layouts.SUM_CHUNK, layouts.SUM_SPAN = 2, 512
        Boundary("layer", "layer", shape=(3, width), shifts=True).compare("triton")
        Boundary("rms", "rms", shape=(2, 1, width)).compare("triton")
    Boundary("layer", "rms", shape=(2, 16384)).compare("triton")
    Boundary("rms", "layer", shape=(2, 16381), shifts=True, scales=True, dropout=0.2).compare("triton")
    Boundary("layer", "layer", shape=(2, 6144), shifts=True).compare("triton")
    # More rows than programs: each processes several.
    for rows in (1, 2, 33, 70):
        Boundary("layer", "layer", shape=(rows, 1), shifts=True, scales=True).compare("triton")
        Boundary("rms", "layer", shape=(rows, 130)).compare("triton")
    for dtype in (torch.bfloat16, torch.float16):
        for kinds in (("rms", "rms"), ("layer", "layer"), (None, "rms"), ("rms", None)):
            Boundary(*kinds, shape=(9, 40), dtype=dtype).compare("triton")
            options = {"stream_dtype": torch.float32, "parameter_dtype": torch.float32}
            Boundary(*kinds, shape=(9, 40), dtype=dtype, **options).compare("triton")
    for options in ({}, {"shifts": True, "scales": True, "branch": "scalar", "dropout": 0.2}):
        whole = Boundary("layer", "rms", **options)
        whole.compare("triton", wrap=lambda call: torch.compile(call, backend="aot_eager", fullgraph=True))
    # Rows processed in blocks, the last of them padded, and sums computed by the separate kernel.
    layouts.MAX_REGISTER_WIDTH = layouts.FEW_ROWS = layouts.MAX_SUMMED_WIDTH = 0
    layouts.BACKWARD_WIDE = {12: layouts.BoundaryTile(rows=2, warps=1)}
    layouts.COLUMN_SUMS = layouts.BoundaryTile(rows=2, warps=1, per_sm=4, columns=4)
    for columns, cases in ((4, [Boundary("rms", "rms", shape=(5, 12))]), (8, variants(shape=(5, 12)))):
        layouts.FORWARD_BLOCKS = {12: layouts.BoundaryTile(rows=1, warps=1, columns=columns)}
        clear_plans()
        for case in cases:
            case.compare("triton")
        needs_no_gradients(Boundary("rms", "rms"))
    print("every kernel agrees")


if __name__ == "__main__":
    main()

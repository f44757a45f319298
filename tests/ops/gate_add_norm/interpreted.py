"""Every branch of the kernels on a CPU; test_triton.py runs it in a process with TRITON_INTERPRET=1."""

from __future__ import annotations

import torch
from tests.ops import interpreter  # noqa: F401 (sets up Triton's interpreter)
from tests.ops.gate_add_norm.gates import GateCase, variants
from tests.ops.norm_add_norm.interpreted import poison

from normplace.ops import gate_add_norm


def rounds_like_the_reference() -> None:
    """Kernel and reference round the same way: of 2,000 elements few differ, by the order of the reduction.

    Not in bfloat16, to which the interpreter truncates.
    """
    for rounding in ("result", "gain"):
        for x_dtype in (None, torch.float32):
            options = {"x_dtype": x_dtype, "y_dtype": x_dtype, "affine": True, "rounding": rounding}
            case = GateCase("layer", (2, 10, 100), torch.float16, **options)
            kernel, reference = case.results("triton"), case.results("reference")
            assert torch.equal(kernel["stream"], reference["stream"])
            differ = (kernel["y"] - reference["y"]).abs() > 1e-5
            assert differ.double().mean() < 0.01, (rounding, x_dtype)


def main() -> None:
    """Compare with the brute force; a mismatch raises an AssertionError."""
    poison()
    for case in variants():
        case.compare("triton")
    with torch.no_grad():
        case = GateCase(affine=True)
        stream, y = gate_add_norm(**case.tensors, **case.options(), backend="triton")
    kept = case.results("triton")
    assert torch.equal(stream, kept["stream"]) and torch.equal(y, kept["y"])
    for width in (1, 7, 257):
        GateCase("layer", (2, 3, width)).compare("triton")
    GateCase("rms", (2, 1, 2053), affine=True).compare("triton")
    # Many samples of one token, and samples with more tokens than a program processes at a time.
    for shape in ((20, 1, 8), (1, 140, 8), (2, 9, 130)):
        GateCase("layer", shape).compare("triton")
    for dtype in (torch.bfloat16, torch.float16):
        GateCase("layer", (3, 7, 40), dtype).compare("triton")
        GateCase("layer", (3, 7, 40), dtype, torch.float32, affine=True).compare("triton")
        GateCase("rms", (3, 7, 40), dtype, torch.float32, torch.float32).compare("triton")
    rounds_like_the_reference()
    print("every kernel agrees")


if __name__ == "__main__":
    main()

"""Accurate means and reciprocal square roots inside Triton kernels.

Triton divides and computes roots with the hardware's approximate instructions, with which even x / 1 may differ from x.
One correction step restores the last digit, without the branches of the exact instructions.
"""
# Triton compiles these functions by its own rules.
# pyright: reportAttributeAccessIssue=false, reportOperatorIssue=false, reportArgumentType=false

import triton
import triton.language as tl


@triton.jit
def mean_of(total, count):
    """``total / count``, correctly rounded."""
    count = tl.zeros_like(total) + count
    inverse = 1.0 / count
    mean = total * inverse
    return mean + tl.fma(-mean, count, total) * inverse


@triton.jit
def reciprocal_root(x):
    """``1 / sqrt(x)`` of a positive number; 0 for infinity."""
    root = tl.rsqrt(x)
    # One Newton step corrects the last digits; the residual includes the rounding error of the product.
    product = x * root
    residual = tl.fma(-product, root, 1.0) - tl.fma(x, root, -product) * root
    return tl.where(x < float("inf"), root + 0.5 * root * residual, root)

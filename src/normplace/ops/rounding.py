"""Means and reciprocal roots inside Triton kernels, to the last digit but without the branches of exact instructions.

Triton divides and takes roots with the hardware's approximate instructions: a number divided by 1 may come out changed.
"""
# Triton compiles these functions by its own rules.
# pyright: reportAttributeAccessIssue=false, reportOperatorIssue=false, reportArgumentType=false

import triton
import triton.language as tl


@triton.jit
def mean_of(total, count):
    """``total / count``, rounded as a division is."""
    count = tl.zeros_like(total) + count
    inverse = 1.0 / count
    mean = total * inverse
    return mean + tl.fma(-mean, count, total) * inverse


@triton.jit
def reciprocal_root(x):
    """``1 / sqrt(x)`` of a positive number, 0 of infinity."""
    root = tl.rsqrt(x)
    # One step of Newton's method gives its last digits, with what the product loses by rounding added to the residual.
    product = x * root
    residual = tl.fma(-product, root, 1.0) - tl.fma(x, root, -product) * root
    return tl.where(x < float("inf"), root + 0.5 * root * residual, root)

"""Vectorized exponentials and logarithms.

In float32 they are polynomial approximations within two units in the last place; in float64 they call the C library.
"""

from __future__ import annotations

import numpy as np

from normplace.ops.numba_lanes import inlined, recast, to_float32, where

# Adding it rounds a float32 of moderate size to an integer, which is then in the last bits.
_ROUNDER = np.float32(1.5 * 2**23)
_ZERO, _ONE, _MANTISSA = np.float32(0.0), np.float32(1.0), np.int32(23)
# The exponential of a smaller number is taken as zero; of slightly smaller ones it is not a normal float32.
_LEAST = np.float32(-87.0)
# log 2 in two parts; the product of the first with an integer is exact.
_LOG2_HIGH, _LOG2_LOW = np.float32(0.693359375), np.float32(2.12194440e-4)


@inlined
def weight32(x):
    """The exponential of a float32 under 88.7; 0 below -87, so that a message of any size has no weight there."""
    rounded = x * np.float32(1.44269504) + _ROUNDER
    n = rounded - _ROUNDER
    f = x - n * _LOG2_HIGH + n * _LOG2_LOW
    # Minimax polynomial on |f| <= log(2)/2, with relative error 3e-9.
    s = f * np.float32(0.00138145988) + np.float32(0.00836871658)
    s = s * f + np.float32(0.041668389)
    s = s * f + np.float32(0.166665211)
    s = s * f + np.float32(0.49999994)
    s = s * f + _ONE
    s = s * f + _ONE
    return where(x < _LEAST, _ZERO, recast(recast(s) + (recast(rounded) << _MANTISSA)))


# The bits of n plus this number end in those of 2^n.
_POWER = np.float32(1.5 * 2**23 + 127)


@inlined
def power_of_two32(x):
    """``2^x`` for a float32 between -126 and 127; nan for nan."""
    rounded = x + _POWER
    f = x - (rounded - _POWER)
    # Minimax polynomial on |f| <= 1/2, with relative error 2e-9.
    s = f * np.float32(1.53533621e-4) + np.float32(1.33988746e-3)
    s = s * f + np.float32(9.61843736e-3)
    s = s * f + np.float32(5.55033247e-2)
    s = s * f + np.float32(0.240226479)
    s = s * f + np.float32(0.693147203)
    s = s * f + _ONE
    return s * recast(recast(rounded) << _MANTISSA)


@inlined
def exp32(x):
    """The exponential of any float32; 0 below -87."""
    return where(x > np.float32(88.7228), np.float32(np.inf), weight32(x))


@inlined
def log32(x):
    """The logarithm of a positive float32, as 2 artanh((f - 1) / (f + 1)) with f within a factor √2 of 1."""
    bits = recast(x)
    # The exponent for a mantissa between √½ and √2.
    n = (bits - np.int32(0x3F3504F3)) >> _MANTISSA
    f = recast(bits - (n << _MANTISSA))
    d = f - _ONE
    s = d / (f + _ONE)
    q = s * s
    r = q * np.float32(2 / 9) + np.float32(2 / 7)
    r = r * q + np.float32(2 / 5)
    r = r * q + np.float32(2 / 3)
    # 2 s = d - s d, where d is exact and the error of the small s d is negligible.
    e = to_float32(n)
    log = d - s * (d - r * q) - e * _LOG2_LOW + e * _LOG2_HIGH
    return where(x > np.float32(0.0), log, np.float32(np.nan))

"""Functions that the Triton kernels of the boundary share, on tiles of rows × columns."""
# Triton compiles these functions: conditions on constants are decided at compile time and may leave names undefined.
# pyright: reportAttributeAccessIssue=false, reportPossiblyUnboundVariable=false, reportArgumentType=false

import triton
import triton.language as tl

# The hardware's default cache eviction policy.
ANY_ORDER = tl.constexpr("")


@triton.jit
def _mix(h):
    h = (h ^ (h >> 16)) * 0x7FEB352D
    h = (h ^ (h >> 15)) * 0x846CA68B
    return h ^ (h >> 16)


@triton.jit
def kept(v, seed, row, cols, dropout):
    """``v`` after dropout."""
    key = tl.load(seed)
    row = row.to(tl.uint32)
    first = _mix(row ^ _mix(key.to(tl.uint32)))
    second = _mix(row ^ _mix((key >> 32).to(tl.uint32) ^ 0x9E3779B9))
    bits = _mix(_mix(cols.to(tl.uint32)[None, :] ^ first[:, None]) + second[:, None])
    kept = (bits >> 8).to(tl.float32) * 5.9604644775390625e-08 >= dropout  # 2**-24
    return tl.where(kept, v / (1.0 - dropout), 0.0)


@triton.jit
def read(pointer, row, stride, cols, mask, EVICT: tl.constexpr = ANY_ORDER):
    """Elements of rows in their own dtype."""
    place = row.to(tl.int64)[:, None] * stride + cols[None, :]
    return tl.load(pointer + place, mask=mask, other=0.0, eviction_policy=EVICT)


@triton.jit
def unpadded(v, inside, D: tl.constexpr, BLOCK: tl.constexpr):
    """``v`` with zeros in the padding, from which a mean has been subtracted too."""
    return v if D == BLOCK else tl.where(inside[None, :], v, 0.0)


@triton.jit
def channels(pointer, cols, inside):
    """One value for each channel."""
    # Read from the cache for every tile: kept in registers, they would allow fewer programs.
    place = pointer + cols[None, :]
    return tl.load(place, mask=inside[None, :], other=0.0, eviction_policy="evict_last").to(tl.float32)


@triton.jit
def scaled(v, scale, row, there):
    """Rows times their scales, if any."""
    if scale is not None:
        v *= tl.load(scale + row, mask=there, other=0.0).to(tl.float32)[:, None]
    return v


@triton.jit
def gained(v, weight, cols, inside, OFFSET: tl.constexpr):
    """Channels times their gains, plus one if ``OFFSET``."""
    if weight is not None:
        gain = channels(weight, cols, inside)
        v *= gain + 1.0 if OFFSET else gain
    return v


@triton.jit
def affine(v, weight, bias, cols, inside, OFFSET: tl.constexpr):
    """``v`` times gains plus biases, if any."""
    v = gained(v, weight, cols, inside, OFFSET)
    if bias is not None:
        v += channels(bias, cols, inside)
    return v


@triton.jit
def as_rounded(v, pointer):
    """``v`` rounded to the dtype of a tensor."""
    return v.to(pointer.dtype.element_ty).to(tl.float32)


@triton.jit
def as_narrower(v, one, other):
    """``v`` rounded to the narrower of the dtypes of two tensors."""
    if one.dtype.element_ty.primitive_bitwidth < other.dtype.element_ty.primitive_bitwidth:
        v = as_rounded(v, one)
    else:
        v = as_rounded(v, other)
    return v


@triton.jit
def times(v, factor):
    """``factor * v``; a missing factor is one."""
    return v if factor is None else factor * v


@triton.jit
def branched(v, branch, branch_value, cols, inside, PER_CHANNEL: tl.constexpr):
    """``v`` times the multiplier of the branch."""
    if branch is None:
        v = times(v, branch_value)
    elif PER_CHANNEL:
        v *= channels(branch, cols, inside)
    else:
        v *= tl.load(branch).to(tl.float32)
    return v


@triton.jit
def merged(
    u, v, row, there, cols, inside, weight, bias, branch, scale, seed, skip, branch_value, dropout,
    f, OFFSET: tl.constexpr, PER_CHANNEL: tl.constexpr, ROUNDING: tl.constexpr,
):  # fmt: skip
    """The stream ``v`` plus the branch, from its standardised output ``u``, rounded as ``f`` before it is added."""
    if ROUNDING >= 2:
        u = as_rounded(u, f)
    u = affine(u, weight, bias, cols, inside, OFFSET)
    if ROUNDING == 1 or ROUNDING == 2:
        u = as_rounded(u, f)
    u = scaled(u, scale, row, there)
    if seed is not None:
        u = kept(u, seed, row, cols, dropout)
    return times(v, skip) + branched(u, branch, branch_value, cols, inside, PER_CHANNEL)

"""Set up Triton's interpreter; imported by the modules that run with TRITON_INTERPRET=1."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence

from triton import language
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter

# The interpreter computes in NumPy, which warns about masked lanes where a GPU does not.
warnings.filterwarnings("ignore", category=RuntimeWarning)

# The interpreter patches the language in every call of every function, and derives the same attributes again for every
# tensor and type. The functions below do so once: the values are the same.
_patch_lang, _get_np_dtype = interpreter._patch_lang, interpreter._get_np_dtype
_init_tensor, _init_block_type = language.tensor.__init__, language.block_type.__init__
_broadcast, _is_equal = TritonSemantic.broadcast_impl_value, language.dtype.__eq__
_np_dtypes: dict[str, object] = {}
_tensors: dict[str, dict[str, object]] = {}
_block_types: dict[tuple[str, tuple[int, ...]], dict[str, object]] = {}


@functools.cache
def _patch_lang_once(fn: Callable) -> object:
    """Redirect the language of a function to the interpreter for good; the returned scope restores nothing."""
    return type(_patch_lang(fn))()


def _np_dtype_once(dtype: language.dtype) -> object:
    name = dtype.scalar.name
    if name not in _np_dtypes:
        _np_dtypes[name] = _get_np_dtype(dtype)
    return _np_dtypes[name]


def _init_tensor_once(self: language.tensor, handle: object, type: language.dtype) -> None:
    if type.name in _tensors:
        vars(self).update(_tensors[type.name], handle=handle, type=type, dtype=type.scalar)
    else:
        _init_tensor(self, handle, type)
        _tensors[type.name] = vars(self).copy()


def _init_block_type_once(self: language.block_type, element_ty: language.dtype, shape: Sequence) -> None:
    key = element_ty.name, tuple(size.value if isinstance(size, language.constexpr) else size for size in shape)
    if key in _block_types:
        vars(self).update(_block_types[key], element_ty=element_ty)
    else:
        _init_block_type(self, element_ty, shape)
        _block_types[key] = vars(self).copy()


def _broadcast_if_needed(self: TritonSemantic, lhs: language.tensor, rhs: language.tensor) -> object:
    a, b = lhs.type, rhs.type
    if a is b or (a.is_block() and b.is_block() and a.shape.values == b.shape.values):
        return lhs, rhs
    return _broadcast(self, lhs, rhs)


def _is_same_or_equal(self: language.dtype, other: object) -> bool:
    return self is other or _is_equal(self, other)


interpreter._patch_lang, interpreter._get_np_dtype = _patch_lang_once, _np_dtype_once
language.tensor.__init__, language.block_type.__init__ = _init_tensor_once, _init_block_type_once
TritonSemantic.broadcast_impl_value, language.dtype.__eq__ = _broadcast_if_needed, _is_same_or_equal

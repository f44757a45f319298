"""One forward pass, written down operator by operator.

The recorder sits below autograd and above the kernels, where PyTorch has already taken its composite functions apart.
So a model is recorded however it is written, with real tensors or with ``meta`` ones that cost neither memory nor time.

Values are numbered once each: a tensor that is changed in place gets a new number, and so do the tensors that share its
memory, so that later code can read the tape as if nothing had ever been changed.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch._library import custom_ops
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode

from normplace.analysis.recording.source import callers, custom_function
from normplace.analysis.recording.tape import Call, Op, Ref, Tape, Value

# What these read or return tells how large the statistics of a norm, and the stream, are.
MEASURED_INPUT = {"rsqrt", "sqrt", "linalg_vector_norm"}
MEASURED_OUTPUT = {"add", "native_layer_norm", "_fused_rms_norm", "native_group_norm"}
OVERWRITING = {"copy", "zero", "fill", "normal", "uniform", "bernoulli", "exponential"}


def record(
    model: nn.Module, inputs: tuple[Any, ...], kwargs: Mapping[str, Any], recorder: Recorder | None = None
) -> Tape:
    """Call the model once, in evaluation mode and without gradients, and return the tape.

    Training flags and the global random state are put back.

    Args:
        model: What to call.
        inputs: What to call it with.
        kwargs: The same by name.
        recorder: One that does more than write down; by default a plain one.
    """
    with evaluating(model), torch.no_grad(), ExitStack() as stack:
        recorder = recorder or Recorder(model)
        stack.enter_context(recorder.hooks())
        stack.enter_context(recorder)
        recorder.declare((inputs, kwargs), "input")
        result = model(*inputs, **kwargs)
        recorder.tape.outputs = recorder.numbers(result)
    return recorder.tape


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Run a model in evaluation mode; training flags and the global random state are put back afterwards."""
    training = {module: module.training for module in model.modules()}
    # The fused encoder layer is one operator, in which no norm can be seen.
    fast = torch.backends.mha.get_fastpath_enabled()
    with torch.random.fork_rng(devices=[]):
        try:
            torch.backends.mha.set_fastpath_enabled(False)
            model.eval()
            yield
        finally:
            for module, flag in training.items():
                module.training = flag
            torch.backends.mha.set_fastpath_enabled(fast)


def said_by(error: BaseException) -> str:
    """The first line of an error, for a sentence about it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0].rstrip('.:')}" if lines else type(error).__name__


def tensors_of(structure: Any, seen: set[int] | None = None) -> Iterator[Tensor]:
    """The tensors in nested containers, and in objects that keep theirs as attributes."""
    seen = set() if seen is None else seen
    if isinstance(structure, Tensor):
        yield structure
        return
    if isinstance(structure, str | bytes | int | float | bool | type(None) | type) or id(structure) in seen:
        return
    seen.add(id(structure))
    if isinstance(structure, Mapping):
        held: Any = structure.values()
    elif isinstance(structure, list | tuple | set):
        held = structure
    elif isinstance(structure, nn.Module):
        return
    else:
        held = getattr(structure, "__dict__", {}).values()
    for part in list(held):
        yield from tensors_of(part, seen)


@dataclass(slots=True)
class _Known:
    """What is known of one tensor object."""

    tensor: weakref.ref[Tensor]
    value: int
    version: int


@dataclass(slots=True)
class _Storage:
    """The writes into one piece of memory that more than one tensor may look at."""

    version: int = 0
    writes: list[tuple[int, int, _Geometry | None]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Signature:
    """What an operator's schema says, and the function behind an operator that was written in Python."""

    name: str
    written: tuple[tuple[int, str], ...]
    views: bool
    opened: Callable[..., Any] | None


class Recorder(TorchDispatchMode):
    """Writes every operator and module call down while it is active."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.tape = Tape()
        self._known: dict[int, _Known] = {}
        self._storages: dict[int, _Storage] = {}
        self._signatures: dict[int, _Signature] = {}
        self._stack: list[int] = []
        self._modules = tuple(model.modules())
        self._paths = {id(module): name for name, module in model.named_modules()}
        for module in model.modules():
            for value in vars(module).values():
                if isinstance(value, Tensor):
                    self._new_tensor(value, "constant")
        for buffer in model.buffers():
            self._new_tensor(buffer, "buffer")
        for parameter in model.parameters():
            self._new_tensor(parameter, "parameter")

    def declare(self, structure: Any, origin: str) -> None:
        """Make the tensors of a structure known before the pass begins."""
        for tensor in tensors_of(structure):
            if id(tensor) not in self._known:
                self._new_tensor(tensor, origin)

    def numbers(self, structure: Any) -> tuple[int, ...]:
        """The values of the tensors of a structure."""
        return tuple(self._read(tensor) for tensor in tensors_of(structure))

    def _held(self, structure: Any) -> dict[Any, int]:
        """The values of the tensors that a structure holds itself, by position or name."""
        if isinstance(structure, Tensor):
            return {None: self._read(structure)}
        if isinstance(structure, Mapping):
            pairs: Any = structure.items()
        else:
            pairs = enumerate(structure) if isinstance(structure, list | tuple) else ()
        return {key: self._read(value) for key, value in pairs if isinstance(value, Tensor)}

    def hooks(self) -> ExitStack:
        """Follow module calls until the stack is closed."""

        def enter(module: nn.Module, args: Any) -> None:
            parent = self._call
            path = self._paths.get(id(module))
            if path is None:  # a module made on the way
                above = self.tape.calls[parent].path if parent >= 0 else ""
                path = f"{above}.<{type(module).__name__}>".lstrip(".")
            function = self._function(2)  # the call that is entered, and its parent's
            self._stack.append(len(self.tape.calls))
            self.tape.calls.append(
                Call(path, parent, self.numbers(args), arguments=self._held(args), function=function)
            )

        def leave(module: nn.Module, args: Any, result: Any) -> None:
            call = self.tape.calls[self._stack.pop()]
            call.outputs, call.results = self.numbers(result), self._held(result)

        def name(module: nn.Module, args: Any, kwargs: Any) -> None:  # only hooks of one module are told names
            self.tape.calls[self._call].arguments.update(self._held(kwargs))

        stack = ExitStack()
        stack.callback(register_module_forward_pre_hook(enter).remove)
        stack.callback(register_module_forward_hook(leave, always_call=True).remove)
        for module in self._modules:
            stack.callback(module.register_forward_pre_hook(name, prepend=True, with_kwargs=True).remove)
        return stack

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        signature = self._signatures.get(id(func)) or self._signature(func)  # operators are slow to hash
        if signature.opened is not None and all(tensor.device.type == "cpu" for tensor in tensors_of((args, kwargs))):
            with self:
                return signature.opened(*args, **kwargs)
        if signature.name == "lift_fresh" and id(args[0]) not in self._known:
            self._new_tensor(args[0], "constant")  # a tensor literal in the model's code
        inputs: list[int] = []
        refs = tuple([self._refer(value, inputs) for value in args])
        named = {key: self._refer(value, inputs) for key, value in kwargs.items()}
        if signature.name in MEASURED_INPUT:
            self._measure(args[0], inputs[0])
        result = func(*args, **kwargs)
        written = [kwargs.get(key) if at >= len(args) else args[at] for at, key in signature.written]
        if written and signature.name in OVERWRITING:
            inputs = [number for number in inputs if number != inputs[0]]
        outputs = self._results(signature, result, list(tensors_of(written)))
        op = Op(signature.name, refs, named, tuple(inputs), outputs, self._call)
        if signature.name == "add":
            op.where, op.function = callers(), self._function(1)
        self.tape.ops.append(op)
        return result

    @property
    def _call(self) -> int:
        return self._stack[-1] if self._stack else -1

    def _function(self, modules: int) -> str | None:
        """The outermost user-defined ``autograd.Function`` that is running, searched for up to the current call."""
        known = self.tape.calls[self._call].function if self._stack else None
        return known or custom_function(record.__code__, modules)

    def _refer(self, value: Any, inputs: list[int]) -> Any:
        """An argument with its tensors replaced by their numbers, which are appended to ``inputs``."""
        if isinstance(value, Tensor):
            inputs.append(self._read(value))
            return Ref(inputs[-1])
        if isinstance(value, list | tuple):
            return tuple([self._refer(part, inputs) for part in value])
        return value

    def _results(self, signature: _Signature, result: Any, changed: list[Tensor]) -> tuple[int, ...]:
        """Number what the next operator changed and returned."""
        returned = (result,) if isinstance(result, Tensor) else tensors_of(result)
        fresh = [tensor for tensor in returned if not any(tensor is other for other in changed)]
        outputs = [self._changed(tensor) for tensor in changed]
        for tensor in fresh:
            if not signature.views and self._storages:
                self._storages.pop(_key(tensor), None)
            outputs.append(self._new_tensor(tensor, "op"))
        if signature.name in MEASURED_OUTPUT:
            for tensor, number in zip([*changed, *fresh], outputs, strict=True):
                if signature.name == "add" or tensor is not fresh[0]:
                    self._measure(tensor, number)
        return tuple(outputs)

    def _signature(self, func: Any) -> _Signature:
        schema = func._schema
        space, _, name = schema.name.partition("::")
        written = tuple(
            (at, argument.name)
            for at, argument in enumerate(schema.arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
        )
        if written and name.endswith("_") and not name.endswith("__"):
            name = name[:-1]
        views = any(out.alias_info is not None and not out.alias_info.is_write for out in schema.returns)
        # Running statistics are written by the operator, but they are no result of it.
        kept = () if "batch_norm" in name or "rms" in name else written
        defined = None if space == "aten" else custom_ops.OPDEFS.get(schema.name)
        opened = None if defined is None else defined._init_fn
        found = _Signature(name if space == "aten" else f"{space}::{name}", kept, views, opened)
        self._signatures[id(func)] = found
        return found

    def _new_value(self, tensor: Tensor, origin: str) -> int:
        self.tape.values.append(Value(tuple(tensor.shape), tensor.dtype, origin))
        return len(self.tape.values) - 1

    def _new_tensor(self, tensor: Tensor, origin: str) -> int:
        number = self._new_value(tensor, origin)
        storage = self._storages.get(_key(tensor)) if self._storages else None
        self._known[id(tensor)] = _Known(weakref.ref(tensor), number, storage.version if storage else 0)
        return number

    def _read(self, tensor: Tensor) -> int:
        """The tensor's number, a new one if its memory was written through another tensor."""
        known = self._known.get(id(tensor))
        if known is None or known.tensor() is not tensor:
            return self._new_tensor(tensor, "input")
        storage = self._storages.get(_key(tensor)) if self._storages else None
        if storage is None or known.version >= storage.version:
            return known.value
        own = _geometry(tensor)
        writes = [
            (number, where)
            for version, number, where in storage.writes
            if version > known.version and _overlap(own, where)
        ]
        if not writes:
            known.version = storage.version
            return known.value
        inputs = (writes[-1][0],) if writes[-1][1] == own else (known.value, *(number for number, _ in writes))
        number = self._new_value(tensor, "op")
        refs = tuple(Ref(value) for value in inputs)
        self.tape.ops.append(Op("shared_write", refs, {}, inputs, (number,), self._call))
        known.value, known.version = number, storage.version
        return number

    def _changed(self, tensor: Tensor) -> int:
        number = self._new_value(tensor, "op")
        storage = self._storages.setdefault(_key(tensor), _Storage())
        storage.version += 1
        storage.writes.append((storage.version, number, _geometry(tensor)))
        self._known[id(tensor)] = _Known(weakref.ref(tensor), number, storage.version)
        return number

    def _measure(self, tensor: Any, number: int) -> None:
        if isinstance(tensor, Tensor) and tensor.is_floating_point() and not tensor.is_meta and tensor.numel():
            low, high = torch.aminmax(tensor.detach())
            self.tape.values[number].extent = (low.item(), high.item())


def _key(tensor: Tensor) -> int:
    try:
        return tensor.untyped_storage()._cdata
    except RuntimeError:  # sparse and opaque tensors own no storage
        return id(tensor)


_Geometry = tuple[int, tuple[int, ...], tuple[int, ...]]


def _geometry(tensor: Tensor) -> _Geometry | None:
    """Offset, shape and strides of a tensor, those of a flat one where it is contiguous; None where it has none."""
    if tensor.layout is not torch.strided:
        return None
    if tensor.is_contiguous():
        return int(tensor.storage_offset()), (tensor.numel(),), (1,)
    return int(tensor.storage_offset()), tuple(tensor.shape), tuple(tensor.stride())


def _overlap(one: _Geometry | None, other: _Geometry | None) -> bool:
    """Whether two parts of a storage may share an element; parts of different strides do if their ranges do."""
    if one is None or other is None:
        return True
    (start, shape, strides), (begin, sizes, steps) = one, other
    last = start + sum((size - 1) * step for size, step in zip(shape, strides, strict=True))
    end = begin + sum((size - 1) * step for size, step in zip(sizes, steps, strict=True))
    if last < begin or end < start:
        return False
    if strides != steps:
        return True
    widest = [max(pair) for pair in zip(shape, sizes, strict=True)]
    dims = sorted(zip(strides, widest, strict=True), reverse=True)
    return _is_combination(begin - start, [dim for dim in dims if dim[1] > 1])


def _is_combination(distance: int, dims: list[tuple[int, int]]) -> bool:
    """Whether a distance is a sum of fewer than ``size`` strides, forward or backward, in each dimension."""
    if not dims:
        return distance == 0
    (stride, size), *rest = dims
    if stride == 0:
        return _is_combination(distance, rest)
    nearest = distance // stride
    return any(abs(n) < size and _is_combination(distance - n * stride, rest) for n in (nearest, nearest + 1))

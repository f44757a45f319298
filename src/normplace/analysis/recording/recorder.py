"""Record one forward pass, operator by operator.

The recorder is a dispatch mode: it runs below autograd and above the kernels, where PyTorch has already split its
composite functions. It works for any model code, with real tensors or with ``meta`` tensors, which cost no memory.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._library import custom_ops
from torch._ops import HigherOrderOperator
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode

from normplace.analysis.dataflow.operators import ATTENTION
from normplace.analysis.recording.ids import NO_CALL, CallId, ValueId
from normplace.analysis.recording.memory import TrackedTensor, WrittenStorage, geometry, overlap, storage_key
from normplace.analysis.recording.source import calling_code, custom_function
from normplace.analysis.recording.structures import require_shapes, tensors_of
from normplace.analysis.recording.tape import Call, Op, Tape, Value, ValueRef

# The range of these operands and results shows how large the statistics of norms, and the streams, are.
MEASURED_INPUT = {"rsqrt", "sqrt", "linalg_vector_norm"}
MEASURED_OUTPUT = {"add", "native_layer_norm", "_fused_rms_norm", "native_group_norm"}
SPARSE_LAYOUTS = {torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc}
OVERWRITING = {"copy", "zero", "fill", "normal", "uniform", "bernoulli", "exponential"}
# The steps of an aggregation over edges are not layers: a softmax subtracts and adds back the largest message.
RECORDED_AS_ONE = {"normplace::aggregate", "normplace::neighbours"}


@dataclass(frozen=True, slots=True)
class _Signature:
    """Facts about an operator.

    Attributes:
        name: Its name on the tape.
        written: Position and name of the arguments that it writes to.
        views: Whether it returns a view of an argument.
        python_body: The function of an operator that is written in Python and whose steps are recorded.
    """

    name: str
    written: tuple[tuple[int, str], ...]
    views: bool
    python_body: Callable[..., Any] | None


class Recorder(TorchDispatchMode):
    """Records operators and module calls on a tape.

    Subclasses may override :meth:`on_new_value`.

    Attributes:
        tape: The tape.
        is_on_meta: Whether a parameter or buffer of the model is on the meta device.
        measures_ranges: Whether the range of sums and statistics is measured, which waits for the device.
        failed_operator: The operator that raised an exception, or None.
    """

    measures_ranges = True
    supports_higher_order_operators = True
    _is_kept_from_compiler = False

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        require_shapes(model)
        self._keep_from_compiler()
        self.tape = Tape()
        self.failed_operator: str | None = None
        self._tensors: dict[int, TrackedTensor] = {}
        self._storages: dict[int, WrittenStorage] = {}
        self._signatures: dict[int, _Signature] = {}
        self._stack: list[CallId] = []
        self._model = model
        self._modules = dict(model.named_modules())
        self._paths = {id(module): name for name, module in self._modules.items()}
        # These get ids where they are read: a later pass may find more of them than the first.
        self._attributes = {
            id(value): value
            for module in self._modules.values()
            for value in vars(module).values()
            if isinstance(value, Tensor)
        }
        buffers, parameters = list(model.buffers()), list(model.parameters())
        for buffer in buffers:
            self._new_tensor(buffer, "buffer")
        for parameter in parameters:
            self._new_tensor(parameter, "parameter")
        self.is_on_meta = any(tensor.is_meta for tensor in (*parameters, *buffers))

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Whether torch wraps ``__torch_dispatch__`` so that its compiler never traces it; see the next method."""
        return False

    @staticmethod
    def _keep_from_compiler() -> None:
        """Wrap ``__torch_dispatch__`` so that the compiler never traces it, once the compiler is loaded.

        The wrapper of torch loads the compiler with the first operator, which takes longer than a small audit.
        """
        if "torch._dynamo" in sys.modules and not Recorder._is_kept_from_compiler:
            setattr(Recorder, "__torch_dispatch__", torch.compiler.disable(Recorder.__torch_dispatch__))  # noqa: B010
            Recorder._is_kept_from_compiler = True

    def record(self, inputs: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tape:
        """Call the model once and return the tape."""
        with self.hooks(), _uncached_casts(), self:
            self.declare((inputs, kwargs), "input")
            result = self._model(*inputs, **kwargs)
            self.tape.outputs = self.value_ids(result)
        return self.tape

    def on_new_value(self, value: ValueId, tensor: Tensor) -> None:
        """Called for each new value with the tensor that holds it."""

    def declare(self, structure: Any, origin: str) -> None:
        """Give the tensors of a structure ids before the pass begins."""
        for tensor in tensors_of(structure):
            if not self._is_tracked(tensor):
                self._new_tensor(tensor, origin)

    def value_ids(self, structure: Any) -> tuple[ValueId, ...]:
        """The ids of all tensors in a structure, nested ones included."""
        return tuple(self._value_of(tensor) for tensor in tensors_of(structure))

    def direct_value_ids(self, structure: Any) -> dict[Any, ValueId]:
        """The ids of the tensors directly in a container by position or name; of a bare tensor by None."""
        if isinstance(structure, Tensor):
            return {None: self._value_of(structure)}
        if isinstance(structure, Mapping):
            pairs: Any = structure.items()
        else:
            pairs = enumerate(structure) if isinstance(structure, list | tuple) else ()
        return {key: self._value_of(value) for key, value in pairs if isinstance(value, Tensor)}

    def known_value(self, tensor: Tensor) -> ValueId | None:
        """The id of a tensor's value; None if it was not seen, or its memory was written since."""
        if not self._is_tracked(tensor):
            return None
        tracked = self._tensors[id(tensor)]
        storage = self._storages.get(storage_key(tensor)) if self._storages else None
        return tracked.value if storage is None or tracked.version >= storage.version else None

    def _is_tracked(self, tensor: Tensor) -> bool:
        """Whether a tensor has a value; its id alone may be that of a deleted tensor."""
        tracked = self._tensors.get(id(tensor))
        return tracked is not None and tracked.tensor() is tensor

    @contextmanager
    def hooks(self):
        """Record module calls while the context is open."""

        def enter(module: nn.Module, args: Any) -> None:
            parent = self._call
            path = self._paths.get(id(module))
            if path is None:  # a module built during the pass
                path = f"{self.tape.path(parent)}.<{type(module).__name__}>".lstrip(".")
            function = self._custom_function(2)  # the frames of this call and of its parent's
            self._stack.append(CallId(len(self.tape.calls)))
            call = Call(path, parent, self.value_ids(args), arguments=self.direct_value_ids(args), function=function)
            call.recurrent = isinstance(module, nn.RNNBase | nn.RNNCellBase)
            self.tape.calls.append(call)

        def leave(module: nn.Module, args: Any, result: Any) -> None:
            call = self.tape.calls[self._stack.pop()]
            call.outputs, call.results = self.value_ids(result), self.direct_value_ids(result)

        def add_keyword_arguments(module: nn.Module, args: Any, kwargs: Any) -> None:
            # Global hooks do not receive keyword arguments; hooks of a module do.
            self.tape.calls[self._call].arguments.update(self.direct_value_ids(kwargs))

        with ExitStack() as stack:
            stack.callback(register_module_forward_pre_hook(enter).remove)
            stack.callback(register_module_forward_hook(leave, always_call=True).remove)
            for module in self._modules.values():
                handle = module.register_forward_pre_hook(add_keyword_arguments, prepend=True, with_kwargs=True)
                stack.callback(handle.remove)
            yield

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if isinstance(func, HigherOrderOperator):
            return self._run_whole(func, args, kwargs)
        signature = self._signatures.get(id(func)) or self._signature(func)  # operators are slow to hash
        if signature.python_body is not None and all(
            tensor.device.type == "cpu" for tensor in tensors_of((args, kwargs))
        ):
            with self:
                return signature.python_body(*args, **kwargs)
        if signature.name == "lift_fresh" and not self._is_tracked(args[0]):
            self._new_tensor(args[0], "constant")  # a tensor literal in the model's code
        inputs: list[ValueId] = []
        refs = tuple([self._ref(value, inputs) for value in args])
        named_refs = {key: self._ref(value, inputs) for key, value in kwargs.items()}
        if signature.name in MEASURED_INPUT:
            self._measure(args[0], inputs[0])
        try:
            result = func(*args, **kwargs)
        except Exception:
            self.failed_operator = self.failed_operator or signature.name
            raise
        written: list[Tensor] = []
        if signature.written:
            arguments = [kwargs.get(key) if index >= len(args) else args[index] for index, key in signature.written]
            written = list(tensors_of(arguments))
            if signature.name in OVERWRITING:
                inputs = [value for value in inputs if value != inputs[0]]
        outputs = self._outputs(signature, result, written)
        op = Op(signature.name, refs, named_refs, tuple(inputs), outputs, self._call)
        if signature.name == "add":
            op.location, op.function = calling_code(), self._custom_function(1)
        self.tape.ops.append(op)
        return result

    def _run_whole(self, func: HigherOrderOperator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record an operator that calls Python functions, such as ``flex_attention``, as one step."""
        inputs: list[ValueId] = []
        refs = tuple([self._ref(value, inputs) for value in args])
        named_refs = {key: self._ref(value, inputs) for key, value in kwargs.items()}
        result = func(*args, **kwargs)
        outputs = tuple(self._new_tensor(tensor, "op") for tensor in tensors_of(result))
        name = func.name() if func.name() in ATTENTION else f"higher_order::{func.name()}"
        self.tape.ops.append(Op(name, refs, named_refs, tuple(inputs), outputs, self._call))
        return result

    @property
    def _call(self) -> CallId:
        return self._stack[-1] if self._stack else NO_CALL

    def _custom_function(self, max_calls: int) -> str | None:
        """The outermost user-defined ``autograd.Function`` that is running."""
        known = self.tape.calls[self._call].function if self._stack else None
        return known or custom_function(Recorder.record.__code__, max_calls)

    def _ref(self, value: Any, inputs: list[ValueId]) -> Any:
        """An argument with tensors replaced by their ids, which are appended to ``inputs``."""
        if isinstance(value, Tensor):
            inputs.append(self._value_of(value))
            return ValueRef(inputs[-1])
        if isinstance(value, list | tuple):
            return tuple([self._ref(part, inputs) for part in value])
        return value

    def _outputs(self, signature: _Signature, result: Any, written: list[Tensor]) -> tuple[ValueId, ...]:
        """Give ids to the tensors that an operator wrote to and returned."""
        fresh = [result] if isinstance(result, Tensor) else list(tensors_of(result))
        if written:
            fresh = [tensor for tensor in fresh if not any(tensor is other for other in written)]
        outputs = [self._overwritten(tensor) for tensor in written]
        for tensor in fresh:
            if not signature.views and self._storages:
                self._storages.pop(storage_key(tensor), None)
            outputs.append(self._new_tensor(tensor, "op"))
        if signature.name in MEASURED_OUTPUT:
            for tensor, value in zip([*written, *fresh], outputs, strict=True):
                if signature.name == "add" or tensor is not fresh[0]:
                    self._measure(tensor, value)
        return tuple(outputs)

    def _signature(self, func: Any) -> _Signature:
        schema = func._schema
        namespace, _, name = schema.name.partition("::")
        written = tuple(
            (index, argument.name)
            for index, argument in enumerate(schema.arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
        )
        if written and name.endswith("_") and not name.endswith("__"):
            name = name[:-1]
        views = any(out.alias_info is not None and not out.alias_info.is_write for out in schema.returns)
        # Norm operators write their running statistics, which are not results.
        results = () if "batch_norm" in name or "rms" in name else written
        is_whole = namespace == "aten" or schema.name in RECORDED_AS_ONE
        definition = None if is_whole else custom_ops.OPDEFS.get(schema.name)
        body = None if definition is None else definition._init_fn
        signature = _Signature(name if namespace == "aten" else f"{namespace}::{name}", results, views, body)
        self._signatures[id(func)] = signature
        return signature

    def _new_value(self, tensor: Tensor, origin: str) -> ValueId:
        value = ValueId(len(self.tape.values))
        is_sparse = tensor.layout in SPARSE_LAYOUTS
        self.tape.values.append(Value(tuple(tensor.shape), tensor.dtype, origin, is_sparse=is_sparse))
        self.on_new_value(value, tensor)
        return value

    def _new_tensor(self, tensor: Tensor, origin: str) -> ValueId:
        value = self._new_value(tensor, origin)
        storage = self._storages.get(storage_key(tensor)) if self._storages else None
        self._tensors[id(tensor)] = TrackedTensor(weakref.ref(tensor), value, storage.version if storage else 0)
        return value

    def _value_of(self, tensor: Tensor) -> ValueId:
        """The id of a tensor's value, a new id if its memory was written through another tensor."""
        if not self._is_tracked(tensor):
            return self._new_tensor(tensor, "constant" if id(tensor) in self._attributes else "input")
        tracked = self._tensors[id(tensor)]
        storage = self._storages.get(storage_key(tensor)) if self._storages else None
        if storage is None or tracked.version >= storage.version:
            return tracked.value
        own = geometry(tensor)
        writes = [
            (value, covered)
            for version, value, covered in storage.writes
            if version > tracked.version and overlap(own, covered)
        ]
        if not writes:
            tracked.version = storage.version
            return tracked.value
        inputs = (writes[-1][0],) if writes[-1][1] == own else (tracked.value, *(value for value, _ in writes))
        result = self._new_value(tensor, "op")
        refs = tuple(ValueRef(value) for value in inputs)
        self.tape.ops.append(Op("shared_write", refs, {}, inputs, (result,), self._call))
        tracked.value, tracked.version = result, storage.version
        return result

    def _overwritten(self, tensor: Tensor) -> ValueId:
        value = self._new_value(tensor, "op")
        storage = self._storages.setdefault(storage_key(tensor), WrittenStorage())
        storage.version += 1
        storage.writes.append((storage.version, value, geometry(tensor)))
        self._tensors[id(tensor)] = TrackedTensor(weakref.ref(tensor), value, storage.version)
        return value

    def _measure(self, tensor: Any, value: ValueId) -> None:
        if not self.measures_ranges or not isinstance(tensor, Tensor):
            return
        if tensor.is_floating_point() and not tensor.is_meta and tensor.numel():
            low, high = torch.aminmax(tensor.detach())
            self.tape.values[value].extent = (low.item(), high.item())


@contextmanager
def _uncached_casts():
    """Let autocast cast weights again, because those that it cast in an earlier pass have no origin on the tape."""
    enabled = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(enabled)

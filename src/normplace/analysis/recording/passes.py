"""Run a model and record the pass, with errors that explain a failed pass."""

from __future__ import annotations

import inspect
import random
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from normplace._shared.modules import Model, uncompiled
from normplace.analysis.recording.recorder import Recorder
from normplace.analysis.recording.structures import map_tensors, tensors_of
from normplace.analysis.recording.tape import Tape
from normplace.errors import UsageError, first_line

READS_VALUES = {"_local_scalar_dense", "allclose", "repeat_interleave"}
"""Operators that raise a plain RuntimeError on the meta device because they read values."""


class ForwardError(UsageError):
    """A forward pass cannot be recorded.

    Args:
        reason: What happened.
        advice: What to do.

    Attributes:
        reason: What happened, without the advice.
    """

    def __init__(self, reason: str, advice: str) -> None:
        super().__init__(f"{reason}: {advice}")
        self.reason = reason


def record_pass(
    model: nn.Module, inputs: tuple[Any, ...], kwargs: Mapping[str, Any], recorder: Recorder | None = None
) -> Tape:
    """Call a model once, in evaluation mode and without gradients, and return the tape.

    Training flags and the global random state are restored.

    Raises:
        ForwardError: If the arguments do not fit or the pass fails.
    """
    name = type(model).__name__
    try:
        inspect.signature(model.forward).bind(*inputs, **kwargs)
    except TypeError as error:
        raise ForwardError(
            f"{name}.forward does not take these inputs ({error})", "pass (or return) the model's inputs after it."
        ) from None
    except ValueError:
        pass  # a forward without a signature is called unchecked
    recorder = recorder or Recorder(model)
    on_meta = recorder.is_on_meta
    if on_meta:
        inputs, kwargs = map_tensors(lambda tensor: tensor.to("meta"), (inputs, dict(kwargs)))
    try:
        with evaluating(model), torch.no_grad(), uncompiled_calls():
            return recorder.record(inputs, kwargs)
    except UsageError:
        raise
    except Exception as error:
        if on_meta and (isinstance(error, NotImplementedError) or recorder.failed_operator in READS_VALUES):
            raise ForwardError(
                f"the forward pass reads values of tensors, which a meta model does not have ({first_line(error)})",
                "build the model on the CPU, smaller if need be.",
            ) from error
        shapes = ", ".join(
            f"{tuple(tensor.shape)} {dtype_name(tensor.dtype)}" for tensor in tensors_of((inputs, kwargs))
        )
        advice = "call the model directly to see the traceback."
        if len(inputs) == 1 and isinstance(inputs[0], Mapping):
            advice = "pass the entries of a dict by name, with two stars before it."
        raise ForwardError(
            f"the forward pass failed on inputs {shapes or 'without tensors'} ({first_line(error)})", advice
        ) from error


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Run a model in evaluation mode.

    Training flags, buffers that are written in place, and the global random state are restored afterwards.
    """
    with _in_mode(model, False, []):
        yield


@contextmanager
def training(model: nn.Module, seed: int = 0) -> Iterator[None]:
    """Run a model in training mode with fixed random numbers, and restore the same as :func:`evaluating`."""
    gpus = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    state = random.getstate()
    with _in_mode(model, True, gpus):
        torch.default_generator.manual_seed(seed)
        if gpus:
            torch.cuda.manual_seed_all(seed)
        random.seed(seed)
        try:
            yield
        finally:
            random.setstate(state)


@contextmanager
def _in_mode(model: nn.Module, in_training: bool, gpus: list[int]) -> Iterator[None]:
    flags = {module: module.training for module in model.modules()}
    with torch.random.fork_rng(devices=gpus), unfused_encoder_layers(), _unwritten_buffers(model, in_training):
        try:
            if any(flag != in_training for flag in flags.values()):
                model.train(in_training)
            yield
        finally:
            for module, flag in flags.items():
                if module.training != flag:  # assigning an attribute of a module is slow
                    module.training = flag


@contextmanager
def _unwritten_buffers(model: nn.Module, in_training: bool) -> Iterator[None]:
    """Undo writes to buffers, such as counts of calls and moving averages.

    A buffer that is replaced by another tensor stays, because it is a cache that other attributes describe.
    """
    before = [
        (buffer, buffer._version, buffer.clone())
        for buffer in model.buffers()
        if buffer.layout == torch.strided and not buffer.is_inference()
    ]
    try:
        yield
    finally:
        for buffer, version, copy in before:
            # Batch norm writes its running statistics in training mode without a new version.
            if buffer._version != version or (in_training and not torch.equal(buffer, copy)):
                with torch.no_grad():
                    buffer.copy_(copy)


@contextmanager
def unfused_encoder_layers() -> Iterator[None]:
    """Disable PyTorch's fused encoder layer, one operator in which no norm can be seen."""
    enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(enabled)


@contextmanager
def uncompiled_calls() -> Iterator[None]:
    """Run compiled modules by their own operators, which can be recorded; the compiler would compile the recorder."""
    if "torch._dynamo" not in sys.modules:  # slow to import, and loaded if something is compiled
        yield
        return
    with torch.compiler.set_stance("force_eager"), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Using `torch.compile")  # with the recorder's hooks
        yield


def checked_module(model: Model, function: str) -> Model:
    """The :func:`uncompiled` module of a model that was passed to a public function.

    Raises:
        UsageError: If the model is not a module, or is a TorchScript one.
    """
    if not isinstance(model, nn.Module):
        raise UsageError(f"{function} takes an nn.Module, got {type(model).__name__}: build the model first.")
    if isinstance(model, torch.jit.ScriptModule):
        raise UsageError(f"{function} cannot read the code of a TorchScript model: pass the model it was made from.")
    return uncompiled(model)


def dtype_name(dtype: torch.dtype) -> str:
    """The name of a dtype without ``torch.``."""
    return str(dtype).removeprefix("torch.")

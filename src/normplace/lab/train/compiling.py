"""Regional compilation: repeated parts of a network share compiled code, so one of them is compiled for all."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import nn

from normplace._shared.modules import count_parameters
from normplace.edit.model.hook_guards import guard_hooks
from normplace.models.transformer import Transformer
from normplace.residual import Residual

NETWORKS = 64
"""Compiled forms of a layer that are kept: one for each placement and norm type."""
FORMS_PER_LAYER = 3
"""Compiled forms of one layer: training, evaluation, and evaluation of a smaller last batch."""


def regions(model: nn.Module) -> list[nn.Module]:
    """The parts of a network to compile: its layers, blocks or branches; the network itself if it has none.

    A placement with two streams calls the stages of its blocks, so only their branches can be compiled.
    """
    blocks = [module for module in model.modules() if isinstance(module, Residual)]
    streams = model.config.rule.streams if isinstance(model, Transformer) else None
    if isinstance(model, Transformer) and streams == "one":
        return list(model.layers)
    if streams is not None and streams != "b2t":
        return [block.branch for block in blocks]
    return list[nn.Module](blocks) or [model]


def compile_regions(model: nn.Module) -> None:
    """Compile the parts of a network in place; networks with the same placement and widths share the compiled code."""
    compile_modules(regions(model))


def compile_edited(model: nn.Module) -> None:
    """Compile the repeated layers of a network that may have been edited, such as a model of Hugging Face.

    An edit may add hooks to a layer. By default a layer with other hooks would run the code that was compiled for the
    first, so hooks become part of what identifies the code.
    """
    guard_hooks()
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    is_own = isinstance(model, Transformer) or not lists
    compile_modules(regions(model) if is_own else list(max(lists, key=count_parameters)))


def compile_modules(modules: Sequence[nn.Module]) -> None:
    """Compile modules in place; those with the same code and shapes share the compiled code."""
    from torch._dynamo import config as compile_config  # takes a second to import

    # Some placements have a constant that differs between layers, so that each layer has its own code.
    forms = max(NETWORKS, FORMS_PER_LAYER * len(modules))
    compile_config.recompile_limit = max(compile_config.recompile_limit, forms)
    for module in modules:
        module.compile(dynamic=False)


class CompileTimer:
    """Measures the time that PyTorch compiles."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._reported = 0.0
        self._start = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Measure while the block runs."""
        from torch._dynamo.callback import callback_handler

        callback_handler.register_start_callback(self._begin)
        callback_handler.register_end_callback(self._end)
        try:
            yield
        finally:
            callback_handler.remove_start_callback(self._begin)
            callback_handler.remove_end_callback(self._end)

    def take(self) -> float:
        """The seconds of compilation since the last call."""
        seconds, self._reported = self.seconds - self._reported, self.seconds
        return seconds

    def _begin(self, _: Any) -> None:
        self._start = time.perf_counter()

    def _end(self, _: Any) -> None:
        self.seconds += time.perf_counter() - self._start

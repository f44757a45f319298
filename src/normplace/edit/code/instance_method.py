"""A rewritten method that belongs to one module instance."""

from __future__ import annotations

import inspect
from types import CodeType, FunctionType
from typing import Any

from torch import nn

from normplace.edit.code.recompile import undecorated


class InstanceMethod:
    """A rewritten method of one module instance; as an instance attribute it hides the class's method.

    Args:
        module: The module.
        method: The method's name.
        function: The rewritten method of the class.
    """

    def __init__(self, module: nn.Module, method: str, function: FunctionType) -> None:
        self.module, self.method, self.function = module, method, function
        signature = inspect.signature(getattr(type(module), method))
        self.__signature__ = signature.replace(parameters=list(signature.parameters.values())[1:])

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the rewritten method."""
        return self.function(self.module, *args, **kwargs)

    @property
    def __code__(self) -> CodeType:
        """What ``torch.export`` reads of a model's ``forward``."""
        return undecorated(self.function).__code__

"""Change a model in place: remove norms, add modules, and record every change."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from normplace.analysis.recording.ids import BlockIndex
from normplace.analysis.results import Site
from normplace.edit.code.rewrite import PLACED, wrap_sum
from normplace.edit.model.attachments import (
    add_placed,
    attach_to_input,
    attach_to_output,
    detach,
    device_of,
    place_of,
)
from normplace.edit.model.model_map import ModelMap, SumRef, TensorRef, is_outside_tree
from normplace.edit.model.modules import NormPlaceholder
from normplace.edit.record.changes import Change
from normplace.errors import UsageError


class ModelEditor:
    """Edits one model.

    An ``add_*`` method returns the name of the added module, or None if the same tensor has such a module already, as
    where layers share their code.

    Attributes:
        changes: What was done so far.
        removed: The removed norms, by the name they had.
        placeholders: The names of the placeholders of earlier moves, by slot and block.
    """

    def __init__(self, model: nn.Module, model_map: ModelMap) -> None:
        self.model, self.model_map = model, model_map
        self.changes: list[Change] = []
        self.removed: dict[str, nn.Module] = {}
        self._attached: dict[tuple[str, TensorRef | SumRef], nn.Module] = {}
        self.placeholders: dict[tuple[str, int | None], list[str]] = {}
        self._names: dict[nn.Module, list[str]] = {}
        for path, module in model.named_modules(remove_duplicate=False):
            names = self._names.setdefault(module, [])
            if isinstance(module, NormPlaceholder) and not names:
                self.placeholders.setdefault((module.slot, module.block), []).append(path)
            names.append(path)

    def record(self, action: str, slot: str, name: str, before: str = "", note: str = "") -> None:
        """Record a change."""
        self.changes.append(Change(action, slot, name, before, note))

    def remove_norm(self, site: Site, block: int | None) -> nn.Module:
        """Remove a norm; a placeholder takes its place.

        Raises:
            UsageError: If the norm is not a separate module.
        """
        if site.name in self.removed:
            return self.removed[site.name]
        if not site.own_module or is_outside_tree(site.name):
            raise UsageError(
                f"the {site.kind} norm {site.name!r} is part of the code of {site.module or 'the model'!r}, so it "
                "cannot be removed: make it a module."
            )
        norm = self.model.get_submodule(site.name)
        if not detach(self.model, site.name):
            placeholder = NormPlaceholder(site.slot, block, norm, device_of(self.model))
            self._replace(norm, placeholder.train(norm.training))
        self.removed[site.name] = norm
        return norm

    def _replace(self, old: nn.Module, new: nn.Module) -> None:
        """Put a module in the place of another, under all of its names."""
        self._names[new] = self._names.pop(old)
        for name in self._names[new]:
            self.model.set_submodule(name, new)

    def remove_placed(self, path: str) -> None:
        """Remove a module that an earlier move added."""
        self.removed[path] = self.model.get_submodule(path)
        detach(self.model, path)

    def remove_scalings(self, kind: type[nn.Module]) -> list[str]:
        """Remove the scaling modules that an earlier move added, and return their names."""
        paths = [
            path
            for path, module in self.model.named_modules()
            if type(module) is kind and path.split(".")[-2:-1] == [PLACED]
        ]
        for path in paths:
            detach(self.model, path)
        return paths

    def fill_placeholder(self, slot: str, block: int | None, norm: nn.Module) -> str | None:
        """Put a norm in the place of a removed one of the same slot; None if there is no placeholder."""
        paths = self.placeholders.get((slot, block))
        if not paths:
            return None
        placeholder = self.model.get_submodule(paths[0])
        self._set_mode(norm, placeholder)
        self._replace(placeholder, norm)
        return paths.pop(0)

    def add_before(self, refs: Iterable[TensorRef], owner: str, name: str, module: nn.Module) -> str | None:
        """Pass the inputs of other modules through a module."""
        new_refs = [ref for ref in refs if ("before", ref) not in self._attached]
        if not new_refs:
            return None
        path = self._add_placed(owner, name, module)
        for ref in new_refs:
            self._attached["before", ref] = module
            place = place_of(self.model, ref.module)
            attach_to_input(self.model.get_submodule(ref.module), module, ref.keys, place)
        return path

    def add_after(self, ref: TensorRef, owner: str, name: str, module: nn.Module, first: bool = False) -> str | None:
        """Pass the output of another module through a module."""
        attached = self._attached.get(("after", ref))
        if attached is not None and type(attached) is type(module):
            return None
        self._attached["after", ref] = module
        path = self._add_placed(owner, name, module)
        place = place_of(self.model, ref.module)
        attach_to_output(self.model.get_submodule(ref.module), module, ref.keys[0], first, place)
        return path

    def add_to_sum(self, ref: SumRef, name: str, module: nn.Module) -> str | None:
        """Pass a sum, or another expression in the code of a module, through another module."""
        if ("sum", ref) in self._attached:
            return None
        self._attached["sum", ref] = module
        path = self._add_placed(ref.module, name, module)
        owner = self.model.get_submodule(ref.module)
        wrap_sum(owner, ref.method, ref.position, path.rpartition(".")[2], ref.evaluation, ref.evaluations)
        return path

    def add_final(self, block: BlockIndex, norm: nn.Module) -> str:
        """Add a norm after the last block of a stream, outside the block.

        Raises:
            UsageError: If no code outside the block can call it.
        """
        ref = self.model_map.stream_output(block)
        if ref is None:
            path = self.add_to_sum(self.model_map.sum(block), "final", norm)
            assert path is not None
            return path
        parent, _, key = ref.module.rpartition(".")
        if not isinstance(self.model, nn.Sequential):
            path = self.add_after(ref, "", "final", norm)
            assert path is not None
            return path
        if parent:
            raise UsageError(
                f"cannot add a final norm after {ref.module!r} in a Sequential: wrap the model in a module."
            )
        steps = dict(self.model._modules)
        self.model._modules.clear()
        for name, step in steps.items():
            self.model._modules[name] = step
            if name == key:
                self._set_mode(norm, self.model)
                self.model.add_module("final", norm)
        return "final"

    def _add_placed(self, owner: str, name: str, module: nn.Module) -> str:
        parent = self.model.get_submodule(owner)
        if isinstance(parent, nn.Sequential | nn.ModuleList | nn.ModuleDict):
            raise UsageError(
                f"{owner or 'the model'!r} is a {type(parent).__name__}, which would run an added norm as a further "
                "step: derive it from nn.Module."
            )
        self._set_mode(module, parent)
        return f"{owner}.{PLACED}.{add_placed(parent, name, module)}".lstrip(".")

    def _set_mode(self, module: nn.Module, owner: nn.Module) -> None:
        """Give a new module the mode of another; a moved norm keeps its own, as of a frozen batch norm."""
        if all(module is not norm for norm in self.removed.values()):
            module.train(owner.training)


def disable_fast_paths(model: nn.Module) -> None:
    """Disable PyTorch's fused encoder layer, which supports only LayerNorm in two placements.

    An encoder passes padded batches as nested tensors, which only the fused layer takes.
    """
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoderLayer):
            module.activation_relu_or_gelu = 0
        elif isinstance(module, nn.TransformerEncoder):
            module.use_nested_tensor = False

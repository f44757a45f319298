"""Norms and factors taken out of a model and put into it, one at a time, with a record of each."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from normplace.analysis.results import Site
from normplace.edit.changes import Change
from normplace.edit.model_map import ModelMap, SumRef, TensorRef, is_made
from normplace.edit.parts import NormPlaceholder, after, before, put, take_out
from normplace.edit.rewrite import PLACED, RewrittenMethod
from normplace.errors import UsageError


class ModelEditor:
    """Changes one model.

    Args:
        model: The model, which is changed.
        located: Where it can be taken hold of.
    """

    def __init__(self, model: nn.Module, located: ModelMap) -> None:
        self.model, self.located = model, located
        self.record: list[Change] = []
        self.taken: dict[str, nn.Module] = {}
        self._held: dict[tuple[str, TensorRef | SumRef], nn.Module] = {}
        self.placeholders: dict[tuple[str, int | None], list[str]] = {}
        for path, module in model.named_modules():
            if isinstance(module, NormPlaceholder):
                self.placeholders.setdefault((module.slot, module.block), []).append(path)

    def take(self, site: Site, block: int | None) -> nn.Module:
        """Take a norm out; what called it then passes on what it is given.

        Args:
            site: The norm.
            block: The block it belongs to, or ends the stream of.

        Raises:
            UsageError: If the norm is not a module of its own.
        """
        if site.name in self.taken:
            return self.taken[site.name]
        if not site.own_module or is_made(site.name):
            raise UsageError(
                f"the {site.kind} norm {site.name!r} is written into the code of {site.module or 'the model'!r}, so it "
                "cannot be taken out: make it a module of its own."
            )
        norm = self.model.get_submodule(site.name)
        if not take_out(self.model, site.name):
            vacant = NormPlaceholder(site.slot, block, getattr(norm, "weight", None))
            self.model.set_submodule(site.name, vacant.train(norm.training))
        self.taken[site.name] = norm
        return norm

    def take_factors(self, kind: type[nn.Module]) -> list[str]:
        """Take out the factors that an earlier move put in, and return their names."""
        paths = [
            path
            for path, module in self.model.named_modules()
            if isinstance(module, kind) and path.split(".")[-2:-1] == [PLACED]
        ]
        for path in paths:
            take_out(self.model, path)
        return paths

    def fill(self, slot: str, block: int | None, norm: nn.Module) -> str | None:
        """Put a norm where one of the same slot stood before; None if there is no such place."""
        paths = self.placeholders.get((slot, block))
        if not paths:
            return None
        self.model.set_submodule(paths[0], norm.train(self.model.training))
        return paths.pop(0)

    def before_branch(self, holds: Iterable[TensorRef], owner: str, name: str, part: nn.Module) -> str | None:
        """Put a part on what the modules at the beginning of a branch read; None if something stands there already."""
        fresh = [hold for hold in holds if ("before", hold) not in self._held]
        if not fresh:
            return None
        path = self._put(owner, name, part)
        for hold in fresh:
            self._held["before", hold] = part
            before(self.model.get_submodule(hold.module), part, hold.keys)
        return path

    def behind(self, hold: TensorRef, owner: str, name: str, part: nn.Module, first: bool = False) -> str | None:
        """Put a part on what a module returns; None if something of the same kind stands there already."""
        held = self._held.get(("behind", hold))
        if held is not None and type(held) is type(part):
            return None
        self._held["behind", hold] = part
        path = self._put(owner, name, part)
        after(self.model.get_submodule(hold.module), part, hold.keys[0], first)
        return path

    def on_sum(self, place: SumRef, name: str, part: nn.Module) -> str | None:
        """Put a part on a sum; None if something stands there already."""
        if ("on", place) in self._held:
            return None
        self._held["on", place] = part
        path = self._put(place.module, name, part)
        owner = self.model.get_submodule(place.module)
        held = vars(owner).get(place.method)
        sums = dict(held.sums) if isinstance(held, RewrittenMethod) else {}
        keys = list(sums.get(place.position, (None,) * place.turns))
        keys[place.turn] = path.rpartition(".")[2]
        sums[place.position] = tuple(keys)
        setattr(owner, place.method, RewrittenMethod(owner, place.method, sums))
        return path

    def final(self, block: int, part: nn.Module) -> str:
        """Put a norm behind the last block of a stream, outside it.

        Raises:
            UsageError: If the stream cannot be taken hold of there.
        """
        hold = self.located.returned(block)
        if hold is None:
            path = self.on_sum(self.located.sum(block), "final", part)
            assert path is not None
            return path
        parent, _, key = hold.module.rpartition(".")
        if not isinstance(self.model, nn.Sequential):
            path = self.behind(hold, "", "final", part)
            assert path is not None
            return path
        if parent:
            raise UsageError(
                f"a final norm has no place behind {hold.module!r} in a Sequential: wrap the model in a module."
            )
        steps = dict(self.model._modules)
        self.model._modules.clear()
        for name, step in steps.items():
            self.model._modules[name] = step
            if name == key:
                self.model.add_module("final", part.train(self.model.training))
        return "final"

    def disable_fast_paths(self) -> None:
        """Keep PyTorch's fused encoder layer, which knows its own two placements only, from being taken."""
        for module in self.model.modules():
            if isinstance(module, nn.TransformerEncoderLayer):
                module.activation_relu_or_gelu = 0

    def note(self, done: str, slot: str, name: str, before: str = "", note: str = "") -> None:
        """Write down what was done."""
        self.record.append(Change(done, slot, name, before, note))

    def _put(self, owner: str, name: str, part: nn.Module) -> str:
        module = self.model.get_submodule(owner)
        if isinstance(module, nn.Sequential | nn.ModuleList | nn.ModuleDict):
            raise UsageError(
                f"{owner or 'the model'!r} is a {type(module).__name__}, which would run a norm put into it as a "
                "further step: derive it from nn.Module."
            )
        return f"{owner}.{PLACED}.{put(module, name, part.train(module.training))}".lstrip(".")

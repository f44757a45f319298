"""The plan of a move: for every slot of every block, whether its norm stays, moves, goes or is made."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

import torch
from torch import nn

from normplace.analysis.blocks.naming import BARE
from normplace.analysis.results import Audit, Site
from normplace.edit.changes import changes
from normplace.edit.editor import ModelEditor
from normplace.edit.model_map import ModelMap, TensorRef, is_outside_tree, label
from normplace.edit.modules import FixedScaling, HeadNorm, LearnedScaling
from normplace.edit.new_norms import NormFactory
from normplace.edit.target import is_as, is_learned_alike
from normplace.errors import UsageError
from normplace.placement import BlockSpec, LearnedScale, Placement, Power, resolved

SLOTS = ("input", "output", "stream")
# A norm of the stream stands before the branch or on the sum; one on the branch's output sets another size.
SUCCESSOR = {"input": "stream", "stream": "input"}


class MovePlan:
    """One move.

    Args:
        model: The model, which is changed.
        found: Its audit.
        located: Where it can be taken hold of.
        target: Where its norms shall stand; None to leave them.
        scale: Also ``layerscale`` or ``lns``.
        qk: The kind of norms for queries and keys; None for none.
        norm: The kind of new norms; None for the model's own.
    """

    def __init__(
        self,
        model: nn.Module,
        found: Audit,
        located: ModelMap,
        target: Placement | None,
        scale: str | None,
        qk: str | None,
        norm: str | None,
    ) -> None:
        self.found, self.located, self.target, self.scale, self.qk = found, located, target, scale, qk
        self.editor = ModelEditor(model, located)
        self.like = next((p for p in model.parameters() if p.is_floating_point()), torch.empty(0))
        self.maker = NormFactory(norm, self._templates(model), self.like)
        layouts = [arm.spec for block in found.blocks for arm in block.branches]
        self.bare_share = sum(not layout.slots for layout in layouts) / max(len(layouts), 1)
        self.at: dict[tuple[int | None, str], list[Site]] = {}
        for site in found.sites:
            self.at.setdefault((site.block, site.slot), []).append(site)
        self.wanted = [self._wanted(block) for block in range(len(found.blocks))]
        self.sizes: dict[int, float] = {}
        self.unscaled: set[type[nn.Module]] = set()  # kinds of factors that were taken out
        self.ends_without_norm = changes(model).ends_without_norm or tuple(
            block for block in self._last_blocks() if self._is_bare(block)
        )

    def _templates(self, model: nn.Module) -> list[nn.Module]:
        ranked = sorted(self.found.sites, key=lambda site: site.slot not in SLOTS)
        names = [site.name for site in ranked if site.own_module and not site.slot.startswith("inner")]
        names = [name for name in names if not is_outside_tree(name)]
        return [model.get_submodule(name) for name in names if self.located.arguments_of(name) == 1]

    def _wanted(self, block: int) -> BlockSpec | None:
        """The target at a block; None for one of few that have no norm, such as a convolution that adds positions."""
        own = self.found.blocks[block].branches[0].spec
        if not own.slots and 0 < self.bare_share < BARE:
            return None
        layer, depth = self.located.layers.of(block)
        stream = any(arm.spec.stream for arm in self.found.blocks[block].branches)
        kept = replace(own, inner=(), stream=stream, branch_scale=1.0)
        wanted = kept if self.target is None else self.target.at(layer, depth)
        if self.found.blocks[block].projected and own.skip_normed and wanted.input:
            wanted = replace(wanted, skip_normed=True)  # what a skip projects is no matter of the target
        if self.scale == "layerscale":
            wanted = replace(wanted, branch_scale=LearnedScale(per_channel=True, init=1.0))
        if self.scale == "lns":
            if not wanted.input:
                raise UsageError("the factor of lns stands behind an input norm: choose a placement that has one.")
            wanted = replace(wanted, input_scale=Power("layer", -1 / 2).at(layer, depth))
        return wanted

    def _sites(self, block: int, slot: str) -> list[Site]:
        return self.at.get((block, slot), [])

    def _keeps(self, block: int, slot: str, wanted: BlockSpec) -> bool:
        """Whether what stands in a slot is what the target wants there."""
        as_is = slot != "input" or self.found.blocks[block].branches[0].spec.skip_normed == wanted.skip_normed
        return getattr(wanted, slot) and as_is and bool(self._sites(block, slot))

    def move(self) -> None:
        """Take out, move and add norms and factors, block by block."""
        slots = [
            (block, slot, wanted)
            for block, wanted in enumerate(self.wanted)
            if wanted is not None and not self._is_called_again(block)
            for slot in SLOTS
        ]
        new = {
            (block, slot) for block, slot, wanted in slots
            if getattr(wanted, slot) and not self._keeps(block, slot, wanted)
        }  # fmt: skip
        freed = {
            (block, slot): sites for block, slot, wanted in slots
            if (sites := self._sites(block, slot)) and not self._keeps(block, slot, wanted)
        }  # fmt: skip
        self._check_shared({site.name for sites in freed.values() for site in sites}, freed)
        heads = self._heads() if self.qk is not None else []
        if new or freed or heads:  # where norms go, a final norm may come
            self.sizes = self.located.root_mean_squares([*self._measured(new), *(value for *_, value, _ in heads)])
        holds = {(block, arm): self._entries(block, arm) for block, slot in sorted(new) if slot == "input"
                 for arm in range(len(self.located.branches(block)))}  # fmt: skip
        self._take_factors()
        norms = {
            key: [(site, self.editor.remove_norm(site, site.block)) for site in sites] for key, sites in freed.items()
        }
        self.located.gone = set(self.editor.removed)
        reused: set[str] = set()
        for block, slot, wanted in slots:
            kept = self._sites(block, slot) if (block, slot) not in freed else []
            for site in kept:
                self.editor.record("kept", slot, site.name)
            paths = [site.name for site in kept]
            if (block, slot) in new:
                came = norms.get((block, slot)) or norms.get((block, SUCCESSOR.get(slot, "")), [])
                paths = self._place(block, slot, came, holds, reused)
            if slot == "input":
                self._scale_input(block, wanted, paths)
            if slot == "stream":
                self._scale_branch(block, wanted)
        if new or freed:
            self._finals()
        self._norm_heads(heads)
        for (_, slot), held in norms.items():
            for site, _ in held:
                if site.name not in reused:
                    reused.add(site.name)
                    self.editor.record("removed", slot, site.name, note="with its weights")

    def _entries(self, block: int, arm: int) -> list[TensorRef]:
        return [] if self.editor.placeholders.get(("input", block)) else self.located.entries(block, arm)

    def _is_called_again(self, block: int) -> bool:
        """Whether a block is an earlier one once more, the same modules called again."""
        other = self.located.repeats.get(block)
        if other is not None and self.wanted[other] != self.wanted[block]:
            raise UsageError(
                f"block {label(self.found.blocks[block], block)} is block {other} called again, which the target wants "
                "otherwise: give each layer its own modules."
            )
        return other is not None

    def _check_shared(self, gone: set[str], freed: Collection[tuple[int, str]]) -> None:
        """A module that several places share cannot leave some of them only."""
        for site in self.found.sites:
            if site.name not in gone or (site.block, site.slot) in freed:
                continue
            if site.block is None or not self._is_called_again(site.block):
                raise UsageError(
                    f"{site.name!r} normalizes in several places, of which the target keeps some: give each its own."
                )

    def _measured(self, new: Iterable[tuple[int, str]]) -> Iterable[int]:
        for block, slot in new:
            yield from self._values(block, slot)
        yield from (self._end(block) for block in self._last_blocks())

    def _values(self, block: int, slot: str) -> list[int]:
        """What norms in a slot will normalize: one value for each branch, where each has its own norm."""
        branches = self.located.branches(block)
        if slot == "output":
            return [value for _, value in branches]
        return [branches[0][0].fork if slot == "input" else branches[-1][0].output]

    def _place(
        self,
        block: int,
        slot: str,
        came: Sequence[tuple[Site, nn.Module]],
        holds: dict[tuple[int, int], list[TensorRef]],
        reused: set[str],
    ) -> list[str]:
        """Fill a slot of a block, with norms that stood elsewhere in it where there are any."""
        editor, located, paths = self.editor, self.located, []
        owner, values = located.own_path(block), self._values(block, slot)
        vacant = len(editor.placeholders.get((slot, block), ()))
        arms = range(vacant or (1 if slot == "stream" else len(located.branches(block))))
        for arm in arms:
            if slot == "input" and not vacant and holds[block, arm] in [holds[block, other] for other in range(arm)]:
                continue
            value = values[min(arm, len(values) - 1)]
            site, part = came[arm] if arm < len(came) else (None, None)
            if site is not None and part is not None and located.arguments_of(site.name) == 1:
                before, note = site.name, _running(part)
                reused.add(before)
            else:
                before, (part, note) = "", self._new(value)
            name = f"{self._branch_name(block, arm)}_{slot}"
            path = editor.fill_placeholder(slot, block, part)
            if path is None and slot == "input":
                path = editor.add_before(holds[block, arm], owner, name, part)
            elif path is None and slot == "output":
                path = editor.add_after(located.exit(block, arm, unscaled=True), owner, name, part, first=True)
            elif path is None:
                path = editor.add_to_sum(located.sum(block), name, part)
            if path is not None:
                editor.record("moved" if before else "added", slot, path, before, note)
                paths.append(path)
        return paths

    def _new(self, value: int) -> tuple[nn.Module, str]:
        if len(self.located.graph.values[value].shape) > 3:
            raise UsageError(
                "a new norm would stand on maps of more than one dimension, where features need not be last: only "
                "norms that are there can be moved in such a model."
            )
        return self.maker.build(self.located.graph.values[value].shape[-1], self.sizes.get(value))

    def _branch_name(self, block: int, arm: int) -> str:
        held = self.found.blocks[block].branches[arm]
        own = f"{held.add}." if held.add else ""
        if held.module is None or not held.module.startswith(own):
            return held.kind
        return held.module.removeprefix(own).replace(".", "_")

    def _take_factors(self) -> None:
        """Take out what an earlier move scaled by, unless the target scales all blocks likewise."""
        if self.target is None and self.scale is None:
            return
        pairs = [
            (arm.spec, wanted)
            for block, wanted in zip(self.found.blocks, self.wanted, strict=True)
            for arm in block.branches
            if wanted is not None
        ]
        stay = {
            FixedScaling: all(layout.input_scale == wanted.input_scale for layout, wanted in pairs),
            LearnedScaling: all(is_learned_alike(layout, wanted) for layout, wanted in pairs),
        }
        for kind, stays in stay.items():
            for path in () if stays else self.editor.remove_scalings(kind):
                self.editor.record("removed", "scale", path)
                self.unscaled.add(kind)

    def _scale_input(self, block: int, wanted: BlockSpec, names: Sequence[str]) -> None:
        """Put the target's factor behind the input norms of a block."""
        has = 1.0 if FixedScaling in self.unscaled else self.found.blocks[block].branches[0].spec.input_scale
        if wanted.input_scale == 1 or has == wanted.input_scale:
            return
        number, owner = resolved(wanted.input_scale), self.located.own_path(block)
        for name in names:
            if ":" in name:
                raise UsageError(f"the norm {name!r} is written into code, so nothing can be put behind it.")
            part = FixedScaling(number)
            path = self.editor.add_after(
                TensorRef(name, (None,), 0), owner, f"{self._branch_name(block, 0)}_factor", part
            )
            if path is None:
                raise UsageError(f"{name!r} is shared by layers with different factors: give each layer its own.")
            self.editor.record("added", "scale", path, note=f"{number:.4g}")

    def _scale_branch(self, block: int, wanted: BlockSpec) -> None:
        """Put the target's learned scale on the branches of a block."""
        for arm, held in enumerate(self.found.blocks[block].branches):
            scaled = isinstance(held.spec.branch_scale, LearnedScale) and LearnedScaling not in self.unscaled
            if not isinstance(wanted.branch_scale, LearnedScale) or scaled:
                continue
            hold = self.located.exit(block, arm, unscaled=LearnedScaling in self.unscaled)
            shape = (hold.width,) if wanted.branch_scale.per_channel else ()
            part = LearnedScaling(shape, wanted.branch_scale.init, self.like.device, self.like.dtype)
            name = f"{self._branch_name(block, arm)}_scale"
            path = self.editor.add_after(hold, self.located.own_path(block), name, part)
            if path is not None:
                self.editor.record("added", "scale", path, note=f"starts at {wanted.branch_scale.init:g}")

    def _last_blocks(self) -> list[int]:
        return [
            max(at for at, block in enumerate(self.found.blocks) if block.stream == stream)
            for stream in sorted({block.stream for block in self.found.blocks})
        ]

    def _is_bare(self, block: int) -> bool:
        """Whether a stream that its blocks normalize somewhere ends without a norm."""
        normed = any(arm.spec.slots for arm in self.found.blocks[block].branches)
        return normed and not self._sites(block, "stream") and not self.located.final_norms(block)

    def _end(self, block: int) -> int:
        """The value of the stream behind a block, normalized if the block does that."""
        output = self.located.residuals(block)[-1].output
        ends = [
            norm.output for norm, site in zip(self.located.norms, self.found.sites, strict=True)
            if site.slot == "stream" and site.block == block
        ]  # fmt: skip
        return ends[-1] if ends else output

    def _finals(self) -> None:
        """Give every stream the end the target has."""
        for block in self._last_blocks() if self.target is not None else ():
            sites = [self.found.sites[at] for at in self.located.final_norms(block)]
            if self.target is not None and self.target.final:
                for site in sites:
                    self.editor.record("kept", "final", site.name)
                vacant = bool(self.editor.placeholders.get(("final", block)))
                if not sites and (vacant or (block not in self.ends_without_norm and self.located.has_head(block))):
                    part, note = self._new(self._end(block))
                    path = self.editor.fill_placeholder("final", block, part) or self.editor.add_final(block, part)
                    self.editor.record("added", "final", path, note=note)
            else:
                for site in sites:
                    self.editor.remove_norm(site, block)
                    self.editor.record("removed", "final", site.name, note="with its weights")

    def _heads(self) -> list[tuple[str, TensorRef, int, int]]:
        """For all attention without norms on queries and keys: the letter, what makes it, its value, a head's size."""
        arms = [
            (block, arm, held.spec.inner)
            for block, other in enumerate(self.found.blocks)
            for arm, held in enumerate(other.branches)
            if held.kind == "attention"
        ]
        if not arms:
            raise UsageError("the model has no attention, whose queries and keys could be normalized: leave qk out.")
        found = []
        for block, arm, inner in arms:
            if not {"q", "k"} <= set(inner):
                makers, size = self.located.projections(block, arm)
                found += [(letter, hold, value, size) for letter, (hold, value) in sorted(makers.items(), reverse=True)]
        return found

    def _norm_heads(self, heads: Iterable[tuple[str, TensorRef, int, int]]) -> None:
        maker = NormFactory(self.qk, (), self.like)
        for letter, hold, value, size in heads:
            norm, note = maker.build(size, self.sizes.get(value))
            owner = hold.module.rpartition(".")[0]
            path = self.editor.add_after(hold, owner, f"{letter}_norm", HeadNorm(norm, size))
            if path is not None:
                self.editor.record("added", f"inner.{letter}", path, note=note)

    def verify(self, after: Audit) -> None:
        """Compare the audit of the moved model with what was asked for.

        Raises:
            UsageError: If a block is not so.
        """
        used = {site.name for site in after.sites}
        for change in self.editor.changes:
            if change.slot in (*SLOTS, "final") and change.action != "removed" and change.name not in used:
                raise UsageError(
                    f"after the move {change.name!r} is not called as it should be: the code around it does not let "
                    "its norms be moved so."
                )
        if len(after.blocks) != len(self.found.blocks):
            raise UsageError(
                f"the moved model has {len(after.blocks)} residual blocks where {len(self.found.blocks)} were: its "
                "code does not let its norms be moved."
            )
        names: dict[tuple[int | None, str], set[str]] = {}
        for site in after.sites:
            names.setdefault((site.block, site.slot), set()).add(site.name)
        for at, (block, wanted) in enumerate(zip(after.blocks, self.wanted, strict=True)):
            layouts = [arm.spec for arm in block.branches]
            if self.qk and any({"q", "k"} - set(arm.spec.inner) for arm in block.branches if arm.kind == "attention"):
                raise UsageError(f"the norms on queries and keys of block {label(block, at)} are not seen there.")
            crowded = any(
                len(names.get((at, slot), ())) > max(len(layouts), len(self._sites(at, slot))) for slot in SLOTS
            )
            if wanted is not None and (crowded or not is_as(wanted, layouts)):
                raise UsageError(
                    f"after the move block {label(block, at)} reads {block.equation} instead of "
                    f"{wanted.equation()}: its code does not let its norms be moved so."
                )


def _running(norm: nn.Module) -> str:
    """What to know of a norm that keeps statistics of the values it saw."""
    return "" if getattr(norm, "running_var", None) is None else "its running statistics are of its old place"

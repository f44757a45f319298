"""Carry out a move: take norms out of their slots, and fill the slots of the target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import nn

from normplace.analysis.recording.ids import BlockIndex, ValueId
from normplace.analysis.results import Site
from normplace.edit.model.editor import ModelEditor
from normplace.edit.model.model_map import TensorRef
from normplace.edit.model.modules import FixedScaling, HeadNorm, JoinedHeadsNorm, LearnedScaling, SkipScaling
from normplace.edit.model.new_norms import NormFactory, norm_width
from normplace.edit.move.plan import OTHER_STREAM_SLOT, BlockSlot, MovePlan
from normplace.edit.move.verify_placement import has_same_scale
from normplace.errors import UsageError
from normplace.placement import BlockSpec, LearnedScale, resolved


class MoveEdit:
    """Edits a model as planned."""

    def __init__(self, plan: MovePlan, editor: ModelEditor, rms: Mapping[ValueId, float]) -> None:
        self.plan, self.editor, self.rms = plan, editor, rms
        self.analysis, self.model_map, self.request = plan.analysis, plan.model_map, plan.request
        self.like = next((p for p in editor.model.parameters() if p.is_floating_point()), torch.empty(0))
        self.norm_factory = NormFactory(plan.request.norm, plan.templates(), self.like)
        self._branch_inputs: dict[tuple[BlockIndex, int], list[TensorRef]] = {}
        self._freed: dict[BlockSlot, list[tuple[Site, nn.Module]]] = {}
        self._reused: set[str] = set()
        self._removed_scalings: set[type[nn.Module]] = set()

    def run(self) -> None:
        """Remove, move and add norms and scalings, block by block.

        Raises:
            UsageError: If the model's code does not allow it.
        """
        plan, editor = self.plan, self.editor
        # The analysis describes the model as it was, so the ends of branches are located before anything is removed.
        self._branch_inputs = {
            (block, branch): self._inputs_of(block, branch)
            for block, slot in sorted(plan.added)
            if slot == "input"
            for branch in range(len(self.analysis.branches_of(block)))
        }
        self._remove_scalings()
        self._scale_skips()
        self._freed = {
            key: [(site, editor.remove_norm(site, site.block)) for site in sites] for key, sites in plan.freed.items()
        }
        for block, slot, spec in plan.slots:
            self._edit_slot(block, slot, spec)
        if plan.added or plan.freed:
            self._edit_final_norms()
        self._edit_inner_norms()
        self._edit_head_norms()
        for (_, slot), norms in self._freed.items():
            for site, _ in norms:
                if site.name not in self._reused:
                    self._reused.add(site.name)
                    editor.record("removed", slot, site.name, note="with its weights")

    def _inputs_of(self, block: BlockIndex, branch: int) -> list[TensorRef]:
        has_placeholder = self.editor.placeholders.get(("input", block))
        return [] if has_placeholder else self.model_map.branch_inputs(block, branch)

    def _edit_slot(self, block: BlockIndex, slot: str, spec: BlockSpec) -> None:
        kept = self.plan.sites(block, slot) if (block, slot) not in self.plan.freed else []
        for site in kept:
            self.editor.record("kept", slot, site.name)
        names = [site.name for site in kept]
        if (block, slot) in self.plan.added:
            names = self._fill_slot(block, slot)
        if slot == "input":
            self._scale_input(block, spec, names)
        if slot == "stream":
            self._scale_branches(block, spec)

    def _fill_slot(self, block: BlockIndex, slot: str) -> list[str]:
        """Put norms into a slot, those freed in the same block where possible, and return their names."""
        freed = self._freed.get((block, slot)) or self._freed.get((block, OTHER_STREAM_SLOT.get(slot, "")), [])
        placeholders = len(self.editor.placeholders.get((slot, block), ()))
        branches = range(placeholders or (1 if slot == "stream" else len(self.analysis.branches_of(block))))
        values, names = self.plan.slot_values(block, slot), []
        for branch in branches:
            if slot == "input" and not placeholders and self._shares_inputs(block, branch):
                continue
            site, norm = freed[branch] if branch < len(freed) else (None, None)
            value = values[min(branch, len(values) - 1)]
            if site is not None and norm is not None and self._fits(block, site, norm, value):
                before, note = site.name, _statistics_note(norm)
                self._reused.add(before)
            else:
                refs = self._branch_inputs[block, branch] if slot == "input" and not placeholders else []
                before, (norm, note) = "", self._new_norm(value, refs)
            name = self._place(block, slot, branch, norm)
            if name is not None:
                self.editor.record("moved" if before else "added", slot, name, before, note)
                names.append(name)
        return names

    def _fits(self, block: BlockIndex, site: Site, norm: nn.Module, value: ValueId) -> bool:
        """Whether a norm of a block can normalize another value of it, whose width a projected skip may change."""
        if self.analysis.blocks[block].projected and norm_width(norm) not in (None, self._channels(value)[0]):
            return False
        return self.model_map.argument_count(site.name) == 1

    def _shares_inputs(self, block: BlockIndex, branch: int) -> bool:
        """Whether an earlier branch of the block reads the stream through the same modules."""
        inputs = self._branch_inputs
        return any(inputs[block, earlier] == inputs[block, branch] for earlier in range(branch))

    def _place(self, block: BlockIndex, slot: str, branch: int, norm: nn.Module) -> str | None:
        """Put a norm into a slot: a placeholder if there is one, else new code."""
        filled = self.editor.fill_placeholder(slot, block, norm)
        if filled is not None:
            return filled
        owner, name = self.model_map.owner(block), f"{self._branch_name(block, branch)}_{slot}"
        if slot == "input":
            return self.editor.add_before(self._branch_inputs[block, branch], owner, name, norm)
        if slot == "output":
            output = self.model_map.branch_output(block, branch, self.editor.removed.keys(), skip_scalings=True)
            return self.editor.add_after(output, owner, name, norm, first=True)
        return self.editor.add_to_sum(self.model_map.sum(block), name, norm)

    def _new_norm(self, value: ValueId, refs: Sequence[TensorRef] = ()) -> tuple[nn.Module, str]:
        """A new norm of a value, or of views of it that modules read."""
        width, is_map = self._channels(value) if not refs else (refs[0].width, refs[0].axis == 1)
        if any((ref.width, ref.axis) != (width, 1 if is_map else -1) for ref in refs):
            raise _unclear_channels(self.analysis.graph.values[value].shape)
        rank = len(self.analysis.graph.values[value].shape)
        layout = "channels first" if is_map else "channels last" if rank > 3 else "rows"
        return self.norm_factory.build(width, self.rms.get(value), layout)

    def _channels(self, value: ValueId) -> tuple[int, bool]:
        """The number of channels of a value, and whether they are dimension 1, as of feature maps."""
        shape, axis = self.analysis.graph.values[value].shape, self.model_map.channel_axis(value)
        if axis is None:
            raise _unclear_channels(shape)
        return shape[axis] if shape else 1, axis == 1

    def _branch_name(self, block: BlockIndex, branch: int) -> str:
        described = self.analysis.blocks[block].branches[branch]
        prefix = f"{described.add}." if described.add else ""
        if described.module is None or not described.module.startswith(prefix):
            return described.kind.replace(" ", "_")
        return described.module.removeprefix(prefix).replace(".", "_")

    def _remove_scalings(self) -> None:
        """Remove the scalings of an earlier move, unless the target has the same in all blocks."""
        if self.request.target is None and self.request.scale is None:
            return
        pairs = [
            (branch.spec, spec)
            for block, spec in zip(self.analysis.blocks, self.plan.specs, strict=True)
            for branch in block.branches
            if spec is not None
        ]
        kept = {
            FixedScaling: all(own.input_scale == spec.input_scale for own, spec in pairs),
            LearnedScaling: all(has_same_scale(own, spec) for own, spec in pairs),
            SkipScaling: all(own.skip_scale == spec.skip_scale for own, spec in pairs),
        }
        for kind, is_kept in kept.items():
            for path in () if is_kept else self.editor.remove_scalings(kind):
                self.editor.record("removed", "scale", path)
                self._removed_scalings.add(kind)

    def _scale_skips(self) -> None:
        """Put the target's fixed scales on the skips."""
        for block, (ref, scale) in self.plan.skips.items():
            name = self.editor.add_to_sum(
                ref, f"{self._branch_name(block, 0)}_skip", SkipScaling(scale, self.like.device)
            )
            if name is not None:
                self.editor.record("added", "scale", name, note=f"{scale:.4g} on the skip")

    def _edit_inner_norms(self) -> None:
        """Put norms before the last matrices of branches, or remove those that an earlier move put there."""
        target = self.request.target
        if target is not None and not any(spec.inner for spec in target.all_specs):
            self._remove_placed("inner.pre-output", "inner.mid")
        for block, refs in self.plan.last_inputs.items():
            owner = self.model_map.owner(block)
            for kind, ref in refs:
                value = self.model_map.argument_value(ref)
                norm, note = self.norm_factory.build_like(ref.width, self.rms.get(value))
                child = f"{ref.module.removeprefix(f'{owner}.').replace('.', '_')}_input"
                name = self.editor.add_before([ref], owner, child, norm)
                if name is not None:
                    slot = "inner.pre-output" if kind == "attention" else "inner.mid"
                    self.editor.record("added", slot, name, note=note)

    def _remove_placed(self, *slots: str) -> None:
        """Remove the norms in these slots that an earlier move added."""
        for name, slot in self.plan.placed_norms(slots).items():
            self.editor.remove_placed(name)
            self.editor.record("removed", slot, name, note="with its weights")

    def _scale_input(self, block: BlockIndex, spec: BlockSpec, norms: Sequence[str]) -> None:
        """Put the target's input scale after the input norms of a block."""
        own = self.analysis.blocks[block].branches[0].spec.input_scale
        current = 1.0 if FixedScaling in self._removed_scalings else own
        if spec.input_scale in (1, current):
            return
        number = resolved(spec.input_scale)
        for norm in norms:
            if ":" in norm:
                raise UsageError(f"cannot scale the output of the norm {norm!r}, because it is not a module.")
            name = self.editor.add_after(
                TensorRef(norm, (None,), 0),
                self.model_map.owner(block),
                f"{self._branch_name(block, 0)}_factor",
                FixedScaling(number, self.like.device),
            )
            if name is None:
                raise UsageError(f"layers with different scales share {norm!r}: give each layer its own norm.")
            self.editor.record("added", "scale", name, note=f"{number:.4g}")

    def _scale_branches(self, block: BlockIndex, spec: BlockSpec) -> None:
        """Put the target's learned scale on the branches of a block."""
        scale, were_removed = spec.branch_scale, LearnedScaling in self._removed_scalings
        for index, branch in enumerate(self.analysis.blocks[block].branches):
            is_scaled = isinstance(branch.spec.branch_scale, LearnedScale) and not were_removed
            if not isinstance(scale, LearnedScale) or is_scaled:
                continue
            output = self.model_map.branch_output(block, index, self.editor.removed.keys(), were_removed)
            _, value = self.analysis.branches_of(block)[index]
            width, is_map = self._channels(value) if scale.per_channel else (0, False)
            rank = len(self.analysis.graph.values[value].shape)
            shape = () if not scale.per_channel else (width, *[1] * (rank - 2)) if is_map else (width,)
            scaling = LearnedScaling(shape, scale.init, self.like.device, self.like.dtype)
            child = f"{self._branch_name(block, index)}_scale"
            name = self.editor.add_after(output, self.model_map.owner(block), child, scaling)
            if name is not None:
                self.editor.record("added", "scale", name, note=f"starts at {scale.init:g}")

    def _edit_final_norms(self) -> None:
        """Add or remove the norm at the end of every stream, as the target has it."""
        target, editor = self.request.target, self.editor
        if target is None:
            return
        for block in self.plan.last_blocks():
            sites = [self.analysis.sites[norm] for norm in self.model_map.final_norms(block)]
            if target.final:
                for site in sites:
                    editor.record("kept", "final", site.name)
                if not sites and self._needs_final_norm(block):
                    norm, note = self._new_norm(self.plan.stream_end(block))
                    name = editor.fill_placeholder("final", block, norm) or editor.add_final(block, norm)
                    editor.record("added", "final", name, note=note)
            else:
                for site in sites:
                    editor.remove_norm(site, block)
                    editor.record("removed", "final", site.name, note="with its weights")

    def _needs_final_norm(self, block: BlockIndex) -> bool:
        if self.editor.placeholders.get(("final", block)):
            return True
        return block not in self.plan.ends_without_norm and self.model_map.has_head(block)

    def _edit_head_norms(self) -> None:
        """Put norms on queries and keys, or remove those that an earlier move put there."""
        request = self.request.qk
        if request is None:
            return
        if request.kind == "none":
            self._remove_placed("inner.q", "inner.k", "inner.qk")
        factory = NormFactory(request.kind, (), self.like)
        for projection in self.plan.projections:
            norm, note = factory.build(projection.width, self.rms.get(projection.value))
            module, place, child = norm, projection.place, f"{projection.letter}_norm"
            if isinstance(place, TensorRef):
                module = norm if projection.width == place.width else HeadNorm(norm, projection.width)
                name = self.editor.add_after(place, projection.owner, child, module)
            else:
                module = norm if len(projection.axes) == 1 else JoinedHeadsNorm(norm, projection.axes)
                name = self.editor.add_to_sum(place, child, module)
            if name is not None:
                self.editor.record("added", f"inner.{projection.letter}", name, note=note)


def _statistics_note(norm: nn.Module) -> str:
    """A remark on a moved norm with running statistics."""
    return "" if getattr(norm, "running_var", None) is None else "its running statistics come from its old place"


def _unclear_channels(shape: Sequence[int]) -> UsageError:
    return UsageError(
        f"cannot add to features of shape {tuple(shape)}, because it is not clear which dimension holds the channels: "
        "choose a placement that adds nothing there."
    )

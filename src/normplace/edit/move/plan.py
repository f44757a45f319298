"""Plan a move: for every slot of every block, whether its norm is kept, moved, removed or added."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property

from torch import nn

from normplace.analysis.blocks.naming import BARE
from normplace.analysis.recording.ids import BlockIndex, ValueId
from normplace.analysis.results import Site
from normplace.edit.code.rewrite import PLACED
from normplace.edit.model.model_map import ModelMap, SumRef, TensorRef, is_outside_tree
from normplace.edit.move.branch_matrices import BranchMatrices
from normplace.edit.move.layer_numbers import LayerNumbers
from normplace.edit.move.projections import HeadNormRequest, ProjectionFinder, ProjectionRef
from normplace.edit.move.skips import SkipFinder
from normplace.edit.record.changes import changes
from normplace.edit.verify.capture import Arguments
from normplace.errors import UsageError
from normplace.placement import BlockSpec, LearnedScale, Placement, Power, resolved

SLOTS = ("input", "output", "stream")
OTHER_STREAM_SLOT = {"input": "stream", "stream": "input"}
"""A norm moves, with its weights, between the slots that normalize the stream. A branch output has another size."""

BlockSlot = tuple[BlockIndex, str]


@dataclass(frozen=True)
class MoveRequest:
    """The checked arguments of a move.

    Attributes:
        target: The placement to reach; None to leave the norms in place.
        scale: ``layerscale``, ``lns`` or None.
        qk: Which norms to add to queries and keys, or None.
        norm: The kind of new norms; None for the model's own kind.
        init: ``published`` to draw the weights that the target is published with, ``kept``, or None.
        seed: Random seed of these weights.
    """

    target: Placement | None
    scale: str | None = None
    qk: HeadNormRequest | None = None
    norm: str | None = None
    init: str | None = None
    seed: int = 0


class MovePlan:
    """What a move does to each slot.

    Attributes:
        specs: The requested spec of each block; None for a block that is left alone.
        slots: The slots that may change, in order.
        added: The slots that get a norm.
        freed: The slots whose norms leave, with the norms.
        projections: The queries and keys that get a norm.
        skips: The skips that get a fixed scale, by block.
        last_inputs: What the last matrix of each branch reads, for the blocks that get a norm there.
        matrices: The weights of the branches.
        ends_without_norm: The last blocks of streams that end without a norm, now or before the first move.
        refused: What is left alone, with the reason.

    Raises:
        UsageError: If the request cannot be fulfilled.
    """

    def __init__(self, model_map: ModelMap, request: MoveRequest, arguments: Arguments) -> None:
        self.model_map, self.analysis, self.request = model_map, model_map.analysis, request
        self._sites: dict[tuple[int | None, str], list[Site]] = {}
        for site in self.analysis.sites:
            self._sites.setdefault((site.block, site.slot), []).append(site)
        self.blocks = [BlockIndex(index) for index in range(len(self.analysis.blocks))]
        branches = [branch.spec for block in self.analysis.blocks for branch in block.branches]
        bare_share = sum(not spec.slots for spec in branches) / max(len(branches), 1)
        self._edited = {
            block: described
            for block, described in zip(self.blocks, self.analysis.blocks, strict=True)
            if described.branches[0].spec.slots or bare_share == 0 or bare_share >= BARE
        }
        """The blocks that are not left alone: few without norms are, such as a convolution that adds positions."""
        self._layers = LayerNumbers(self._edited)
        self.specs = [self._requested_spec(block) for block in self.blocks]
        self._new_specs = {
            block: spec
            for block, spec in zip(self.blocks, self.specs, strict=True)
            if spec is not None and not self._is_repeated(block)
        }
        """Of the blocks that are edited: one that calls the modules of an earlier block again changes with it."""
        self.slots = [(block, slot, spec) for block, spec in self._new_specs.items() for slot in SLOTS]
        changing = [(block, slot, spec) for block, slot, spec in self.slots if not self._keeps(block, slot, spec)]
        self.added: set[BlockSlot] = {(block, slot) for block, slot, spec in changing if getattr(spec, slot)}
        self.freed: dict[BlockSlot, list[Site]] = {
            (block, slot): sites for block, slot, _ in changing if (sites := self.sites(block, slot))
        }
        self._check_shared_norms()
        self.projections = self._projections(request.qk, arguments) if request.qk is not None else []
        self.matrices = BranchMatrices(model_map)
        self.skips = self._skips(arguments)
        self.last_inputs = self._last_inputs()
        self.ends_without_norm: tuple[int, ...] = changes(model_map.model).ends_without_norm or tuple(
            block for block in self.last_blocks() if self._ends_without_norm(block)
        )
        self.refused = tuple(
            f"block {model_map.label(block)} has no norm, unlike most blocks, and is left alone"
            for block, spec in zip(self.blocks, self.specs, strict=True)
            if spec is None
        )

    def _requested_spec(self, block: BlockIndex) -> BlockSpec | None:
        """The spec that a block gets; None if it is left alone."""
        if block not in self._edited:
            return None
        described = self.analysis.blocks[block]
        own = described.branches[0].spec
        layer, depth = self._layers.of(block)
        if self.request.target is None:
            stream = any(branch.spec.stream for branch in described.branches)
            spec = replace(own, inner=(), stream=stream, branch_scale=1.0)
        else:
            spec = self._targets[described.stream].at(layer, depth)
        if described.projected and own.skip_normed and spec.input:
            spec = replace(spec, skip_normed=True)  # the target does not describe the input of a projected skip
        if self.request.scale == "layerscale":
            spec = replace(spec, branch_scale=LearnedScale(per_channel=True, init=1.0))
        if self.request.scale == "lns":
            if not spec.input:
                raise UsageError("scale='lns' needs an input norm: choose a placement that has one.")
            spec = replace(spec, input_scale=Power("layer", -1 / 2).at(layer, depth))
        return spec

    @cached_property
    def _decoder(self) -> int | None:
        """Of an encoder with a decoder that attends to it, the decoder's stream; None for other models."""
        kinds = [(block.stream, branch.kind) for block in self.analysis.blocks for branch in block.branches]
        depths = self._layers.depths
        decoders = [stream for stream, depth in depths.items() if kinds.count((stream, "attention")) == 2 * depth]
        return decoders[0] if len(depths) == 2 and len(decoders) == 1 else None

    @property
    def is_encoder_decoder(self) -> bool:
        """Whether the model has an encoder and a decoder that attends to it."""
        return self._decoder is not None

    @cached_property
    def _targets(self) -> dict[int, Placement]:
        """The target of each stream; DeepNorm has other factors for an encoder and its decoder."""
        target, decoder, depths = self.request.target, self._decoder, self._layers.depths
        assert target is not None
        if target.segments != Placement.named("deepnorm").segments or decoder is None:
            return dict.fromkeys(depths, target)
        encoder_target = Placement.named("deepnorm", part="encoder", decoder=depths[decoder])
        return {**dict.fromkeys(depths, encoder_target), decoder: Placement.named("deepnorm", part="decoder")}

    def _skips(self, arguments: Arguments) -> dict[BlockIndex, tuple[SumRef, float]]:
        """The skips that get a fixed scale, with the scale."""
        finder = SkipFinder(self.model_map, arguments)
        return {
            block: (finder.find(block), scale)
            for block, spec in self._new_specs.items()
            if (scale := resolved(spec.skip_scale)) != self.analysis.blocks[block].branches[0].spec.skip_scale
            if scale != 1
        }

    def _last_inputs(self) -> dict[BlockIndex, list[tuple[str, TensorRef]]]:
        """What the last matrix of each branch reads, with the kind of branch, where the target has a norm there."""
        inputs: dict[BlockIndex, list[tuple[str, TensorRef]]] = {}
        for block in (block for block, spec in self._new_specs.items() if spec.inner):
            for index, branch in enumerate(self.analysis.blocks[block].branches):
                ref = self.matrices.last_input(block, index)
                if not self.model_map.is_normed(ref):
                    inputs.setdefault(block, []).append((branch.kind, ref))
        return inputs

    def init_gains(self) -> dict[BlockIndex, float]:
        """The factor on the initial weights of each block."""
        return {block: resolved(spec.init_gain) for block, spec in self._new_specs.items()}

    def sites(self, block: BlockIndex, slot: str) -> list[Site]:
        """The norms in a slot of a block."""
        return self._sites.get((block, slot), [])

    def _keeps(self, block: BlockIndex, slot: str, spec: BlockSpec) -> bool:
        """Whether the norms in a slot are what the target has there."""
        same_skip = self.analysis.blocks[block].branches[0].spec.skip_normed == spec.skip_normed
        return getattr(spec, slot) and (slot != "input" or same_skip) and bool(self.sites(block, slot))

    def _is_repeated(self, block: BlockIndex) -> bool:
        """Whether a block calls the modules of an earlier block again."""
        earlier = self.model_map.repeated_blocks.get(block)
        if earlier is not None and self.specs[earlier] != self.specs[block]:
            raise UsageError(
                f"block {self.model_map.label(block)} calls the modules of block {earlier} again, but the target "
                "differs between them: give each layer its own modules."
            )
        return earlier is not None

    def _check_shared_norms(self) -> None:
        """Refuse to remove a norm from only some of the places that share it."""
        freed_names = {site.name for sites in self.freed.values() for site in sites}
        for site in self.analysis.sites:
            if site.name not in freed_names or (site.block, site.slot) in self.freed:
                continue
            if site.block is None or not self._is_repeated(BlockIndex(site.block)):
                raise UsageError(
                    f"{site.name!r} is used in several places, and the target keeps only some of them: give each place "
                    "its own norm."
                )

    def _projections(self, request: HeadNormRequest, arguments: Arguments) -> list[ProjectionRef]:
        """The queries and keys that get a norm: those of all attention that have none."""
        attention = [
            (block, index, branch.spec.inner)
            for block in self.blocks
            for index, branch in enumerate(self.analysis.blocks[block].branches)
            if branch.kind == "attention"
        ]
        if not attention:
            raise UsageError("the model has no attention: leave qk out.")
        if request.kind == "none":
            return []
        finder = ProjectionFinder(self.model_map, request, arguments)
        return [
            projection
            for block, branch, inner in attention
            if (letters := "".join(letter for letter in "qk" if letter not in inner))
            for projection in finder.find(block, branch, letters)
        ]

    def placed_norms(self, slots: Collection[str]) -> dict[str, str]:
        """The names of the modules in some slots that an earlier move added, with their slots."""
        placed = {}
        for site in self.analysis.sites:
            parts = site.name.split(".")
            if PLACED in parts[:-1] and site.slot in slots:
                placed[".".join(parts[: parts.index(PLACED) + 2])] = site.slot
        return placed

    def templates(self) -> list[nn.Module]:
        """The model's norm modules that take one tensor; those around branches first."""
        ranked = sorted(self.analysis.sites, key=lambda site: site.slot not in SLOTS)
        names = [site.name for site in ranked if site.own_module and not site.slot.startswith("inner")]
        names = [name for name in names if not is_outside_tree(name)]
        return [self.model_map.model.get_submodule(name) for name in names if self.model_map.argument_count(name) == 1]

    def measured_values(self) -> set[ValueId]:
        """The values whose size new norms need."""
        if self.request.init == "published" or not (self.added or self.freed or self.projections or self.last_inputs):
            return set()
        values = {value for block, slot in self.added for value in self.slot_values(block, slot)}
        values |= {self.stream_end(block) for block in self.last_blocks()}  # where norms leave, a final norm may come
        values |= {self.model_map.argument_value(ref) for refs in self.last_inputs.values() for _, ref in refs}
        return values | {projection.value for projection in self.projections}

    def slot_values(self, block: BlockIndex, slot: str) -> list[ValueId]:
        """What norms in a slot normalize: one value for each branch with its own norm."""
        branches = self.analysis.branches_of(block)
        if slot == "output":
            return [value for _, value in branches]
        return [branches[0][0].fork if slot == "input" else branches[-1][0].output]

    def last_blocks(self) -> list[BlockIndex]:
        """The last block of each stream."""
        last = {self.analysis.blocks[block].stream: block for block in self.blocks}
        return [last[stream] for stream in sorted(last)]

    def _ends_without_norm(self, block: BlockIndex) -> bool:
        """Whether a stream with norms around its branches ends without a norm."""
        is_normed = any(branch.spec.slots for branch in self.analysis.blocks[block].branches)
        return is_normed and not self.sites(block, "stream") and not self.model_map.final_norms(block)

    def stream_end(self, block: BlockIndex) -> ValueId:
        """The value of the stream after a block, including a norm on the sum."""
        ends = [
            norm.output
            for norm, site in zip(self.analysis.norms, self.analysis.sites, strict=True)
            if site.slot == "stream" and site.block == block
        ]
        return ends[-1] if ends else self.analysis.adds_of(block)[-1].output

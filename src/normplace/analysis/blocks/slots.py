"""The slot of every norm, found from where its input comes from and where its output goes.

======================  =====================================================================================
slot                    meaning
======================  =====================================================================================
``embedding``           on the trunk before the first residual add
``input``               between the stream and the first mixing operator of a branch
``inner.<name>``        between two mixing operators of a branch: q, k, v, pre-output, mid
``output``              between the last mixing operator of a branch and its add
``stream``              on the sum, so that everything after it reads the normalized stream
``skip``                on the skip only
``final``               on a stream that no further add continues
``transition``          on the trunk between two stacks of blocks
``head``                after a stack and a further mixing operator
``plain``               in a network, or a part of one, without residual adds
======================  =====================================================================================
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from normplace._shared.closure import closure
from normplace.analysis.blocks.attention import AttentionCores
from normplace.analysis.blocks.module_tree import in_siblings, is_inside, shared_depth
from normplace.analysis.dataflow.operators import MOVES
from normplace.analysis.norms.find import Norm
from normplace.analysis.recording.ids import AddIndex, CallId, NodeId, ValueId
from normplace.analysis.residuals.reachability import Landmarks, ResidualAdd
from normplace.analysis.residuals.structure import ResidualStructure
from normplace.analysis.results import pattern


@dataclass(frozen=True)
class NormSlot:
    """The slot of one norm.

    Attributes:
        name: One of the slots above.
        add: The residual add it belongs to; None at the ends of the network, and for a memory of several adds.
        skip_normed: Whether the skip starts after this input norm.
    """

    name: str
    add: AddIndex | None = None
    skip_normed: bool = False


class SlotFinder:
    """Finds the slots of the norms of one graph."""

    def __init__(self, structure: ResidualStructure, attention: AttentionCores) -> None:
        self.graph, self.norms, self.adds = structure.graph, structure.norms, structure.adds
        self.structure, self.reachability, self.attention = structure, structure.reachability, attention
        self._skips_after, self._branches_after = self._adds_after_norms()
        self._combining = [
            (NodeId(index), node) for index, node in enumerate(self.graph.nodes) if node.copies is not None
        ]
        self._trunk = self._trunk_values()

    def slots(self) -> list[NormSlot]:
        """The slot of each norm."""
        slots = self._with_embedding_norms([self._slot(norm) for norm in self.norms])
        callers = {self._caller(norm) for norm, slot in zip(self.norms, slots, strict=True) if slot.skip_normed}
        if callers:
            # In such a block a norm midway between two adds belongs to the later one, as its siblings do.
            slots = [
                self._with_later_add(norm, slot) if self._caller(norm) in callers else slot
                for norm, slot in zip(self.norms, slots, strict=True)
            ]
        streams = self._streams_by_module(slots)
        slots = [self._between_stacks(norm, slot, streams) for norm, slot in zip(self.norms, slots, strict=True)]
        return [self._with_stack_end(norm, slot, slots) for norm, slot in zip(self.norms, slots, strict=True)]

    def _adds_after_norms(self) -> tuple[dict[ValueId, list[AddIndex]], dict[ValueId, list[AddIndex]]]:
        """For the output of each norm, the adds that have it on their skip, and those that have it in their branch."""
        reachability = self.reachability
        outputs = 0
        for norm in self.norms:
            outputs |= reachability.bit.get(norm.output, 0)
        on_skip: dict[ValueId, list[AddIndex]] = {}
        in_branch: dict[ValueId, list[AddIndex]] = {}
        for index, add in enumerate(self.adds):
            start = add.fork if add.projected else add.skip
            plain = reachability.plain.get(add.skip, 0) | reachability.plain.get(start, 0)
            for value in reachability.members(plain & outputs):
                on_skip.setdefault(value, []).append(AddIndex(index))
            for value in reachability.members(reachability.inside_branch(add) & outputs):
                in_branch.setdefault(value, []).append(AddIndex(index))
        return on_skip, in_branch

    def _trunk_values(self) -> set[ValueId]:
        """Values that lead to the skip of an add on a path outside all branches."""
        skips = {add.node: add.skip for add in self.adds}

        def before(value: ValueId) -> Sequence[ValueId]:
            node = self.graph.producer.get(value)
            if node is None:
                return ()
            return (skips[node],) if node in skips else self.graph.nodes[node].inputs

        return set(closure((add.skip for add in self.adds), before))

    def _slot(self, norm: Norm) -> NormSlot:
        reachability, adds = self.reachability, self.adds
        on_skip, in_branch = self._skips_after.get(norm.output, []), list(self._branches_after.get(norm.output, ()))
        nearest = self.structure.nearest_adds(norm.output) if len(in_branch) > 1 else set()
        in_branch.sort(
            key=lambda add: (add not in nearest, -reachability.bit[adds[add].fork].bit_length(), adds[add].node)
        )
        opened = next((add for add in in_branch if self._opens(norm, adds[add])), None)
        if opened is not None:
            return NormSlot("input", opened)
        if on_skip:
            return self._slot_on_skip(norm, on_skip[0])
        for add in in_branch:
            if reachability.comes_from(norm.input, adds[add].fork):
                return self._slot_in_branch(norm, add)
        # A branch may read queries, keys or values that do not come from the stream.
        for add in in_branch:
            operand = self.attention.operand(norm, self.structure.regions.of(adds[add]))
            if operand:
                return NormSlot(f"inner.{operand}", add)
        combined = self._combined_copies(norm)
        if combined is not None:
            return NormSlot("input", combined)
        # A branch may read a memory besides the stream, normalized for this branch or for several.
        is_memory = norm.output not in self._trunk and not reachability.any.get(norm.input, 0) & reachability.sums
        is_shared = norm.output in self.structure.read_by_several
        for add in in_branch:
            if (is_memory and not is_shared) or self._is_nearer(norm, adds[add].call):
                return NormSlot("input", add)
        if is_memory and is_shared:
            return NormSlot("input")
        return self._slot_outside(norm)

    def _slot_in_branch(self, norm: Norm, index: AddIndex) -> NormSlot:
        """The slot of a norm after the start of a branch, which may contain other adds."""
        reachability, add = self.reachability, self.adds[index]
        plain_sums = reachability.plain.get(norm.input, 0) & reachability.sums
        sums = [
            value for value in reachability.members(plain_sums) if reachability.bit[value] > reachability.bit[add.fork]
        ]
        if reachability.comes_plainly(add.branch, norm.output):
            return NormSlot("stream", self.structure.add_of_sum[sums[0]]) if sums else NormSlot("output", index)
        if sums and self._is_another_stream(sums[0], add):
            return NormSlot("input", index)
        direct = reachability.comes_plainly(norm.input, add.fork)
        # After one add within the branch, a norm still reads the stream; after a stack of adds, it ends the stack.
        if len(sums) > 1 or (sums and not direct):
            return NormSlot("final")
        if direct:
            return NormSlot("input", index)
        inner = self.attention.inner_slot(norm, self.structure.regions.of(add), add, reachability)
        return NormSlot(f"inner.{inner}", index)

    def _is_another_stream(self, value: ValueId, add: ResidualAdd) -> bool:
        """Whether a sum within a branch is read outside the branch and is not the stream of the skip."""
        if self.reachability.stream.get(add.skip, 0) & self.reachability.bit[value]:
            return False
        graph, region = self.graph, self.structure.regions.of(add)
        views = graph.computed_from([value], lambda node: node.name in MOVES)
        return any(view in graph.tape.outputs or not region.issuperset(graph.consumers.get(view, ())) for view in views)

    def _combined_copies(self, norm: Norm) -> AddIndex | None:
        """The first add after a product that combines copies of the norm's input by weights computed from the norm."""
        reachability = self.reachability
        for index, node in self._combining:
            if index < norm.core or node.copies is None or not reachability.comes_plainly(node.copies, norm.input):
                continue
            if any(reachability.comes_from(value, norm.output) for value in node.inputs if value != node.copies):
                after = (
                    index for index, add in enumerate(self.adds) if reachability.comes_from(add.output, norm.output)
                )
                return next(map(AddIndex, after), None)
        return None

    def _is_on_skip(self, norm: Norm, add: ResidualAdd) -> bool:
        """Whether the skip of an add is the output of a norm, or a projection of it."""
        start = add.fork if add.projected else add.skip
        return any(self.reachability.comes_plainly(value, norm.output) for value in (add.skip, start))

    def _opens(self, norm: Norm, add: ResidualAdd) -> bool:
        """Whether a norm reads the fork of a branch with no other add of the stream between."""
        reachability = self.reachability
        plain, fork = reachability.plain.get(norm.input, 0), reachability.bit[add.fork]
        if not plain & fork:
            return False
        # A later sum of another stream may be concatenated with the fork.
        later = reachability.members(plain & reachability.sums & ~(2 * fork - 1))
        return not any(reachability.comes_from(value, add.fork) for value in later)

    def _slot_on_skip(self, norm: Norm, index: AddIndex) -> NormSlot:
        """The slot of a norm whose output is on the skip of an add."""
        reachability, add = self.reachability, self.adds[index]
        earlier = reachability.any.get(norm.input, 0) & reachability.sums
        on_sum = reachability.plain.get(norm.input, 0) & reachability.sums
        if (
            on_sum.bit_length() <= reachability.bit[add.fork].bit_length()
            and not reachability.comes_from(add.branch, norm.output)
            and reachability.comes_from(norm.input, add.fork)
        ):
            return NormSlot("skip", index)
        if self._is_nearer(norm, add.call) and not self._is_normalized_again(norm, add):
            return NormSlot("input", index, skip_normed=True)
        if on_sum:
            return NormSlot("stream", self.structure.add_of_sum[reachability.latest(on_sum)])
        if not earlier:
            return NormSlot("embedding")
        if self._follows_norm(norm):
            return NormSlot("stream", self.structure.add_of_sum[reachability.latest(earlier)])
        return NormSlot("transition")

    def _with_embedding_norms(self, slots: list[NormSlot]) -> list[NormSlot]:
        """Move norms before a stack from ``input`` to ``embedding`` if the later norms are on the sums."""
        entries = {
            index
            for index, (norm, slot) in enumerate(zip(self.norms, slots, strict=True))
            if slot.skip_normed and not self.reachability.any.get(norm.input, 0) & self.reachability.sums
        }
        later = any(slot.skip_normed for index, slot in enumerate(slots) if index not in entries)
        if later or not any(slot.name == "stream" for slot in slots):
            return slots
        return [NormSlot("embedding") if index in entries else slot for index, slot in enumerate(slots)]

    def _with_later_add(self, norm: Norm, slot: NormSlot) -> NormSlot:
        """Give a norm on a sum to the add that reads it if that add is at least as near as the one before."""
        if slot.name != "stream":
            return slot
        readers = [AddIndex(index) for index, add in enumerate(self.adds) if self._is_on_skip(norm, add)]
        if readers and self._is_nearer(norm, self.adds[readers[0]].call, or_as_near=True):
            return NormSlot("input", readers[0], skip_normed=True)
        return slot

    def _streams_by_module(self, slots: Sequence[NormSlot]) -> dict[str, dict[str, bool]]:
        """By pattern of modules that add to a stream which later blocks read: whether norms are on a sum of each."""
        continued = 0
        for add in self.adds:
            continued |= self.reachability.stream.get(add.skip, 0) & self.reachability.sums
        streams: dict[str, dict[str, bool]] = {}
        for add in self.adds:
            if self.reachability.bit[add.output] & continued:
                path = self._path(add.call)
                streams.setdefault(pattern(path), {}).setdefault(path, False)
        for slot in slots:
            if slot.name == "stream" and slot.add is not None:
                path = self._path(self.adds[slot.add].call)
                streams.setdefault(pattern(path), {})[path] = True
        return streams

    def _between_stacks(self, norm: Norm, slot: NormSlot, streams: Mapping[str, Mapping[str, bool]]) -> NormSlot:
        """Distinguish the stream norm of a block from a norm between two stacks, which the other blocks do not have."""
        if slot.name != "stream" or slot.add is None:
            return slot
        path = self._path(self.adds[slot.add].call)
        others = [has_norm for other, has_norm in streams[pattern(path)].items() if other != path]
        if not others or any(others) or is_inside(self._place(norm), path):
            return slot
        return NormSlot("transition")

    def _slot_outside(self, norm: Norm) -> NormSlot:
        """The slot of a norm outside all branches."""
        reachability = self.reachability
        earlier = reachability.any.get(norm.input, 0) & reachability.sums
        if norm.output in self._trunk:
            return NormSlot("transition" if earlier else "embedding")
        read_later = any(reachability.comes_from(add.output, norm.output) for add in self.adds)
        if not earlier:
            return NormSlot("embedding" if read_later else "plain")
        on_stream = reachability.stream.get(norm.input, 0) & reachability.sums
        if not on_stream:
            return NormSlot("head")
        end = reachability.latest(on_stream)
        # A level of a backbone may be read by the next level and by a later stack.
        return NormSlot("transition" if read_later and end in self._trunk else "final", self.structure.add_of_sum[end])

    def _with_stack_end(self, norm: Norm, slot: NormSlot, slots: Sequence[NormSlot]) -> NormSlot:
        """Distinguish the stream norm of the last block from a norm after the stack."""
        if slot.name not in ("final", "transition"):
            return slot
        on_sum = self.reachability.plain.get(norm.input, 0) & self.reachability.sums
        end: Landmarks = on_sum or self.reachability.stream.get(norm.input, 0) & self.reachability.sums
        if not end:
            return NormSlot(slot.name)
        index = self.structure.add_of_sum[self.reachability.latest(end)]
        in_block = is_inside(self._place(norm), self._path(self.adds[index].call))
        if on_sum:
            is_stream = self._ends_block(index, in_block, slots) or self._has_sibling_on_sum(norm, slots)
        else:  # another norm is between the sum and this one
            is_stream = in_block and self._adds_one_block(self.adds[index])
        return NormSlot("stream", index) if is_stream else NormSlot(slot.name)

    def _has_sibling_on_sum(self, norm: Norm, slots: Sequence[NormSlot]) -> bool:
        """Whether a norm of the same name in another block is on a sum."""
        place = self._place(norm)
        placed = zip(self.norms, slots, strict=True)
        others = (self._place(other) for other, slot in placed if slot.name == "stream")
        return any(other != place and pattern(other) == pattern(place) for other in others)

    def _ends_block(self, index: AddIndex, in_block: bool, slots: Sequence[NormSlot]) -> bool:
        """Whether a norm on the last sum of a stream belongs to the block of that sum."""
        add, previous = self.adds[index], self._add_before_block(self.adds[index])
        siblings = [
            norm for norm, slot in zip(self.norms, slots, strict=True) if (slot.name, slot.add) == ("stream", previous)
        ]
        if self._adds_one_block(add):
            # A norm outside the module of its block is the block's if those of earlier blocks are outside theirs too.
            return in_block or (
                previous is not None
                and any(not is_inside(self._place(norm), self._path(self.adds[previous].call)) for norm in siblings)
            )
        if previous is not None:
            return bool(siblings)
        # Parallel branches separate at the same value, and one add may own the input norm of them all.
        parallel = [number for number, other in enumerate(self.adds) if other.fork == add.fork]
        if len(parallel) > 1 and self._path(add.call) != "" and in_block:
            return True
        return not {"input", "output"} & {slot.name for slot in slots if slot.add in parallel}

    def _add_before_block(self, add: ResidualAdd) -> AddIndex | None:
        """The last add before the block of this one; the branches of a block separate at the same value."""
        while True:
            previous = self.structure.previous_add(add)
            if previous is None or not self.reachability.joins(add, self.adds[previous]):
                return previous
            add = self.adds[previous]

    def _adds_one_block(self, add: ResidualAdd) -> bool:
        """Whether the module that adds is one block of several, rather than a whole stack."""
        own = self._path(add.call)
        paths = [self._path(other.call) for other in self.adds]
        if own == "" or any(other != own and is_inside(other, own) for other in paths):
            return False
        has_siblings = any(other != own and pattern(other) == pattern(own) for other in paths)
        return has_siblings or sum(other.call == add.call for other in self.adds) == 1

    def _follows_norm(self, norm: Norm) -> bool:
        """Whether the input of a norm is the output of another norm, not mixed with anything computed from it."""
        reachability = self.reachability
        return any(
            other is not norm
            and reachability.comes_plainly(norm.input, other.output)
            and not reachability.mixed.get(norm.input, 0) & reachability.bit[other.output]
            for other in self.norms
        )

    def _is_normalized_again(self, norm: Norm, add: ResidualAdd) -> bool:
        """Whether the branch reads this norm through another norm."""
        return any(
            self.reachability.comes_from(add.branch, other.output)
            and not self.reachability.comes_from(add.fork, other.output)
            and self.reachability.comes_plainly(other.input, norm.output)
            for other in self.norms
            if other is not norm
        )

    def _is_nearer(self, norm: Norm, call: CallId, or_as_near: bool = False) -> bool:
        """Whether a norm is closer, in the module tree, to the add of ``call`` than to what computed its input."""
        maker = self.graph.maker(self.graph.origin(norm.input))
        path, other = self._place(norm), self._path(call)
        source = self._path(maker.call) if maker is not None else ""
        return not in_siblings(path, other) and shared_depth(path, other) + or_as_near > shared_depth(path, source)

    def _place(self, norm: Norm) -> str:
        """The norm's module, or the module that calls it if it is shared with another part of the model."""
        path = self._path(norm.call)
        caller = self._path(self.graph.tape.calls[norm.call].parent) if norm.call >= 0 else ""
        return path if caller == "" or is_inside(path, caller) else caller

    def _caller(self, norm: Norm) -> str:
        """The pattern of the module that calls the norm's module."""
        return pattern(self._path(self.graph.tape.calls[norm.call].parent)) if norm.call >= 0 else ""

    def _path(self, call: CallId) -> str:
        return self.graph.tape.path(call)

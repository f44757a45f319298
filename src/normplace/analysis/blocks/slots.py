"""The slot of every norm, decided by where its input comes from and where its output goes.

======================  =====================================================================================
slot                    what it means
======================  =====================================================================================
``embedding``           on the trunk before the first residual add
``input``               between the stream and the first mixing operator of a branch
``inner.<name>``        between two mixing operators of a branch: q, k, v, pre-output, mid
``output``              between the last mixing operator of a branch and its add
``stream``              on the sum, so that everything after it reads the normalized stream
``skip``                on the skip alone
``final``               on a stream that no further add continues
``transition``          on the trunk between two stacks of blocks
``head``                behind a stack, after a further mixing operator
``plain``               in a network, or a part of one, without residual adds
======================  =====================================================================================
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from normplace.analysis.blocks.attention import AttentionCores
from normplace.analysis.dataflow.graph import Graph
from normplace.analysis.dataflow.operators import MOVES
from normplace.analysis.norms.find import Norm
from normplace.analysis.residuals.adds import Reachability, ResidualAdd
from normplace.analysis.results import pattern


@dataclass(frozen=True)
class Place:
    """Where one norm stands.

    Attributes:
        slot: One of the slots above.
        residual: The position of the add it belongs to among the residual adds, None for the network's ends.
        skip_normed: The branch's input norm feeds the skip too.
    """

    slot: str
    residual: int | None = None
    skip_normed: bool = False


class Placer:
    """Places the norms of one graph."""

    def __init__(
        self, graph: Graph, norms: Sequence[Norm], residuals: Sequence[ResidualAdd], reach: Reachability
    ) -> None:
        self.graph, self.norms, self.residuals, self.reach = graph, norms, residuals, reach
        self.cores = AttentionCores(graph)
        self.sums = {residual.output: at for at, residual in enumerate(residuals)}
        self._carried_by, self._branches_of = self._index()
        self._weighing = [(at, node) for at, node in enumerate(graph.nodes) if node.copies is not None]
        self.trunk = self._trunk()

    def places(self) -> list[Place]:
        """The place of each norm, in the order given."""
        found = [self._place(norm) for norm in self.norms]
        found = self._entries(found)
        if any(place.skip_normed for place in found):
            # In such a stack a norm midway between two adds is the later one's, as its siblings are.
            found = [self._tied(norm, place) for norm, place in zip(self.norms, found, strict=True)]
        return [self._ending(norm, place, found) for norm, place in zip(self.norms, found, strict=True)]

    def _index(self) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
        """For each norm's output, the adds whose skip it is, and the adds in whose branch it is."""
        reach = self.reach
        outputs = 0
        for norm in self.norms:
            outputs |= reach.bit.get(norm.output, 0)
        carried: dict[int, list[int]] = {}
        within: dict[int, list[int]] = {}
        for at, residual in enumerate(self.residuals):
            start = residual.fork if residual.projected else residual.skip
            plain = reach.plain.get(residual.skip, 0) | reach.plain.get(start, 0)
            for value in reach.members(plain & outputs):
                carried.setdefault(value, []).append(at)
            for value in reach.members(reach.any.get(residual.branch, 0) & ~reach.any.get(residual.fork, 0) & outputs):
                within.setdefault(value, []).append(at)
        return carried, within

    def _trunk(self) -> set[int]:
        """Values that lead to the skip of an add other than through the branch of one."""
        seen: set[int] = set()
        queue = [residual.skip for residual in self.residuals]
        skips = {residual.node: residual.skip for residual in self.residuals}
        while queue:
            value = queue.pop()
            if value in seen:
                continue
            seen.add(value)
            at = self.graph.producer.get(value)
            if at is not None:
                queue += [skips[at]] if at in skips else self.graph.nodes[at].inputs
        return seen

    def _place(self, norm: Norm) -> Place:
        reach, residuals = self.reach, self.residuals
        carried, within = self._carried_by.get(norm.output, []), list(self._branches_of.get(norm.output, ()))
        first = self._first_adds(norm) if len(within) > 1 else set()
        within.sort(
            key=lambda at: (at not in first, -reach.bit[residuals[at].fork].bit_length(), residuals[at].node)
        )  # fmt: skip
        if carried:
            around = [at for at in within if self._opens(norm, residuals[at])]
            return Place("input", around[0]) if around else self._carried(norm, carried[0])
        for at in within:
            if self._opens(norm, residuals[at]):
                return Place("input", at)
        inside = [at for at in within if reach.comes_from(norm.input, residuals[at].fork)]
        if inside:
            return self._inside(norm, inside[0])
        # What a branch reads besides the stream may have its own keys and values.
        for at in within:
            operand = self.cores.operand(norm, self.cores.region(residuals[at], reach))
            if operand:
                return Place(f"inner.{operand}", at)
        weighed = self._weighed(norm)
        if weighed is not None:
            return Place("input", weighed)
        # What a branch reads besides the stream, a memory, may be normalized for it alone.
        alone = norm.output not in self.trunk and not reach.any.get(norm.input, 0) & self.reach.sums
        for at in within:
            if alone or self._nearer(norm, residuals[at].call):
                return Place("input", at)
        return self._outside(norm)

    def _inside(self, norm: Norm, at: int) -> Place:
        """A norm behind the beginning of branch ``at``, in which other adds may stand."""
        reach, residual = self.reach, self.residuals[at]
        since = reach.plain.get(norm.input, 0) & self.reach.sums
        sums = [value for value in reach.members(since) if reach.bit[value] > reach.bit[residual.fork]]
        if reach.comes_plainly(residual.branch, norm.output):
            return Place("stream", self.sums[sums[0]]) if sums else Place("output", at)
        if sums and self._leaves(sums[0], residual):
            return Place("input", at)  # the branch reads another stream than the one it is added to
        direct = reach.comes_plainly(norm.input, residual.fork)
        # Behind one add within the branch it reads the stream still; behind a stack of its own it ends that.
        if len(sums) > 1 or (sums and not direct):
            return Place("final")
        if direct:
            return Place("input", at)
        region = self.cores.region(residual, reach)
        return Place(f"inner.{self.cores.role(norm, region, residual, reach)}", at)

    def _first_adds(self, norm: Norm) -> set[int]:
        """The adds whose branches a norm reaches with no other add on the way."""
        branches = {(residual.node, residual.branch): at for at, residual in enumerate(self.residuals)}
        nodes = {residual.node for residual in self.residuals}
        found, seen, queue = set(), set(), [norm.output]
        while queue:
            value = queue.pop()
            if value in seen:
                continue
            seen.add(value)
            for at in self.graph.consumers.get(value, ()):
                if at not in nodes:
                    queue += self.graph.nodes[at].outputs
                elif (at, value) in branches:
                    found.add(branches[at, value])
        return found

    def _leaves(self, value: int, residual: ResidualAdd) -> bool:
        """Whether a sum within a branch is a stream of its own: read outside the branch, and not that of the skip."""
        if self.reach.stream.get(residual.skip, 0) & self.reach.bit[value]:
            return False
        region, seen, queue = self.cores.region(residual, self.reach), set(), [value]
        while queue:
            value = queue.pop()
            if value in seen:
                continue
            seen.add(value)
            if value in self.graph.tape.outputs:
                return True
            for at in self.graph.consumers.get(value, ()):
                if at not in region:
                    return True
                if self.graph.nodes[at].name in MOVES:
                    queue += self.graph.nodes[at].outputs
        return False

    def _weighed(self, norm: Norm) -> int | None:
        """The first add behind a product in which weights made of a norm recombine the copies that it reads."""
        reach = self.reach
        for at, node in self._weighing:
            if at < norm.core or node.copies is None or not reach.comes_plainly(node.copies, norm.input):
                continue
            if any(reach.comes_from(value, norm.output) for value in node.inputs if value != node.copies):
                adds = (at for at, add in enumerate(self.residuals) if reach.comes_from(add.output, norm.output))
                return next(adds, None)
        return None

    def _carries(self, residual: ResidualAdd, norm: Norm) -> bool:
        """Whether an add's skip is what a norm returned, or a projection of it."""
        start = residual.fork if residual.projected else residual.skip
        return self.reach.comes_plainly(residual.skip, norm.output) or self.reach.comes_plainly(start, norm.output)

    def _is_within(self, norm: Norm, residual: ResidualAdd) -> bool:
        return self.reach.comes_from(residual.branch, norm.output) and not self.reach.comes_from(
            residual.fork, norm.output
        )

    def _opens(self, norm: Norm, residual: ResidualAdd) -> bool:
        """Whether a norm reads the fork of a branch with no other add between, whatever small stream it then begins."""
        reach = self.reach
        plain, fork = reach.plain.get(norm.input, 0), reach.bit[residual.fork]
        if not plain & fork:
            return False
        # A later add of another stream, which is concatenated with the fork, is not between.
        later = reach.members(plain & reach.sums & ~(2 * fork - 1))
        return not any(reach.comes_from(value, residual.fork) for value in later)

    def _carried(self, norm: Norm, at: int) -> Place:
        """A norm whose output is the stream that add ``at`` reads."""
        reach, residual = self.reach, self.residuals[at]
        before = reach.any.get(norm.input, 0) & self.reach.sums
        on_sum = reach.plain.get(norm.input, 0) & self.reach.sums
        later = on_sum.bit_length() > reach.bit[residual.fork].bit_length()
        if (
            not later
            and not reach.comes_from(residual.branch, norm.output)
            and reach.comes_from(norm.input, residual.fork)
        ):
            return Place("skip", at)
        if self._nearer(norm, residual.call) and not self._normed_again(norm, residual):
            return Place("input", at, skip_normed=True)
        if on_sum:
            return Place("stream", self.sums[reach.latest(on_sum)])
        if not before:
            return Place("embedding")
        return Place("stream", self.sums[reach.latest(before)]) if self._follows_norm(norm) else Place("transition")

    def _entries(self, found: list[Place]) -> list[Place]:
        """A norm at the entry of a stack is no branch's own where the norms after it stand on the sums."""
        entries = {
            at
            for at, (norm, place) in enumerate(zip(self.norms, found, strict=True))
            if place.skip_normed and not self.reach.any.get(norm.input, 0) & self.reach.sums
        }
        later = any(place.skip_normed for at, place in enumerate(found) if at not in entries)
        if later or not any(place.slot == "stream" for place in found):
            return found
        return [Place("embedding") if at in entries else place for at, place in enumerate(found)]

    def _tied(self, norm: Norm, place: Place) -> Place:
        """A norm on a sum that is as near to the add that reads it as to the one it follows, given to the former."""
        if place.slot != "stream":
            return place
        carried = [at for at, other in enumerate(self.residuals) if self._carries(other, norm)]
        if carried and self._nearer(norm, self.residuals[carried[0]].call, or_as_near=True):
            return Place("input", carried[0], skip_normed=True)
        return place

    def _outside(self, norm: Norm) -> Place:
        reach = self.reach
        before = reach.any.get(norm.input, 0) & self.reach.sums
        if norm.output in self.trunk:
            return Place("transition" if before else "embedding")
        if not before:
            later = any(reach.comes_from(residual.output, norm.output) for residual in self.residuals)
            return Place("embedding" if later else "plain")
        directly = reach.stream.get(norm.input, 0) & self.reach.sums
        if not directly:
            return Place("head")
        end = reach.latest(directly)
        # A level of a backbone that the next one reads too, and a later stack besides.
        read = any(reach.comes_from(residual.output, norm.output) for residual in self.residuals)
        return Place("transition" if read and end in self.trunk else "final", self.sums[end])

    def _ending(self, norm: Norm, place: Place, found: Sequence[Place]) -> Place:
        """Tell the last block's own norm on the sum from a norm behind the stack, which look alike from the stream."""
        if place.slot not in ("final", "transition"):
            return place
        on_sum = self.reach.plain.get(norm.input, 0) & self.reach.sums
        behind = on_sum or self.reach.stream.get(norm.input, 0) & self.reach.sums
        if not behind:
            return Place(place.slot)
        at = self.sums[self.reach.latest(behind)]
        residual = self.residuals[at]
        if not on_sum:  # another norm stands between
            own = self._is_block(residual) and _within(self._path(norm.call), self._path(residual.call))
            return Place("stream", at) if own else Place(place.slot)
        before = self._before(residual)
        likewise = [
            other
            for other, its in zip(self.norms, found, strict=True)
            if (its.slot, its.residual) == ("stream", before)
        ]
        if self._is_block(residual):
            own = _within(self._path(norm.call), self._path(residual.call))
            # A norm beside the block is the block's if those of earlier blocks stand beside theirs too.
            beside = before is not None and any(
                not _within(self._path(other.call), self._path(self.residuals[before].call)) for other in likewise
            )
            stream = own or beside
        elif before is not None:
            stream = bool(likewise)
        else:
            # Parallel branches part from the same value, and one add may own the input norm of them all.
            joined = [other for other, its in enumerate(self.residuals) if its.fork == residual.fork]
            has = {its.slot for its in found if its.residual in joined}
            path = self._path(residual.call)
            own = len(joined) > 1 and path != "" and _within(self._path(norm.call), path)
            stream = own or not {"input", "output"} & has
        return Place("stream", at) if stream else Place(place.slot)

    def _before(self, residual: ResidualAdd) -> int | None:
        """The last add before the block of this one, whose branches all part from the same value."""
        while True:
            previous = self.reach.stream.get(residual.skip, 0) & self.reach.sums
            if not previous:
                return None
            at = self.sums[self.reach.latest(previous)]
            if not self.reach.joins(residual, self.residuals[at]):
                return at
            residual = self.residuals[at]

    def _is_block(self, residual: ResidualAdd) -> bool:
        """Whether the module that adds is one block of several, rather than one that holds a whole stack."""
        own = self._path(residual.call)
        paths = [self._path(other.call) for other in self.residuals]
        if own == "" or any(other != own and _within(other, own) for other in paths):
            return False
        alike = any(other != own and pattern(other) == pattern(own) for other in paths)
        return alike or sum(other.call == residual.call for other in self.residuals) == 1

    def _follows_norm(self, norm: Norm) -> bool:
        """Whether what a norm reads is another one's result, and not a mixture of that with what was made of it."""
        reach = self.reach
        return any(
            other is not norm
            and reach.comes_plainly(norm.input, other.output)
            and not reach.mixed.get(norm.input, 0) & reach.bit[other.output]
            for other in self.norms
        )

    def _normed_again(self, norm: Norm, residual: ResidualAdd) -> bool:
        """Whether the branch reads this norm through one of its own."""
        return any(
            self._is_within(other, residual) and self.reach.comes_plainly(other.input, norm.output)
            for other in self.norms
            if other is not norm
        )

    def _nearer(self, norm: Norm, call: int, or_as_near: bool = False) -> bool:
        """Whether a norm is closer, in the tree of modules, to the add of ``call`` than to what made its input."""
        maker = self.graph.maker(self.graph.origin(norm.input))
        path = self._path(norm.call)
        source = self._path(maker.call) if maker is not None else ""
        return _shared_depth(path, self._path(call)) + or_as_near > _shared_depth(path, source)

    def _path(self, call: int) -> str:
        return self.graph.tape.calls[call].path if call >= 0 else ""


def _shared_depth(one: str, other: str) -> int:
    depth = 0
    for first, second in zip(one.split(".") if one else (), other.split("."), strict=False):
        if first != second:
            break
        depth += 1
    return depth


def _within(path: str, module: str) -> bool:
    return path == module or path.startswith(f"{module}.")
